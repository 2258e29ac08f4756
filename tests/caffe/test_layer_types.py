"""The table of layer types: one entry for each, which agrees with the schema and with all Caffes."""

from __future__ import annotations

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import load_dialects, unsupported_names
from caffe_recipes.caffe.layer_types import FAMILIES, LAYER_TYPES, find_layer_type, type_of
from caffe_recipes.caffe.layer_types.entry import LayerType
from caffe_recipes.caffe.prototxt import parse_prototxt

ENTRIES = LAYER_TYPES.values()


def test_each_type_has_one_entry_and_is_one_of_some_caffe() -> None:
    assert len(LAYER_TYPES) == sum(len(family.TYPES) for family in FAMILIES)
    known = {name for dialect in load_dialects().values() for name in dialect.layer_types}
    assert LAYER_TYPES.keys() - known - unsupported_names.TYPES.keys() == {"LogSoftmax"}


def test_each_block_of_an_entry_is_one_of_the_schema() -> None:
    blocks = {field.name for field in pb.LayerParameter.DESCRIPTOR.fields if field.message_type}
    assert {block for entry in ENTRIES for block in (*entry.blocks, entry.block) if block} <= blocks
    assert all(
        hasattr(getattr(pb.LayerParameter(), one.block), "engine") for one in ENTRIES if one.has_engine
    )


def test_nothing_is_known_of_an_unknown_type() -> None:
    entry = find_layer_type("Nonsense")
    assert entry == LayerType("")
    assert (entry.block, entry.batch_block, entry.shapes, entry.makes_tops) == ("", "", None, True)


@pytest.mark.parametrize(
    ("layer", "kernel", "details"),
    [
        (
            'type: "Convolution" convolution_param { num_output: 8 '
            "kernel_size: 7 pad: 3 stride: 2 group: 2 }",
            "7+3/2 g2",
            "7×7, 8, stride 2, 2 groups",
        ),
        (
            'type: "Deconvolution" convolution_param { num_output: 8 kernel_h: 1 kernel_w: 3 dilation: 2 }',
            "1x3 d2",
            "1×3, 8, dilation 2",
        ),
        ('type: "Pooling" pooling_param { kernel_size: 3 stride: 2 }', "3/2", "MAX 3×3, stride 2"),
        ('type: "Pooling" pooling_param { pool: AVE global_pooling: true }', "global", "AVE global"),
        ('type: "InnerProduct" inner_product_param { num_output: 1000 }', "", "1000"),
        ('type: "ReLU"', "", ""),
    ],
)
def test_the_main_settings_are_shown(layer: str, kernel: str, details: str) -> None:
    message = parse_prototxt(layer, pb.LayerParameter)
    assert (type_of(message).kernel(message), type_of(message).details(message)) == (kernel, details)


def test_the_filler_of_a_blob_is_the_layers_own_or_the_default_of_its_type() -> None:
    values = {
        'type: "Scale" bottom: "a"': [1, 0],
        'type: "Scale" bottom: "a" bottom: "b"': [0],
        'type: "Scale" bottom: "a" scale_param { filler { value: 3 } bias_filler { value: 2 } }': [3, 2],
        'type: "PReLU"': [0.25],
        'type: "BatchNorm" batch_norm_param { filler { value: 3 } }': [0] * 5,
        'type: "InnerProduct" inner_product_param { bias_filler { value: 2 } }': [0, 2],
    }
    for text, wanted in values.items():
        layer = parse_prototxt(text, pb.LayerParameter)
        assert [filler.value for filler in type_of(layer).starting_fillers(layer)] == wanted
