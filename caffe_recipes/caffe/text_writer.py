"""The canonical text of a message: order, numbers, strings, comments."""

from __future__ import annotations

import ctypes
import difflib
from collections.abc import Iterator, Mapping
from decimal import Decimal

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from caffe_recipes.caffe.field_order import ordered_fields
from caffe_recipes.caffe.text_comments import Comment
from caffe_recipes.errors import PrototxtError

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def write_text(message: Message, comments: Mapping[str, Comment]) -> str:
    """Write a message with its comments; PrototxtError where a comment's field is not in the message."""
    return "".join(f"{line}\n" for line in _Writer(comments).lines(message))


def float_text(value: float, is_double: bool = False) -> str:
    """Write a number in the fewest digits that read back bit-equal, plainly down to 0.00001.

    >>> float_text(ctypes.c_float(0.1).value), float_text(5e-05), float_text(1e-08), float_text(1.0)
    ('0.1', '0.00005', '1e-08', '1')
    """
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    text = repr(value) if is_double else _shortest_float32(value)
    decimal = Decimal(text)
    if -5 <= decimal.adjusted() < 10 or not decimal:
        plain = f"{decimal:f}"
        return plain.rstrip("0").rstrip(".") if "." in plain else plain
    return text


def string_text(value: str | bytes) -> str:
    """Quote a string with only the escapes it needs; readable UTF-8 stays as it is.

    >>> print(string_text('a "b" \\x00 é'), string_text(b"\\xe9"))
    "a \\"b\\" \\000 é" "\\351"
    """
    chars = value if isinstance(value, str) else value.decode("latin-1")
    is_ascii = isinstance(value, bytes)
    return f'"{"".join(_escape(char, is_ascii) for char in chars)}"'


def _escape(char: str, is_byte: bool) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable() and (char.isascii() or not is_byte):
        return char
    return "".join(f"\\{byte:03o}" for byte in char.encode("latin-1" if is_byte else "utf-8"))


def _shortest_float32(value: float) -> str:
    texts = (f"{value:.{digits}g}" for digits in range(1, 10))
    return next(text for text in texts if ctypes.c_float(float(text)).value == value)


def _scalar_text(field: FieldDescriptor, value: object) -> str:
    if field.enum_type is not None and isinstance(value, int):
        return field.enum_type.values_by_number[value].name
    if isinstance(value, float):
        return float_text(value, field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE)
    if isinstance(value, (str, bytes)):
        return string_text(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Writer:
    def __init__(self, comments: Mapping[str, Comment]) -> None:
        self._comments = comments
        self._paths = {""}

    def lines(self, message: Message) -> list[str]:
        file = self._comment("")
        body = [*self._body(message, "", ""), *_comment_lines(file.below, "")]
        head = [*_comment_lines(file.above, ""), *([""] if file.above and body else [])]
        for path, comment in self._comments.items():
            if path not in self._paths:
                near = difflib.get_close_matches(path, self._paths, n=1)
                hint = f"did you mean '{near[0]}'?" if near else ""
                raise PrototxtError(path, f"{message.DESCRIPTOR.name} holds no such field to comment", hint)
            del comment
        return head + body

    def _comment(self, path: str) -> Comment:
        self._paths.add(path)
        return self._comments.get(path, Comment())

    def _body(self, message: Message, prefix: str, indent: str) -> Iterator[str]:
        for field in ordered_fields(message.DESCRIPTOR):
            if field.is_repeated:
                for index, value in enumerate(getattr(message, field.name)):
                    yield from self._field(field, value, f"{prefix}{field.name}[{index}]", indent)
            elif message.HasField(field.name):
                yield from self._field(field, getattr(message, field.name), f"{prefix}{field.name}", indent)

    def _field(self, field: FieldDescriptor, value: object, path: str, indent: str) -> Iterator[str]:
        comment = self._comment(path)
        beside = f" # {comment.beside}" if comment.beside else ""
        yield from _comment_lines(comment.above, indent)
        if not isinstance(value, Message):
            yield f"{indent}{field.name}: {_scalar_text(field, value)}{beside}"
            return
        inner = indent + "  "
        body = [*self._body(value, f"{path}.", inner), *_comment_lines(comment.below, inner)]
        if not body:
            yield f"{indent}{field.name} {{ }}{beside}"
        elif len(body) == 1 and not comment.below and _is_scalar(value):
            yield f"{indent}{field.name} {{ {body[0].strip()} }}{beside}"
        else:
            yield f"{indent}{field.name} {{{beside}"
            yield from body
            yield f"{indent}}}"


def _comment_lines(texts: tuple[str, ...], indent: str) -> Iterator[str]:
    for text in texts:
        yield f"{indent}#{'' if not text or text.startswith('#') else ' '}{text}"


def _is_scalar(message: Message) -> bool:
    """Whether the only field set is a scalar."""
    return message.ListFields()[0][0].message_type is None
