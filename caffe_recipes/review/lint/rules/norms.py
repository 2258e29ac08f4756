"""Rules for batch normalization, and residual blocks that start as the identity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.layer_types.normalization import has_own_scale
from caffe_recipes.review.lint.layer_blocks import LINEAR_BLOCKS
from caffe_recipes.review.lint.net_text import layer_finding, layers_finding, show_names, show_number
from caffe_recipes.review.lint.registry import Explanation, finding
from caffe_recipes.review.lint.subjects import norm_rule

if TYPE_CHECKING:
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.net_view import NetView, PhaseNet


# The blobs of a BatchNorm: sum of means, sum of variances, running factor. They are statistics, not learned.
_STATISTICS_BLOBS = 3
# If a few layers differ from this many times more others, they probably do so by mistake.
_MISTAKE_RATIO = 4
_MKL_ENGINES = ("MKL2017", "MKLDNN")


def _find_norms(phase: PhaseNet) -> list[int]:
    return [i for i, layer in enumerate(phase.layers) if layer.type == "BatchNorm"]


@norm_rule(
    "batch-norm-learned",
    "error",
    "a non-zero lr_mult for BatchNorm statistics",
    what="{layer} has lr_mult {value} for its statistics",
    effect="Caffe aborts: Cannot configure batch normalization statistics as layer parameters",
    write="write param {{ lr_mult: 0 }} three times, or no param",
)
@norm_rule(
    "batch-norm-multipliers",
    "warning",
    "a non-zero lr_mult for BatchNorm statistics, in an engine that does not check it",
    what="{layer} has lr_mult {value} for its statistics",
    effect="the MKL engines abort; in the plain engine, weight decay changes the statistics",
    write="write param {{ lr_mult: 0 }} three times, or no param",
)
def check_statistics_rates(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Find BatchNorms whose statistics would be learned."""
    is_intels = view.dialect.knows("NetParameter", "engine")
    # NVIDIA's Caffe sets the lr_mult of the statistics to 0 itself (its batch_norm_layer.cpp).
    for i in () if view.dialect.knows("BatchNormParameter", "scale_bias") else _find_norms(phase):
        yield from _check_statistics_rate(phase, i, is_intels=is_intels)


def _check_statistics_rate(phase: PhaseNet, i: int, *, is_intels: bool) -> Iterator[Finding]:
    layer = phase.layers[i]
    # BVLC's Caffe sets three params, as old nets have them, to 0; Intel's does not.
    if not is_intels and len(layer.param) == _STATISTICS_BLOBS:
        return
    is_refused = not is_intels or _engine_of(phase, layer) in _MKL_ENGINES
    for p, param in enumerate(layer.param[:_STATISTICS_BLOBS]):
        if param.lr_mult != 0:
            yield layer_finding(
                "batch-norm-learned" if is_refused else "batch-norm-multipliers",
                phase,
                i,
                f"param[{p}].lr_mult" if param.HasField("lr_mult") else f"param[{p}]",
                value=show_number(param.lr_mult),
            )
            return


def _engine_of(phase: PhaseNet, layer: pb.LayerParameter) -> str:
    """Return the engine of a BatchNorm, as set in the layer or the net; empty if not set."""
    given = layer.batch_norm_param.engine
    if given != pb.BatchNormParameter.DEFAULT:
        return pb.BatchNormParameter.Engine.Name(given)
    return (layer.engine or phase.net.engine).partition(":")[0]


@norm_rule(
    "batch-norm-frozen",
    "note",
    "use_global_stats: true in TRAIN",
    what="use_global_stats: true in TRAIN in {names}",
    effect="these layers normalize with the statistics from --weights; without --weights these are empty, "
    "and each layer multiplies by 1/sqrt(eps)",
    write="remove it to train from scratch",
    values=("layers",),
)
@norm_rule(
    "batch-norm-per-batch",
    "warning",
    "use_global_stats: false in TEST",
    what="use_global_stats: false in TEST in {names}",
    effect="the accuracy depends on batch_size, and on which images share a batch",
    write="remove it: the default is true in TEST and false in TRAIN",
    values=("layers",),
)
def check_global_stats(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Find BatchNorms that use the statistics of the wrong kind for their phase."""
    norms = _find_norms(phase)
    train = phase.phase == pb.TRAIN
    wrong = [
        i
        for i in norms
        if phase.layers[i].batch_norm_param.HasField("use_global_stats")
        and phase.layers[i].batch_norm_param.use_global_stats == train
    ]
    if not wrong or phase.is_fed_by_code:
        return
    yield layers_finding(
        "batch-norm-frozen" if train else "batch-norm-per-batch",
        phase,
        wrong,
        "batch_norm_param.use_global_stats",
        "BatchNorm",
    )


def _find_scales(phase: PhaseNet, norms: Sequence[int]) -> dict[int, int]:
    """Return the first Scale behind each BatchNorm, directly or through layers that keep its values.

    In C.ReLU it reads the Concat of the BatchNorm and its negative, for example.
    """
    found: dict[int, int] = {}
    for i in reversed(range(len(phase.layers))):
        if phase.layers[i].type != "BatchNorm" and not type_of(phase.layers[i]).is_elementwise:
            continue
        readers = [reader for t in range(len(phase.layers[i].top)) for reader, _ in phase.flow.readers[i, t]]
        scales = [
            reader if phase.layers[reader].type == "Scale" else found[reader]
            for reader in readers
            if phase.layers[reader].type == "Scale"
            or (type_of(phase.layers[reader]).is_elementwise and reader in found)
        ]
        if scales:
            found[i] = min(scales)
    return {i: found[i] for i in norms if i in found}


def _is_likely_mistake(odd: Sequence[int], all_of_them: Sequence[int]) -> bool:
    """Return whether so few layers differ from the others that it is probably a mistake."""
    return len(odd) * (_MISTAKE_RATIO + 1) <= len(all_of_them)


@norm_rule(
    "batch-norm-scale-missing",
    "warning",
    "a few BatchNorms without a Scale, where many others have one",
    what="{names} without a Scale after it; {others} others have one",
    effect="with the plain engine, the scale and shift of batch normalization are missing",
    write='add layer {{ type: "Scale" scale_param {{ bias_term: true }} }} after each',
    values=("layers",),
)
@norm_rule(
    "batch-norm-unscaled",
    "note",
    "BatchNorms without a Scale after them",
    what="{names} without a Scale after it",
    effect="with the plain engine, the scale and shift of batch normalization are missing",
    write='add layer {{ type: "Scale" scale_param {{ bias_term: true }} }} after each',
    values=("layers",),
)
def check_scales(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Find BatchNorms without a Scale after them."""
    norms = _find_norms(phase)
    scales = _find_scales(phase, norms)
    alone = [i for i in norms if i not in scales and not has_own_scale(phase.given_layer(i))]
    if not alone:
        return
    is_slip = _is_likely_mistake(alone, norms)
    yield layers_finding(
        "batch-norm-scale-missing" if is_slip else "batch-norm-unscaled",
        phase,
        alone,
        "type",
        "BatchNorm",
        others=len(norms) - len(alone),
    )


@norm_rule(
    "scale-bias-missing",
    "warning",
    "a few Scales after BatchNorm without a bias, where many others have one",
    what="{names} after BatchNorm without a bias; {others} others have one",
    effect="their outputs keep a mean of 0: no shift is learned",
    write="scale_param {{ bias_term: true }}",
    values=("layers",),
)
def check_biases(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Find the few Scales after a BatchNorm that have no bias."""
    norms = _find_norms(phase)
    scales = [*dict.fromkeys(_find_scales(phase, norms).values())]
    plain = [i for i in scales if not phase.layers[i].scale_param.bias_term]
    if plain and _is_likely_mistake(plain, scales):
        is_set = phase.layers[plain[0]].scale_param.HasField("bias_term")
        yield layers_finding(
            "scale-bias-missing",
            phase,
            plain,
            "scale_param.bias_term" if is_set else "type",
            "Scale",
            others=len(scales) - len(plain),
        )


@norm_rule(
    "moving-average-range",
    "error",
    "a moving_average_fraction that is 0 or less, or above 1",
    what="{names} with moving_average_fraction {fraction}",
    write="moving_average_fraction: 0.95, or another value above 0 and at most 1",
    values=("layers",),
)
def check_fractions(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Find BatchNorms whose moving averages never settle."""
    norms = _find_norms(phase)
    wrong = [i for i in norms if not 0 < phase.layers[i].batch_norm_param.moving_average_fraction <= 1]
    if wrong:
        fraction = phase.layers[wrong[0]].batch_norm_param.moving_average_fraction
        yield layers_finding(
            "moving-average-range",
            phase,
            wrong,
            "batch_norm_param.moving_average_fraction",
            "BatchNorm",
            effect="the sums of means and variances grow without bound, until they are NaN"
            if fraction > 1
            else "a test uses the statistics of the last batch only"
            if fraction == 0
            else "the sums change sign at every iteration, so tests are meaningless",
            fraction=show_number(fraction),
        )


@norm_rule(
    "batch-norms-differ",
    "note",
    "BatchNorms that differ in moving_average_fraction or eps",
    what="BatchNorm has {field} {usual} in {usual_count} layers, {others} in {names}",
    effect="their statistics follow the weights at different speeds",
    write="use the same {field} in all",
    values=("layers",),
)
def check_norms_agree(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Find the BatchNorms that differ from most others."""
    norms = _find_norms(phase)
    for field in ("moving_average_fraction", "eps"):
        yield from _check_norms_agree(phase, norms, field)


def _check_norms_agree(phase: PhaseNet, norms: Sequence[int], field: str) -> Iterator[Finding]:
    values = [getattr(phase.layers[i].batch_norm_param, field) for i in norms]
    counts = Counter(values)
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    odd = [i for i, value in zip(norms, values, strict=True) if value != usual]
    others = ", ".join(show_number(value) for value in counts if value != usual)
    yield layers_finding(
        "batch-norms-differ",
        phase,
        odd,
        f"batch_norm_param.{field}",
        field=field,
        usual=show_number(usual),
        usual_count=counts[usual],
        others=others,
    )


@norm_rule(
    "bias-before-norm",
    "note",
    "a bias directly before a BatchNorm, which subtracts it again",
    what="{names} with a bias before BatchNorm, which subtracts it with the mean",
    effect="the bias is stored, communicated and updated, but has no effect",
    write="bias_term: false, unless the net must load weights that have a bias",
    values=("layers",),
)
def check_biases_before_norms(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Find biases that a BatchNorm subtracts again."""
    norms = _find_norms(phase)
    biased = []
    for i in norms:
        blob = phase.producer(i, 0)
        if blob is not None and blob[0] >= 0 and len(phase.flow.readers[blob]) == 1:
            block = LINEAR_BLOCKS.get(phase.layers[blob[0]].type)
            if block and getattr(phase.layers[blob[0]], block).bias_term:
                biased.append(blob[0])
    if biased:
        field = LINEAR_BLOCKS[phase.layers[biased[0]].type]
        yield layers_finding("bias-before-norm", phase, biased, field)


@norm_rule(
    "zero-start-partly",
    "note",
    "a net in which only some residual blocks start as the identity",
    what="{zero} of {blocks} residual blocks end in a BatchNorm or Scale whose filler is 0: "
    "{zero_names}; not {other_names}",
    effect="these blocks start as the identity, and the others do not; the plain engine reads only "
    "the filler of Scale, and MKL-DNN only that of BatchNorm",
    write="if it is intended for all, set filler {{ value: 0 }} in the last BatchNorm of every block",
    values=("zero", "blocks"),
    explanation=Explanation(
        "A residual block whose last normalization starts at 0 starts as the identity, which "
        "helps training with large batches. The paper does this in every block, and the "
        "published files in the last block of each stage.",
        "Set the filler in the last BatchNorm or Scale of every block, or accept the finding.",
    ),
)
def check_zero_starts(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Find nets in which only some residual blocks start as the identity."""
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

    def show(layers: Sequence[int], limit: int) -> str:
        return show_names([phase.layers[i].name for i in layers], limit)

    yield finding(
        "zero-start-partly",
        phase.where(zero[0], "name"),
        zero=len(zero),
        blocks=blocks,
        zero_names=show(zero, 16),
        other_names=show(other, 4),
    )


def _starts_at_zero(phase: PhaseNet, i: int, b: int) -> bool | None:
    """Return whether the normalization at the end of a branch starts at 0; None if there is none."""
    zero = normed = False
    for above in phase.layers_above(i, b):
        layer = phase.layers[above]
        if type_of(layer).keeps_zero:
            continue
        if layer.type not in ("BatchNorm", "Scale"):
            break
        block = layer.batch_norm_param if layer.type == "BatchNorm" else layer.scale_param
        filler = getattr(phase.given_layer(above).batch_norm_param, "scale_filler", None)  # NVIDIA's
        filler = filler if filler and filler.ListFields() else block.filler
        zero |= bool(filler.ListFields()) and filler.type == "constant" and filler.value == 0
        normed |= layer.type == "BatchNorm"
    return zero if normed else None
