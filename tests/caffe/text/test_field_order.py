"""Every field of every message has one place in the order of writing."""

import pytest
from google.protobuf.descriptor import Descriptor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.text.writer import FIELD_ORDERS, ordered_fields

MESSAGES = pb.DESCRIPTOR.message_types_by_name


@pytest.mark.parametrize("schema", MESSAGES.values(), ids=list(MESSAGES))
def test_every_field_has_one_place(schema: Descriptor) -> None:
    names = [field.name for field in ordered_fields(schema)]
    assert sorted(names) == sorted(field.name for field in schema.fields)


@pytest.mark.parametrize("name", FIELD_ORDERS)
def test_a_row_names_fields_of_its_message_once_and_the_rest_once(name: str) -> None:
    row = FIELD_ORDERS[name].split()
    assert row.count("*") == 1
    assert len(row) == len(set(row))
    assert {*row} - {"*"} <= set(MESSAGES[name].fields_by_name)


def test_a_message_without_a_row_is_written_as_declared() -> None:
    assert "FillerParameter" not in FIELD_ORDERS
    assert ordered_fields(MESSAGES["FillerParameter"]) == tuple(MESSAGES["FillerParameter"].fields)
    assert ordered_fields(MESSAGES["FillerParameter"])[0].name == "type"


def test_a_layer_is_written_from_its_name_to_what_it_learned() -> None:
    names = [field.name for field in ordered_fields(MESSAGES["LayerParameter"])]
    assert names[:6] == ["name", "type", "bottom", "top", "include", "exclude"]
    assert names.index("param") < names.index("transform_param") < names.index("data_param")
    assert names[-1] == "blobs"
