"""The canonical text: numbers, strings, blocks."""

from __future__ import annotations

import struct

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt, render_prototxt
from caffe_recipes.caffe.text.writer import FIELD_ORDERS, FLOAT_MAX, float_text, ordered_fields, string_text

examples = settings(max_examples=300, database=None, derandomize=True)


def float32(number: float) -> bytes:
    return struct.pack("<f", number)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.1, "0.1"),
        (0.764, "0.764"),
        (5e-05, "0.00005"),
        (0.0078125, "0.0078125"),
        (0.00390625, "0.00390625"),
        (6.25e-05, "0.0000625"),
        (1e-06, "1e-06"),
        (1e-08, "1e-08"),
        (1.0, "1"),
        (-0.0, "-0"),
        (100.0, "100"),
        (1281167.0, "1281167"),
        (16777216.0, "16777216"),
        (1e9, "1000000000"),
        (1e10, "1e+10"),
        (3.4028234663852886e38, "3.40282346e+38"),  # of 3.4028235e+38 protobuf 3.0 to 3.6 make inf
        (-3.4028234663852886e38, "-3.40282346e+38"),
        (1.401298464324817e-45, "1e-45"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (float("nan"), "nan"),
    ],
)
def test_a_float_is_written_as_a_person_would(number: float, text: str) -> None:
    assert float_text(number) == text
    assert float32(float(text)) == float32(number)


@examples
@given(st.floats(width=32, allow_nan=False))
def test_a_float_reads_back_bit_equal_and_no_shorter_text_does(number: float) -> None:
    text = float_text(number)
    assert float32(float(text)) == float32(number)
    digits = len(text.lstrip("-").split("e")[0].replace(".", "").strip("0"))
    if digits > 1 and abs(number) < FLOAT_MAX:
        assert float32(float(f"{number:.{digits - 2}e}")) != float32(number)


@examples
@given(st.floats(allow_nan=False))
def test_a_double_reads_back_bit_equal(number: float) -> None:
    assert struct.pack("<d", float(float_text(number, is_double=True))) == struct.pack("<d", number)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain/path_é_日本.prototxt", '"plain/path_é_日本.prototxt"'),
        ("\"quoted\" 'single' \\", '"\\"quoted\\" \'single\' \\\\"'),
        ("tab\t line\r\n", '"tab\\t line\\r\\n"'),
        ("\0\x1b7", '"\\000\\0337"'),
        ("\u200e\u2028", '"\\342\\200\\216\\342\\200\\250"'),
        (b"\xff\xd8A\0", '"\\377\\330A\\000"'),
    ],
)
def test_a_string_has_only_the_escapes_it_needs(value: str | bytes, text: str) -> None:
    assert string_text(value) == text


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (pb.NetParameter(), ""),
        (pb.LayerParameter(include=[{"phase": pb.TRAIN}]), "include { phase: TRAIN }\n"),
        (pb.LayerParameter(relu_param={}), "relu_param { }\n"),
        (
            pb.LayerParameter(param=[{"lr_mult": 1}, {"lr_mult": 2, "decay_mult": 0}]),
            "param { lr_mult: 1 }\nparam {\n  lr_mult: 2\n  decay_mult: 0\n}\n",
        ),
        (
            pb.LayerParameter(input_param={"shape": [{"dim": [1]}]}),
            "input_param {\n  shape { dim: 1 }\n}\n",
        ),
        (
            pb.NetParameter(layer=[{"type": "ReLU", "name": "a"}, {"name": "b"}], name="net"),
            'name: "net"\nlayer {\n  name: "a"\n  type: "ReLU"\n}\nlayer { name: "b" }\n',
        ),
        (
            pb.SolverParameter(
                test_initialization=False, solver_mode=pb.SolverParameter.CPU, test_iter=[4, 5]
            ),
            "test_iter: 4\ntest_iter: 5\ntest_initialization: false\nsolver_mode: CPU\n",
        ),
        (pb.ParamSpec(lr_mult=1, decay_mult=1), "lr_mult: 1\ndecay_mult: 1\n"),
    ],
)
def test_a_message_is_written_as(message: Message, text: str) -> None:
    assert render_prototxt(message) == text
    assert parse_prototxt(text, type(message)) == message


# Every field of every message has one place in the order of writing.


MESSAGES = pb.DESCRIPTOR.message_types_by_name


def test_every_field_has_one_place() -> None:
    ordered = {
        name: sorted(each.name for each in ordered_fields(schema)) for name, schema in MESSAGES.items()
    }
    assert ordered == {name: sorted(each.name for each in schema.fields) for name, schema in MESSAGES.items()}


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
