"""A parser of protobuf's text format that knows where it is, and keeps the comments.

It takes what protobuf's C++ parser takes and refuses what that refuses, so that text which passes here
is text which Caffe reads. Three exceptions: the schema has no extensions, so none are read; a string that
is not UTF-8 is refused; a byte-order mark, which C++ refuses, is skipped (and gone after formatting).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from caffe_recipes.caffe.text.comments import Comment, CommentCollector
from caffe_recipes.caffe.text.hints import hint_for_field, hint_for_value
from caffe_recipes.caffe.text.tokens import TOKEN, line_column, parse_float, parse_int, parse_string
from caffe_recipes.errors import PrototxtError

_MOST_SHOWN = 60
_CLOSING = {"{": "}", "<": ">"}
_INTEGERS = {
    FieldDescriptor.TYPE_INT32: ("an int32", -(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: ("an int64", -(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT32: ("a uint32", 0, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: ("a uint64", 0, (1 << 64) - 1),
}
_FLOATS = {"inf": float("inf"), "infinity": float("inf"), "nan": float("nan")}
_BOOLS = {"true": 1, "True": 1, "t": 1, "false": 0, "False": 0, "f": 0}


def parse_text(
    text: str, message: Message, path: str | Path, offsets: dict[str, int] | None = None
) -> Mapping[str, Comment]:
    """Fill a message from text; return the comments by the path of what they stand by.

    `offsets`, if given, is filled with the character where each field's name, or value in a list, starts.
    """
    return _Parser(text.removeprefix("\ufeff"), path, offsets).parse(message)


@functools.cache
def _fields(message: Descriptor) -> dict[str, FieldDescriptor]:
    return {field.name: field for field in message.fields}


@functools.cache
def _required(message: Descriptor) -> tuple[str, ...]:
    return tuple(field.name for field in message.fields if field.is_required)


class _Parser:
    """Recursive descent with one token of lookahead. No message holds itself, so the depth is bounded."""

    def __init__(self, text: str, path: str | Path, offsets: dict[str, int] | None) -> None:
        self._text = text
        self._offsets = offsets
        self._path = path
        self._matches = TOKEN.finditer(text)
        self._comments = CommentCollector(text)
        self._prefix = ""
        self._advance()

    def parse(self, message: Message) -> Mapping[str, Comment]:
        self._comments.header(self._start)
        self._body(message, "", 0)
        self._comments.below("")
        return self._comments.found

    def _advance(self) -> None:
        match = next(self._matches)
        kind = match.lastgroup
        while kind == "comment":
            self._comments.waiting.append(match)
            match = next(self._matches)
            kind = match.lastgroup
        assert kind
        self._match, self._kind, self._value = match, kind, match[kind]

    @property
    def _start(self) -> int:
        return self._match.start(self._kind)

    def _body(self, message: Message, closing: str, opening: int) -> None:
        """Read fields up to `closing`, which is left for the caller; the end of the text closes the file."""
        schema = message.DESCRIPTOR
        known = _fields(schema)
        while self._kind == "name":
            if self._value not in known:
                what = f"{schema.name} has no field {self._shown()}"
                self._fail(what, hint_for_field(schema.name, known, self._value))
            self._field(message, known[self._value])
        if self._value != closing:
            if self._kind == "end":
                self._fail("this block is never closed", f"add a '{closing}'", opening)
            self._fail(f"expected a field of {schema.name}, not {self._shown()}", self._body_hint(closing))
        for name in _required(schema):
            if not message.HasField(name):
                self._fail(
                    f"{schema.name} needs the field '{name}'", "Caffe refuses the file without it", opening
                )

    def _body_hint(self, closing: str) -> str:
        if self._value in ("}", ">"):
            return f"this block closes with '{closing}'" if closing else "no block is open here"
        return "a field is written name: value, or name { ... }"

    def _field(self, message: Message, field: FieldDescriptor) -> None:
        if not field.is_repeated and message.HasField(field.name):
            self._fail(f"'{field.name}' is given twice", "Caffe refuses a second one; keep one of the two")
        name = self._start
        self._advance()
        if self._value == ":":
            self._advance()
        elif field.message_type is None:
            self._fail(f"expected ':' after '{field.name}', not {self._shown()}")
        opening = self._start
        if self._value == "[" and field.is_repeated:
            self._list(message, field)
        else:
            self._element(message, field, name)
        if self._value in (",", ";"):
            self._advance()
        if self._comments.waiting:
            self._beside(message, field, opening)

    def _list(self, message: Message, field: FieldDescriptor) -> None:
        self._advance()
        if self._value == "]":
            self._advance()
            return
        while True:
            opening = self._start
            self._element(message, field, opening)
            if self._value not in (",", "]"):
                self._fail(f"expected ',' or ']' in the list of '{field.name}', not {self._shown()}")
            is_last = self._value == "]"
            self._advance()
            if self._comments.waiting:
                self._beside(message, field, opening)
            if is_last:
                return

    def _element(self, message: Message, field: FieldDescriptor, start: int) -> None:
        if self._offsets is not None:
            self._offsets[self._path_of(message, field, 0)] = start
        if self._comments.waiting:
            self._comments.above(self._path_of(message, field, 0))
        if field.message_type is not None:
            self._block(message, field)
        elif field.is_repeated:
            getattr(message, field.name).append(_TAKE[field.type](self, field))
        else:
            setattr(message, field.name, _TAKE[field.type](self, field))

    def _block(self, message: Message, field: FieldDescriptor) -> None:
        if self._value not in _CLOSING:
            self._fail(f"expected '{{' after '{field.name}', not {self._shown()}")
        opening, closing = self._start, _CLOSING[self._value]
        if field.is_repeated:
            child = getattr(message, field.name).add()
        else:
            child = getattr(message, field.name)
            child.SetInParent()
        outer, path = self._prefix, self._path_of(message, field, 1)
        self._prefix = f"{path}."
        self._advance()
        if self._comments.waiting:
            self._comments.beside(path)
        self._body(child, closing, opening)
        self._comments.below(path)
        self._advance()
        self._prefix = outer

    def _beside(self, message: Message, field: FieldDescriptor, opening: int) -> None:
        if field.is_repeated and not getattr(message, field.name):
            return
        block = None if field.message_type is None else opening
        self._comments.beside(self._path_of(message, field, 1), block)

    def _path_of(self, message: Message, field: FieldDescriptor, back: int) -> str:
        """Name the last element of a field (`back` 1), or the one to come (0)."""
        index = f"[{len(getattr(message, field.name)) - back}]" if field.is_repeated else ""
        return f"{self._prefix}{field.name}{index}"

    def _take_integer(self, field: FieldDescriptor) -> int:
        kind, low, high = _INTEGERS[field.type]
        start, is_signed = self._start, self._value == "-"
        value = self._integer()
        if value is None or not low <= value <= high or (is_signed and low == 0):
            self._fail(f"'{field.name}' takes {kind}, {low} to {high}, not {self._shown(start)}", at=start)
        self._advance()
        return value

    def _take_float(self, field: FieldDescriptor) -> float:
        start = self._start
        is_negative = self._is_negative()
        try:
            value = parse_float(self._value) if self._kind == "number" else _FLOATS[self._value.lower()]
        except (KeyError, ValueError):
            self._fail(
                f"'{field.name}' takes a number, not {self._shown(start)}", "write it in decimal", start
            )
        self._advance()
        return -value if is_negative else value

    def _take_bool(self, field: FieldDescriptor) -> bool:
        value = self._integer() if self._kind == "number" else _BOOLS.get(self._value)
        if value not in (0, 1):
            self._fail(f"'{field.name}' takes true or false, not {self._shown()}")
        self._advance()
        return bool(value)

    def _take_enum(self, field: FieldDescriptor) -> int:
        enum = field.enum_type
        assert enum is not None
        start = self._start
        if self._kind == "name":
            value = enum.values_by_name.get(self._value)
        else:
            number = self._integer()
            value = None if number is None else enum.values_by_number.get(number)
        if value is None:
            owner = enum.full_name.removeprefix("caffe.")
            hint = hint_for_value(owner, list(enum.values_by_name), self._value)
            self._fail(f"'{field.name}' takes a value of {owner}, not {self._shown(start)}", hint, start)
        self._advance()
        return value.number

    def _take_bytes(self, field: FieldDescriptor) -> bytes:
        if self._kind != "string":
            hint = f'write "{self._value[:_MOST_SHOWN]}"' if self._kind in ("name", "number") else ""
            self._fail(f"'{field.name}' takes a string in quotes, not {self._shown()}", hint)
        parts: list[bytes] = []
        while self._kind == "string":
            try:
                parts.append(parse_string(self._value))
            except ValueError as error:
                self._fail(f"'{field.name}' cannot be read as text: {error}", r"a backslash is written \\")
            self._advance()
        return b"".join(parts)

    def _take_str(self, field: FieldDescriptor) -> str:
        start = self._start
        try:
            return self._take_bytes(field).decode()
        except UnicodeDecodeError:
            self._fail(f"'{field.name}' takes text, but its escapes are not UTF-8", at=start)

    def _integer(self) -> int | None:
        """Read a sign and the number after it, which stays the current token; None if there is no such."""
        is_negative = self._is_negative()
        try:
            value = parse_int(self._value) if self._kind == "number" else None
        except ValueError:
            return None
        return -value if is_negative and value is not None else value

    def _is_negative(self) -> bool:
        if self._value != "-":
            return False
        self._advance()
        return True

    def _shown(self, start: int | None = None) -> str:
        """Quote the current token, or all from `start` to its end, on one line."""
        if self._kind == "end":
            return "the end of the text"
        if self._value in ('"', "'"):
            return "a string that does not end on its line"
        shown = self._text[self._start if start is None else start : self._match.end()]
        if len(shown) > _MOST_SHOWN:
            shown = f"{shown[:_MOST_SHOWN]}..."
        return shown if self._kind == "string" and shown.isprintable() else repr(shown)

    def _fail(self, what: str, hint: str = "", at: int | None = None) -> NoReturn:
        line, column = line_column(self._text, self._start if at is None else at)
        raise PrototxtError(f"{self._path}:{line}:{column}", what, hint)


_TAKE: dict[int, Callable[[_Parser, FieldDescriptor], Any]] = {
    **dict.fromkeys(_INTEGERS, _Parser._take_integer),
    FieldDescriptor.TYPE_DOUBLE: _Parser._take_float,
    FieldDescriptor.TYPE_FLOAT: _Parser._take_float,
    FieldDescriptor.TYPE_BOOL: _Parser._take_bool,
    FieldDescriptor.TYPE_ENUM: _Parser._take_enum,
    FieldDescriptor.TYPE_STRING: _Parser._take_str,
    FieldDescriptor.TYPE_BYTES: _Parser._take_bytes,
}
