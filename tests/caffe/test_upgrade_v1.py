"""V1 layers, written out by hand as Caffe's upgrade_proto.cpp turns them into today's."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.caffe.upgrade import V1_TYPES, upgrade_net

LENET_2014 = """
name: "LeNet"
layers {
  name: "mnist" type: DATA top: "data" top: "label"
  data_param { source: "train" backend: LMDB batch_size: 64 scale: 0.00390625 mirror: true }
  include: { phase: TRAIN }
}
layers {
  name: "mnist" type: DATA top: "data" top: "label"
  data_param { source: "test" backend: LMDB batch_size: 100 }
  exclude: { phase: TRAIN }
}
layers {
  name: "conv1" type: CONVOLUTION bottom: "data" top: "conv1" blobs_lr: 1 blobs_lr: 2 weight_decay: 1
  convolution_param { num_output: 20 kernel_size: 5 stride: 1 weight_filler { type: "xavier" } }
}
layers {
  name: "pool1" type: POOLING bottom: "conv1" top: "pool1"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 }
}
layers {
  name: "ip2" type: INNER_PRODUCT bottom: "pool1" top: "ip2" param: "w" param: "b"
  blob_share_mode: STRICT blob_share_mode: PERMISSIVE
  inner_product_param { num_output: 10 }
}
layers { name: "accuracy" type: ACCURACY bottom: "ip2" bottom: "label" top: "a" include { phase: TEST } }
layers { name: "loss" type: SOFTMAX_LOSS bottom: "ip2" bottom: "label" top: "loss" loss_weight: 0.5 }
"""

LENET_TODAY = """
name: "LeNet"
layer {
  name: "mnist" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  transform_param { mirror: true scale: 0.00390625 }
  data_param { source: "train" batch_size: 64 backend: LMDB }
}
layer {
  name: "mnist" type: "Data" top: "data" top: "label" exclude { phase: TRAIN }
  transform_param { }
  data_param { source: "test" batch_size: 100 backend: LMDB }
}
layer {
  name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 20 kernel_size: 5 stride: 1 weight_filler { type: "xavier" } }
}
layer {
  name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 }
}
layer {
  name: "ip2" type: "InnerProduct" bottom: "pool1" top: "ip2"
  param { name: "w" share_mode: STRICT } param { name: "b" share_mode: PERMISSIVE }
  inner_product_param { num_output: 10 }
}
layer { name: "accuracy" type: "Accuracy" bottom: "ip2" bottom: "label" top: "a" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" loss_weight: 0.5 }
"""


def net(text: str) -> pb.NetParameter:
    return parse_prototxt(text, pb.NetParameter)


def test_a_net_of_2014_becomes_one_of_today() -> None:
    upgraded = upgrade_net(net(LENET_2014))
    assert upgraded.message == net(LENET_TODAY)
    assert upgraded.changes == (
        "scale, mirror of data layers: now in transform_param",
        "7 V1 layers: now `layer`",
    )


def test_the_old_net_has_the_shapes_of_the_new() -> None:
    old, new = (
        infer_shapes(message, pb.TRAIN, images=lambda source: (1, 28, 28))
        for message in (upgrade_net(net(LENET_2014)).message, net(LENET_TODAY))
    )
    assert [layer.tops for layer in old.layers] == [layer.tops for layer in new.layers]
    assert [layer.learned for layer in old.layers] == [layer.learned for layer in new.layers]
    assert old.layers[1].tops[0] == (64, 20, 24, 24)
    assert old.layers[3].learned == ((10, 20 * 12 * 12), (10,))


@pytest.mark.parametrize(
    ("kind", "block"), [("DATA", "data"), ("IMAGE_DATA", "image_data"), ("WINDOW_DATA", "window_data")]
)
def test_image_transformations_of_data_layers_move_to_transform_param(kind: str, block: str) -> None:
    text = f"""layers {{ type: {kind} transform_param {{ mean_value: 104 scale: 9 }}
        {block}_param {{ scale: 2 mean_file: "m" crop_size: 3 mirror: false batch_size: 4 }} }}"""
    (layer,) = upgrade_net(net(text)).message.layer
    assert layer.transform_param == pb.TransformationParameter(
        mean_value=[104], scale=2, mean_file="m", crop_size=3, mirror=False
    )
    params: Any = getattr(layer, f"{block}_param")
    assert [field.name for field, _ in params.ListFields()] == ["batch_size"]


def test_data_layers_that_need_nothing_get_nothing() -> None:
    (layer,) = upgrade_net(net("layers { type: DATA }")).message.layer
    assert layer == pb.LayerParameter(type="Data")


def test_a_data_layer_of_today_keeps_what_caffe_ignores() -> None:
    today = net('layer { type: "Data" data_param { scale: 2 crop_size: 3 } }')
    assert upgrade_net(today).message == today
    assert not upgrade_net(today).changes


def test_every_type_of_2014_is_known() -> None:
    names = [value.name for value in pb.V1LayerParameter.DESCRIPTOR.enum_types_by_name["LayerType"].values]
    assert sorted(names) == sorted(V1_TYPES)
    text = "".join(f"layers {{ type: {name} }}" for name in names)
    types = [layer.type for layer in upgrade_net(net(text)).message.layer]
    assert types == [V1_TYPES[name] for name in names]


def test_every_field_of_2014_has_its_successor() -> None:
    for field in pb.V1LayerParameter.DESCRIPTOR.fields:
        if field.message_type is None or field.name in ("layer", "blobs", "include", "exclude"):
            continue
        old = pb.V1LayerParameter()
        block: Message = getattr(old, field.name)
        block.SetInParent()
        (layer,) = upgrade_net(pb.NetParameter(layers=[old])).message.layer
        assert [found.name for found, _ in layer.ListFields()] == [field.name]
