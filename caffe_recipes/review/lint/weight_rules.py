"""Rules on weights: their fillers, batch normalization, and what a net learns and is measured by."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.refusals import closed_bottoms
from caffe_recipes.caffe.shape_rules import product
from caffe_recipes.caffe.shapes import show_shape
from caffe_recipes.review.lint.data_rules import CLASSIFIERS, is_computed, outputs_of
from caffe_recipes.review.lint.layer_rules import fills
from caffe_recipes.review.lint.net_view import (
    LEARNED_TYPES,
    Blob,
    filler_fields,
    has_loss_top,
    is_loss,
    layer_field,
    show_layers,
    show_names,
    show_number,
    title,
)
from caffe_recipes.review.lint.rules import Explanation, finding, rule

if TYPE_CHECKING:
    from caffe_recipes.caffe.shape_rules import Shape
    from caffe_recipes.review.lint.net_view import (
        NetView,
        PhaseNet,
    )
    from caffe_recipes.review.lint.rules import Finding

filler_rule = partial(rule, "a net: where weights start")
norm_rule = partial(
    rule, "a net: batch normalization, and on the blocks of a residual net that start at zero"
)
learning_rule = partial(
    rule,
    "a net: what a net learns, and is measured by: rates of its weights, weights of its losses, accuracies",
)

_TYPES = ("bilinear", "constant", "gaussian", "msra", "positive_unitball", "uniform", "xavier")
_OF_INTELS = ("gabor",)
_WEIGHTS = {
    "Convolution": "convolution_param",
    "Deconvolution": "convolution_param",
    "InnerProduct": "inner_product_param",
}
# What must be written, or the default is far from what anybody trains with.
_SPREADS = {
    "gaussian": ("std", "std 1", 'type: "msra", or std: 0.01'),
    "uniform": ("min", "0 to 1, all above 0", "min: -0.1 max: 0.1"),
}


@filler_rule("unknown-filler", "error", "a filler type that Caffe does not have")
@filler_rule("filler-misfit", "error", "a filler that does not fit its blob: bilinear, or too sparse")
@filler_rule(
    "filler-default-spread", "warning", "a gaussian filler without std, or a uniform one without range"
)
def check_fillers(view: NetView) -> Iterator[Finding]:
    """Check the fillers that each layer of the file reads."""
    known = (*_TYPES, *(_OF_INTELS if view.dialect.knows("FillerParameter", "scale") else ()))
    for index, layer in enumerate(view.net.layer):
        for path, filler in filler_fields(layer):
            if not fills(view, layer, path):
                continue
            if filler.type not in known:
                near = difflib.get_close_matches(filler.type, known, n=1, cutoff=0)
                yield finding(
                    "unknown-filler",
                    layer_field(index, f"{path}.type"),
                    f"{title(layer)} has a filler of type '{filler.type}'",
                    effect=f"Caffe stops: Unknown filler name: {filler.type}",
                    write=f'type: "{near[0]}"',
                )
            elif path.endswith("weight_filler") and filler.type in _SPREADS:
                field, default, write = _SPREADS[filler.type]
                if not filler.HasField(field) and not (filler.type == "uniform" and filler.HasField("max")):
                    yield finding(
                        "filler-default-spread",
                        layer_field(index, path),
                        f"{title(layer)} has a {filler.type} filler without {field}",
                        effect=f"its weights start with {default}: the loss starts huge, or NaN",
                        write=write,
                    )
            misfit = _misfit(layer, path, filler)
            if misfit:
                field, what, effect, write = misfit
                yield finding(
                    "filler-misfit",
                    layer_field(index, f"{path}.{field}"),
                    f"{title(layer)} has {what}",
                    effect=effect,
                    write=write,
                )


def _misfit(
    layer: pb.LayerParameter, path: str, filler: pb.FillerParameter
) -> tuple[str, str, str, str] | None:
    """Say why a filler does not fit its blob: the field, what is wrong, what happens, what to write."""
    block = _WEIGHTS.get(layer.type)
    outputs = getattr(layer, block).num_output if block and path.endswith("weight_filler") else 0
    # Caffe takes a share of the blob's first axis: of these two it is the inputs, which no field says.
    is_turned = layer.type == "Deconvolution" or layer.inner_product_param.transpose
    if filler.type == "gaussian" and 0 < outputs < filler.sparse and not is_turned:
        what = f"a filler that is sparse: {filler.sparse}, for {outputs} outputs"
        return "sparse", what, "Caffe stops: a share is from 0 to 1", f"sparse: below {outputs}"
    if filler.type != "bilinear" or layer.type == "DummyData":  # whose blobs have any shape
        return None
    if path != "convolution_param.weight_filler":
        what = "a bilinear filler for a blob that does not have 4 axes"
        return "type", what, "Caffe stops: Blob must be 4 dim", 'type: "xavier"'
    param = layer.convolution_param
    sides = list(param.kernel_size) or [param.kernel_h, param.kernel_w]
    if len(sides) == 2 and sides[0] != sides[1]:
        what = f"a bilinear filler of a kernel {sides[0]}x{sides[1]}"
        return "type", what, "Caffe stops: Filter must be square", "a kernel as high as it is wide"
    return None


@filler_rule(
    "zero-weights",
    "warning",
    "a few weights without a filler, which start at 0",
    effect="their weights start at 0, unless --weights hold them: all outputs stay alike, and the layers "
    "below get no gradient",
    write='weight_filler { type: "msra" }',
)
@filler_rule(
    "no-fillers",
    "note",
    "most weights without a filler: a net to be started from --weights",
    effect="the net is for starting from weights: without --weights these start at 0 and learn nothing",
    write='weight_filler { type: "msra" } in each, to train from the start',
)
def check_zero_weights(phase: PhaseNet) -> Iterator[Finding]:
    """Check that weights which are trained have a filler."""
    if phase.phase != pb.TRAIN or phase.is_fed or not any(map(is_loss, phase.layers)):
        return
    weighted = [i for i, layer in enumerate(phase.layers) if layer.type in _WEIGHTS]
    empty = [i for i in weighted if _is_learned(phase.layers[i]) and not _has_filler(phase.layers[i])]
    if not empty:
        return
    names = _show(phase, empty)
    if 2 * len(empty) > len(weighted):
        yield finding(
            "no-fillers",
            phase.where(empty[0], "type"),
            f"{names} without weight_filler, of {len(weighted)} with weights",
            layers=len(empty),
        )
        return
    yield finding(
        "zero-weights",
        phase.where(empty[0], "type"),
        f"{names} without weight_filler, while others have one",
        layers=len(empty),
    )


def _is_learned(layer: pb.LayerParameter) -> bool:
    return not layer.param or (layer.param[0].lr_mult != 0 and not layer.param[0].name)


def _has_filler(layer: pb.LayerParameter) -> bool:
    block = getattr(layer, _WEIGHTS[layer.type])
    filler: pb.FillerParameter = block.weight_filler
    if filler.type == "uniform":
        return bool(filler.min or filler.max)
    # A sparse filler keeps that many values of each output.
    return filler.sparse != 0 if filler.type == "gaussian" else filler.type != "constant" or filler.value != 0


# Sum of means, sum of variances, running factor: counted, not learned.
_STATISTICS = 3
# So many times more layers make the others a slip.
_SLIP_TIMES = 4
_LINEAR = {"Convolution": "convolution_param", "InnerProduct": "inner_product_param"}


_OF_MKL = ("MKL2017", "MKLDNN")


def check_norms(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Check the BatchNorms of a phase, each kind of finding told once."""
    norms = [i for i, layer in enumerate(phase.layers) if layer.type == "BatchNorm"]
    is_intels = view.dialect.knows("NetParameter", "engine")
    for i in norms:
        yield from _learned(phase, i, is_intels=is_intels)
    if is_intels and phase.phase == pb.TEST:
        yield from _folded(view, phase)
    yield from _global_stats(phase, norms)
    yield from _unscaled(phase, norms)
    yield from _unbiased(phase, norms)
    yield from _fraction(phase, norms)
    for field in ("moving_average_fraction", "eps"):
        yield from _differing(phase, norms, field)
    yield from _biased(phase, norms)
    yield from _zero_start(phase)


def _show(phase: PhaseNet, layers: Sequence[int]) -> str:
    return show_layers([phase.layers[i].name for i in layers])


@norm_rule(
    "batch-norm-learned",
    "error",
    "lr_mult other than 0 for some of a BatchNorm's statistics",
    write="param { lr_mult: 0 } three times, or none",
)
@norm_rule(
    "batch-norm-multipliers",
    "warning",
    "the same in an engine that does not check it",
    write="param { lr_mult: 0 } three times, or none",
)
def _learned(phase: PhaseNet, i: int, *, is_intels: bool) -> Iterator[Finding]:
    layer = phase.layers[i]
    # BVLC's Caffe, and NVIDIA's, upgrade three as an old net's, and make each 0. Intel's do not.
    if not is_intels and len(layer.param) == _STATISTICS:
        return
    is_refused = not is_intels or _engine(phase, layer) in _OF_MKL
    for p, param in enumerate(layer.param[:_STATISTICS]):
        if param.lr_mult != 0:
            yield finding(
                "batch-norm-learned" if is_refused else "batch-norm-multipliers",
                phase.where(i, f"param[{p}].lr_mult" if param.HasField("lr_mult") else f"param[{p}]"),
                f"{title(layer)} has lr_mult {show_number(param.lr_mult)} for its statistics",
                effect="Caffe stops: Cannot configure batch normalization statistics as layer parameters"
                if is_refused
                else "the MKL engines stop at it; only weight decay touches them in the plain one",
            )
            return


def _engine(phase: PhaseNet, layer: pb.LayerParameter) -> str:
    """Name the engine that a BatchNorm asks for, itself or by its net; empty if none is named."""
    given = layer.batch_norm_param.engine
    if given != pb.BatchNormParameter.DEFAULT:
        return pb.BatchNormParameter.Engine.Name(given)
    return (layer.engine or phase.net.engine).partition(":")[0]


# Of a Convolution: its BatchNorm and, if that is folded too, the Scale.
_Folds = dict[int, tuple[int, int | None]]


def _folds(phase: PhaseNet, kept: Collection[str] | None = None) -> _Folds:
    """Find what Caffe folds when it sets up a TEST net: by the only reader of each Convolution's top.

    Weights are folded by the layers that they are of, but for the BatchNorms that the net `kept`.
    """
    found: _Folds = {}
    for i, layer in enumerate(phase.layers):
        norm = _only_reader(phase, i) if layer.type == "Convolution" else None
        if norm is None or phase.layers[norm].type != "BatchNorm":
            continue
        layer, param = phase.layers[norm], phase.layers[norm].batch_norm_param
        own = param.HasField("use_global_stats") and not param.use_global_stats
        # Caffe looks from the second layer on for what reads a BatchNorm, and may find itself.
        is_itself = norm != i + 1 and layer.top[:1] == layer.bottom[:1]
        if is_itself or (own if kept is None else layer.name in kept):
            continue
        after = _only_reader(phase, norm)
        if after is not None or phase.flow.readers.get((norm, 0)):
            is_scale = after is not None and phase.layers[after].type == "Scale"
            found[i] = norm, after if is_scale else None
    return found


def _only_reader(phase: PhaseNet, i: int) -> int | None:
    """Give the layer that alone reads a layer's first top: with several there is a Split between."""
    readers = phase.flow.readers.get((i, 0), ())
    return readers[0][0] if len(readers) == 1 else None


@norm_rule(
    "fold-refused",
    "error",
    "a Scale that Caffe cannot fold into the Convolution before its BatchNorm",
    effect="Caffe folds all three into one in TEST, and stops when it loads the weights: SIGSEGV",
)
@norm_rule(
    "folds-differ",
    "error",
    "a Convolution that Caffe folds with other layers in TEST than in TRAIN",
    effect="Caffe folds them in TEST, and the weights of TRAIN by its own layers: the test is wrong, or"
    " stops",
    write="the same layers, with the same readers, behind it in both phases",
)
def _folded(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    folds = _folds(phase)
    for i, (_, scale) in folds.items():
        wrong = None if scale is None else _unfoldable(phase, scale)
        if scale is not None and wrong:
            field, fault, write = wrong
            yield finding(
                "fold-refused",
                phase.where(scale, field),
                f"{title(phase.layers[scale])} {fault}, behind {title(phase.layers[i])} and its BatchNorm",
                write=write,
            )
    train = next((one for one in view.phases if one.phase == pb.TRAIN and one.stages == phase.stages), None)
    if train is None or not any(map(is_loss, train.layers)):
        return
    trained = {train.layers[i].name: (i, train) for i in range(len(train.layers))}
    gone = {norm for norm, _ in folds.values()}
    norms = {i for i, layer in enumerate(phase.layers) if layer.type == "BatchNorm"}
    theirs = _folds(train, kept={phase.layers[i].name for i in norms - gone})
    for i, (_, scale) in folds.items():
        name = phase.layers[i].name
        if name not in trained:
            continue
        other = theirs.get(trained[name][0])
        if other is None or (other[1] is None) != (scale is None):
            yield finding(
                "folds-differ",
                phase.where(i, "name"),
                f"{title(phase.layers[i])} has a BatchNorm"
                f"{' and a Scale' if scale is not None else ''} behind it in TEST, and not so in TRAIN",
            )


def _unfoldable(phase: PhaseNet, scale: int) -> tuple[str, str, str] | None:
    """Say why Caffe cannot fold a Scale: it reads a factor and a summand of each channel."""
    layer = phase.layers[scale]
    param = layer.scale_param
    if len(layer.bottom) > 1:
        return "bottom[1]", "takes its factor from a bottom", "a BatchNorm without a Scale right behind it"
    if not param.bias_term:
        at = "scale_param.bias_term" if param.HasField("bias_term") else "type"
        return at, "has no bias", "scale_param { bias_term: true }"
    bottom = phase.bottom_shape(scale, 0)
    axes = len(bottom) if bottom else 4
    if param.axis not in (1, 1 - axes):
        return "scale_param.axis", f"has axis {param.axis}", "axis: 1"
    if param.num_axes != 1:
        return "scale_param.num_axes", f"has num_axes {param.num_axes}", "num_axes: 1"
    return None


@norm_rule(
    "batch-norm-frozen",
    "note",
    "use_global_stats: true in TRAIN",
    effect="they normalize by the statistics of the weights given, and by nothing where none are given",
    write="leave it out to train from the start",
)
@norm_rule(
    "batch-norm-per-batch",
    "warning",
    "use_global_stats: false in TEST",
    effect="the accuracy depends on which images share a batch, and on batch_size",
    write="leave it out: absent means true in TEST and false in TRAIN",
)
def _global_stats(phase: PhaseNet, norms: Sequence[int]) -> Iterator[Finding]:
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
        yield finding(
            "batch-norm-frozen",
            phase.where(wrong[0], "batch_norm_param.use_global_stats"),
            f"{_show(phase, wrong)} of BatchNorm with use_global_stats: true in TRAIN",
            layers=len(wrong),
        )
    else:
        yield finding(
            "batch-norm-per-batch",
            phase.where(wrong[0], "batch_norm_param.use_global_stats"),
            f"{_show(phase, wrong)} of BatchNorm with use_global_stats: false in TEST",
            layers=len(wrong),
        )


def _scale_of(phase: PhaseNet, norm: int) -> int | None:
    """Find the Scale that reads what a BatchNorm makes."""
    readers = phase.flow.readers.get((norm, 0), ())
    return next((reader for reader, _ in readers if phase.layers[reader].type == "Scale"), None)


def _is_slip(odd: Sequence[int], all_of_them: Sequence[int]) -> bool:
    """Whether a few layers that are unlike many others are so by mistake."""
    return len(odd) * (_SLIP_TIMES + 1) <= len(all_of_them)


@norm_rule(
    "batch-norm-scale-missing",
    "warning",
    "one BatchNorm without a Scale, where many others have one",
    effect="in the plain engine nothing learns the scale and shift that batch normalization is made with",
    write='layer { type: "Scale" scale_param { bias_term: true } } after each',
)
@norm_rule(
    "batch-norm-unscaled",
    "note",
    "BatchNorm without a Scale after it",
    effect="in the plain engine nothing learns the scale and shift that batch normalization is made with",
    write='layer { type: "Scale" scale_param { bias_term: true } } after each',
)
def _unscaled(phase: PhaseNet, norms: Sequence[int]) -> Iterator[Finding]:
    alone = [i for i in norms if _scale_of(phase, i) is None]
    if not alone:
        return
    is_slip = _is_slip(alone, norms)
    others = f", and {len(norms) - len(alone)} others have one" if is_slip else ""
    yield finding(
        "batch-norm-scale-missing" if is_slip else "batch-norm-unscaled",
        phase.where(alone[0], "type"),
        f"{_show(phase, alone)} of BatchNorm without a Scale after it{others}",
        layers=len(alone),
    )


@norm_rule(
    "scale-bias-missing",
    "warning",
    "one Scale after BatchNorm without a bias, where many others have one",
    effect="what these normalize keeps the mean 0: no shift is learned",
    write="scale_param { bias_term: true }",
)
def _unbiased(phase: PhaseNet, norms: Sequence[int]) -> Iterator[Finding]:
    scales = [scale for i in norms if (scale := _scale_of(phase, i)) is not None]
    plain = [i for i in scales if not phase.layers[i].scale_param.bias_term]
    if plain and _is_slip(plain, scales):
        yield finding(
            "scale-bias-missing",
            phase.where(
                plain[0],
                "scale_param.bias_term"
                if phase.layers[plain[0]].scale_param.HasField("bias_term")
                else "type",
            ),
            f"{_show(phase, plain)} of Scale after BatchNorm without a bias, and "
            f"{len(scales) - len(plain)} others have one",
            layers=len(plain),
        )


@norm_rule(
    "moving-average-range",
    "error",
    "a moving_average_fraction that is not above 0 and at most 1",
    write="moving_average_fraction: 0.95, or another above 0 and at most 1",
)
def _fraction(phase: PhaseNet, norms: Sequence[int]) -> Iterator[Finding]:
    wrong = [i for i in norms if not 0 < phase.layers[i].batch_norm_param.moving_average_fraction <= 1]
    if wrong:
        fraction = phase.layers[wrong[0]].batch_norm_param.moving_average_fraction
        yield finding(
            "moving-average-range",
            phase.where(wrong[0], "batch_norm_param.moving_average_fraction"),
            f"{_show(phase, wrong)} of BatchNorm with moving_average_fraction {show_number(fraction)}",
            effect="the sums of means and variances grow without bound, until they are NaN"
            if fraction > 1
            else "a test sees the statistics of the last batch alone"
            if fraction == 0
            else "the sums change their sign at every iteration: tests are of no use",
            layers=len(wrong),
        )


@norm_rule(
    "batch-norms-differ",
    "note",
    "BatchNorms that differ in moving_average_fraction or eps",
    effect="their statistics do not follow the weights alike",
)
def _differing(phase: PhaseNet, norms: Sequence[int], field: str) -> Iterator[Finding]:
    values = [getattr(phase.layers[i].batch_norm_param, field) for i in norms]
    counts = Counter(values)
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    odd = [i for i, value in zip(norms, values, strict=True) if value != usual]
    others = ", ".join(show_number(value) for value in counts if value != usual)
    yield finding(
        "batch-norms-differ",
        phase.where(odd[0], f"batch_norm_param.{field}"),
        f"BatchNorm has {field} {show_number(usual)} in {counts[usual]} layers, "
        f"{others} in {_show(phase, odd)}",
        write=f"give all the same {field}",
        layers=len(odd),
    )


@norm_rule(
    "bias-before-norm",
    "note",
    "a bias that the BatchNorm after it takes off again",
    effect="the bias is stored, sent and updated, and changes nothing",
    write="bias_term: false, unless weights with a bias are to be read",
)
def _biased(phase: PhaseNet, norms: Sequence[int]) -> Iterator[Finding]:
    biased = []
    for i in norms:
        made = phase.maker(i, 0)
        if made is not None and made[0] >= 0 and len(phase.flow.readers[made]) == 1:
            block = _LINEAR.get(phase.layers[made[0]].type)
            if block and getattr(phase.layers[made[0]], block).bias_term:
                biased.append(made[0])
    if biased:
        yield finding(
            "bias-before-norm",
            phase.where(biased[0], _LINEAR[phase.layers[biased[0]].type]),
            f"{_show(phase, biased)} with a bias before BatchNorm, which takes it off with the mean",
            layers=len(biased),
        )


@norm_rule(
    "zero-start-partly",
    "note",
    "some residual blocks only start at zero",
    effect="these start as if they were not there, the others do not; the plain engine reads the filler of "
    "Scale alone, MKL-DNN that of BatchNorm",
    write="filler { value: 0 } in the last BatchNorm of every block, if that is intended",
    explanation=Explanation(
        "A residual block whose last normalization starts at 0 starts as if it were not there, "
        "which helps large batches. The paper does so in every block; the published files in the "
        "last of each stage.",
        "The filler in the last BatchNorm, or Scale, of every block; or accept it.",
    ),
)
def _zero_start(phase: PhaseNet) -> Iterator[Finding]:
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

    yield finding(
        "zero-start-partly",
        phase.where(zero[0], "name"),
        f"{len(zero)} of {blocks} residual blocks end in a BatchNorm or Scale whose filler is 0: "
        f"{show(zero, 16)}; not {show(other, 4)}",
        zero=len(zero),
        blocks=blocks,
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


_MOST_NUMBERS = 2**31 - 1
_MOST_LOSSES = 20  # of one label
# Statistics, not learned by gradients.
_COUNTED = frozenset(("BatchNorm", "MKLBatchNorm"))
# What their output ranks is what their bottom ranks.
_RANKING = frozenset(("Flatten", "LogSoftmax", "Reshape", "Softmax", "Split"))


@learning_rule(
    "loss-weight-negative",
    "warning",
    "a negative loss_weight: the loss is maximized",
    effect="training makes this loss larger, without bound",
)
@learning_rule("rate-negative", "warning", "a negative lr_mult or decay_mult")
def check_multipliers(view: NetView) -> Iterator[Finding]:
    """Check the signs of each layer's rates and loss weights."""
    for index, layer in enumerate(view.net.layer):
        for p, param in enumerate(layer.param):
            for field in ("lr_mult", "decay_mult"):
                value = getattr(param, field)
                if value < 0:
                    yield finding(
                        "rate-negative",
                        layer_field(index, f"param[{p}].{field}"),
                        f"{title(layer)} has {field} {show_number(value)}",
                        effect="its weights move up the gradient: the loss grows"
                        if field == "lr_mult"
                        else "each update makes its weights larger",
                        write=f"{field}: {show_number(-value)}, or 0",
                    )
        for t, weight in enumerate(layer.loss_weight):
            if weight < 0:
                yield finding(
                    "loss-weight-negative",
                    layer_field(index, f"loss_weight[{t}]"),
                    f"{title(layer)} has loss_weight {show_number(weight)}",
                    write=f"loss_weight: {show_number(-weight)}",
                )


def check_learning(phase: PhaseNet) -> Iterator[Finding]:
    """Check that a phase learns, that its accuracies look at scores, and that its blobs are not too large."""
    if phase.phase == pb.TRAIN:
        yield from _nothing(phase)
        yield from _stopped(phase)
        yield from _frozen(phase)
        yield from _counted_twice(phase)
    yield from _accuracies(phase)
    yield from _large(phase)


@learning_rule(
    "no-backward",
    "error",
    "a layer without a backward pass between what learns and the loss",
    effect="Caffe stops at the first backward pass: Not Implemented Yet, or Cannot backpropagate",
    write="take the layer out of the way to the loss, or propagate_down: false for this bottom",
)
def _stopped(phase: PhaseNet) -> Iterator[Finding]:
    for i, layer in enumerate(phase.layers):
        back = [b for b in closed_bottoms(layer) if (i, b) in phase.gradients]
        if not back:
            continue
        # A label that is computed is another rule's.
        is_known = layer.type in CLASSIFIERS and layer.type != "Accuracy" and is_computed(phase, i, back[0])
        if not is_known:
            name = layer.bottom[back[0]]
            yield finding(
                "no-backward",
                phase.where(i, f"bottom[{back[0]}]"),
                f"{title(layer)} stands between '{name}', which learns, and the loss",
            )


@learning_rule(
    "scores-frozen",
    "warning",
    "lr_mult 0 in the layer that makes the scores, while others learn",
    effect="what the weights that are given do not hold stays as its filler made it: guesses",
    write="lr_mult: 10 for a new layer",
)
def _frozen(phase: PhaseNet) -> Iterator[Finding]:
    """Find the layer of the scores at lr_mult 0: that of a new layer, whose fillers then stay."""
    for i, layer in enumerate(phase.layers):
        if not (layer.type.startswith("SoftmaxWithLoss") and is_loss(layer)):
            continue
        made = _ranked(phase, i, 0)
        maker = phase.layers[made[0]] if made is not None and made[0] >= 0 else None
        if maker is None or made is None or maker.type not in _LINEAR or not maker.param:
            continue
        filler = getattr(maker, _LINEAR[maker.type]).weight_filler
        others = [k for k in range(len(phase.layers)) if k != made[0] and _learns(phase, k)]
        if filler.type != "constant" and others and not _learns(phase, made[0]):
            yield finding(
                "scores-frozen",
                phase.where(made[0], "param[0].lr_mult"),
                f"{title(maker)} makes the scores of {title(layer)}, and has lr_mult 0, while others learn",
            )


def _learns(phase: PhaseNet, i: int) -> bool:
    layer = phase.layers[i]
    if layer.type not in LEARNED_TYPES - _COUNTED:
        return False
    learned = phase.learned(i)
    return any(_rates(layer, len(learned) if learned is not None else max(len(layer.param), 1)))


@learning_rule(
    "loss-counted-twice",
    "note",
    "a loss with a written weight that a layer reads too",
    effect="Caffe splits the top, gives the weight to a copy, and the layer the weight 1 again: the "
    "printed loss holds both, the gradient one",
    write="leave loss_weight: 1 out, or read the loss from the log",
)
def _counted_twice(phase: PhaseNet) -> Iterator[Finding]:
    for i, layer in enumerate(phase.layers):
        if has_loss_top(layer) and any(layer.loss_weight) and phase.flow.readers.get((i, 0)):
            yield finding(
                "loss-counted-twice",
                phase.where(i, "loss_weight[0]"),
                f"{title(layer)} has a loss_weight, and another layer reads its top",
            )


@learning_rule(
    "nothing-learns",
    "warning",
    "lr_mult 0 for all that a net with a loss could learn",
    effect="nothing is learned, and Caffe trains to the end and exits 0",
    write="lr_mult: 1 for what is to learn",
)
def _nothing(phase: PhaseNet) -> Iterator[Finding]:
    learning = [
        i
        for i, layer in enumerate(phase.layers)
        if layer.type in LEARNED_TYPES - _COUNTED and phase.learned(i) != ()
    ]
    # A net of layers that are not known may learn in those.
    if not learning or not any(map(is_loss, phase.layers)) or None in map(phase.learned, learning):
        return
    rates = [rate for i in learning for rate in _rates(phase.layers[i], len(phase.learned(i) or ()))]
    if any(rates) or any(layer.type == "Python" for layer in phase.layers):
        return
    first = learning[0]
    yield finding(
        "nothing-learns",
        phase.where(first, "param[0].lr_mult"),
        f"all {len(learning)} layers that could learn have lr_mult 0",
        layers=len(learning),
    )


def _rates(layer: pb.LayerParameter, count: int) -> list[float]:
    return [layer.param[p].lr_mult if p < len(layer.param) else 1.0 for p in range(count)]


@learning_rule(
    "accuracy-elsewhere",
    "warning",
    "an accuracy on another blob than the scores of the loss on its label",
    effect="the accuracy ranks values that are not class scores: it stays at chance",
)
def _accuracies(phase: PhaseNet) -> Iterator[Finding]:
    losses: dict[Blob | None, list[int]] = {}
    for i, layer in enumerate(phase.layers):
        if layer.type.startswith("SoftmaxWithLoss") and len(layer.bottom) > 1:
            losses.setdefault(_ranked(phase, i, 1), []).append(i)
    scores = {i: _ranked(phase, i, 0) for alike in losses.values() for i in alike}
    scored, behind = set(scores.values()), dict[Blob | None, frozenset[Blob]]()
    for i, layer in enumerate(phase.layers):
        if layer.type != "Accuracy" or len(layer.bottom) < 2:
            continue
        ours, of_label = _ranked(phase, i, 0), losses.get(_ranked(phase, i, 1), [])[:_MOST_LOSSES]
        if ours is None or not of_label or ours in scored:
            continue
        for j in of_label:
            if scores[j] not in behind:
                blob = scores[j]
                behind[blob] = phase.behind(blob) if blob is not None else frozenset()
        # Of one label there may be several scores: only what lies behind those of each is no score.
        if all(ours in behind[scores[j]] and outputs_of(phase, j) != outputs_of(phase, i) for j in of_label):
            loss = phase.layers[of_label[0]]
            yield finding(
                "accuracy-elsewhere",
                phase.where(i, "bottom[0]"),
                f"{title(layer)} reads '{layer.bottom[0]}', and {title(loss)} the scores '{loss.bottom[0]}'",
                write=f'bottom: "{loss.bottom[0]}"',
            )


def _ranked(phase: PhaseNet, i: int, b: int) -> Blob | None:
    """Find the blob that a bottom ranks as, before layers that keep the order of its numbers."""
    return phase.maker_through(i, b, _RANKING)


@learning_rule(
    "blob-too-large",
    "error",
    "a blob of more than 2,147,483,647 numbers",
    effect="Caffe stops: blob size exceeds INT_MAX",
    write="a smaller batch_size, num_output or image",
)
def _large(phase: PhaseNet) -> Iterator[Finding]:
    for i, layer in enumerate(phase.layers):
        shapes = phase.shapes[i] if phase.shapes else None
        if shapes is None:
            continue
        kinds: dict[str, tuple[Shape | None, ...]] = {"makes": shapes.tops, "learns": shapes.learned or ()}
        for kind, blobs in kinds.items():
            large = next((shape for shape in blobs if _is_large(shape)), None)
            if large is not None:
                yield finding(
                    "blob-too-large",
                    phase.where(i, "type"),
                    f"{title(layer)} {kind} a blob {show_shape(large)}, of {product(large):,} numbers",
                )
                return  # those after it are as large


def _is_large(shape: Shape | None) -> bool:
    count = product(shape) if shape is not None else None
    return count is not None and count > _MOST_NUMBERS
