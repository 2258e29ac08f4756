"""Rules for layer types that a Caffe does not have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import OURS, layer_type_dialects, nearest_layer_type
from caffe_recipes.caffe.dialects.unsupported_names import DEPTHWISE, TYPES, describe_fork
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.lint.findings import Fix
from caffe_recipes.review.lint.net_text import show_layers, show_names, title
from caffe_recipes.review.lint.net_view import layer_field
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.subjects import read_rule

if TYPE_CHECKING:
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.net_view import NetView


@read_rule(
    "unknown-layer-type",
    "error",
    "a layer type that this Caffe does not have",
    effect="Caffe aborts: Unknown layer type: {type_}",
    values=("layers",),
    fix="writes the layer of this Caffe that is exactly equal, for a depthwise convolution",
)
def check_layer_types(view: NetView) -> Iterator[Finding]:
    """Find layer types that this Caffe does not have; other dialects have a rule of their own for this."""
    unknown: dict[str, list[int]] = defaultdict(list)
    for index, layer in enumerate(view.net.layer):
        if view.dialect.name == OURS and layer.type not in view.dialect.layer_types:
            unknown[layer.type].append(index)
    for type_, layers in unknown.items():
        yield _unknown_layer_type(view, type_, layers)


def _unknown_layer_type(view: NetView, type_: str, layers: Sequence[int]) -> Finding:
    near = nearest_layer_type(type_, view.dialect.layer_types)
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
