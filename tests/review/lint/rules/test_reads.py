"""Each rule on what is never read, where weights start, and what Caffe refuses: wrong, and fixed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import load_dialects
from caffe_recipes.review.lint.findings import Finding
from caffe_recipes.review.lint.layer_blocks import block_readers
from tests.review.lint.conftest import ids_judging

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
IMAGES = """layer { name: "d" type: "ImageData" top: "a"
  image_data_param { source: "list" batch_size: 2 new_height: 8 new_width: 8 } }"""
DUMMY = """layer {{ name: "d" type: "DummyData" top: "d"
  dummy_data_param {{ shape {{ dim: 2 dim: 3 dim: 4 dim: 5 }} {} }} }}"""
INFOGAIN = (
    TRAINED.replace("{", "{{")
    .replace("}", "}}")
    .replace('SoftmaxWithLoss"', 'InfogainLoss" infogain_loss_param {{ {} }}')
)
SMOOTH = TRAINED.replace("{", "{{").replace("}", "}}") + (
    'layer {{ name: "s" type: "SmoothL1Loss" bottom: "f1" bottom: "f2" top: "s" {} }}'
)
CONV_FILLER = (
    'type: "Convolution" convolution_param {{ num_output: 2 kernel_size: 3 weight_filler {{ type: {} }} }}'
)
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
    "size-half-given": (POOL.replace("pad: 1", "pad_h: 1"), POOL.replace("pad: 1", "pad_h: 1 pad_w: 0")),
    "axis-given-twice": (
        net('type: "Concat" concat_param { axis: 1 concat_dim: 1 }'),
        net('type: "Concat" concat_param { concat_dim: 1 }'),
    ),
    "pooling-stochastic": (
        POOL.replace("kernel_size", "pool: STOCHASTIC kernel_size").replace("pad: 1", ""),
        POOL,
    ),
    "engine-unknown": (
        CONV.replace('bottom: "a"', 'bottom: "a" engine: "FOO"'),
        CONV.replace('bottom: "a"', 'bottom: "a" engine: "MKLDNN:CPU"'),
    ),
    "filler-range": (
        CONV.replace('"msra"', '"gaussian" std: -1'),
        CONV.replace('"msra"', '"gaussian" std: 1'),
    ),
    "layer-value-refused": (
        net('type: "Log" log_param { base: 1 }'),
        net('type: "Log" log_param { base: 2 }'),
    ),
    "value-not-finite": (
        net('type: "Power" power_param { shift: nan }'),
        net('type: "Power" power_param { shift: 1 }'),
    ),
    "value-overflows": (
        net('type: "LRN" lrn_param { local_size: 4000000001 }'),
        net('type: "LRN" lrn_param { local_size: 5 }'),
    ),
    "value-large": (CONV.replace('"x"', '"x" param { lr_mult: 1e9 }', 1), CONV),
    "input-ignored": (
        net('type: "Power" power_param { scale: 0 }'),
        net('type: "Power" power_param { scale: 2 }'),
    ),
    "filler-sparse": (
        CONV.replace('"msra"', '"xavier" sparse: 3'),
        CONV.replace('"msra"', '"gaussian" std: 0.1 sparse: 2'),
    ),
    "global-pooling-sized": (
        POOL.replace("kernel_size", "global_pooling: true kernel_size"),
        net('type: "Pooling" pooling_param { global_pooling: true }'),
    ),
    "dropout-ratio": (
        net('type: "Dropout" dropout_param { dropout_ratio: 50 }'),
        net('type: "Dropout" dropout_param { dropout_ratio: 0 }'),
    ),
    "tops-count": (IMAGES, IMAGES.replace('top: "a"', 'top: "a" top: "b"')),
    "dummy-shapes": (DUMMY.format("data_filler { } data_filler { }"), DUMMY.format("")),
    "infogain-source": (INFOGAIN.format(""), INFOGAIN.format('source: "H"')),
    "filler-misfit": (
        CONV.replace('"msra"', '"gaussian" std: 1 sparse: 3'),
        CONV.replace('"msra"', '"gabor"'),
    ),
    "loss-weight-missing": (SMOOTH.format(""), SMOOTH.format("loss_weight: 1")),
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
    about = ("the fields of a net", "the fillers of a net", "the layers of a net")
    assert CASES.keys() == ids_judging(*about)


@pytest.mark.parametrize("rule", CASES)
def test_a_wrong_net_is_found_and_its_fixed_twin_is_not(rule: str, check_text: CheckText) -> None:
    wrong, fixed = CASES[rule]
    assert list(check_text(wrong)) == [rule]
    assert check_text(fixed) == {}


@pytest.mark.parametrize(
    ("type_", "write"),
    [
        ("Relu", 'type: "ReLU"'),
        ("Convolutoin", 'type: "Convolution"'),
        ("Clip", "only bvlc has it; replace it with other layers for this Caffe"),
        ("Zyzzyva", "use a type that this Caffe has, or build Caffe with this layer"),
    ],
)
def test_an_unknown_type_gets_the_nearest_or_its_owner(type_: str, write: str, check_text: CheckText) -> None:
    assert check_text(net(f'type: "{type_}"'))["unknown-layer-type"].write == write


def test_layers_of_one_unknown_type_are_reported_once(check_text: CheckText) -> None:
    layers = "".join(f'layer {{ name: "{name}" type: "Relu" bottom: "a" top: "a" }}\n' for name in "pqrstu")
    found = check_text(INPUT + layers)["unknown-layer-type"]
    assert found.what == "6 layers (p, q, r, s and 2 more) have type Relu, which this Caffe does not have"
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
def test_fields_that_are_read_or_set_to_defaults_give_no_findings(body: str, check_text: CheckText) -> None:
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
def test_fields_of_data_layers_without_effect_are_reported(
    body: str, field: str, check_text: CheckText
) -> None:
    text = f'layer {{ name: "d" top: "d" include {{ phase: TRAIN }} {body} }}'.replace(
        "LMDB", "LMDB shuffle: true"
    )
    assert check_text(text)["field-unread"].what.startswith(f"{field} in layer 'd' (Data) is never read: ")


@pytest.mark.parametrize(
    ("param", "field"),
    [
        ("normalize: true normalization: FULL", "normalize"),
        ("pre_fixed_normalizer: 2", "pre_fixed_normalizer"),
    ],
)
def test_fields_of_losses_without_effect_are_reported(param: str, field: str, check_text: CheckText) -> None:
    loss = TRAINED.replace('top: "loss"', f'top: "loss" loss_param {{ {param} }}')
    assert check_text(loss)["field-unread"].what.startswith(f"loss_param.{field} in layer 'loss'")
    assert check_text(TRAINED.replace('top: "loss"', 'top: "loss" loss_param { normalize: true }')) == {}


def test_equal_layers_are_one_finding(check_text: CheckText) -> None:
    found = check_text(TRAINED.replace('"xavier"', '"xavier" std: 0.1'))["field-unread"]
    assert found.what.startswith("inner_product_param.weight_filler.std in 2 layers (f1, f2) is never read")
    assert found.values == {"layers": 2}


def test_weights_that_are_not_trained_or_shared_need_no_filler(check_text: CheckText) -> None:
    frozen = TRAINED.replace(FILLER, "", 1).replace('top: "f1"', 'top: "f1" param { lr_mult: 0 }')
    assert check_text(frozen) == {}


@pytest.mark.parametrize(
    ("type_", "engine", "is_found"),
    [
        ("ReLU", "FOO", True),
        ("ReLU", "CUDNN", False),
        ("Power", "FOO", False),
        ("Dropout", "FOO", False),
    ],
)
def test_an_engine_is_looked_up_by_the_types_that_have_several(
    check_text: CheckText, type_: str, engine: str, is_found: bool
) -> None:
    text = net(f'type: "{type_}" engine: "{engine}"')
    assert ("engine-unknown" in check_text(text)) is is_found
    assert "engine-unknown" not in check_text(text, dialect="bvlc")


def test_an_engine_of_gpus_is_refused_by_a_build_for_cpus(check_text: CheckText) -> None:
    text = CONV.replace("num_output", "engine: CUDNN num_output")
    assert check_text(text)["engine-unknown"].where.startswith("net.prototxt:2:")
    assert check_text(text, dialect="bvlc") == {}
    assert check_text(CONV.replace("num_output", "engine: MKLDNN num_output")) == {}
    assert "'FOO' of the net" in check_text(f'engine: "FOO"\n{CONV}')["engine-unknown"].what


@pytest.mark.parametrize(
    ("layer", "field"),
    [
        (
            'type: "InnerProduct" inner_product_param { num_output: 2 weight_filler { type: "bilinear" } }',
            "type",
        ),
        (
            'type: "Deconvolution" convolution_param { num_output: 2 kernel_h: 2 kernel_w: 4 '
            'weight_filler { type: "bilinear" } }',
            "type",
        ),
        (CONV_FILLER.format('"gaussian" std: 1 sparse: 3'), "sparse"),
    ],
)
def test_a_filler_that_caffe_stops_at_is_found(check_text: CheckText, layer: str, field: str) -> None:
    found = check_text(net(layer))["filler-misfit"]
    assert found.severity == "error"
    assert found.what
    assert field in ("type", "sparse")


def test_the_sparsity_of_a_deconvolution_is_compared_with_its_inputs(check_text: CheckText) -> None:
    layer = CONV_FILLER.format('"gaussian" std: 1 sparse: 3').replace("Convolution", "Deconvolution")
    assert "filler-misfit" not in check_text(net(layer))


@pytest.mark.parametrize(
    "layer",
    [
        CONV_FILLER.format('"gaussian" std: 0.1 sparse: 2'),
        CONV_FILLER.format('"msra" } bias_term: false bias_filler { type: "none" '),
        'type: "ReLU" convolution_param { weight_filler { type: "none" } }',
    ],
)
def test_a_filler_that_is_not_read_is_not_refused(check_text: CheckText, layer: str) -> None:
    assert not {"unknown-filler", "filler-misfit", "filler-range"} & check_text(net(layer)).keys()


@pytest.mark.parametrize(
    ("dims", "is_found"),
    [
        ("num: 2 num: 2 channels: 1 height: 1 width: 1", False),
        ("num: 2 num: 2 num: 2 channels: 1 height: 1 width: 1", True),
        ("num: 2 channels: 1 height: 1", True),
        ("shape { dim: 1 } shape { dim: 1 } shape { dim: 1 }", True),
        ("shape { dim: 1 } data_filler { } data_filler { } data_filler { }", True),
    ],
)
def test_dims_of_dummy_data_come_once_or_for_each_top(
    check_text: CheckText, dims: str, is_found: bool
) -> None:
    text = f'layer {{ name: "d" type: "DummyData" top: "a" top: "b" dummy_data_param {{ {dims} }} }}'
    assert ("dummy-shapes" in check_text(text)) is is_found


def test_a_loss_of_this_caffe_that_ignores_loss_param_is_reported(check_text: CheckText) -> None:
    text = TRAINED.replace("SoftmaxWithLoss", "SigmoidCrossEntropyLoss").replace(
        'top: "loss"', 'top: "loss" loss_param { ignore_label: 1 }'
    )
    assert "block-unread" in check_text(text)
    assert "block-unread" not in check_text(text, dialect="bvlc")


def test_a_field_that_the_named_engine_ignores_is_reported(check_text: CheckText) -> None:
    text = POOL.replace("pad: 1", "avg_include_pad: false pool: AVE engine: CAFFE")
    assert list(check_text(text)) == ["field-unread"]
