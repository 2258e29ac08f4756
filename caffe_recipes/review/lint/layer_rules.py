"""Rules for what Caffe checks when it sets up a layer; each type's are in `caffe/layer_types/`.

Rules for fields that are never read: blocks of other types, and fields without effect.

Rules for TRAIN and TEST: the layers in each, and what must be the same in both.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import OURS, layer_type_dialects, nearest_layer_type
from caffe_recipes.caffe.dialects.check import TITLES
from caffe_recipes.caffe.dialects.forks import DEPTHWISE, TYPES, describe_fork
from caffe_recipes.caffe.dialects.schema import rounds_down
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.layer_types.dimensions import MisfitError
from caffe_recipes.caffe.layer_types.entry import Refusal
from caffe_recipes.caffe.refusals import find_filler_refusals, find_refusals
from caffe_recipes.caffe.shapes import infer_shapes, show_shape
from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.lint.data_rules import mean_values_misfit
from caffe_recipes.review.lint.net_view import (
    block_readers,
    filler_fields,
    is_loss,
    layer_field,
    layer_finding,
    normalize_path,
    phase_rule,
    shapes_fit,
    show_layers,
    show_names,
    show_number,
    show_transform,
    title,
)
from caffe_recipes.review.lint.rules import Explanation, Fix, dialect_rule, finding, rule
from caffe_recipes.wording import describe_count

if TYPE_CHECKING:
    from caffe_recipes.caffe.layer_types.dimensions import Shape, Shapes
    from caffe_recipes.review.lint.net_view import (
        NetView,
        PhaseNet,
    )
    from caffe_recipes.review.lint.rules import Finding

refusal_rule = partial(rule, "the layers of a net: what Caffe checks when it sets one up")
read_rule = partial(
    rule, "the fields of a net that are never read: blocks of other types, and fields without effect"
)

# Rules that do not apply to a Caffe that is built for GPUs.
_CPU_ONLY_REFUSALS = frozenset(("engine-unknown", "pooling-stochastic"))


@refusal_rule("size-given-twice", "error", "kernel_size, pad, stride or a shape set in two ways")
@refusal_rule("size-half-given", "error", "kernel, pad or stride set for only one axis")
@refusal_rule("axis-given-twice", "error", "axis together with slice_dim or concat_dim")
@refusal_rule("global-pooling-sized", "error", "global_pooling with kernel_size, pad or stride")
@refusal_rule("pooling-stochastic", "error", "pool: STOCHASTIC, which Caffe implements for GPUs only")
@refusal_rule("tops-count", "error", "a layer with too few or too many tops for its type")
@refusal_rule("dummy-shapes", "error", "DummyData whose number of sizes is neither 1 nor the number of tops")
@refusal_rule("infogain-source", "error", "InfogainLoss without a matrix (neither source nor a third bottom)")
@refusal_rule("dropout-ratio", "error", "dropout_ratio below 0, or 1 or above")
@refusal_rule("eltwise-coeff", "error", "Eltwise coeff with operation PROD, or not one per bottom")
@refusal_rule(
    "layer-value-refused", "error", "a value that the layer rejects, or that makes its output NaN or empty"
)
@refusal_rule("value-not-finite", "error", "an infinite or NaN number in a layer")
@refusal_rule("value-overflows", "error", "a number above 2,147,483,647 in a layer")
@refusal_rule(
    "loss-weight-count", "error", "a number of loss_weight fields that differs from the number of tops"
)
@refusal_rule(
    "propagate-down-count",
    "error",
    "a number of propagate_down fields that differs from the number of bottoms",
)
@refusal_rule("engine-unknown", "error", "an engine that this Caffe does not have, or has for GPUs only")
@refusal_rule("filler-range", "error", "a filler whose std is not above 0, or whose min is above its max")
@refusal_rule("filler-sparse", "error", "sparse below 0, or in a filler that is not gaussian")
def check_refusals(view: NetView) -> Iterator[Finding]:
    """Check each layer in the file for errors at which Caffe would abort."""
    is_intels = view.dialect.knows("NetParameter", "engine")
    for index, layer in enumerate(view.net.layer):
        unweighted = _check_loss_weight_missing(layer) if is_intels else ()
        own = (*_check_loss_weight(layer), *_check_input_ignored(layer), *_check_large_values(layer))
        for refusal in (*find_refusals(layer, view.net.engine), *own, *unweighted):
            if is_intels or refusal.rule not in _CPU_ONLY_REFUSALS:
                yield _refusal_finding(index, layer, refusal)
        for path, filler in filler_fields(layer):
            if not is_filler_used(view, layer, path):
                continue
            for refusal in find_filler_refusals(filler):
                yield _refusal_finding(index, layer, refusal._replace(field=f"{path}.{refusal.field}"))


def is_filler_used(view: NetView, layer: pb.LayerParameter, path: str) -> bool:
    """Return whether Caffe uses a filler: the layer's type reads its block, and its blob exists."""
    block, _, field = path.partition(".")
    is_read = layer.type in block_readers(view.dialect.layer_types).get(block, frozenset((layer.type,)))
    return is_read and (field != "bias_filler" or getattr(getattr(layer, block), "bias_term", True))


def _refusal_finding(index: int, layer: pb.LayerParameter, refusal: Refusal) -> Finding:
    place, what = layer_field(index, refusal.field), f"{title(layer)} {refusal.what}"
    return finding(refusal.rule, place, what, effect=refusal.effect, write=refusal.write)


@refusal_rule("loss-weight-odd", "warning", "loss_weight on a layer that is not a loss")
def _check_loss_weight(layer: pb.LayerParameter) -> Iterator[Refusal]:
    if type_of(layer).is_never_loss and any(layer.loss_weight):
        yield Refusal(
            "loss-weight-odd",
            "loss_weight[0]",
            "has a loss_weight, but is not a loss",
            "training minimizes the sum of all its outputs; Caffe aborts if it has no gradient",
            "set loss_weight in the loss",
        )


@refusal_rule("input-ignored", "warning", "a layer whose output does not depend on its input")
def _check_input_ignored(layer: pb.LayerParameter) -> Iterator[Refusal]:
    """Find factors of 0, which make a layer ignore its input."""
    transform = ("transform_param.scale",) if layer.HasField("transform_param") else ()
    for path in type_of(layer).zeroing_fields or transform:
        block, _, field = path.partition(".")
        if getattr(getattr(layer, block), field) == 0:
            effect = "its output does not depend on its input, so nothing is learned from it"
            yield Refusal("input-ignored", path, f"has {field} 0", effect, f"{field}: 1, or another value")


# At least 100 times the largest values in published nets.
_MAX_MULTIPLIER, _MAX_WEIGHT, _MAX_SPREAD, _MAX_SCALE = 1e3, 1e6, 1e2, 1e3


@refusal_rule(
    "value-large", "warning", "a multiplier, loss weight or filler range far above any useful value"
)
def _check_large_values(layer: pb.LayerParameter) -> Iterator[Refusal]:
    """Find numbers so large that the first pass or update overflows."""
    given: list[tuple[str, float, float]] = [
        (f"param[{p}].{name}", getattr(param, name), _MAX_MULTIPLIER)
        for p, param in enumerate(layer.param)
        for name in ("lr_mult", "decay_mult")
    ]
    given += [(f"loss_weight[{t}]", weight, _MAX_WEIGHT) for t, weight in enumerate(layer.loss_weight)]
    given.append(("transform_param.scale", layer.transform_param.scale, _MAX_SCALE))
    if layer.type != "DummyData":
        given += [
            (f"{path}.{name}", getattr(filler, name), _MAX_SPREAD)
            for path, filler in filler_fields(layer)
            for name in ("mean", "std", "min", "max", "value")
        ]
    for path, value, limit in given:
        if limit < abs(value) < math.inf:
            name = path.rpartition(".")[2].partition("[")[0]
            effect = "the loss becomes NaN or saturates, but Caffe trains to the end"
            yield Refusal(
                "value-large", path, f"has {name} {show_number(value)}", effect, f"{name}: for example 1"
            )


@refusal_rule("loss-weight-missing", "error", "a loss without loss_weight, of a type whose default is 0")
def _check_loss_weight_missing(layer: pb.LayerParameter) -> Iterator[Refusal]:
    if type_of(layer).loss_weight == 0 and not layer.loss_weight:
        yield Refusal(
            "loss-weight-missing",
            "type",
            "has no loss_weight, and the default of its type is 0",
            "Caffe prints loss = 0, and nothing is learned from this loss",
            "loss_weight: 1",
        )


class UnreadField(NamedTuple):
    """A field that has no effect if `is_unread(block)`; `write` says what to write instead."""

    rule: str
    block: str
    field: str
    is_unread: Callable[[Any], bool]
    why: str
    write: str


def _no_bias(param: Any) -> bool:  # noqa: ANN401  # several blocks have bias_term
    return not param.bias_term


def _always(param: Any) -> bool:  # noqa: ANN401
    return True


def _moved_fields(block: str, *fields: str) -> list[UnreadField]:
    """Return entries for fields of a data layer's block that have moved to `transform_param`."""
    why = "Caffe reads it from transform_param"
    return [
        UnreadField("field-unread", block, field, _always, why, f"transform_param {{ {field}: ... }}")
        for field in fields
    ]


_REMOVE = "remove it"
_UNREAD_FIELDS: tuple[UnreadField, ...] = (
    *(
        UnreadField("field-idle", block, "bias_filler", _no_bias, "bias_term is false", _REMOVE)
        for block in ("convolution_param", "inner_product_param", "embed_param", "scale_param")
    ),
    *_moved_fields("data_param", "scale", "mean_file", "crop_size", "mirror"),
    *_moved_fields("image_data_param", "scale", "mean_file", "crop_size", "mirror"),
    *_moved_fields("window_data_param", "scale", "mean_file", "crop_size", "mirror"),
    UnreadField(
        "field-unread",
        "transform_param",
        "random_aspect_ratio_param",
        lambda param: param.HasField("random_resize_param"),
        "random_resize_param takes precedence",
        "keep one of them",
    ),
    UnreadField(
        "field-unread",
        "loss_param",
        "normalize",
        lambda param: param.HasField("normalization"),
        "normalization takes precedence",
        "keep normalization",
    ),
    UnreadField(
        "field-unread",
        "loss_param",
        "pre_fixed_normalizer",
        lambda param: param.normalization != pb.LossParameter.PRE_FIXED,
        "normalization is not PRE_FIXED",
        "normalization: PRE_FIXED",
    ),
    UnreadField(
        "field-unread",
        "convolution_param",
        "negative_slope",
        lambda param: not param.relu,
        "relu is false",
        "relu: true, or a ReLU layer with negative_slope",
    ),
    UnreadField(
        "field-unread",
        "eltwise_param",
        "coeff",
        lambda param: param.operation == pb.EltwiseParameter.MAX,
        "operation is MAX",
        _REMOVE,
    ),
    UnreadField(
        "field-unread",
        "pooling_param",
        "avg_include_pad",
        lambda param: param.engine == pb.PoolingParameter.CAFFE,
        "engine CAFFE divides by the size of the window within the padded input",
        _REMOVE,
    ),
    UnreadField(
        "field-idle",
        "lrn_param",
        "k",
        lambda param: param.norm_region == pb.LRNParameter.WITHIN_CHANNEL,
        "norm_region is WITHIN_CHANNEL",
        _REMOVE,
    ),
)

# The fields that each filler reads. Intel's engines also read `scale`.
FILLERS = {
    "bilinear": (),
    "constant": ("value",),
    "gaussian": ("mean", "std", "sparse"),
    "msra": ("variance_norm",),
    "positive_unitball": (),
    "uniform": ("min", "max"),
    "xavier": ("variance_norm",),
}
# `caffe.refusals` reports `sparse` in a filler that is not gaussian.
_ALWAYS_READ = frozenset(("type", "scale", "sparse"))


@read_rule(
    "block-unread",
    "warning",
    "a `*_param` block that belongs to another layer type",
    effect="it has no effect, although one was probably intended",
    values=("layers",),
)
@read_rule(
    "field-unread",
    "warning",
    "a field that is set but has no effect",
    effect="it has no effect, although one was probably intended",
    values=("layers",),
    fix="removes the field, if the finding says `remove it`",
)
@read_rule(
    "field-idle",
    "note",
    "a field that is set but has no effect, which is harmless",
    effect="it has no effect",
    values=("layers",),
    fix="removes the field",
)
def check_reads(view: NetView) -> Iterator[Finding]:
    """Check layer types, and fields that a layer sets but never reads; similar layers share one finding."""
    found: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    unknown: dict[str, list[int]] = defaultdict(list)
    for index, layer in enumerate(view.net.layer):
        if layer.type not in view.dialect.layer_types:
            unknown[layer.type].append(index)
            continue
        for key in _unread_fields(view, layer):
            found[key].append(index)
    if view.dialect.name == OURS:  # other dialects have a rule of their own for this
        for type_, layers in unknown.items():
            yield _unknown_layer_type(view, type_, layers)
    for (name, field, why, write), layers in found.items():
        alike = [view.net.layer[index] for index in layers]
        whose = title(alike[0]) if len(alike) == 1 else show_layers([layer.name for layer in alike])
        what = f"{field} in {whose} is never read: {why}"
        places = [layer_field(index, field) for index in layers] if _REMOVE in write else []
        fixes = tuple(Fix(place, field.rpartition(".")[2]) for place in places if name != "block-unread")
        yield finding(name, layer_field(layers[0], field), what, write=write, fixes=fixes, layers=len(layers))


def _unread_fields(view: NetView, layer: pb.LayerParameter) -> Iterator[tuple[str, str, str, str]]:
    if layer.type == "Python":  # its code may read any block
        return
    readers = block_readers(view.dialect.layer_types)
    for field, value in layer.ListFields():
        name = field.name
        if name in readers and layer.type not in readers[name]:
            if value.ListFields():
                types = show_names(sorted(readers[name]))
                write = f'remove it, or type: "{sorted(readers[name])[0]}"'
                yield "block-unread", name, f"it belongs to {types}, not to {layer.type}", write
            continue
        for unread in _UNREAD_FIELDS:
            if unread.block == name and _is_set(value, unread.field) and unread.is_unread(value):
                yield unread.rule, f"{name}.{unread.field}", unread.why, unread.write
    for path, filler in filler_fields(layer):
        reads = FILLERS.get(filler.type)
        block = path.partition(".")[0]
        if reads is None or (block in readers and layer.type not in readers[block]):
            continue
        for field, _ in filler.ListFields():
            if field.name not in _ALWAYS_READ and field.name not in reads:
                write = f'type: "{_filler_reading(field.name)}", or remove it'
                yield "field-unread", f"{path}.{field.name}", f"the filler is {filler.type}", write


def _is_set(message: Any, field: str) -> bool:  # noqa: ANN401  # any block of a layer
    return any(descriptor.name == field for descriptor, _ in message.ListFields())


def _filler_reading(field: str) -> str:
    return next((name for name, fields in FILLERS.items() if field in fields), "constant")


@read_rule(
    "unknown-layer-type",
    "error",
    "a layer type that this Caffe does not have",
    effect="Caffe aborts: Unknown layer type: {type_}",
    values=("layers",),
    fix="writes the layer of this Caffe that is exactly equal, for a depthwise convolution",
)
def _unknown_layer_type(view: NetView, type_: str, layers: Sequence[int]) -> Finding:
    near = nearest_layer_type(type_, view.dialect.name)
    others = layer_type_dialects(type_)
    groups = _depthwise_groups(view, layers) if type_ in DEPTHWISE else {}
    if type_ in DEPTHWISE:
        count = show_names([str(group) for group in sorted(set(groups.values()))]) or "the number of channels"
        write = f'type: "Convolution" with group: {count}, which is exactly equal'
    elif type_ in TYPES:
        write = f"it is {describe_fork(TYPES[type_], is_type=True)}"
    elif near:
        write = f'type: "{near}"'
    elif others:
        write = f"only {', '.join(others)} has it; replace it with other layers for this Caffe"
    else:
        write = "use a type that this Caffe has, or build Caffe with this layer"
    first = view.net.layer[layers[0]]
    if len(layers) > 1:
        of_type = f"have type {type_}, which this Caffe does not have" if type_ else "have no type"
        what = f"{show_layers([view.net.layer[index].name for index in layers])} {of_type}"
    elif type_:
        what = f"{title(first)} has a type that this Caffe does not have"
    else:
        what = f"layer '{first.name}' has no type"
    return finding(
        "unknown-layer-type",
        layer_field(layers[0], "type"),
        what,
        write=write,
        fixes=tuple(fix for layer, group in groups.items() for fix in _depthwise_fixes(view, layer, group)),
        layers=len(layers),
        type_=type_,
    )


def _depthwise_groups(view: NetView, layers: Sequence[int]) -> dict[int, int]:
    """Return the number of channels of depthwise convolutions, of those with as many outputs."""
    net = pb.NetParameter()
    net.CopyFrom(view.net)
    changed = list(net.layer)  # kept, since an element is another object each time that it is read
    for layer in changed:
        if layer.type in DEPTHWISE:
            layer.type = "Convolution"
            layer.convolution_param.group = layer.convolution_param.num_output or 1
    found: dict[int, int] = {}
    places = {id(changed[index]): index for index in layers}
    for phase in view.phases:
        try:
            shapes = infer_shapes(net, phase.phase, stages=phase.stages).layers
        except PrototxtError:
            continue
        for each in shapes:
            index, bottom = places.get(id(each.layer)), each.bottoms[0] if each.bottoms else None
            outputs = each.layer.convolution_param.num_output
            if index is not None and bottom and len(bottom) > 1 and bottom[1] == outputs:
                found[index] = outputs
    return found


def _depthwise_fixes(view: NetView, layer: int, group: int) -> Iterator[Fix]:
    param = view.net.layer[layer].convolution_param
    yield Fix(layer_field(layer, "type"), "type", '"Convolution"')
    if not param.HasField("group"):
        place = layer_field(layer, "convolution_param.num_output")
        yield Fix(place, "num_output", f"{param.num_output}\ngroup: {group}")
    elif param.group != group:
        yield Fix(layer_field(layer, "convolution_param.group"), "group", str(group))


@dialect_rule(
    "pooling-size-changes",
    "warning",
    "pooling that rounds its output size down, which this Caffe rounds up",
    what="{layer} gives {down} where the size is rounded down, and {up} in {caffe}",
    effect="the layers below get other values; an InnerProduct below no longer fits weights that were "
    "trained elsewhere",
    values=("down", "up"),
    explanation=Explanation(
        "Caffe rounds the size of a pooled output up; BVLC's round_mode: FLOOR and ceil_mode: false of forks "
        "round it down. Where both give the same size, the field can be removed.",
        "Write the pad or kernel_size that lint names, if there is one: it gives the same size with windows "
        "at other places. No field gives the same windows.",
    ),
)
def check_rounding(view: NetView, phase: PhaseNet) -> Iterator[Finding]:
    """Find pooling layers whose output is smaller in the Caffe that a net was written for."""
    is_known = view.dialect.knows("PoolingParameter", "round_mode")
    for i, layer in enumerate(phase.layers):
        given = phase.given_layer(i).pooling_param
        shapes = phase.shapes[i] if phase.shapes else None
        bottom = [shape for shape in shapes.bottoms if shape is not None] if shapes else []
        down = shapes.tops[0] if shapes and shapes.tops else None
        if not (layer.type == "Pooling" and rounds_down(given) and down and bottom):
            continue
        if is_known and getattr(given, "round_mode", False):
            continue
        up = _rounded_up(layer, bottom)
        if up != down:
            near = _resize_pooling(layer, bottom, down)
            write = f"{near} gives {show_shape(down)} too, from windows at other places" if near else ""
            write = write or f"no pad or kernel_size gives {show_shape(down)}; let the layers below take it"
            yield layer_finding(
                "pooling-size-changes",
                phase,
                i,
                "pooling_param",
                write=write,
                down=show_shape(down),
                up=show_shape(up),
                caffe=TITLES[view.dialect.name],
            )


def _rounded_up(layer: pb.LayerParameter, bottoms: Shapes) -> Shape:
    """Return the shape of a pooling layer's output in our schema, without the fields of others."""
    infer = type_of(layer).shapes
    assert infer is not None
    return infer(layer, bottoms)[0][0]


def _resize_pooling(layer: pb.LayerParameter, bottoms: Shapes, wanted: Shape) -> str:
    """Return the nearest field of a pooling layer with which its rounded-up output has the wanted shape."""
    param = layer.pooling_param
    if len(param.kernel_size) != 1:  # a size for each axis
        return ""
    pads = [("pad", value) for value in reversed(range(max(param.pad, default=0)))]
    wider = range(1, max(param.stride, default=1))
    for name, value in (*pads, *(("kernel_size", param.kernel_size[0] + more) for more in wider)):
        changed = pb.LayerParameter()
        changed.CopyFrom(layer)
        getattr(changed.pooling_param, name)[:] = [value]
        with suppress(MisfitError):  # a window that is larger than its input
            if _rounded_up(changed, bottoms) == wanted:
                return f"{name}: {value}"
    return ""


_COLORS = 3
_SAME_IN_BOTH = ("scale", "mean_value", "mean_file", "force_color", "force_gray")


@phase_rule(
    "include-and-exclude",
    "error",
    "a layer with both include and exclude rules",
    what="{layer} has both include and exclude",
    effect="Caffe aborts: Specify either include rules or exclude rules; not both",
    write="keep one of them",
)
@phase_rule(
    "phase-without-include",
    "warning",
    "`phase` set in a layer, which does not put the layer in that phase",
    what="{layer} has phase: {name}, which does not put it in that phase only",
    effect="the layer is in both phases, and in both it behaves as in {name}",
    write="include {{ phase: {name} }}",
)
def check_include_rules(view: NetView) -> Iterator[Finding]:
    """Check the include and exclude rules of each layer."""
    for index, layer in enumerate(view.net.layer):
        if layer.include and layer.exclude:
            yield layer_finding("include-and-exclude", view, index, "exclude[0]")
        if layer.HasField("phase"):
            name = pb.Phase.Name(layer.phase)
            yield layer_finding("phase-without-include", view, index, "phase", name=name)


@phase_rule(
    "no-train-data",
    "warning",
    "a net with layers for TRAIN, none of which produces its data",
    what="{layer} is for TRAIN, but no layer produces data for TRAIN",
    effect="the net can be tested but not trained: Caffe aborts at the first bottom",
    write="add a data layer with include {{ phase: TRAIN }}",
)
def check_phases(view: NetView) -> Iterator[Finding]:
    """Check that each phase has data and a loss, and that TRAIN and TEST agree."""
    train, test = view.phase(pb.TRAIN), view.phase(pb.TEST)
    first = next((i for i, layer in enumerate(view.net.layer) if _is_train_only(layer)), None)
    if train is None and first is not None and not any(each.stages for each in view.phases):
        yield layer_finding("no-train-data", view, first, "include[0]")
    if train is not None:
        yield from _check_loss(train)
    if train is not None and test is not None:
        counted = list(_check_mean_counts(train, test))
        yield from counted
        yield from _check_transforms(train, test)
        yield from _check_crops(train, test)
        yield from _check_dropouts(train, test)
        # With an unknown number of channels, shapes use the number of mean_value fields.
        if not counted:
            yield from _check_weights(train, test)


def _is_train_only(layer: pb.LayerParameter) -> bool:
    return bool(layer.include) and all(
        rule.HasField("phase") and rule.phase == pb.TRAIN for rule in layer.include
    )


@phase_rule(
    "no-loss",
    "error",
    "a net with data for TRAIN, but no loss",
    what="{layer} produces data for TRAIN, but TRAIN has no loss",
    effect="nothing is learned, and Caffe exits 0 at the end",
    write="add a loss, such as SoftmaxWithLoss",
)
def _check_loss(train: PhaseNet) -> Iterator[Finding]:
    # Data layers alone are a part of a net, and a net with quantized layers is only tested.
    is_part = not any(layer.bottom for layer in train.layers)
    is_tested = any(layer.HasField("quantization_param") for layer in train.layers)
    if is_part or is_tested or any(map(is_loss, train.layers)):
        return
    for i, layer in enumerate(train.layers):
        if _is_train_only(layer) and not layer.bottom:
            yield layer_finding("no-loss", train, i, "include[0]")
            return


def _data_layer_pairs(train: PhaseNet, test: PhaseNet) -> Iterator[tuple[int, int]]:
    """Yield the indexes in TRAIN and TEST of each pair of data layers with the same first top and type."""
    by_top = {layer.top[0]: i for i, layer in enumerate(train.layers) if layer.top and not layer.bottom}
    for i, layer in enumerate(test.layers):
        twin = by_top.get(layer.top[0]) if layer.top and not layer.bottom else None
        if twin is not None and train.layers[twin].type == layer.type and train.layers[twin] != layer:
            yield twin, i


@mean_values_misfit
def _check_mean_counts(train: PhaseNet, test: PhaseNet) -> Iterator[Finding]:
    """Find data layers with different numbers of mean_value in TRAIN and TEST."""
    for in_train, in_test in _data_layer_pairs(train, test):
        counts = [
            len(phase.layers[i].transform_param.mean_value)
            for phase, i in ((train, in_train), (test, in_test))
        ]
        if min(counts) < 2 or counts[0] == counts[1]:
            continue
        phase, i = (train, in_train) if counts[0] != _COLORS else (test, in_test)
        other = counts[1] if phase is train else counts[0]
        layer, count = phase.layers[i], len(phase.layers[i].transform_param.mean_value)
        where, there = ("TRAIN", "TEST") if phase is train else ("TEST", "TRAIN")
        yield finding(
            "mean-values-misfit",
            phase.where(i, "transform_param.mean_value[0]"),
            f"{title(layer)} has {count} mean_value fields in {where}, but {other} in {there}",
            effect="Caffe aborts: Specify either 1 mean_value or as many as channels",
            channels=other,
        )


@phase_rule(
    "test-on-train",
    "warning",
    "a TEST data layer that reads the records of TRAIN",
    what="{layer} reads '{source}' in TEST, as in TRAIN",
    effect="the accuracy is measured on images that the net was trained on",
    write="set source to the LMDB of held-out images",
)
@phase_rule(
    "phase-transforms-differ",
    "warning",
    "a mean or scale that differs between TRAIN and TEST",
    what="{layer} has {field} {ours} in TEST but {theirs} in TRAIN",
    effect="the net is tested on inputs that are scaled differently than in training, so the accuracy is "
    "wrong",
    write="use the same {field} in both phases",
)
def _check_transforms(train: PhaseNet, test: PhaseNet) -> Iterator[Finding]:
    for in_train, in_test in _data_layer_pairs(train, test):
        layer, twin = test.layers[in_test], train.layers[in_train]
        for field in _SAME_IN_BOTH:
            params = layer.transform_param, twin.transform_param
            ours, theirs = (show_transform(param, field) for param in params)
            counts = len(layer.transform_param.mean_value), len(twin.transform_param.mean_value)
            is_known = field == "mean_value" and min(counts) > 1 and counts[0] != counts[1]
            if ours != theirs and not is_known:
                yield layer_finding(
                    "phase-transforms-differ",
                    test,
                    in_test,
                    f"transform_param.{field}",
                    field=field,
                    ours=ours,
                    theirs=theirs,
                )
        source = layer.data_param.source
        if (
            layer.type == "Data"
            and source
            and normalize_path(source) == normalize_path(twin.data_param.source)
        ):
            yield layer_finding("test-on-train", test, in_test, "data_param.source", source=source)


@phase_rule(
    "phase-crops-differ",
    "warning",
    "a crop_size that differs between TRAIN and TEST",
    what="{layer} has crop_size {ours} in TEST but {theirs} in TRAIN",
    effect="objects appear at a different size than in training, or the weights do not fit",
    write="crop_size: {theirs}",
)
def _check_crops(train: PhaseNet, test: PhaseNet) -> Iterator[Finding]:
    for in_train, in_test in _data_layer_pairs(train, test):
        layer = test.layers[in_test]
        ours = layer.transform_param.crop_size
        theirs = train.layers[in_train].transform_param.crop_size
        # Images that are not cropped may have that size already.
        if ours and theirs and ours != theirs:
            yield layer_finding(
                "phase-crops-differ", test, in_test, "transform_param.crop_size", ours=ours, theirs=theirs
            )


@phase_rule(
    "dropout-test-only",
    "warning",
    "a Dropout layer that is only in TEST",
    what="{layer} is in TEST but not in TRAIN",
    effect="Dropout has no effect in TEST, and the net is trained without it",
    write="remove its include or exclude, so that it is in both phases",
)
def _check_dropouts(train: PhaseNet, test: PhaseNet) -> Iterator[Finding]:
    for i, layer in enumerate(test.layers):
        if layer.type == "Dropout" and layer.name not in {other.name for other in train.layers}:
            yield layer_finding("dropout-test-only", test, i, "include[0]" if layer.include else "exclude[0]")


@phase_rule("phase-weights-differ", "error", "a layer whose weights have different shapes in TEST and TRAIN")
def _check_weights(train: PhaseNet, test: PhaseNet) -> Iterator[Finding]:
    shapes = {layer.name: train.learned(i) for i, layer in enumerate(train.layers)}
    for i, layer in enumerate(test.layers):
        ours, theirs = test.learned(i), shapes.get(layer.name)
        if not ours or not theirs:
            continue
        if len(ours) != len(theirs):
            yield finding(
                "phase-weights-differ",
                test.where(i, "name"),
                f"{title(layer)} learns {describe_count(len(ours), 'blob')} in TEST, {len(theirs)} in TRAIN",
                effect=f"Caffe aborts before it trains: Incompatible number of blobs for layer {layer.name}",
                write="use one definition for both phases, or a different name in one of them",
            )
            continue
        for param, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if not shapes_fit(one, other):
                yield finding(
                    "phase-weights-differ",
                    test.where(i, "name"),
                    f"{title(layer)} has weights {show_shape(one)} in TEST but {show_shape(other)} in TRAIN",
                    effect=f"Caffe aborts before it trains: Cannot share param {param} weights from layer "
                    f"'{layer.name}'; shape mismatch",
                    write="use inputs of the same size in both phases (crop_size), or global pooling before "
                    "the layer",
                )
                break
