"""Rules on batch normalization, and on the blocks of a residual net that start at zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from caffe_recipes.caffe import pb
from caffe_recipes.review.findings import Severity
from caffe_recipes.review.lint.nets.view import Draft, PhaseNet, number, show_names, title

RULES: dict[str, tuple[Severity, str]] = {
    "batch-norm-learned": ("error", "lr_mult other than 0 for some of a BatchNorm's statistics"),
    "batch-norm-frozen": ("note", "use_global_stats: true in TRAIN"),
    "batch-norm-per-batch": ("warning", "use_global_stats: false in TEST"),
    "batch-norm-unscaled": ("note", "BatchNorm without a Scale after it"),
    "batch-norm-scale-missing": ("warning", "one BatchNorm without a Scale, where many others have one"),
    "scale-bias-missing": ("warning", "one Scale after BatchNorm without a bias, where many others have one"),
    "moving-average-range": ("error", "a moving_average_fraction that is not above 0 and at most 1"),
    "batch-norms-differ": ("note", "BatchNorms that differ in moving_average_fraction or eps"),
    "bias-before-norm": ("note", "a bias that the BatchNorm after it takes off again"),
    "zero-start-partly": ("note", "some residual blocks only start at zero"),
}

# Sum of means, sum of variances, running factor: counted, not learned.
_STATISTICS = 3
# So many times more layers make the others a slip.
_SLIP_TIMES = 4
_BIASED = {"Convolution": "convolution_param", "InnerProduct": "inner_product_param"}


def check_norms(phase: PhaseNet) -> Iterator[Draft]:
    """Check the BatchNorms of a phase, each kind of finding told once."""
    norms = [i for i, layer in enumerate(phase.layers) if layer.type == "BatchNorm"]
    for i in norms:
        yield from _learned(phase, i)
    yield from _global_stats(phase, norms)
    yield from _unscaled(phase, norms)
    yield from _unbiased(phase, norms)
    yield from _fraction(phase, norms)
    for field in ("moving_average_fraction", "eps"):
        yield from _differing(phase, norms, field)
    yield from _biased(phase, norms)
    yield from _zero_start(phase)


def _names(phase: PhaseNet, layers: Sequence[int]) -> str:
    count = "1 layer" if len(layers) == 1 else f"{len(layers)} layers"
    return f"{count} ({show_names([phase.layers[i].name for i in layers])})"


def _learned(phase: PhaseNet, i: int) -> Iterator[Draft]:
    layer = phase.layers[i]
    # Three are an old net's: Caffe upgrades it, and makes each 0.
    if len(layer.param) == _STATISTICS:
        return
    for p, param in enumerate(layer.param[:_STATISTICS]):
        if param.lr_mult != 0:
            yield Draft(
                "batch-norm-learned",
                phase.where(i),
                f"param[{p}].lr_mult" if param.HasField("lr_mult") else f"param[{p}]",
                f"{title(layer)} has lr_mult {number(param.lr_mult)} for its statistics",
                "Caffe stops: Cannot configure batch normalization statistics as layer parameters",
                "param { lr_mult: 0 } three times, or none",
            )
            return


def _global_stats(phase: PhaseNet, norms: Sequence[int]) -> Iterator[Draft]:
    train = phase.phase == pb.TRAIN
    wrong = [
        i
        for i in norms
        if phase.layers[i].batch_norm_param.HasField("use_global_stats")
        and phase.layers[i].batch_norm_param.use_global_stats == train
    ]
    if not wrong or phase.is_fed:
        return
    if train:
        yield Draft(
            "batch-norm-frozen",
            phase.where(wrong[0]),
            "batch_norm_param.use_global_stats",
            f"{_names(phase, wrong)} of BatchNorm with use_global_stats: true in TRAIN",
            "they normalize by the statistics of the weights given, and by nothing where none are given",
            "leave it out to train from the start",
            (("layers", len(wrong)),),
        )
    else:
        yield Draft(
            "batch-norm-per-batch",
            phase.where(wrong[0]),
            "batch_norm_param.use_global_stats",
            f"{_names(phase, wrong)} of BatchNorm with use_global_stats: false in TEST",
            "the accuracy depends on which images share a batch, and on batch_size",
            "leave it out: absent means true in TEST and false in TRAIN",
            (("layers", len(wrong)),),
        )


def _scale_of(phase: PhaseNet, norm: int) -> int | None:
    """Find the Scale that reads what a BatchNorm makes."""
    readers = phase.flow.readers.get((norm, 0), ())
    return next((reader for reader, _ in readers if phase.layers[reader].type == "Scale"), None)


def _is_slip(odd: Sequence[int], all_of_them: Sequence[int]) -> bool:
    """Whether a few layers that are unlike many others are so by mistake."""
    return len(odd) * (_SLIP_TIMES + 1) <= len(all_of_them)


def _unscaled(phase: PhaseNet, norms: Sequence[int]) -> Iterator[Draft]:
    alone = [i for i in norms if _scale_of(phase, i) is None]
    if not alone:
        return
    is_slip = _is_slip(alone, norms)
    others = f", and {len(norms) - len(alone)} others have one" if is_slip else ""
    yield Draft(
        "batch-norm-scale-missing" if is_slip else "batch-norm-unscaled",
        phase.where(alone[0]),
        "type",
        f"{_names(phase, alone)} of BatchNorm without a Scale after it{others}",
        "in the plain engine nothing learns the scale and shift that batch normalization is made with",
        'layer { type: "Scale" scale_param { bias_term: true } } after each',
        (("layers", len(alone)),),
    )


def _unbiased(phase: PhaseNet, norms: Sequence[int]) -> Iterator[Draft]:
    scales = [scale for i in norms if (scale := _scale_of(phase, i)) is not None]
    plain = [i for i in scales if not phase.layers[i].scale_param.bias_term]
    if plain and _is_slip(plain, scales):
        yield Draft(
            "scale-bias-missing",
            phase.where(plain[0]),
            "scale_param.bias_term" if phase.layers[plain[0]].scale_param.HasField("bias_term") else "type",
            f"{_names(phase, plain)} of Scale after BatchNorm without a bias, and "
            f"{len(scales) - len(plain)} others have one",
            "what these normalize keeps the mean 0: no shift is learned",
            "scale_param { bias_term: true }",
            (("layers", len(plain)),),
        )


def _fraction(phase: PhaseNet, norms: Sequence[int]) -> Iterator[Draft]:
    wrong = [i for i in norms if not 0 < phase.layers[i].batch_norm_param.moving_average_fraction <= 1]
    if wrong:
        fraction = phase.layers[wrong[0]].batch_norm_param.moving_average_fraction
        yield Draft(
            "moving-average-range",
            phase.where(wrong[0]),
            "batch_norm_param.moving_average_fraction",
            f"{_names(phase, wrong)} of BatchNorm with moving_average_fraction {number(fraction)}",
            "the sums of means and variances grow without bound, until they are NaN"
            if fraction > 1
            else "a test sees the statistics of the last batch alone"
            if fraction == 0
            else "the sums change their sign at every iteration: tests are of no use",
            "moving_average_fraction: 0.95, or another above 0 and at most 1",
            (("layers", len(wrong)),),
        )


def _differing(phase: PhaseNet, norms: Sequence[int], field: str) -> Iterator[Draft]:
    values = [getattr(phase.layers[i].batch_norm_param, field) for i in norms]
    counts = Counter(values)
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    odd = [i for i, value in zip(norms, values, strict=True) if value != usual]
    others = ", ".join(number(value) for value in counts if value != usual)
    yield Draft(
        "batch-norms-differ",
        phase.where(odd[0]),
        f"batch_norm_param.{field}",
        f"BatchNorm has {field} {number(usual)} in {counts[usual]} layers, {others} in {_names(phase, odd)}",
        "their statistics do not follow the weights alike",
        f"give all the same {field}",
        (("layers", len(odd)),),
    )


def _biased(phase: PhaseNet, norms: Sequence[int]) -> Iterator[Draft]:
    biased = []
    for i in norms:
        made = phase.maker(i, 0)
        if made is not None and made[0] >= 0 and len(phase.flow.readers[made]) == 1:
            block = _BIASED.get(phase.layers[made[0]].type)
            if block and getattr(phase.layers[made[0]], block).bias_term:
                biased.append(made[0])
    if biased:
        yield Draft(
            "bias-before-norm",
            phase.where(biased[0]),
            _BIASED[phase.layers[biased[0]].type],
            f"{_names(phase, biased)} with a bias before BatchNorm, which takes it off with the mean",
            "the bias is stored, sent and updated, and changes nothing",
            "bias_term: false, unless weights with a bias are to be read",
            (("layers", len(biased)),),
        )


def _zero_start(phase: PhaseNet) -> Iterator[Draft]:
    zero: list[int] = []
    other: list[int] = []
    for i, layer in enumerate(phase.layers):
        if layer.type == "Eltwise" and layer.eltwise_param.operation == pb.EltwiseParameter.SUM:
            starts = [_starts_at_zero(phase, i, b) for b in range(len(layer.bottom))]
            if any(start is not None for start in starts):
                (zero if any(starts) else other).append(i)
    if not zero or not other:
        return
    blocks = len(zero) + len(other)

    def show(layers: Sequence[int], most: int) -> str:
        return show_names([phase.layers[i].name for i in layers], most)

    yield Draft(
        "zero-start-partly",
        phase.where(zero[0]),
        "name",
        f"{len(zero)} of {blocks} residual blocks end in a BatchNorm or Scale whose filler is 0: "
        f"{show(zero, 16)}; not {show(other, 4)}",
        "these start as if they were not there, the others do not; the plain engine reads the filler of "
        "Scale alone, MKL-DNN that of BatchNorm",
        "filler { value: 0 } in the last BatchNorm of every block, if that is meant",
        (("zero", len(zero)), ("blocks", blocks)),
    )


def _starts_at_zero(phase: PhaseNet, i: int, b: int) -> bool | None:
    """Whether the norm that ends a branch starts at 0; None if the branch ends in no norm."""
    made, zero, normed = phase.maker(i, b), False, False
    while made is not None and made[0] >= 0:
        layer = phase.layers[made[0]]
        if layer.type not in ("BatchNorm", "Scale"):
            break
        block = layer.batch_norm_param if layer.type == "BatchNorm" else layer.scale_param
        filler = block.filler
        zero |= block.HasField("filler") and filler.type == "constant" and filler.value == 0
        normed |= layer.type == "BatchNorm"
        made = phase.maker(made[0], 0)
    return zero if normed else None
