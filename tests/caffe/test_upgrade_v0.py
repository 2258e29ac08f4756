"""V0 layers, written out by hand as Caffe's upgrade_proto.cpp turns them into today's."""

from __future__ import annotations

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_document, parse_prototxt, render_prototxt
from caffe_recipes.caffe.upgrade import Upgrade, upgrade_document
from caffe_recipes.caffe.upgrade_v0 import V0_TYPES
from caffe_recipes.errors import PrototxtError

ALEXNET_2013 = """
name: "CaffeNet"
layers {
  layer {
    name: "data" type: "data" source: "/home/jiayq/lmdb" meanfile: "/home/jiayq/mean.binaryproto"
    batchsize: 256 cropsize: 227 mirror: true rand_skip: 10 scale: 0.5
  }
  top: "data" top: "label"
}
layers {
  layer {
    name: "conv1" type: "conv" num_output: 96 kernelsize: 11 stride: 4
    weight_filler { type: "gaussian" std: 0.01 } bias_filler { type: "constant" value: 0. }
    blobs_lr: 1. blobs_lr: 2. weight_decay: 1. weight_decay: 0.
  }
  bottom: "data" top: "conv1"
}
layers { layer { name: "relu1" type: "relu" } bottom: "conv1" top: "conv1" }
layers { layer { name: "pool1" type: "pool" pool: AVE kernelsize: 3 stride: 2 } bottom: "conv1" top: "pool1" }
layers {
  layer { name: "norm1" type: "lrn" local_size: 3 alpha: 0.0001 beta: 0.5 k: 2 }
  bottom: "pool1" top: "norm1"
}
layers { layer { name: "pad2" type: "padding" pad: 2 } bottom: "norm1" top: "pad2" }
layers {
  layer { name: "conv2" type: "conv" num_output: 256 group: 2 kernelsize: 5 biasterm: false }
  bottom: "pad2" top: "conv2"
}
layers {
  layer { name: "fc6" type: "innerproduct" num_output: 10 weight_filler { type: "gaussian" } }
  bottom: "conv2" top: "fc6"
}
layers { layer { name: "drop6" type: "dropout" dropout_ratio: 0.4 } bottom: "fc6" top: "fc6" }
layers { layer { name: "loss" type: "softmax_loss" } bottom: "fc6" bottom: "label" }
"""

ALEXNET_TODAY = """
name: "CaffeNet"
layer {
  name: "data" type: "Data" top: "data" top: "label"
  transform_param { mirror: true crop_size: 227 scale: 0.5 mean_file: "/home/jiayq/mean.binaryproto" }
  data_param { source: "/home/jiayq/lmdb" batch_size: 256 rand_skip: 10 }
}
layer {
  name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  convolution_param {
    num_output: 96 kernel_size: 11 stride: 4
    weight_filler { type: "gaussian" std: 0.01 } bias_filler { type: "constant" value: 0 }
  }
}
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer {
  name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { pool: AVE kernel_size: 3 stride: 2 }
}
layer {
  name: "norm1" type: "LRN" bottom: "pool1" top: "norm1"
  lrn_param { local_size: 3 alpha: 0.0001 beta: 0.5 k: 2 }
}
layer {
  name: "conv2" type: "Convolution" bottom: "norm1" top: "conv2"
  convolution_param { num_output: 256 bias_term: false kernel_size: 5 pad: 2 group: 2 }
}
layer {
  name: "fc6" type: "InnerProduct" bottom: "conv2" top: "fc6"
  inner_product_param { num_output: 10 weight_filler { type: "gaussian" } }
}
layer { name: "drop6" type: "Dropout" bottom: "fc6" top: "fc6" dropout_param { dropout_ratio: 0.4 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc6" bottom: "label" }
"""


def upgrade(text: str) -> Upgrade[pb.NetParameter]:
    return upgrade_document(parse_document(text, "old.prototxt", pb.NetParameter))  # type: ignore[return-value]


def net(text: str) -> pb.NetParameter:
    return parse_prototxt(text, pb.NetParameter)


def test_a_net_of_2013_becomes_one_of_today() -> None:
    upgraded = upgrade(ALEXNET_2013)
    assert upgraded.message == net(ALEXNET_TODAY)
    assert upgraded.changes == (
        "10 V0 layers: types and parameters renamed",
        "1 padding layer: now the pad of the layers that they feed",
        "9 V1 layers: now `layer`",
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            'type: "images" source: "l.txt" batchsize: 4 new_height: 256 new_width: 255 '
            "shuffle_images: true rand_skip: 3 meanfile: 'm'",
            'type: "ImageData" transform_param { mean_file: "m" } image_data_param { source: "l.txt" '
            "batch_size: 4 new_height: 256 new_width: 255 shuffle: true rand_skip: 3 }",
        ),
        (
            'type: "window_data" source: "w" batchsize: 128 cropsize: 227 det_fg_threshold: 0.6 '
            'det_bg_threshold: 0.4 det_fg_fraction: 0.3 det_context_pad: 16 det_crop_mode: "square"',
            'type: "WindowData" transform_param { crop_size: 227 } window_data_param { source: "w" '
            "batch_size: 128 fg_threshold: 0.6 bg_threshold: 0.4 fg_fraction: 0.3 context_pad: 16 "
            'crop_mode: "square" }',
        ),
        ('type: "hdf5_data" source: "h" batchsize: 2',
         'type: "HDF5Data" hdf5_data_param { source: "h" batch_size: 2 }'),
        ('type: "hdf5_output" hdf5_output_param { file_name: "o" }',
         'type: "HDF5Output" hdf5_output_param { file_name: "o" }'),
        ('type: "infogain_loss" source: "i"', 'type: "InfogainLoss" infogain_loss_param { source: "i" }'),
        ('type: "concat" concat_dim: 0', 'type: "Concat" concat_param { concat_dim: 0 }'),
        ('type: "pool" pad: 1 pool: STOCHASTIC', 'type: "Pooling" pooling_param { pool: STOCHASTIC pad: 1 }'),
        ('type: "relu" scale: 2', 'type: "ReLU" transform_param { scale: 2 }'),
        ('type: "conv" blobs { num: 1 data: 3 }', 'type: "Convolution" blobs { num: 1 data: 3 }'),
    ],
)  # fmt: skip
def test_the_fields_of_each_type_find_their_block(old: str, new: str) -> None:
    assert upgrade(f"layers {{ layer {{ {old} }} }}").message == net(f"layer {{ {new} }}")


def test_every_type_of_2013_is_known() -> None:
    text = "".join(f'layers {{ layer {{ type: "{name}" }} }}' for name in V0_TYPES)
    types = [layer.type for layer in upgrade(text).message.layer]
    assert len(set(types)) == len(V0_TYPES) == 24
    assert {"EuclideanLoss", "TanH", "BNLL", "Im2col", "MultinomialLogisticLoss"} <= set(types)


def test_fields_that_caffe_drops_are_dropped_and_reported() -> None:
    text = (
        'name: "n" debug_info: true force_backward: true layers { layer { name: "r" type: "relu" '
        'num_output: 3 new_num: 1 } include { phase: TEST } top: "r" }'
    )
    upgraded = upgrade(text)
    assert upgraded.message == net('name: "n" force_backward: true layer { name: "r" type: "ReLU" top: "r" }')
    assert upgraded.changes[1] == (
        "dropped, as in Caffe's own upgrade: the net's debug_info, include outside the block of 'r', "
        "num_output of 'r' (type relu), new_num of 'r' (type relu)"
    )


def test_a_padding_layer_may_feed_several_layers_and_its_pad_wins() -> None:
    text = """
    input: "x" input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8
    layers { layer { name: "p" type: "padding" } bottom: "x" top: "p" }
    layers { layer { name: "a" type: "conv" pad: 5 } bottom: "p" top: "a" }
    layers { layer { name: "b" type: "pool" } bottom: "p" top: "b" }
    """
    layers = upgrade(text).message.layer
    assert [layer.name for layer in layers] == ["input", "a", "b"]
    assert [list(layer.bottom) for layer in layers[1:]] == [["x"], ["x"]]
    assert (list(layers[1].convolution_param.pad), list(layers[2].pooling_param.pad)) == ([0], [0])


def test_comments_of_a_padding_layer_go_to_the_layer_that_it_feeds() -> None:
    text = """
    layers { layer { type: "data"
    } top: "x" }
    # pads
    layers { layer { type: "padding" pad: 2 # two
    } bottom: "x" top: "p" }
    # convolves
    layers { layer { type: "conv" # a type
    } bottom: "p" top: "c" # a top
    # last
    }
    layers { layer { type: "padding" } bottom: "c" top: "q" } # for nobody
    # end
    """
    upgraded = upgrade(text)
    assert render_prototxt(upgraded.message, upgraded.comments).splitlines()[6:] == [
        "# pads",
        "# convolves",
        "layer {",
        '  type: "Convolution" # a type',
        '  bottom: "x"',
        '  top: "c" # a top',
        "  convolution_param {",
        "    pad: 2 # two",
        "  }",
        "  # last",
        "}",
        "# end",
    ]
    assert upgraded.comments[""].above == ("for nobody",)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('layers { layer { type: "cnov" } }',
         "old.prototxt:1:18: V0 layers have no type 'cnov'; did you mean 'conv'?"),
        ('layers { layer { type: "conv" }\n bottom: "x" }',
         "old.prototxt:2:2: no layer above produces the bottom 'x'; Caffe refuses it"),
        ('layers { layer { type: "data" } top: "x" }\n'
         'layers { layer { type: "padding" name: "p" } bottom: "x" top: "p" }\n'
         'layers { layer { type: "relu" name: "r" } bottom: "p" }',
         "old.prototxt:3:43: a padding layer feeds 'r' of type 'relu'; Caffe pads conv and pool layers only"),
        ('layers { layer { type: "data" } top: "x" }\n'
         'layers { layer { type: "padding" name: "p" } bottom: "x" top: "p" top: "q" }\n'
         'layers { layer { type: "conv" name: "c" } bottom: "p" }',
         "old.prototxt:3:43: padding layer 'p' cannot be merged into 'c'; give both layers one bottom, "
         "and the padding layer one top"),
        ('layers { layer { type: "conv" } }\nlayers { type: RELU }',
         "old.prototxt:2:1: is not a V0 layer, but other layers are; write all layers in one format"),
        ('layers { layer { type: "images" new_height: -1 } }',
         "old.prototxt:1:33: -1 is out of range; give a size in pixels"),
        ('layers { layer { type: "conv" } }\nlayer { type: "ReLU" }',
         "old.prototxt:1:1: the net has both `layers` and `layer`; Caffe refuses it; use only `layer`"),
    ],
)  # fmt: skip
def test_a_net_that_caffe_cannot_upgrade_is_refused_with_the_position(text: str, error: str) -> None:
    with pytest.raises(PrototxtError) as caught:
        upgrade(text)
    assert str(caught.value) == error
