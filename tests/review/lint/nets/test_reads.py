"""Each rule on what is never read, where weights start, and what Caffe refuses: wrong, and mended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import load_dialects
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.nets import fillers, reads, refusals
from caffe_recipes.review.lint.nets.blocks import block_readers

CheckText = Callable[..., dict[str, Finding]]

INPUT = 'layer { name: "in" type: "Input" top: "a" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }\n'


def net(body: str, bottoms: str = 'bottom: "a"') -> str:
    """Give a net of one layer over an image."""
    return (
        f'{INPUT}layer {{ name: "x" {bottoms} {body if "top:" in body else body + " top: " + repr("x")} }}\n'
    )


CONV = net(
    'type: "Convolution" convolution_param { num_output: 2 kernel_size: 3 weight_filler { type: "msra" } }'
)
POOL = net('type: "Pooling" pooling_param { kernel_size: 3 pad: 1 stride: 2 }')
SUM = net('type: "Eltwise" eltwise_param { coeff: 1 coeff: -1 }', 'bottom: "a" bottom: "a"')
TRAINED = """
layer { name: "data" type: "Data" top: "data" top: "label"
  data_param { source: "a" batch_size: 2 backend: LMDB } }
layer { name: "f1" type: "InnerProduct" bottom: "data" top: "f1"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "f2" type: "InnerProduct" bottom: "f1" top: "f2"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "f2" bottom: "label" top: "loss" }
"""
FILLER = 'weight_filler { type: "xavier" }'

CASES: dict[str, tuple[str, str]] = {
    "unknown-layer-type": (net('type: "Relu"'), net('type: "ReLU"')),
    "block-unread": (CONV.replace("} }\n", "} pooling_param { stride: 2 } }\n"), CONV),
    "field-unread": (
        CONV.replace('"msra"', '"msra" std: 0.01'),
        CONV.replace('"msra"', '"gaussian" std: 0.01'),
    ),
    "field-idle": (CONV.replace("num_output", "bias_term: false bias_filler { value: 1 } num_output"), CONV),
    "unknown-filler": (CONV.replace('"msra"', '"mrsa"'), CONV),
    "filler-default-spread": (
        CONV.replace('"msra"', '"gaussian"'),
        CONV.replace('"msra"', '"gaussian" std: 0.1'),
    ),
    "zero-weights": (TRAINED.replace(FILLER, "", 1), TRAINED),
    "no-fillers": (TRAINED.replace(FILLER, ""), TRAINED),
    "size-given-twice": (CONV.replace("kernel_size: 3", "kernel_size: 3 kernel_h: 3 kernel_w: 3"), CONV),
    "global-pooling-sized": (
        POOL.replace("kernel_size", "global_pooling: true kernel_size"),
        net('type: "Pooling" pooling_param { global_pooling: true }'),
    ),
    "dropout-ratio": (
        net('type: "Dropout" dropout_param { dropout_ratio: 50 }'),
        net('type: "Dropout" dropout_param { dropout_ratio: 0.5 }'),
    ),
    "eltwise-coeff": (SUM.replace("coeff: 1", ""), SUM),
    "loss-weight-count": (
        net('type: "EuclideanLoss" loss_weight: 1 loss_weight: 2', 'bottom: "a" bottom: "a"'),
        net('type: "EuclideanLoss" loss_weight: 1', 'bottom: "a" bottom: "a"'),
    ),
    "loss-weight-odd": (
        CONV.replace('bottom: "a"', 'bottom: "a" loss_weight: 1'),
        net('type: "Reduction" reduction_param { axis: 0 } loss_weight: 1'),
    ),
    "propagate-down-count": (
        CONV.replace('bottom: "a"', 'bottom: "a" propagate_down: true propagate_down: false'),
        CONV.replace('bottom: "a"', 'bottom: "a" propagate_down: true'),
    ),
}


def test_every_rule_has_a_case() -> None:
    assert CASES.keys() == reads.RULES.keys() | fillers.RULES.keys() | refusals.RULES.keys()


@pytest.mark.parametrize("rule", CASES)
def test_a_wrong_net_is_found_and_its_mended_twin_is_not(rule: str, check_text: CheckText) -> None:
    wrong, mended = CASES[rule]
    assert list(check_text(wrong)) == [rule]
    assert check_text(mended) == {}


@pytest.mark.parametrize(
    ("type_", "write"),
    [
        ("Relu", 'type: "ReLU"'),
        ("Convolutoin", 'type: "Convolution"'),
        ("Clip", "it belongs to bvlc; build it from other layers for this Caffe"),
        ("Zyzzyva", "name a type that this Caffe has; of your own build it must have this layer too"),
    ],
)
def test_an_unknown_type_gets_the_nearest_or_its_owner(type_: str, write: str, check_text: CheckText) -> None:
    assert check_text(net(f'type: "{type_}"'))["unknown-layer-type"].write == write


def test_layers_of_one_unknown_type_are_told_once(check_text: CheckText) -> None:
    layers = "".join(f'layer {{ name: "{name}" type: "Relu" bottom: "a" top: "a" }}\n' for name in "pqrstu")
    found = check_text(INPUT + layers)["unknown-layer-type"]
    assert found.what == "6 layers (p, q, r, s and 2 more) are of type Relu, which this Caffe does not know"
    assert dict(found.values) == {"layers": 6}
    nameless = "".join(f'layer {{ name: "{name}" bottom: "a" top: "a" }}\n' for name in "pq")
    assert check_text(INPUT + nameless)["unknown-layer-type"].what == "2 layers (p, q) have no type"


def test_types_of_another_dialect_are_that_dialects_matter(check_text: CheckText) -> None:
    assert check_text(net('type: "Clip"'), dialect="bvlc") == {}
    assert check_text(net('type: "Zyzzyva"'), dialect="bvlc") == {}


def test_every_block_of_a_layer_has_readers_that_are_types_of_this_caffe() -> None:
    types = load_dialects()["surfsara"].layer_types
    readers = block_readers(types)
    blocks = {
        field.name
        for field in pb.LayerParameter.DESCRIPTOR.fields
        if field.message_type and field.name.endswith("_param")
    }
    assert blocks - readers.keys() == {"mn_activation_param", "mn_grad_compress_param", "quantization_param"}
    assert set().union(*readers.values()) <= types
    assert readers["hdf5_data_param"] == {"HDF5Data"}
    assert readers["multibox_loss_param"] == {"MultiBoxLoss"}
    assert "Accuracy" not in readers["loss_param"]


@pytest.mark.parametrize(
    "body",
    [
        'type: "ReLU" convolution_param { }',
        'type: "Python" python_param { module: "m" layer: "L" } pooling_param { stride: 2 }',
        'type: "Deconvolution" '
        'convolution_param { num_output: 2 kernel_size: 3 weight_filler { type: "bilinear" } }',
        'type: "Pooling" pooling_param { kernel_h: 2 kernel_w: 3 stride_h: 1 stride_w: 2 }',
        'type: "Pooling" pooling_param { kernel_size: 3 avg_include_pad: false }',
    ],
)
def test_what_is_read_or_says_nothing_is_right(body: str, check_text: CheckText) -> None:
    assert check_text(net(body)) == {}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (
            'type: "Data" data_param { source: "a" batch_size: 2 backend: LMDB crop_size: 8 }',
            "data_param.crop_size",
        ),
        (
            'type: "Data" transform_param { crop_size: 8 random_resize_param { min_size: 8 max_size: 8 } '
            'random_aspect_ratio_param { } } data_param { source: "a" batch_size: 2 backend: LMDB }',
            "transform_param.random_aspect_ratio_param",
        ),
    ],
)
def test_fields_of_data_layers_without_effect_are_told(body: str, field: str, check_text: CheckText) -> None:
    text = f'layer {{ name: "d" top: "d" include {{ phase: TRAIN }} {body} }}'.replace(
        "LMDB", "LMDB shuffle: true"
    )
    assert check_text(text)["field-unread"].what.startswith(f"{field} of layer 'd' (Data) is never read: ")


@pytest.mark.parametrize(
    ("param", "field"),
    [
        ("normalize: true normalization: FULL", "normalize"),
        ("pre_fixed_normalizer: 2", "pre_fixed_normalizer"),
    ],
)
def test_fields_of_losses_without_effect_are_told(param: str, field: str, check_text: CheckText) -> None:
    loss = TRAINED.replace('top: "loss"', f'top: "loss" loss_param {{ {param} }}')
    assert check_text(loss)["field-unread"].what.startswith(f"loss_param.{field} of layer 'loss'")
    assert check_text(TRAINED.replace('top: "loss"', 'top: "loss" loss_param { normalize: true }')) == {}


def test_layers_alike_are_one_finding(check_text: CheckText) -> None:
    found = check_text(TRAINED.replace('"xavier"', '"xavier" std: 0.1'))["field-unread"]
    assert found.what.startswith("inner_product_param.weight_filler.std of 2 layers (f1, f2) is never read")
    assert found.values == {"layers": 2}


def test_weights_that_are_not_trained_or_shared_need_no_filler(check_text: CheckText) -> None:
    frozen = TRAINED.replace(FILLER, "", 1).replace('top: "f1"', 'top: "f1" param { lr_mult: 0 }')
    assert check_text(frozen) == {}
