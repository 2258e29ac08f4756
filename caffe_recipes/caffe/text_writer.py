"""The canonical text of a message: order of fields, numbers, strings, comments."""

from __future__ import annotations

import ctypes
import difflib
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from caffe_recipes.caffe.field_order import field_ranks
from caffe_recipes.caffe.text_comments import Comment
from caffe_recipes.errors import PrototxtError

_PLAIN = re.compile(r"[ !#-\[\]-~]*").fullmatch  # ASCII, and neither of the two that are escaped
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_NO_COMMENT = Comment()


def write_text(message: Message, comments: Mapping[str, Comment]) -> str:
    """Write a message with its comments; PrototxtError where a comment has nothing to stand by."""
    waiting = dict(comments)
    file = waiting.pop("", _NO_COMMENT)
    if file.beside:
        raise PrototxtError("", "a comment beside the file itself", "give it a field's path, or put it above")
    body = [*_body(message, "", "", waiting), *_comment_lines(file.below, "")]
    head = [*_comment_lines(file.above, ""), *([""] if file.above and body else [])]
    for path in waiting:
        near = difflib.get_close_matches(path, list(_paths(message, "")), n=1)
        hint = f"did you mean '{near[0]}'?" if near else "comment a field that is set"
        raise PrototxtError(path, f"a comment, but this {message.DESCRIPTOR.name} has no such field", hint)
    return "".join(f"{line}\n" for line in head + body)


def float_text(value: float, is_double: bool = False) -> str:
    """Write a float32 (or double) in the fewest digits that read back bit-equal, plainly down to 0.00001.

    >>> [float_text(value) for value in (0.1, 5e-05, 1e-08, 1.0, 1281167.0, 0.0078125)]
    ['0.1', '0.00005', '1e-08', '1', '1281167', '0.0078125']
    """
    text = repr(value).removesuffix(".0") if is_double else _shortest_float32(value)
    if "e" not in text:
        return text
    decimal = Decimal(text)
    return f"{decimal:f}" if -5 <= decimal.adjusted() < 10 else text


def string_text(value: str | bytes) -> str:
    """Quote a string with only the escapes it needs; readable UTF-8 stays as it is, bytes become ASCII.

    >>> print(string_text('a "b" \\x00 é'), string_text(b"\\xe9"))
    "a \\"b\\" \\000 é" "\\351"
    """
    is_bytes = isinstance(value, bytes)
    chars = value.decode("latin-1") if isinstance(value, bytes) else value
    if _PLAIN(chars):
        return f'"{chars}"'
    return f'"{"".join(_escape(char, is_bytes) for char in chars)}"'


def _escape(char: str, is_byte: bool) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable() and (char.isascii() or not is_byte):
        return char
    return "".join(f"\\{byte:03o}" for byte in char.encode("latin-1" if is_byte else "utf-8"))


def _shortest_float32(value: float) -> str:
    single = ctypes.c_float(value).value
    # Six digits survive the way through a normal float32 and back; a subnormal one keeps fewer.
    first = 6 if abs(single) >= 2.0**-126 else 1
    for digits in range(first, 9):
        text = f"{single:.{digits}g}"
        if ctypes.c_float(float(text)).value == single:
            return text
    return f"{single:.9g}"


def _scalar_text(field: FieldDescriptor, value: object) -> str:
    if field.enum_type is not None and isinstance(value, int):
        return field.enum_type.values_by_number[value].name
    if isinstance(value, float):
        return float_text(value, field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE)
    if isinstance(value, (str, bytes)):
        return string_text(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _values(message: Message, prefix: str) -> Iterator[tuple[FieldDescriptor, object, str]]:
    """Yield every value that is set, in the order of writing, with its path."""
    rank = field_ranks(message.DESCRIPTOR)
    for field, value in sorted(message.ListFields(), key=lambda item: rank[item[0].number]):
        if field.is_repeated:
            for index, item in enumerate(value):
                yield field, item, f"{prefix}{field.name}[{index}]"
        else:
            yield field, value, f"{prefix}{field.name}"


def _paths(message: Message, prefix: str) -> Iterator[str]:
    for _, value, path in _values(message, prefix):
        yield path
        if isinstance(value, Message):
            yield from _paths(value, f"{path}.")


def _body(message: Message, prefix: str, indent: str, comments: dict[str, Comment]) -> Iterator[str]:
    """Yield the lines of a message, taking from `comments` those that are written."""
    for field, value, path in _values(message, prefix):
        comment = comments.pop(path, _NO_COMMENT)
        beside = f" # {comment.beside}" if comment.beside else ""
        yield from _comment_lines(comment.above, indent)
        if not isinstance(value, Message):
            if comment.below:
                raise PrototxtError(path, "a comment below a field that has no block", "put it above")
            yield f"{indent}{field.name}: {_scalar_text(field, value)}{beside}"
            continue
        inner, left = indent + "  ", len(comments)
        lines = [*_body(value, f"{path}.", inner, comments), *_comment_lines(comment.below, inner)]
        has_comments = comment.below or len(comments) < left
        if not lines:
            yield f"{indent}{field.name} {{ }}{beside}"
        elif len(lines) == 1 and not has_comments and _is_scalar(value):
            yield f"{indent}{field.name} {{ {lines[0].strip()} }}{beside}"
        else:
            yield from (f"{indent}{field.name} {{{beside}", *lines, f"{indent}}}")


def _is_scalar(message: Message) -> bool:
    return message.ListFields()[0][0].message_type is None


def _comment_lines(texts: tuple[str, ...], indent: str) -> Iterator[str]:
    for text in texts:
        yield f"{indent}#{'' if not text or text.startswith('#') else ' '}{text}"
