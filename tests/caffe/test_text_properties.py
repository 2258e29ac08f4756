"""Any message of the schema reads back as itself; canonical text stays as it is; every comment survives."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import format_prototxt, parse_prototxt, render_prototxt
from caffe_recipes.caffe.text.parser import parse_text
from caffe_recipes.caffe.text.tokens import TOKEN
from caffe_recipes.caffe.upgrade import upgrade_net
from caffe_recipes.errors import PrototxtError

CLASSES: dict[str, type[Message]] = {name: getattr(pb, name) for name in pb.DESCRIPTOR.message_types_by_name}
STYLES: tuple[dict[str, Any], ...] = (
    {},
    {"as_utf8": True, "use_index_order": True},
    {"as_one_line": True, "use_short_repeated_primitives": True},
    {"pointy_brackets": True, "use_short_repeated_primitives": True},
)

SMALLEST, LARGEST = (struct.unpack("<f", number.to_bytes(4, "little"))[0] for number in (1, 0x7F7FFFFF))
FLOATS = [
    0.0,
    -0.0,
    SMALLEST,
    -SMALLEST,
    2.0**-126,
    LARGEST,
    -LARGEST,
    float("inf"),
    -float("inf"),
    float("nan"),
    -float("nan"),
]
DOUBLES = [*FLOATS, 5e-324, 2.0**-1022, 1.7976931348623157e308, 0.1, 1e22, 1e23]
STRINGS = [
    "",
    "\0",
    '"',
    "'",
    "\\",
    "\n\r\t\v\f\b\a",
    "é",
    "\ufeff",
    "\u2028",
    "\U0001f600",
    "?\0007",
    "# no",
]
EXTREMES: dict[int, list[Any]] = {
    FieldDescriptor.TYPE_INT32: [0, 1, -1, -(2**31), 2**31 - 1],
    FieldDescriptor.TYPE_INT64: [0, 1, -1, -(2**63), 2**63 - 1],
    FieldDescriptor.TYPE_UINT32: [0, 1, 2**32 - 1],
    FieldDescriptor.TYPE_FLOAT: FLOATS,
    FieldDescriptor.TYPE_DOUBLE: DOUBLES,
    FieldDescriptor.TYPE_BOOL: [False, True],
    FieldDescriptor.TYPE_STRING: STRINGS,
    FieldDescriptor.TYPE_BYTES: [text.encode() for text in STRINGS] + [b"\xff\x00\x80", bytes(range(256))],
}
VALUES = {
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32, allow_nan=False) | st.sampled_from(FLOATS),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False) | st.sampled_from(DOUBLES),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: st.text(max_size=8) | st.sampled_from(STRINGS),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
}
# Where a comment can stand between two tokens; `{}` is its text.
GAPS = ("\t#{}\n", "\n  # {}\n", "\n\n#{}\n\n", " # {0}\n# {0}\n", "#{}\r\n")
COMMENTS = st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=8)

# Every way of writing a field: list, block in a list, both braces, separators, strings in pieces, signs.
EVERY_FORM = """
name: "a" 'b'; force_backward: true, input: ["x", "y"] input_dim: -3
input_shape { } input_shape: [{ dim: [1, 2] }, < dim: 3 >]
layer: { type: 'ReLU' bottom: [] relu_param < negative_slope: -.5e-1f engine: 1 > include { phase: TEST } }
layer { blobs { data: [1, inf, -nan] shape { } } }
"""

examples = settings(
    max_examples=60,
    database=None,
    derandomize=True,
)
few_examples = settings(examples, max_examples=12)


@st.composite
def messages(draw: st.DrawFn, names: st.SearchStrategy[str], depth: int = 3) -> Message:
    message: Message = CLASSES[draw(names)]()
    fill(draw, message, depth)
    return message


def fill(draw: st.DrawFn, message: Message, depth: int) -> None:
    open_fields = [field for field in fields_of(message) if depth or field.message_type is None]
    chosen = draw(st.lists(st.sampled_from(open_fields), max_size=4, unique=True)) if open_fields else []
    for field in dict.fromkeys([*chosen, *(field for field in fields_of(message) if field.is_required)]):
        for _ in range(draw(st.integers(1, 3)) if field.is_repeated else 1):
            if field.message_type is not None:
                fill(draw, add_block(message, field), depth - 1)
                continue
            numbers = [value.number for value in field.enum_type.values] if field.enum_type else []
            put(message, field, draw(st.sampled_from(numbers) if numbers else VALUES[field.type]))


def fields_of(message: Message) -> list[FieldDescriptor]:
    # For the stub, upb's descriptors are of another class; at run time they are instances of this one.
    schema: Descriptor = message.DESCRIPTOR  # type: ignore[assignment]
    return list(schema.fields)


def add_block(message: Message, field: FieldDescriptor) -> Message:
    holder: Any = getattr(message, field.name)
    child: Message = holder.add() if field.is_repeated else holder
    child.SetInParent()
    return child


def put(message: Message, field: FieldDescriptor, value: object) -> None:
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def put_required(message: Message) -> None:
    for field in fields_of(message):
        if field.is_required and not message.HasField(field.name):
            put(message, field, "s" if field.type == FieldDescriptor.TYPE_STRING else 1)


def bits(message: Message) -> bytes:
    """Compare by bytes: floats bit for bit, nan equal to nan."""
    return message.SerializeToString(deterministic=True)


def comments_in(text: str) -> Counter[str]:
    """Count the comments that are not empty."""
    found = (match["comment"] for match in TOKEN.finditer(text))
    return Counter(comment[1:].strip() for comment in found if comment and comment[1:].strip())


def tokens_of(text: str) -> list[str]:
    return [match.group().strip() for match in TOKEN.finditer(text)]


def assert_formats(text: str, message: Message) -> None:
    """Formatting keeps message and comments, and what it wrote is written so again."""
    formatted = format_prototxt(text, type(message))
    assert bits(parse_prototxt(formatted, type(message))) == bits(message)
    assert comments_in(formatted) == comments_in(text)
    assert format_prototxt(formatted, type(message)) == formatted


def single_fields(cls: type[Message]) -> Iterator[Message]:
    """Yield messages with one field each: every field with every extreme value."""
    for field in fields_of(cls()):
        if field.message_type is not None:
            message = cls()
            put_required(add_block(message, field))
            put_required(message)
            yield message
            continue
        numbers = [value.number for value in field.enum_type.values] if field.enum_type else []
        for value in numbers or EXTREMES[field.type]:
            message = cls()
            put(message, field, value)
            put_required(message)
            yield message


@pytest.mark.parametrize("name", CLASSES)
@few_examples
@given(st.data())
def test_any_message_that_we_write_is_read_back_by_protobuf_and_by_us(name: str, data: st.DataObject) -> None:
    message = data.draw(messages(st.just(name)))
    text = render_prototxt(message)
    assert bits(text_format.Parse(text, type(message)())) == bits(message)
    assert bits(parse_prototxt(text, type(message))) == bits(message)
    assert format_prototxt(text, type(message)) == text


def test_every_field_takes_its_extreme_values() -> None:
    changed = []
    for cls in CLASSES.values():
        for message in single_fields(cls):
            text = render_prototxt(message)
            read = [text_format.Parse(text, cls()), parse_prototxt(text, cls)]
            if [*map(bits, read)] != [bits(message)] * 2 or format_prototxt(text, cls) != text:
                changed.append((cls.DESCRIPTOR.name, text))
    assert changed == []


@examples
@given(messages(st.sampled_from(sorted(CLASSES))), st.sampled_from(STYLES))
def test_text_written_by_protobuf_is_read(message: Message, style: dict[str, Any]) -> None:
    text = text_format.MessageToString(message, **style)
    assert bits(parse_prototxt(text, type(message))) == bits(message)


@examples
@given(messages(st.sampled_from(sorted(CLASSES))), st.data())
def test_formatting_keeps_every_comment_and_the_message(message: Message, data: st.DataObject) -> None:
    tokens = tokens_of(render_prototxt(message))
    gaps = data.draw(
        st.lists(st.sampled_from((" ", "\n", *GAPS)), min_size=len(tokens), max_size=len(tokens))
    )
    texts = data.draw(st.lists(COMMENTS, min_size=len(tokens), max_size=len(tokens)))
    text = "".join(
        gap.format(comment) + token for gap, comment, token in zip(gaps, texts, tokens, strict=True)
    )
    assert_formats(text, message)


@pytest.mark.parametrize("gap", GAPS)
def test_a_comment_survives_in_every_position(gap: str) -> None:
    tokens = tokens_of(EVERY_FORM)
    message = parse_prototxt(EVERY_FORM, pb.NetParameter)
    assert len(tokens) == 90
    for index in range(len(tokens)):
        text = " ".join(tokens[:index]) + gap.format("it is here") + " ".join(tokens[index:])
        assert comments_in(text)["it is here"] in (1, 2)
        assert_formats(text, message)
    everywhere = "".join(gap.format(index) + token for index, token in enumerate(tokens))
    assert len(comments_in(everywhere)) == len(tokens)
    assert_formats(everywhere, message)


@examples
@given(messages(st.just("NetParameter"), depth=2), st.data())
def test_upgrading_keeps_every_comment_and_is_done_once(net: Message, data: st.DataObject) -> None:
    for layer in net.layers:  # type: ignore[attr-defined]
        layer.ClearField("layer")
    net.ClearField(data.draw(st.sampled_from(["layer", "layers"])))
    tokens = tokens_of(render_prototxt(net))
    text = "".join(f" # {index}\n{token}" for index, token in enumerate(tokens))
    message = pb.NetParameter()
    comments = parse_text(text, message, "").comments
    try:
        upgraded = upgrade_net(message, comments)
    except PrototxtError as error:
        assume(error.where.startswith("input"))  # fewer shapes than inputs
        return
    written = render_prototxt(upgraded.message, upgraded.comments)
    assert comments_in(written) == comments_in(text)
    again = pb.NetParameter()
    repeated = upgrade_net(again, parse_text(written, again, "").comments)
    assert not repeated.changes
    assert bits(again) == bits(upgraded.message)


def test_values_are_drawn_for_every_type_of_the_schema() -> None:
    types = {field.type for cls in CLASSES.values() for field in fields_of(cls())}
    assert types == {*VALUES, FieldDescriptor.TYPE_ENUM, FieldDescriptor.TYPE_MESSAGE}
    assert set(EXTREMES) == set(VALUES)
    assert len(CLASSES) > 80
