"""Any message, written by protobuf or by us, reads back as itself; any comment survives formatting."""

from collections import Counter
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import format_prototxt, parse_prototxt, render_prototxt
from caffe_recipes.caffe.text_tokens import TOKEN

CLASSES = (pb.SolverParameter, pb.NetParameter, pb.LayerParameter, pb.Datum, pb.BlobProto)
STYLES: tuple[dict[str, Any], ...] = (
    {},
    {"as_utf8": True, "use_index_order": True},
    {"as_one_line": True, "use_short_repeated_primitives": True},
    {"pointy_brackets": True, "use_short_repeated_primitives": True},
)
VALUES = {
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32, allow_nan=False) | st.just(float("nan")),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False) | st.just(float("nan")),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: st.text(max_size=8),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
}
GAPS = (" ", "\n", "\r\n\r\n", "\t#{}\n", "\n  # {}\n", "\n\n#{}\n\n", " # {}\n# {}b\n")

examples = settings(max_examples=60, deadline=None, database=None, derandomize=True)


@st.composite
def messages(draw: st.DrawFn, depth: int = 3) -> Message:
    message: Message = draw(st.sampled_from(CLASSES))()
    fill(draw, message, depth)
    return message


def fill(draw: st.DrawFn, message: Message, depth: int) -> None:
    # For the stub, upb's descriptors are of another class; at run time they are instances of this one.
    schema: Descriptor = message.DESCRIPTOR  # type: ignore[assignment]
    open_fields = [field for field in schema.fields if depth or field.message_type is None]
    chosen = draw(st.lists(st.sampled_from(open_fields), max_size=4, unique=True)) if open_fields else []
    for field in dict.fromkeys([*chosen, *(field for field in schema.fields if field.is_required)]):
        for _ in range(draw(st.integers(1, 3)) if field.is_repeated else 1):
            add(draw, message, field, depth)


def add(draw: st.DrawFn, message: Message, field: FieldDescriptor, depth: int) -> None:
    holder: Any = getattr(message, field.name)
    if field.message_type is not None:
        child = holder.add() if field.is_repeated else holder
        child.SetInParent()
        fill(draw, child, depth - 1)
        return
    numbers = [value.number for value in field.enum_type.values] if field.enum_type else []
    value = draw(st.sampled_from(numbers) if numbers else VALUES[field.type])
    if field.is_repeated:
        holder.append(value)
    else:
        setattr(message, field.name, value)


def bits(message: Message) -> bytes:
    """Compare by bytes: floats bit for bit, nan equal to nan."""
    return message.SerializeToString(deterministic=True)


def comments_in(text: str) -> Counter[str]:
    found = (match["comment"] for match in TOKEN.finditer(text))
    return Counter(comment[1:].strip() for comment in found if comment)


@examples
@given(messages(), st.sampled_from(STYLES))
def test_what_protobuf_writes_is_read(message: Message, style: dict[str, Any]) -> None:
    text = text_format.MessageToString(message, **style)
    assert bits(parse_prototxt(text, type(message))) == bits(message)


@examples
@given(messages())
def test_what_we_write_is_read_by_protobuf_and_by_us(message: Message) -> None:
    text = render_prototxt(message)
    assert bits(text_format.Parse(text, type(message)())) == bits(message)
    assert bits(parse_prototxt(text, type(message))) == bits(message)
    assert format_prototxt(text, type(message)) == text


@examples
@given(messages(), st.data())
def test_formatting_keeps_every_comment_and_the_message(message: Message, data: st.DataObject) -> None:
    tokens = [match.group().strip() for match in TOKEN.finditer(render_prototxt(message))]
    gaps = data.draw(st.lists(st.sampled_from(GAPS), min_size=len(tokens), max_size=len(tokens)))
    text = "".join(gap.format(i, i) + token for i, (gap, token) in enumerate(zip(gaps, tokens, strict=True)))
    formatted = format_prototxt(text, type(message))
    assert bits(parse_prototxt(formatted, type(message))) == bits(message)
    assert comments_in(formatted) == comments_in(text)
    assert format_prototxt(formatted, type(message)) == formatted


def test_values_are_drawn_for_every_type_of_the_schema() -> None:
    types = {field.type for cls in pb.DESCRIPTOR.message_types_by_name.values() for field in cls.fields}
    assert types == {*VALUES, FieldDescriptor.TYPE_ENUM, FieldDescriptor.TYPE_MESSAGE}
