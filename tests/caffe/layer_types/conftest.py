"""A layer of a type by itself: its shapes, why it does not fit, and what Caffe refuses."""

from __future__ import annotations

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.dimensions import Shape
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.caffe.refusals import find_refusals
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.errors import PrototxtError

Sizes = list[tuple[int, ...]]


def net_of(text: str) -> pb.NetParameter:
    return parse_prototxt(text, pb.NetParameter, "net.prototxt")


def source(*shapes: tuple[int, ...]) -> str:
    """Give a layer that makes blobs b0, b1, ... of these shapes."""
    tops = " ".join(f"top: 'b{i}'" for i in range(len(shapes)))
    dims = " ".join(f"shape {{ {' '.join(f'dim: {dim}' for dim in shape)} }}" for shape in shapes)
    return f"layer {{ name: 'in' type: 'Input' {tops} input_param {{ {dims} }} }}\n"


def one_layer(body: str, *shapes: tuple[int, ...]) -> tuple[list[Shape | None], list[Shape]]:
    """Give tops' and learned blobs' shapes of a layer `x` that reads blobs b0, b1, ... of `shapes`."""
    bottoms = " ".join(f"bottom: 'b{i}'" for i in range(len(shapes)))
    tops = "" if "top:" in body else "top: 'y'"
    net = net_of(source(*shapes) + f"layer {{ name: 'x' {bottoms} {tops} {body} }}")
    layer = infer_shapes(net, pb.TRAIN).layers[-1]
    return list(layer.tops), list(layer.learned or [])


def rules_of(text: str, net_engine: str = "") -> list[str]:
    """Give the rules by which Caffe refuses a layer."""
    layer = parse_prototxt(f'name: "l" {text}', pb.LayerParameter)
    return [refusal.rule for refusal in find_refusals(layer, net_engine)]


def check_misfit(body: str, bottoms: Sizes, what: str) -> None:
    """Check that a layer does not fit its bottoms, in one line that names it."""
    with pytest.raises(PrototxtError) as caught:
        one_layer(body, *bottoms)
    assert what in str(caught.value)
    assert "layer 'x'" in str(caught.value)
    assert str(caught.value).count("(from layer 'in')") == len(bottoms)
    assert "\n" not in str(caught.value)
