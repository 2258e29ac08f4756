"""C3D's windows over time, height and width, as those of the plain layers."""

from __future__ import annotations

from typing import Any

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.engine import to_engine_net
from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.layer_types.windows import as_volume
from caffe_recipes.caffe.shapes import LayerMisfit, infer_shapes
from caffe_recipes.caffe.upgrade import upgrade_net

SIZES = "num_output: 4 kernel_size: 3 kernel_depth: 2 pad: 1 temporal_stride: 2"


def net_over(dims: str, layer: str) -> pb.NetParameter:
    reader = f'name: "x" type: "Input" top: "x" input_param {{ shape {{ {dims} }} }}'
    text = f'layer {{ {reader} }} layer {{ name: "c" bottom: "x" top: "c" {layer} }}'
    return to_engine_net(parse_lenient(text))


def test_a_layer_over_time_is_a_plain_one_with_three_axes() -> None:
    net = net_over(
        "dim: 1 dim: 3 dim: 6 dim: 7 dim: 8",
        f'type: "Convolution3D" convolution3d_param {{ {SIZES} weight_filler {{ type: "xavier" }} }}',
    )
    plain = as_volume(net.layer[1])
    param = plain.convolution_param
    assert (plain.type, plain.name, list(plain.bottom)) == ("Convolution", "c", ["x"])
    assert (list(param.kernel_size), list(param.stride), list(param.pad)) == ([2, 3, 3], [2, 1, 1], [0, 1, 1])
    assert param.weight_filler.type == "xavier"
    assert infer_shapes(net, pb.TRAIN).blobs["c"] == (1, 4, 3, 7, 8)
    assert type_of(net.layer[1]).kernel(net.layer[1]) == "2x3x3+0x1x1/2x1x1"


def test_a_bottom_without_time_is_refused() -> None:
    net = net_over(
        "dim: 1 dim: 3 dim: 7 dim: 8", f'type: "Convolution3D" convolution_param {{ {SIZES} group: 2 }}'
    )
    assert as_volume(net.layer[1]).convolution_param.group == 1
    with pytest.raises(LayerMisfit, match="needs a bottom with 5 axes"):
        infer_shapes(net, pb.TRAIN)


@pytest.mark.parametrize(
    ("block", "what"),
    [
        ("convolution3d_param: 5", "has convolution3d_param 5, which is not a block"),
        ("convolution_param { kernel_size: 3 kernel_size: 3 }", "takes one number as kernel_size"),
        ("convolution3d_param { kernel_size { a: 1 } }", "takes one number as kernel_size"),
        (
            "convolution3d_param { kernel_size: x }",
            "has a value that convolution_param does not take: ",
        ),
    ],
)
def test_a_value_that_is_not_a_number_is_refused_by_the_name_of_its_layer(block: str, what: str) -> None:
    net = net_over("dim: 1 dim: 3 dim: 6 dim: 7 dim: 8", f'type: "Convolution3D" {block}')
    with pytest.raises(LayerMisfit, match=rf"layer 'c' \(Convolution3D\) {what}"):
        infer_shapes(net, pb.TRAIN)


def test_an_old_net_has_the_settings_in_the_block_of_the_plain_layer() -> None:
    text = 'layers { name: "p" type: POOLING3D pooling_param { kernel_size: 2 kernel_depth: 1 stride: 2 } }'
    net: Any = parse_lenient(text).message
    (layer,) = upgrade_net(net).message.layer
    assert layer.type == "Pooling3D"
    assert list(as_volume(layer).pooling_param.kernel_size) == [1, 2, 2]
