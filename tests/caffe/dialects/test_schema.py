"""The schema of all Caffes: it reads what any of them reads, and converts what our Caffe has."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import Definition, load_dialects
from caffe_recipes.caffe.dialects.schema import lenient_schema, parse_lenient, to_ours
from caffe_recipes.caffe.prototxt import parse_prototxt
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
        (
            "base_lr: 1\nrampup_intervall: 3",
            "2:1: SolverParameter has no field 'rampup_intervall'; did you mean",
        ),
        ("layer { clip_param { min: 1 } }", "1:20: ClipParameter needs the field 'max'"),
        ("base_lr: 1 base_lr: 2", "1:12: 'base_lr' is given twice"),
    ],
)
def test_text_that_no_caffe_reads_is_refused_with_its_position(text: str, message: str) -> None:
    with pytest.raises(PrototxtError, match=message):
        parse_lenient(text, "x.prototxt")


def test_the_schema_is_built_once() -> None:
    assert lenient_schema() is lenient_schema()
