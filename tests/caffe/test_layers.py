"""Layer builders: one call is one layer, and a mistake is reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caffe_recipes.caffe import layers as L  # noqa: N812 - as net definitions write it
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import load_dialects
from caffe_recipes.caffe.layer_types import LAYER_TYPES
from caffe_recipes.caffe.layers import batch_size
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.errors import InputError

FILLED = 'weight_filler { type: "msra" }'

CASES = [
    (
        L.data(source="lmdb", batch_size=2, phase="TEST", transform_param={"crop_size": 8}, shuffle=True),
        'name: "data" type: "Data" top: "data" top: "label" include { phase: TEST } '
        "transform_param { crop_size: 8 } "
        'data_param { source: "lmdb" batch_size: 2 backend: LMDB shuffle: true }',
    ),
    (
        L.conv("c", "data", num_output=4, kernel_size=3, pad=1, param=[{"lr_mult": 1}, {"lr_mult": 2}]),
        'name: "c" type: "Convolution" bottom: "data" top: "c" param { lr_mult: 1 } param { lr_mult: 2 } '
        f"convolution_param {{ num_output: 4 kernel_size: 3 pad: 1 {FILLED} }}",
    ),
    (
        L.batch_norm("bn", "c", moving_average_fraction=0.9),
        'name: "bn" type: "BatchNorm" bottom: "c" top: "c" param { lr_mult: 0 } param { lr_mult: 0 } '
        "param { lr_mult: 0 } batch_norm_param { moving_average_fraction: 0.9 }",
    ),
    (
        L.scale("s", "c"),
        'name: "s" type: "Scale" bottom: "c" top: "c" scale_param { bias_term: true }',
    ),
    (L.relu("r", "c"), 'name: "r" type: "ReLU" bottom: "c" top: "c"'),
    (L.relu("r", "c", "out"), 'name: "r" type: "ReLU" bottom: "c" top: "out"'),
    (
        L.pooling("p", "c", pool="AVE", global_pooling=True),
        'name: "p" type: "Pooling" bottom: "c" top: "p" pooling_param { pool: AVE global_pooling: true }',
    ),
    (
        L.inner_product("ip", "p", num_output=10),
        'name: "ip" type: "InnerProduct" bottom: "p" top: "ip" '
        f"inner_product_param {{ num_output: 10 {FILLED} }}",
    ),
    (L.eltwise_sum("sum", ("a", "b")), 'name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum"'),
    (
        L.softmax_with_loss("loss", "ip", "label", loss_weight=0.3),
        'name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" loss_weight: 0.3',
    ),
    (
        L.accuracy("top-5", "ip", "label", top_k=5),
        'name: "top-5" type: "Accuracy" bottom: "ip" bottom: "label" top: "top-5" '
        "accuracy_param { top_k: 5 }",
    ),
    (
        L.layer("norm", "LRN", "c", local_size=5),
        'name: "norm" type: "LRN" bottom: "c" top: "norm" lrn_param { local_size: 5 }',
    ),
    (
        L.layer("drop", "Dropout", "c", "c", dropout_param={"dropout_ratio": 0.4}),
        'name: "drop" type: "Dropout" bottom: "c" top: "c" dropout_param { dropout_ratio: 0.4 }',
    ),
    (L.layer("silence", "Silence", "label", ()), 'name: "silence" type: "Silence" bottom: "label"'),
]


@pytest.mark.parametrize(("built", "text"), CASES, ids=[built.name for built, _ in CASES])
def test_a_call_builds_the_layer_that_a_user_would_write(built: pb.LayerParameter, text: str) -> None:
    assert built == parse_prototxt(text, pb.LayerParameter)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: L.conv("c1", "data", num_output=1, kernel_size=1, strid=2),
            "layer 'c1': Convolution has no field 'strid'; did you mean 'stride'?",
        ),
        (
            lambda: L.conv("c1", "data", num_output=1, kernel_size=1, pool="MAX"),
            "layer 'c1': Convolution has no field 'pool'",
        ),
        (
            lambda: L.pooling("p1", "data", pool="MIN"),  # type: ignore[arg-type]
            "layer 'p1': pooling_param: pool: PoolMethod has no value 'MIN'; "
            "choose from MAX, AVE, STOCHASTIC",
        ),
        (
            lambda: L.conv("c1", "data", num_output=1, kernel_size=1, convolution_param={"pad": 1}),
            "layer 'c1': convolution_param is given as well as ",
        ),
        (lambda: L.layer("x", 3), "layer 'x': type: invalid value 3; expected text"),  # type: ignore[arg-type]
        (lambda: L.relu("r", 5), "layer 'r': bottom: invalid value 5; expected text"),  # type: ignore[arg-type]
    ],
)
def test_a_mistake_is_reported_with_layer_and_field(build: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build()
    assert str(caught.value).startswith(message)


def test_a_net_joins_layers_and_groups_of_layers_in_order() -> None:
    block = (L.conv("c", "data", num_output=4, kernel_size=3), L.relu("r", "c"))
    net = L.net("n", L.data(source="s", batch_size=1, phase="TRAIN"), block, L.pooling("p", "c", pool="MAX"))
    assert net.name == "n"
    assert [layer.name for layer in net.layer] == ["data", "c", "r", "p"]


def test_data_layers_of_two_phases_may_share_a_name_and_others_may_not() -> None:
    both = [
        L.data(source="s", batch_size=1, phase="TRAIN", transform_param={"crop_size": 8}),
        L.data(source="s", batch_size=1, phase="TEST", transform_param={"crop_size": 8}),
    ]
    assert infer_shapes(L.net("n", both), pb.TEST).blobs["data"] == (1, None, 8, 8)
    with pytest.raises(InputError, match="net 'n': two layers are named 'r'; rename one of them"):
        L.net("n", both, L.relu("r", "data"), L.relu("r", "data"))


# The table of data layers fits the schema, the dialects, and the rules on shapes.


BATCH_BLOCKS = {name: entry.batch_block for name, entry in LAYER_TYPES.items() if entry.batch_block}


@pytest.mark.parametrize("type_", BATCH_BLOCKS)
def test_each_type_takes_its_batch_size_from_its_own_block(type_: str) -> None:
    layer = pb.LayerParameter(type=type_, top=["data", "label"])
    assert batch_size(layer) == (1 if type_ == "ImageData" else 0)  # its default
    getattr(layer, BATCH_BLOCKS[type_]).batch_size = 7
    layer.transform_param.crop_size = 5
    assert batch_size(layer) == 7
    source = LAYER_TYPES[type_].source
    assert source is not None
    shape = source.shapes(layer, lambda source: (3, 9, 9))[0]
    assert shape is not None
    assert shape[0] == 7
    assert type_ in load_dialects()["surfsara"].layer_types


def test_every_block_of_the_schema_with_a_batch_size_is_in_the_table() -> None:
    fields = pb.LayerParameter.DESCRIPTOR.fields
    blocks = {
        field.name
        for field in fields
        if field.message_type is not None and "batch_size" in field.message_type.fields_by_name
    }
    assert blocks == set(BATCH_BLOCKS.values())


def test_other_layers_have_no_batch_of_their_own() -> None:
    assert batch_size(pb.LayerParameter(type="ReLU", data_param=pb.DataParameter(batch_size=3))) == 0
