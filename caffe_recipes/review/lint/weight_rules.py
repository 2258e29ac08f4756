"""Rules for weights: fillers, batch normalization, learning rates, losses and accuracies."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.check import BATCH_DIVIDING
from caffe_recipes.caffe.layer_types import bottoms_without_backward, type_of
from caffe_recipes.caffe.layer_types.dimensions import product
from caffe_recipes.caffe.layer_types.normalization import has_own_scale
from caffe_recipes.caffe.shapes import show_shape
from caffe_recipes.review.lint.data_rules import is_computed, outputs_of
from caffe_recipes.review.lint.layer_rules import FILLERS, is_filler_used
from caffe_recipes.review.lint.net_view import (
    Blob,
    filler_fields,
    has_loss_top,
    is_loss,
    layer_finding,
    show_layers,
    show_names,
    show_number,
    title,
)
from caffe_recipes.review.lint.rules import Explanation, finding, rule

if TYPE_CHECKING:
    from caffe_recipes.caffe.layer_types.dimensions import Shape
    from caffe_recipes.review.lint.net_view import (
        NetView,
        PhaseNet,
    )
    from caffe_recipes.review.lint.rules import Finding

filler_rule = partial(rule, "the fillers of a net, which initialize its weights")
norm_rule = partial(rule, "the batch normalization of a net, and residual blocks that start as the identity")
learning_rule = partial(
    rule,
    "what a net learns: rate multipliers, loss weights, and accuracies",
)

_INTEL_FILLERS = ("gabor",)
# For each filler whose default is useless for training: the field, its default, and what to write.
_SPREADS = {
    "gaussian": ("std", "std 1", 'type: "msra", or std: 0.01'),
    "uniform": ("min", "0 to 1, all above 0", "min: -0.1 max: 0.1"),
}


@filler_rule(
    "unknown-filler",
    "error",
    "a filler type that Caffe does not have",
    what="{layer} has a filler of type '{type}'",
    effect="Caffe aborts: Unknown filler name: {type}",
    write='type: "{nearest}"',
)
@filler_rule(
    "filler-misfit",
    "error",
    "a bilinear or sparse filler that does not fit its blob",
    what="{layer} has {fault}",
)
@filler_rule(
    "filler-default-spread",
    "warning",
    "a gaussian filler without std, or a uniform one without range",
    what="{layer} has a {type} filler without {field}",
    effect="the default is {default}, so the loss is huge or NaN from the start",
)
def check_fillers(view: NetView) -> Iterator[Finding]:
    """Check the fillers of each layer."""
    known = (*FILLERS, *(_INTEL_FILLERS if view.dialect.knows("FillerParameter", "scale") else ()))
    for index, layer in enumerate(view.net.layer):
        for path, filler in filler_fields(layer):
            if not is_filler_used(view, layer, path):
                continue
            if filler.type not in known:
                near = difflib.get_close_matches(filler.type, known, n=1, cutoff=0)
                yield layer_finding(
                    "unknown-filler", view, index, f"{path}.type", type=filler.type, nearest=near[0]
                )
            elif path.endswith("weight_filler") and filler.type in _SPREADS:
                field, default, write = _SPREADS[filler.type]
                if not filler.HasField(field) and not (filler.type == "uniform" and filler.HasField("max")):
                    yield layer_finding(
                        "filler-default-spread",
                        view,
                        index,
                        path,
                        write=write,
                        type=filler.type,
                        field=field,
                        default=default,
                    )
            misfit = _filler_misfit(layer, path, filler)
            if misfit:
                field, what, effect, write = misfit
                yield layer_finding(
                    "filler-misfit", view, index, f"{path}.{field}", effect=effect, write=write, fault=what
                )


def _filler_misfit(
    layer: pb.LayerParameter, path: str, filler: pb.FillerParameter
) -> tuple[str, str, str, str] | None:
    """Return why a filler does not fit its blob: the field, what is wrong, the effect, and what to write."""
    has_outputs = type_of(layer).is_linear and path.endswith("weight_filler")
    outputs = getattr(layer, type_of(layer).block).num_output if has_outputs else 0
    # Caffe divides by the blob's first axis. For these two that is the number of inputs, which no field
    # contains.
    is_transposed = layer.type == "Deconvolution" or layer.inner_product_param.transpose
    if filler.type == "gaussian" and 0 < outputs < filler.sparse and not is_transposed:
        what = f"a filler with sparse: {filler.sparse}, but {outputs} outputs"
        return (
            "sparse",
            what,
            "Caffe aborts: the share of non-zero weights must be between 0 and 1",
            f"sparse: below {outputs}",
        )
    if filler.type != "bilinear" or layer.type == "DummyData":  # their blobs may have any shape
        return None
    if path != "convolution_param.weight_filler":
        what = "a bilinear filler for a blob that does not have 4 axes"
        return "type", what, "Caffe aborts: Blob must be 4 dim", 'type: "xavier"'
    param = layer.convolution_param
    sides = list(param.kernel_size) or [param.kernel_h, param.kernel_w]
    if len(sides) == 2 and sides[0] != sides[1]:
        what = f"a bilinear filler for a {sides[0]}x{sides[1]} kernel"
        return "type", what, "Caffe aborts: Filter must be square", "use a square kernel"
    return None


@filler_rule(
    "zero-weights",
    "warning",
    "a few layers without a weight_filler, whose weights start at 0",
    what="{names} without a weight_filler, while others have one",
    effect="their weights start at 0 unless --weights sets them; all outputs stay equal, and the "
    "layers below get no gradient",
    write='weight_filler {{ type: "msra" }}',
    values=("layers",),
)
@filler_rule(
    "no-fillers",
    "note",
    "a net that needs --weights, because most layers have no weight_filler",
    what="{names} without a weight_filler, out of {weighted} with weights",
    effect="without --weights these layers start at 0 and learn nothing",
    write='add weight_filler {{ type: "msra" }} to each to train from scratch',
    values=("layers",),
)
def check_zero_weights(phase: PhaseNet) -> Iterator[Finding]:
    """Check that the weights that are trained have a filler."""
    if phase.phase != pb.TRAIN or phase.is_fed_by_code or not any(map(is_loss, phase.layers)):
        return
    empty, weighted = find_unfilled(phase.layers)
    if not empty:
        return
    are_most = 2 * len(empty) > weighted
    yield _layers_finding(
        "no-fillers" if are_most else "zero-weights", phase, empty, "type", weighted=weighted
    )


def find_unfilled(layers: Sequence[pb.LayerParameter]) -> tuple[list[int], int]:
    """Return the indexes of the learned layers without a filler, and the number of layers with weights."""
    weighted = [i for i, layer in enumerate(layers) if type_of(layer).is_linear]
    return [i for i in weighted if _is_learned(layers[i]) and not _has_filler(layers[i])], len(weighted)


def _is_learned(layer: pb.LayerParameter) -> bool:
    return not layer.param or (layer.param[0].lr_mult != 0 and not layer.param[0].name)


def _has_filler(layer: pb.LayerParameter) -> bool:
    block = getattr(layer, type_of(layer).block)
    filler: pb.FillerParameter = block.weight_filler
    if filler.type == "uniform":
        return bool(filler.min or filler.max)
    # `sparse` is the number of non-zero weights that the filler keeps for each output.
    return filler.sparse != 0 if filler.type == "gaussian" else filler.type != "constant" or filler.value != 0


# The blobs of a BatchNorm: sum of means, sum of variances, running factor. They are statistics, not learned.
_STATISTICS_BLOBS = 3
# If a few layers differ from this many times more others, they probably do so by mistake.
_MISTAKE_RATIO = 4
_LINEAR = {"Convolution": "convolution_param", "InnerProduct": "inner_product_param"}
_MKL_ENGINES = ("MKL2017", "MKLDNN")


def check_norms(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Check the BatchNorms of a phase; most kinds of finding are reported once for all layers."""
    norms = [i for i, layer in enumerate(phase.layers) if layer.type == "BatchNorm"]
    is_intels = view.dialect.knows("NetParameter", "engine")
    # NVIDIA's Caffe sets the lr_mult of the statistics to 0 itself (its batch_norm_layer.cpp).
    for i in () if view.dialect.knows("BatchNormParameter", "scale_bias") else norms:
        yield from _check_statistics_rate(phase, i, is_intels=is_intels)
    if is_intels and phase.phase == pb.TEST:
        yield from _check_folds(view, phase)
    yield from _check_global_stats(phase, norms)
    yield from _check_scale_missing(phase, norms)
    yield from _check_bias_missing(phase, norms)
    yield from _check_fraction(phase, norms)
    for field in ("moving_average_fraction", "eps"):
        yield from _check_norms_agree(phase, norms, field)
    yield from _check_bias_before_norm(phase, norms)
    yield from _check_zero_start(phase)


def _layers_finding(
    name: str,
    phase: PhaseNet,
    layers: Sequence[int],
    field: str,
    kind: str = "",
    /,
    **others: Any,  # noqa: ANN401 - those of `finding`
) -> Finding:
    """Return one finding for several layers, at a field of the first.

    `{names}` in the texts of its rule are their names, with their type if it is `kind`, and `{layers}` is
    their number.
    """
    names = show_layers([phase.layers[i].name for i in layers], kind)
    return finding(name, phase.where(layers[0], field), names=names, layers=len(layers), **others)


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


# For each folded Convolution: its BatchNorm, and the Scale if that is folded too.
_Folds = dict[int, tuple[int, int | None]]


def _find_folds(phase: PhaseNet, kept: Collection[str] | None = None) -> _Folds:
    """Return what Caffe folds into Convolutions when it sets up a TEST net, along only readers.

    BatchNorms in `kept` are not folded; without `kept`, those with use_global_stats: false are not.
    """
    found: _Folds = {}
    for i, layer in enumerate(phase.layers):
        norm = _only_reader(phase, i) if layer.type == "Convolution" else None
        if norm is None or phase.layers[norm].type != "BatchNorm":
            continue
        layer, param = phase.layers[norm], phase.layers[norm].batch_norm_param
        own = param.HasField("use_global_stats") and not param.use_global_stats
        # Caffe searches for the BatchNorm's reader from the second layer on, and may find the BatchNorm
        # itself.
        is_itself = norm != i + 1 and layer.top[:1] == layer.bottom[:1]
        if is_itself or (own if kept is None else layer.name in kept):
            continue
        after = _only_reader(phase, norm)
        if after is not None or phase.flow.readers.get((norm, 0)):
            is_scale = after is not None and phase.layers[after].type == "Scale"
            found[i] = norm, after if is_scale else None
    return found


def _only_reader(phase: PhaseNet, i: int) -> int | None:
    """Return the only layer that reads a layer's first top. With several, Caffe inserts a Split: None."""
    readers = phase.flow.readers.get((i, 0), ())
    return readers[0][0] if len(readers) == 1 else None


@norm_rule(
    "fold-refused",
    "error",
    "a Scale that Caffe cannot fold into the Convolution before its BatchNorm",
    what="{scale}, after {layer} and its BatchNorm, {fault}",
    effect="Caffe folds the three layers into one in TEST, and crashes (SIGSEGV) when it loads the weights",
)
@norm_rule(
    "folds-differ",
    "error",
    "a Convolution that Caffe folds differently in TEST and in TRAIN",
    what="{layer} has a BatchNorm{scale} after it in TEST, but not in TRAIN",
    effect="the folded TEST net does not match the weights of TRAIN: the test is wrong, or Caffe aborts",
    write="put the same layers, with the same readers, after it in both phases",
)
def _check_folds(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    folds = _find_folds(phase)
    for i, (_, scale) in folds.items():
        wrong = None if scale is None else _why_unfoldable(phase, scale)
        if scale is not None and wrong:
            field, fault, write = wrong
            yield finding(
                "fold-refused",
                phase.where(scale, field),
                write=write,
                scale=title(phase.layers[scale]),
                layer=title(phase.layers[i]),
                fault=fault,
            )
    train = next((one for one in view.phases if one.phase == pb.TRAIN and one.stages == phase.stages), None)
    if train is None or not any(map(is_loss, train.layers)):
        return
    trained = {layer.name: i for i, layer in enumerate(train.layers)}
    gone = {norm for norm, _ in folds.values()}
    norms = {i for i, layer in enumerate(phase.layers) if layer.type == "BatchNorm"}
    theirs = _find_folds(train, kept={phase.layers[i].name for i in norms - gone})
    for i, (_, scale) in folds.items():
        name = phase.layers[i].name
        if name not in trained:
            continue
        other = theirs.get(trained[name])
        if other is None or (other[1] is None) != (scale is None):
            yield layer_finding(
                "folds-differ", phase, i, "name", scale=" and a Scale" if scale is not None else ""
            )


def _why_unfoldable(phase: PhaseNet, scale: int) -> tuple[str, str, str] | None:
    """Return a Scale's field, why Caffe cannot fold it, and what to write; None if it can.

    Caffe needs a factor and a bias per channel.
    """
    layer = phase.layers[scale]
    param = layer.scale_param
    if len(layer.bottom) > 1:
        return "bottom[1]", "reads its factor from a bottom", "do not put it directly after the BatchNorm"
    if not param.bias_term:
        at = "scale_param.bias_term" if param.HasField("bias_term") else "type"
        return at, "has no bias", "scale_param { bias_term: true }"
    bottom = phase.bottom_shape(scale)
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
def _check_global_stats(phase: PhaseNet, norms: Sequence[int]) -> Iterator[Finding]:
    train = phase.phase == pb.TRAIN
    wrong = [
        i
        for i in norms
        if phase.layers[i].batch_norm_param.HasField("use_global_stats")
        and phase.layers[i].batch_norm_param.use_global_stats == train
    ]
    if not wrong or phase.is_fed_by_code:
        return
    yield _layers_finding(
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
def _check_scale_missing(phase: PhaseNet, norms: Sequence[int]) -> Iterator[Finding]:
    scales = _find_scales(phase, norms)
    alone = [i for i in norms if i not in scales and not has_own_scale(phase.given_layer(i))]
    if not alone:
        return
    is_slip = _is_likely_mistake(alone, norms)
    yield _layers_finding(
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
def _check_bias_missing(phase: PhaseNet, norms: Sequence[int]) -> Iterator[Finding]:
    scales = [*dict.fromkeys(_find_scales(phase, norms).values())]
    plain = [i for i in scales if not phase.layers[i].scale_param.bias_term]
    if plain and _is_likely_mistake(plain, scales):
        is_set = phase.layers[plain[0]].scale_param.HasField("bias_term")
        yield _layers_finding(
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
def _check_fraction(phase: PhaseNet, norms: Sequence[int]) -> Iterator[Finding]:
    wrong = [i for i in norms if not 0 < phase.layers[i].batch_norm_param.moving_average_fraction <= 1]
    if wrong:
        fraction = phase.layers[wrong[0]].batch_norm_param.moving_average_fraction
        yield _layers_finding(
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
def _check_norms_agree(phase: PhaseNet, norms: Sequence[int], field: str) -> Iterator[Finding]:
    values = [getattr(phase.layers[i].batch_norm_param, field) for i in norms]
    counts = Counter(values)
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    odd = [i for i, value in zip(norms, values, strict=True) if value != usual]
    others = ", ".join(show_number(value) for value in counts if value != usual)
    yield _layers_finding(
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
def _check_bias_before_norm(phase: PhaseNet, norms: Sequence[int]) -> Iterator[Finding]:
    biased = []
    for i in norms:
        blob = phase.producer(i, 0)
        if blob is not None and blob[0] >= 0 and len(phase.flow.readers[blob]) == 1:
            block = _LINEAR.get(phase.layers[blob[0]].type)
            if block and getattr(phase.layers[blob[0]], block).bias_term:
                biased.append(blob[0])
    if biased:
        field = _LINEAR[phase.layers[biased[0]].type]
        yield _layers_finding("bias-before-norm", phase, biased, field)


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
def _check_zero_start(phase: PhaseNet) -> Iterator[Finding]:
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


_MAX_NUMBERS = 2**31 - 1
_MAX_LOSSES = 20  # with the same label
# Types whose blobs are statistics, not learned by gradients.
_STATISTICS_TYPES = frozenset(("BatchNorm", "MKLBatchNorm"))


@learning_rule(
    "loss-weight-negative",
    "warning",
    "a negative loss_weight, which maximizes the loss",
    what="{layer} has loss_weight {weight}",
    effect="training increases this loss without bound",
    write="loss_weight: {opposite}",
)
@learning_rule(
    "rate-negative",
    "warning",
    "a negative lr_mult or decay_mult",
    what="{layer} has {field} {value}",
    write="{field}: {opposite}, or 0",
)
def check_multipliers(view: NetView) -> Iterator[Finding]:
    """Check the signs of each layer's rate multipliers and loss weights."""
    for index, layer in enumerate(view.net.layer):
        for p, param in enumerate(layer.param):
            for field in ("lr_mult", "decay_mult"):
                value = getattr(param, field)
                if value < 0:
                    yield layer_finding(
                        "rate-negative",
                        view,
                        index,
                        f"param[{p}].{field}",
                        effect="its weights follow the gradient upwards, so the loss grows"
                        if field == "lr_mult"
                        else "each update makes its weights larger",
                        field=field,
                        value=show_number(value),
                        opposite=show_number(-value),
                    )
        for t, weight in enumerate(layer.loss_weight):
            if weight < 0:
                yield layer_finding(
                    "loss-weight-negative",
                    view,
                    index,
                    f"loss_weight[{t}]",
                    weight=show_number(weight),
                    opposite=show_number(-weight),
                )


def check_learning(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Check that a phase learns, that its accuracies read scores, and that its blobs are not too large."""
    if phase.phase == pb.TRAIN:
        yield from _check_nothing_learns(phase)
        yield from _check_backward(phase)
        yield from _check_scores_frozen(phase)
        yield from _check_loss_counted_twice(phase)
    yield from _check_accuracies(phase)
    # NVIDIA's Caffe divides batch_size among an unknown number of GPUs.
    is_divided = view.dialect.name in BATCH_DIVIDING and not phase.is_fed_by_code
    yield from _check_blob_sizes(phase, of_images=not is_divided)


@learning_rule(
    "no-backward",
    "error",
    "a layer without a backward pass between learned weights and the loss",
    what="{layer} has no backward pass, but is between '{name}', which is learned, and the loss",
    effect="Caffe aborts at the first backward pass: Not Implemented Yet, or Cannot backpropagate",
    write="move the layer out of the path to the loss, or set propagate_down: false for this bottom",
)
def _check_backward(phase: PhaseNet) -> Iterator[Finding]:
    for i, layer in enumerate(phase.layers):
        back = [b for b in bottoms_without_backward(layer) if (i, b) in phase.gradients]
        if not back:
            continue
        # Another rule reports a computed label.
        is_loss_of_labels = type_of(layer).is_classifier and layer.type != "Accuracy"
        if not (is_loss_of_labels and is_computed(phase, i, back[0])):
            name = layer.bottom[back[0]]
            yield layer_finding("no-backward", phase, i, f"bottom[{back[0]}]", name=name)


@learning_rule(
    "scores-frozen",
    "warning",
    "lr_mult 0 in the layer that computes the scores, while others learn",
    what="{layer} computes the scores of {reader}, but has lr_mult 0",
    effect="unless --weights sets its weights, they stay random, and the scores are meaningless",
    write="lr_mult: 10 for a new layer",
)
def _check_scores_frozen(phase: PhaseNet) -> Iterator[Finding]:
    """Find score layers with lr_mult 0: a new one would keep the values of its fillers."""
    for i, layer in enumerate(phase.layers):
        if not (layer.type.startswith("SoftmaxWithLoss") and is_loss(layer)):
            continue
        blob = _score_source(phase, i, 0)
        producer = phase.layers[blob[0]] if blob is not None and blob[0] >= 0 else None
        if producer is None or blob is None or producer.type not in _LINEAR or not producer.param:
            continue
        filler = getattr(producer, _LINEAR[producer.type]).weight_filler
        others = [k for k in range(len(phase.layers)) if k != blob[0] and _learns(phase, k)]
        if filler.type != "constant" and others and not _learns(phase, blob[0]):
            yield layer_finding("scores-frozen", phase, blob[0], "param[0].lr_mult", reader=title(layer))


def _learns(phase: PhaseNet, i: int) -> bool:
    layer = phase.layers[i]
    if not type_of(layer).learned or layer.type in _STATISTICS_TYPES:
        return False
    learned = phase.learned(i)
    return any(_lr_mults(layer, len(learned) if learned is not None else max(len(layer.param), 1)))


@learning_rule(
    "loss-counted-twice",
    "note",
    "a loss with an explicit loss_weight whose top another layer reads",
    what="{layer} has a loss_weight, but another layer reads its top",
    effect="Caffe splits the top and gives the weight to a copy, while the layer gets the default "
    "1: the printed loss includes both, the gradient only one",
    write="remove loss_weight: 1, or read this loss from the log",
)
def _check_loss_counted_twice(phase: PhaseNet) -> Iterator[Finding]:
    for i, layer in enumerate(phase.layers):
        if has_loss_top(layer) and any(layer.loss_weight) and phase.flow.readers.get((i, 0)):
            yield layer_finding("loss-counted-twice", phase, i, "loss_weight[0]")


@learning_rule(
    "nothing-learns",
    "warning",
    "a net with a loss, but lr_mult 0 in all layers that could learn",
    what="all {layers} layers that could learn have lr_mult 0",
    effect="nothing is learned, but Caffe trains to the end and exits 0",
    write="lr_mult: 1 for the layers that should learn",
    values=("layers",),
)
def _check_nothing_learns(phase: PhaseNet) -> Iterator[Finding]:
    learning = [
        i
        for i, layer in enumerate(phase.layers)
        if type_of(layer).learned and layer.type not in _STATISTICS_TYPES and phase.learned(i) != ()
    ]
    # Layers of unknown types may learn.
    if not learning or not any(map(is_loss, phase.layers)) or None in map(phase.learned, learning):
        return
    rates = [rate for i in learning for rate in _lr_mults(phase.layers[i], len(phase.learned(i) or ()))]
    if any(rates) or any(
        layer.type == "Python" or has_own_scale(phase.given_layer(i)) for i, layer in enumerate(phase.layers)
    ):
        return
    yield _layers_finding("nothing-learns", phase, learning, "param[0].lr_mult")


def _lr_mults(layer: pb.LayerParameter, count: int) -> list[float]:
    return [layer.param[p].lr_mult if p < len(layer.param) else 1.0 for p in range(count)]


@learning_rule(
    "accuracy-elsewhere",
    "warning",
    "an accuracy that does not read the scores that the loss on its label reads",
    what="{layer} reads '{bottom}', but {loss} reads '{scores}'",
    effect="the accuracy is computed from values that are not class scores, so it stays at chance level",
    write='bottom: "{scores}"',
)
def _check_accuracies(phase: PhaseNet) -> Iterator[Finding]:
    losses: dict[Blob | None, list[int]] = {}
    for i, layer in enumerate(phase.layers):
        if layer.type.startswith("SoftmaxWithLoss") and len(layer.bottom) > 1:
            losses.setdefault(_score_source(phase, i, 1), []).append(i)
    scores = {i: _score_source(phase, i, 0) for alike in losses.values() for i in alike}
    scored, ancestors = set(scores.values()), cache(phase.ancestors)
    for i, layer in enumerate(phase.layers):
        if layer.type != "Accuracy" or len(layer.bottom) < 2:
            continue
        ours, of_label = _score_source(phase, i, 0), losses.get(_score_source(phase, i, 1), [])[:_MAX_LOSSES]
        if ours is None or not of_label or ours in scored:
            continue
        # A label may have several scores: a blob that all of them are computed from is not a score.
        if all(
            (blob := scores[j]) is not None
            and ours in ancestors(blob)
            and outputs_of(phase, j) != outputs_of(phase, i)
            for j in of_label
        ):
            loss = phase.layers[of_label[0]]
            yield layer_finding(
                "accuracy-elsewhere",
                phase,
                i,
                "bottom[0]",
                bottom=layer.bottom[0],
                loss=title(loss),
                scores=loss.bottom[0],
            )


def _score_source(phase: PhaseNet, i: int, b: int) -> Blob | None:
    """Return the blob that a bottom comes from, looking through layers that keep the order of its numbers."""
    return phase.producer_through(i, b, lambda entry: entry.keeps_order)


@learning_rule(
    "blob-too-large",
    "error",
    "a blob of more than 2,147,483,647 numbers",
    what="{layer} {kind} a blob of shape {shape}, which has {count:,} numbers",
    effect="BVLC's and NVIDIA's Caffe abort: blob size exceeds INT_MAX; Intel's allows it (its limit is "
    "LONG_MAX), but layers such as ReLU count in 32 bits, so the count overflows",
    write="a smaller batch_size, num_output or image",
)
def _check_blob_sizes(phase: PhaseNet, *, of_images: bool) -> Iterator[Finding]:
    for i, shapes in enumerate(phase.shapes):
        if shapes is None:
            continue
        tops = shapes.tops if of_images else ()
        kinds: dict[str, tuple[Shape | None, ...]] = {"produces": tops, "learns": shapes.learned or ()}
        for kind, blobs in kinds.items():
            large = next((shape for shape in blobs if _is_large(shape)), None)
            if large is not None:
                yield layer_finding(
                    "blob-too-large",
                    phase,
                    i,
                    "type",
                    kind=kind,
                    shape=show_shape(large),
                    count=product(large),
                )
                return  # the blobs after it are as large


def _is_large(shape: Shape | None) -> bool:
    count = product(shape) if shape is not None else None
    return count is not None and count > _MAX_NUMBERS
