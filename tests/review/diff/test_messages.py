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
from caffe_recipes.review.diff import messages as diff_messages_module
from caffe_recipes.review.diff.messages import diff_messages, meaning_bytes

examples = settings(max_examples=80, database=None, derandomize=True)
CLASSES = (
    pb.SolverParameter,
    pb.LayerParameter,
    pb.TransformationParameter,
    pb.MultiPhaseSolverParameter,
    # Values that mean more in some places than in others.
    pb.ConcatParameter,
    pb.ConvolutionParameter,
    pb.LossParameter,
    pb.ParamSpec,
    pb.PoolingParameter,
    pb.ScaleParameter,
)
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
    if not fields:
        return
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
    assert (diff_messages(old, new) == []) == (meaning_bytes(old) == meaning_bytes(new))
    assert (diff_messages(new, old) == []) == (meaning_bytes(old) == meaning_bytes(new))


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
    ("outer", "field", "block", "absent"),
    [
        ("transform_param", "random_resize_param", "{ }", "not set"),
        ("transform_param", "random_aspect_ratio_param", "{ }", "not set"),
        ("transform_param", "resize_param", "{ prob: 1 }", "not set"),
        ("transform_param", "noise_param", "{ }", "not set"),
        ("transform_param", "distort_param", "{ }", "not set"),
        ("transform_param", "expand_param", "{ prob: 1 }", "not set"),
        ("transform_param", "emit_constraint", "{ }", "not set"),
        ("scale_param", "filler", "{ value: 0 }", "not set (starts at 1)"),
        ("batch_norm_param", "filler", "{ }", "not set (starts at 1)"),
        ("prelu_param", "filler", "{ value: 1 }", "not set (starts at 0.25)"),
        ("norm_param", "scale_filler", "{ value: 20 }", "not set (starts at 1)"),
        ("multibox_loss_param", "nms_param", "{ }", "not set"),
    ],
)
def test_a_block_that_caffe_asks_for_is_distinguished_from_its_absence(
    outer: str, field: str, block: str, absent: str
) -> None:
    without, with_it = f"{outer} {{ }}", f"{outer} {{ {field} {block} }}"
    for old in ("", without):
        assert lines(old, with_it, pb.LayerParameter) == [f"{outer}.{field} {absent} -> {block}"]
        assert lines(with_it, old, pb.LayerParameter) == [f"{outer}.{field} {block} -> {absent}"]
    a, b = (meaning_bytes(parse_prototxt(text, pb.LayerParameter)) for text in (without, with_it))
    assert a != b


def test_batch_norms_that_no_longer_start_at_zero_are_reported() -> None:
    zero = "scale_param { bias_term: true filler { value: 0 } }"
    assert lines(zero, "scale_param { bias_term: true }", pb.LayerParameter) == [
        "scale_param.filler { value: 0 } -> not set (starts at 1)"
    ]
    assert lines(zero, zero.replace("value: 0", "value: 1"), pb.LayerParameter) == [
        "scale_param.filler.value 0 -> 1"
    ]


@pytest.mark.parametrize(
    "block",
    [
        "scale_param { filler { value: 1 } }",
        'scale_param { filler { type: "constant" value: 1 } bias_filler { } }',
        "prelu_param { filler { value: 0.25 } }",
        "batch_norm_param { bias_filler { value: 0 } }",
        "convolution_param { weight_filler { } bias_filler { value: 0 } }",
        "transform_param { random_resize_param { resize_param { } } }",
        "include { }",
        "include { } include { phase: TRAIN }",
    ],
)
def test_a_block_of_default_values_equals_its_absence(block: str) -> None:
    base = "transform_param { random_resize_param { } }" if "random" in block else ""
    assert lines(base, block, pb.LayerParameter) == []
    assert lines(base, block, pb.LayerParameter, defaults=True) != []


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "loss_param { normalize: false }",
            "loss_param { normalize: false normalization: VALID }",
            "loss_param.normalization not set -> VALID",
        ),
        (
            "concat_param { axis: 2 }",
            "concat_param { axis: 2 concat_dim: 1 }",
            "concat_param.concat_dim not set -> 1",
        ),
        (
            "slice_param { slice_dim: 2 axis: 1 }",
            "slice_param { slice_dim: 2 }",
            "slice_param.axis 1 -> not set",
        ),
        ('param { name: "w" }', 'param { name: "w" lr_mult: 1 }', "param[0].lr_mult not set -> 1"),
        (
            "convolution_param { pad: 1 }",
            "convolution_param { pad: 1 pad_h: 0 }",
            "convolution_param.pad_h not set -> 0",
        ),
        (
            "pooling_param { pad_h: 2 pad_w: 0 }",
            "pooling_param { pad_h: 2 }",
            "pooling_param.pad_w 0 -> not set",
        ),
        (
            "pooling_param { stride_h: 2 stride_w: 2 stride: 1 }",
            "pooling_param { stride_h: 2 stride_w: 2 }",
            "pooling_param.stride 1 -> not set",
        ),
        (
            'type: "SigmoidCrossEntropyLoss"',
            'type: "SigmoidCrossEntropyLoss" loss_param { normalization: VALID }',
            "loss_param.normalization not set -> VALID",
        ),
        ('type: "BatchNorm"', 'type: "BatchNorm" param { }', "param[0] not set -> { }"),
    ],
)
def test_a_default_that_caffe_asks_for_is_distinguished_from_its_absence(
    old: str, new: str, line: str
) -> None:
    assert lines(old, new, pb.LayerParameter) == [line]
    assert lines(new, old, pb.LayerParameter) == [" -> ".join(flip(line))]
    a, b = (meaning_bytes(parse_prototxt(text, pb.LayerParameter)) for text in (old, new))
    assert a != b


@pytest.mark.parametrize(
    "text",
    [
        "pooling_param { pad: 0 stride: 1 }",
        'type: "SoftmaxWithLoss" loss_weight: 1',
        'type: "SoftmaxWithLoss" loss_param { normalization: VALID }',
        "concat_param { concat_dim: 1 }",
        "concat_param { axis: 1 }",
        "param { lr_mult: 1 decay_mult: 1 }",
        "convolution_param { pad_h: 0 pad_w: 0 }",
        "eltwise_param { coeff: 1 coeff: 1 }",
        "transform_param { scale: 1 }",
        "data_param { batch_size: 0 }",
    ],
)
def test_a_default_that_caffe_takes_anyway_is_not_a_change(text: str) -> None:
    bare = text.partition('" ')[0] + '"' if text.startswith("type") else ""
    assert lines(bare, text, pb.LayerParameter) == []
    assert lines(text, bare, pb.LayerParameter) == []
    assert lines(bare, text, pb.LayerParameter, defaults=True) != []


def test_a_solver_s_zeros_equal_their_absence_but_a_written_net_does_not() -> None:
    assert lines("", "momentum: 0 weight_decay: 0 gamma: 0 display: 0", pb.SolverParameter) == []
    assert lines("", "net_param { }", pb.SolverParameter) == ["net_param not set -> { }"]
    assert lines("", "train_state { }", pb.SolverParameter) == []
    assert lines("train_state { }", "train_state { level: 0 }", pb.SolverParameter) == [
        "train_state.level not set -> 0"
    ]


def test_a_loss_that_has_no_weight_of_its_own_is_changed_by_one() -> None:
    assert lines('type: "SmoothL1Loss"', 'type: "SmoothL1Loss" loss_weight: 1', pb.LayerParameter) == [
        "loss_weight not set -> 1"
    ]


def test_a_weight_of_a_layer_that_is_not_a_loss_is_a_change() -> None:
    assert lines('type: "Pooling"', 'type: "Pooling" loss_weight: 1', pb.LayerParameter) == [
        "loss_weight not set -> 1"
    ]
    assert lines('type: "EuclideanLoss"', 'type: "EuclideanLoss" loss_weight: 2', pb.LayerParameter) == [
        "loss_weight 1 (default) -> 2"
    ]


def test_every_name_in_the_tables_of_presence_is_the_schema_s() -> None:
    tables = [
        *((m, f) for m, fields in diff_messages_module.PRESENCE_TESTED.items() for f in fields),
        *diff_messages_module.FILLER_STARTS,
    ]
    for message, field in tables:
        assert field in getattr(pb, message).DESCRIPTOR.fields_by_name, f"{message}.{field}"


def flip(line: str) -> tuple[str, str]:
    """Turn `field a -> b` around."""
    field, _, rest = line.partition(" ")
    old, _, new = rest.partition(" -> ")
    return f"{field} {new}", old


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("", "use_global_stats: false", "use_global_stats not set -> false"),
        ("moving_average_fraction: 0.95", "", "moving_average_fraction 0.95 -> 0.999 (default)"),
    ],
)
def test_the_absent_side_shows_the_default_of_caffe_if_one_exists(old: str, new: str, line: str) -> None:
    assert lines(old, new, pb.BatchNormParameter) == [line]


def test_a_rule_without_its_phase_is_another_rule() -> None:
    old, new = "include { phase: TRAIN }", "include { }"
    assert lines(old, new, pb.LayerParameter) == ["include[0] { phase: TRAIN } -> not set"]
    both = "include { phase: TRAIN } include { phase: TEST }"
    assert lines(both, f"{both} include {{ }}", pb.LayerParameter) != []
    assert lines("exclude { phase: TEST }", "exclude { }", pb.LayerParameter) == [
        "exclude[0].phase TEST -> not set"
    ]


def test_a_block_of_one_side_is_one_change_but_one_value_in_it_shows_as_that() -> None:
    block = "convolution_param { num_output: 8 group: 2 }"
    assert lines("", block, pb.LayerParameter) == ["convolution_param not set -> { num_output: 8 group: 2 }"]
    assert lines("convolution_param { group: 2 }", "", pb.LayerParameter) == [
        "convolution_param.group 2 -> 1 (default)"
    ]
    assert lines("random_resize_param { min_size: 9 }", "", pb.TransformationParameter) == [
        "random_resize_param { min_size: 9 } -> not set"
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


SAME = [
    (pb.ConvolutionParameter, "kernel_size: 11 stride: 4",
     "kernel_h: 11 kernel_w: 11 stride_h: 4 stride_w: 4"),
    (pb.ConvolutionParameter, "kernel_size: 1 kernel_size: 7 pad: [0, 3]",
     "kernel_h: 1 kernel_w: 7 pad_h: 0 pad_w: 3"),
    (pb.ConvolutionParameter, "kernel_size: 3", "kernel_size: [3, 3] pad_h: 0 pad_w: 0 dilation: [1, 1]"),
    (pb.PoolingParameter, "kernel_size: 3",
     "kernel_h: 3 kernel_w: 3 pad_h: 0 pad_w: 0 stride_h: 1 stride_w: 1"),
    (pb.PriorBoxParameter, "min_size: 30 step: 8 img_size: 300",
     "min_size: 30 step_h: 8 step_w: 8 img_h: 300 img_w: 300"),
    (pb.ConcatParameter, "axis: 2", "concat_dim: 2"),
    (pb.ConcatParameter, "", "concat_dim: 1"),
    (pb.SliceParameter, "axis: 0 slice_point: 2", "slice_dim: 0 slice_point: 2"),
    (pb.LayerParameter, "include { phase: TEST }", "exclude { phase: TRAIN }"),
    (pb.SolverParameter, "net: 'a' test_iter: [4, 5]",
     "train_net: 'a' test_net: 'a' test_net: 'a' test_iter: [4, 5]"),
    (pb.SolverParameter, "net: 'a'", "train_net: 'a'"),
]  # fmt: skip


@pytest.mark.parametrize(("cls", "one", "other"), SAME)
def test_two_spellings_of_the_same_value_are_not_a_difference(
    cls: type[Message], one: str, other: str
) -> None:
    assert lines(one, other, cls) == lines(other, one, cls) == []
    assert meaning_bytes(parse_prototxt(one, cls)) == meaning_bytes(parse_prototxt(other, cls))
    assert lines(one, other, cls, defaults=True) != []


@pytest.mark.parametrize(
    ("cls", "one", "other", "line"),
    [
        (pb.ConvolutionParameter, "kernel_size: 11", "kernel_h: 7 kernel_w: 7", "kernel_size 11 -> 7"),
        (pb.ConvolutionParameter, "kernel_h: 11 kernel_w: 3", "kernel_h: 7 kernel_w: 3", "kernel_h 11 -> 7"),
        (pb.LayerParameter, "include { phase: TRAIN }", "exclude { phase: TRAIN }",
         "include[0].phase TRAIN -> TEST"),
        (pb.LayerParameter, "", "exclude { phase: TRAIN }", "exclude[0] not set -> { phase: TRAIN }"),
        (pb.SolverParameter, "net: 'a'", "train_net: 'b'", 'net "a" -> "b"'),
        (pb.SolverParameter, "test_net: 'a' test_iter: 1", "train_net: 'a' test_net: 'a' test_iter: 1",
         'train_net not set -> "a"'),
    ],
)  # fmt: skip
def test_differently_spelled_different_values_show_what_differs(
    cls: type[Message], one: str, other: str, line: str
) -> None:
    assert lines(one, other, cls) == [line]
