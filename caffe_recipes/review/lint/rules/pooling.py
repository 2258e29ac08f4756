"""Rules for pooling that another Caffe rounds down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import ENGINE, OURS, TITLES, load_dialects
from caffe_recipes.caffe.dialects.schema import rounds_down, to_ours
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.layer_types.dimensions import MisfitError
from caffe_recipes.caffe.shapes import show_shape
from caffe_recipes.review.lint.inference import infer_phase
from caffe_recipes.review.lint.net_text import layer_finding
from caffe_recipes.review.lint.net_view import NetView, select_phases
from caffe_recipes.review.lint.old_nets import upgrade_old
from caffe_recipes.review.lint.registry import Explanation
from caffe_recipes.review.lint.subjects import ReadFile, dialect_rule, file_rule

if TYPE_CHECKING:
    from caffe_recipes.caffe.layer_types.dimensions import Shape, Shapes
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.net_view import PhaseNet


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
    if view.dialect.name == ENGINE:  # it rounds down where the field says so
        return
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


@file_rule.add
def check_sizes(file: ReadFile) -> Iterator[Finding]:
    """Find pooling that another Caffe than ours rounds down, in a net with the fields of all Caffes."""
    document = file.given
    if file.dialect != OURS or document.message.DESCRIPTOR.name != pb.NetParameter.DESCRIPTOR.name:
        return
    if document.message.layers:
        document, _ = upgrade_old(document)
    given: Any = document.message
    if not any(layer.type == "Pooling" and rounds_down(layer.pooling_param) for layer in given.layer):
        return
    ours: Any = to_ours(given)
    for phase in select_phases(ours):
        inferred, _ = infer_phase(replace(phase, given=given), lambda source: None)
        view = NetView(ours, (inferred,), None, lambda source: None, load_dialects()[OURS])
        yield from (one.located(document.where) for one in check_rounding(view, inferred))
