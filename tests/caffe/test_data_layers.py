"""The table of data layers fits the schema, the dialects, and the rules on shapes."""

from __future__ import annotations

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import load_dialects
from caffe_recipes.caffe.layers import BATCH_BLOCKS, batch_size
from caffe_recipes.caffe.shape_rules import SOURCES


@pytest.mark.parametrize("type_", BATCH_BLOCKS)
def test_each_type_takes_its_batch_size_from_its_own_block(type_: str) -> None:
    layer = pb.LayerParameter(type=type_, top=["data", "label"])
    assert batch_size(layer) == (1 if type_ == "ImageData" else 0)  # its default
    getattr(layer, BATCH_BLOCKS[type_]).batch_size = 7
    layer.transform_param.crop_size = 5
    assert batch_size(layer) == 7
    shape = SOURCES[type_](layer, lambda source: (3, 9, 9))[0]
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
