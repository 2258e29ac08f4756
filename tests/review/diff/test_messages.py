"""Two messages, field by field: what counts, what does not, and how a change reads."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import format_prototxt, parse_prototxt, render_prototxt
from caffe_recipes.review.diff.messages import diff_messages, fingerprint

examples = settings(max_examples=80, deadline=None, database=None, derandomize=True)
CLASSES = (pb.SolverParameter, pb.LayerParameter, pb.TransformationParameter, pb.MultiPhaseSolverParameter)
VALUES = {
    FieldDescriptor.CPPTYPE_INT32: st.integers(0, 9),
    FieldDescriptor.CPPTYPE_INT64: st.integers(0, 9),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 9),
    FieldDescriptor.CPPTYPE_FLOAT: st.sampled_from([0.0, 0.5, 1.0, 0.999, float("inf"), float("nan")]),
    FieldDescriptor.CPPTYPE_DOUBLE: st.sampled_from([0.0, 0.5]),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_STRING: st.text("ab\n", max_size=2),
}


def lines(old: str, new: str, cls: type[Message], *, defaults: bool = False) -> list[str]:
    found = diff_messages(parse_prototxt(old, cls), parse_prototxt(new, cls), defaults=defaults)
    return [f"{change.field} {change.old.text} -> {change.new.text}" for change in found]


@st.composite
def messages(draw: st.DrawFn) -> Message:
    message: Message = draw(st.sampled_from(CLASSES))()
    fill(draw, message, 3)
    return message


@st.composite
def further(draw: st.DrawFn, old: Message) -> Message:
    new = copy.deepcopy(old)
    fill(draw, new, 2)
    return new


def fill(draw: st.DrawFn, message: Message, depth: int) -> None:
    fields: list[Any] = [f for f in message.DESCRIPTOR.fields if depth or f.message_type is None]
    required = [field for field in fields if field.is_required]
    for field in dict.fromkeys(
        [*draw(st.lists(st.sampled_from(fields), max_size=4, unique=True)), *required]
    ):
        holder = getattr(message, field.name)
        for _ in range(draw(st.integers(1, 3)) if field.is_repeated else 1):
            if field.message_type is not None:
                child = holder.add() if field.is_repeated else holder
                child.SetInParent()
                fill(draw, child, depth - 1)
            elif field.is_repeated:
                holder.append(draw(value_of(field)))
            else:
                setattr(message, field.name, draw(value_of(field)))


def value_of(field: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401 - upb's descriptor
    if field.enum_type:
        return st.sampled_from([value.number for value in field.enum_type.values])
    return st.just(b"x") if field.type == FieldDescriptor.TYPE_BYTES else VALUES[field.cpp_type]


@examples
@given(messages())
def test_a_message_equals_itself_its_text_and_its_canonical_text(message: Message) -> None:
    text = render_prototxt(message)
    again = parse_prototxt(format_prototxt(text, type(message)), type(message))
    assert diff_messages(message, again, defaults=True) == []


@examples
@given(st.data(), messages())
def test_nothing_is_found_exactly_where_the_meaning_is_equal(data: st.DataObject, old: Message) -> None:
    new = data.draw(further(old))
    assert (diff_messages(old, new) == []) == (fingerprint(old) == fingerprint(new))
    assert (diff_messages(new, old) == []) == (fingerprint(old) == fingerprint(new))


@examples
@given(st.data(), messages())
def test_one_edit_of_one_field_is_one_change_of_that_field(data: st.DataObject, old: Message) -> None:
    new = copy.deepcopy(old)
    singles: list[Any] = [
        field for field in old.DESCRIPTOR.fields if not field.is_repeated and field.message_type is None
    ]
    field = data.draw(st.sampled_from(singles)) if singles else None
    if field is None:
        return
    setattr(new, field.name, data.draw(value_of(field)))
    found = diff_messages(old, new, defaults=True)
    assert [change.field for change in found] == ([] if same(old, new, field.name) else [field.name])


def same(old: Message, new: Message, name: str) -> bool:
    a, b = getattr(old, name), getattr(new, name)
    return old.HasField(name) and (a == b or (a != a and b != b))


def test_order_comments_and_quotes_do_not_count() -> None:
    assert lines("base_lr: 1 # one\ntype: 'SGD'", 'type: "SGD"\nbase_lr: 1.0', pb.SolverParameter) == []


def test_a_written_default_equals_its_absence_unless_asked_for() -> None:
    old, new = "convolution_param { num_output: 8 }", "convolution_param { num_output: 8 bias_term: true }"
    assert lines(old, new, pb.LayerParameter) == []
    assert lines(old, new, pb.LayerParameter, defaults=True) == [
        "convolution_param.bias_term true (default) -> true"
    ]


def test_defaults_that_only_caffe_knows_count_as_such() -> None:
    written = "convolution_param { pad: 0 stride: 1 dilation: 1 } param { } param { lr_mult: 1 }"
    assert lines("", written, pb.LayerParameter) == []
    assert lines("", written, pb.LayerParameter, defaults=True) != []
    assert lines("stride: 2", "", pb.ConvolutionParameter) == ["stride 2 -> 1 (default)"]
    assert lines("pad: 0", "pad: [0, 1]", pb.ConvolutionParameter) == ["pad 0 (default) -> [0, 1]"]


def test_an_empty_block_equals_its_absence_unless_asked_for() -> None:
    assert lines("", "relu_param { }", pb.LayerParameter) == []
    assert lines("", "relu_param { }", pb.LayerParameter, defaults=True) == ["relu_param not set -> { }"]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("", "use_global_stats: false", "use_global_stats not set -> false"),
        ("moving_average_fraction: 0.95", "", "moving_average_fraction 0.95 -> 0.999 (default)"),
    ],
)
def test_the_absent_side_shows_the_default_that_caffe_takes_if_there_is_one(
    old: str, new: str, line: str
) -> None:
    assert lines(old, new, pb.BatchNormParameter) == [line]


def test_a_rule_without_its_phase_is_another_rule() -> None:
    old, new = "include { phase: TRAIN }", "include { }"
    assert lines(old, new, pb.LayerParameter) == ["include[0].phase TRAIN -> not set"]


def test_a_block_of_one_side_is_one_change_but_one_value_in_it_shows_as_that() -> None:
    block = "random_resize_param { min_size: 256 max_size: 480 }"
    assert lines("", block, pb.TransformationParameter) == [
        "random_resize_param not set -> { min_size: 256 max_size: 480 }"
    ]
    assert lines("random_resize_param { min_size: 9 }", "", pb.TransformationParameter) == [
        "random_resize_param.min_size 9 -> 0 (default)"
    ]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("mean_value: [104, 117, 123]", "mean_value: [104, 116, 123]", "mean_value[1] 117 -> 116"),
        (
            "mean_value: [104, 117, 123]",
            "mean_value: [0, 0, 123]",
            "mean_value [104, 117, 123] -> [0, 0, 123]",
        ),
        ("mean_value: 104", "mean_value: 100", "mean_value 104 -> 100"),
        ("mean_value: 104", "", "mean_value 104 -> not set"),
        ("scale: nan", "scale: nan mirror: true", "mirror false (default) -> true"),
    ],
)
def test_lists_show_the_one_value_that_differs_or_both_lists(old: str, new: str, line: str) -> None:
    assert lines(old, new, pb.TransformationParameter) == [line]


def test_long_lists_show_where_they_part_and_never_look_equal() -> None:
    old = ", ".join(map(str, range(1000)))
    new = ", ".join(map(str, [*range(990), *range(5)]))
    assert lines(f"stepvalue: [{old}]", f"stepvalue: [{new}]", pb.SolverParameter) == [
        "stepvalue[990:] [990, 991, 992, 993, 994, 995, 996, 997, ... 2 more] -> [0, 1, 2, 3, 4]"
    ]


def test_a_second_param_taken_away_leaves_the_first_alone() -> None:
    old, new = "param { lr_mult: 1 } param { lr_mult: 2 }", "param { lr_mult: 2 }"
    assert lines(old, new, pb.LayerParameter) == ["param[0] { lr_mult: 1 } -> not set"]


def test_labels_go_by_their_number_and_not_by_their_place() -> None:
    names = {1: "cat", 2: "dog", 3: "emu"}
    cat, dog, emu = (f'item {{ name: "{name}" label: {label} }}' for label, name in names.items())
    assert lines(cat + dog + emu, emu + dog + cat, pb.LabelMap) == []
    assert lines(cat + dog, dog, pb.LabelMap) == ['item[label 1] { name: "cat" label: 1 } -> not set']
    assert lines(dog, dog.replace("dog", "wolf"), pb.LabelMap) == ['item[label 2].name "dog" -> "wolf"']
    assert lines(dog, dog.replace("2", "4"), pb.LabelMap) == ["item[label 4].label 2 -> 4"]


def test_text_with_line_breaks_stays_on_one_line() -> None:
    [line] = lines("", 'snapshot_prefix: "a\\nb"', pb.SolverParameter)
    assert line == 'snapshot_prefix not set -> "a\\nb"'
