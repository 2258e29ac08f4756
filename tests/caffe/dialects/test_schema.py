"""The schema of all Caffes: it reads what any of them reads, and converts what our Caffe has."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import Definition, load_dialects
from caffe_recipes.caffe.dialects.schema import (
    has_unknown_effect,
    is_known,
    lenient_schema,
    outer_foreign,
    parse_lenient,
    rounds_down,
    share_schema,
    to_ours,
)
from caffe_recipes.caffe.prototxt import parse_prototxt, render_prototxt
from caffe_recipes.errors import PrototxtError


def find(owner: str) -> Descriptor | EnumDescriptor:
    """Find a message or an enum by the name that the dialects give it."""
    outer, _, inner = owner.partition(".")
    schema = lenient_schema()
    if not inner:
        return schema.message_types_by_name.get(outer) or schema.enum_types_by_name[outer]
    message = schema.message_types_by_name[outer]
    return message.enum_types_by_name.get(inner) or message.nested_types_by_name[inner]


ADDED = [
    (dialect.name, owner, name)
    for dialect in load_dialects().values()
    for owner, names in dialect.added.items()
    for name in names
]


def test_everything_that_a_dialect_adds_is_there_as_it_defines_it() -> None:
    assert len(ADDED) > 150
    for dialect, owner, name in ADDED:
        definition = load_dialects()[dialect].added[owner][name]
        found = find(owner)
        if isinstance(found, EnumDescriptor):
            assert name in found.values_by_name
            continue
        assert isinstance(definition, Definition)
        field = found.fields_by_name[name]
        assert field.is_repeated == (definition.label == "repeated")
        assert field.is_required == (definition.label == "required")
        kind = field.message_type or field.enum_type
        if kind is not None:
            assert kind.full_name == f"caffe.{definition.type}"
        if kind is None and definition.default is not None:
            read = str(field.default_value).lower() if definition.type == "bool" else field.default_value
            assert read == definition.default or float(read) == pytest.approx(float(definition.default))


def test_our_own_fields_and_values_keep_their_numbers() -> None:
    for name, ours in pb.DESCRIPTOR.message_types_by_name.items():
        theirs = lenient_schema().message_types_by_name[name].fields_by_name
        for field in ours.fields:
            assert (theirs[field.name].number, theirs[field.name].type) == (field.number, field.type)
        for enum in ours.enum_types:
            values = lenient_schema().message_types_by_name[name].enum_types_by_name[enum.name]
            assert all(values.values_by_name[value.name].number == value.number for value in enum.values)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("rampup_interval: 5", "SolverParameter"),
        ("layer { clip_param { min: 0 max: 6 } }", "NetParameter"),
        ("default_forward_type: FLOAT16 layer { }", "NetParameter"),
        ('layer { type: "X" elu_param { lambda: 2 } }', "NetParameter"),
        ("stagelr: 0.1 stagelr: 0.2 stageiter: 10", "SolverParameter"),
        ("params_pair { solver_params { min_lr: 1 } }", "MultiPhaseSolverParameter"),
        ('item { name: "cat" label: 1 }', "LabelMap"),
    ],
)
def test_a_file_of_any_caffe_is_read_as_what_it_is(text: str, kind: str) -> None:
    assert parse_lenient(text).message.DESCRIPTOR.name == kind


def test_fields_with_clashing_numbers_are_distinguished() -> None:
    text = 'rampup_interval: 3 eval_type: "x" test_offset: 4 lr_iter: 5 layer_wise_reduce: false'
    message = parse_lenient(text).message
    assert [getattr(message, name) for name in ("rampup_interval", "test_offset", "lr_iter")] == [3, 4, 5]
    assert to_ours(message) == pb.SolverParameter(eval_type="x", lr_iter=5)


def test_our_fields_are_converted_completely_and_the_rest_is_dropped() -> None:
    message = parse_lenient(
        "layer { type: 'BatchNorm' batch_norm_param { engine: CUDNN eps: 0.5 scale_bias: true } "
        "detectnet_groundtruth_param { object_class { src: 1 dst: 2 } } pooling_param { round_mode: FLOOR } }"
    ).message
    ours = to_ours(message)
    expected = parse_prototxt(
        "layer { type: 'BatchNorm' batch_norm_param { eps: 0.5 } pooling_param { } }", pb.NetParameter
    )
    assert ours == expected
    assert not ours.layer[0].batch_norm_param.HasField("engine")  # type: ignore[attr-defined]
    assert ours.SerializeToString() == expected.SerializeToString()


@pytest.mark.parametrize("solver_type", ["SGD", "SAG"])
def test_an_enum_value_that_ours_lacks_is_dropped(solver_type: str) -> None:
    ours = to_ours(parse_lenient(f"solver_type: {solver_type} base_lr: 1").message)
    assert isinstance(ours, pb.SolverParameter)
    assert ours.HasField("solver_type") == (solver_type == "SGD")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gama: 1 base_lr: x", "1:1: SolverParameter has no field 'gama'; did you mean 'gamma'?"),
        ("rampup_interval: 1 base_lr: x", "1:29: 'base_lr' takes a number, not 'x'"),
        ("layer { convolution_param { num_output: 1 layer { } }", "has no field 'layer'; it is a field of"),
        ("layer { my_param { x 1 } }", "LayerParameter has no field 'my_param'"),
        ("layer { my_param { x: } }", "LayerParameter has no field 'my_param'"),
        ("layer { my_param { x: 08 } }", "LayerParameter has no field 'my_param'"),
        ("layer { x: 1 x { } }", "1:12: expected '{' after 'x', not '1'"),
        ("gama: 1", "has no field 'gama'"),
        ("model { faster_rcnn { } } train_config { }", "NetParameter has no field 'model'"),
        ("layer { pooling_param { pool: LIP } }", "takes a value of PoolingParameter.PoolMethod"),
        ("<html>", "expected a field of NetParameter"),
        ("layer { clip_param { min: 1 } }", "1:20: ClipParameter needs the field 'max'"),
        ("base_lr: 1 base_lr: 2", "1:12: 'base_lr' is given twice"),
    ],
)
def test_text_that_no_caffe_reads_is_refused_with_its_position(text: str, message: str) -> None:
    with pytest.raises(PrototxtError, match=message):
        parse_lenient(text, "x.prototxt")


FORK = """# a fork's net

name: "n"
layer {
  name: "b"
  type: "BN"
  # above the block
  bn_param { # beside it
    slope_filler { type: "constant" value: 1 }
    sizes: 1
    sizes: 0.001
    word: SOME
    text: "a\\"b"
    # last in the block
  }
  odd: true
  odd: false
}
"""


def test_fields_that_no_dialect_has_keep_their_place_value_and_comments() -> None:
    text = FORK.replace("value: 1 ", "value: +1.0 ".replace("+", "")).replace("0.001", "1e-3")
    document = parse_lenient(text.replace('"a\\"b"', "'a' '\"b'"))
    assert render_prototxt(document.message, document.comments) == FORK
    assert [name.name for name in outer_foreign(document)] == ["bn_param", "odd"]
    assert not any(map(is_known, document.foreign))
    assert to_ours(document.message) == parse_prototxt(
        'name: "n" layer { name: "b" type: "BN" }', pb.NetParameter
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("base_lr: 1 my_rate: -inf", [("SolverParameter", "my_rate")]),
        ("layers { type: BN }", [("V1LayerParameter.LayerType", "BN")]),
        ("layer { x: [1, 2], y <z: 1> }", [("LayerParameter", "x"), ("LayerParameter", "y")]),
        ("rampup_interval: 5 base_lr: 1", [("SolverParameter", "rampup_interval")]),
        ("name: 'n' net: 'x' base_lr: 1", [("SolverParameter", "name")]),
        ("layer { }", []),
    ],
)
def test_the_names_that_our_caffe_lacks_are_collected(text: str, names: list[tuple[str, str]]) -> None:
    document = parse_lenient(text)
    assert [(name.owner, name.name) for name in outer_foreign(document)] == names
    again = parse_lenient(render_prototxt(document.message))
    assert (again.message == document.message) == (not names or type(again.message) is type(document.message))


def test_text_without_foreign_names_is_of_our_schema() -> None:
    assert parse_lenient("base_lr: 1").message == pb.SolverParameter(base_lr=1)


def test_two_messages_with_different_foreign_fields_get_one_schema() -> None:
    texts = ("layer { x: 1 b { y: 1 } }", "layer { x: 1 x: 2 b { z: 1 } }", "layer { }")
    first, second, ours = (parse_lenient(text).message for text in texts)
    shared = share_schema(first, second)
    assert type(shared[0]) is type(shared[1])
    assert [render_prototxt(each) for each in shared] == [render_prototxt(each) for each in (first, second)]
    assert render_prototxt(share_schema(ours, first)[0]) == "layer { }\n"


@pytest.mark.parametrize(
    ("field", "is_unknown", "is_down"),
    [
        ("ceil_mode: false", False, True),
        ("ceil_mode: true", False, False),
        ("round_mode: FLOOR", False, True),
        ("round_mode: CEIL", False, False),
        ("torch_pooling: true", True, False),
        ("odd: 1", True, False),
        ("stride: 1", False, False),
    ],
)
def test_a_pooling_of_another_caffe_has_known_shapes_if_its_rounding_is_known(
    field: str, is_unknown: bool, is_down: bool
) -> None:
    net = parse_lenient(f"layer {{ pooling_param {{ {field} }} }}").message
    layer = net.layer[0]  # type: ignore[attr-defined]
    assert (has_unknown_effect(layer), rounds_down(layer.pooling_param)) == (is_unknown, is_down)


def test_the_schema_is_built_once() -> None:
    assert lenient_schema() is lenient_schema()
