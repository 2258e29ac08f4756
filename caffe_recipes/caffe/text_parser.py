"""A parser of protobuf's text format that knows where it is, and keeps the comments."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from caffe_recipes.caffe.text_comments import Comment, CommentCollector
from caffe_recipes.caffe.text_tokens import TOKEN, line_column, parse_float, parse_int, parse_string
from caffe_recipes.errors import PrototxtError

_CLOSING = {"{": "}", "<": ">"}
_RANGE = {
    FieldDescriptor.CPPTYPE_INT32: ("an int32", -(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: ("an int64", -(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: ("a uint32", 0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: ("a uint64", 0, (1 << 64) - 1),
}
_BOOLS = {"true": True, "True": True, "t": True, "false": False, "False": False, "f": False}
_FLOATS = {"inf": float("inf"), "infinity": float("inf"), "nan": float("nan")}


def parse_text(text: str, message: Message, path: str | Path) -> Mapping[str, Comment]:
    """Fill a message from text and return the comments by the path of what they stand by."""
    return _Parser(text.removeprefix("\ufeff"), path).parse(message)


@functools.cache
def _fields(message: Descriptor) -> dict[str, FieldDescriptor]:
    return {field.name: field for field in message.fields}


@functools.cache
def _required(message: Descriptor) -> tuple[str, ...]:
    return tuple(field.name for field in message.fields if field.is_required)


class _Parser:
    """Recursive descent with one token of lookahead; no message holds itself, so the depth is bounded."""

    def __init__(self, text: str, path: str | Path) -> None:
        self._text = text
        self._path = path
        self._matches = TOKEN.finditer(text)
        self._comments = CommentCollector(text)
        self._prefix: list[str] = []
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
        self._kind = kind
        self._value = match[kind]
        self._match = match

    @property
    def _start(self) -> int:
        return self._match.start(self._kind)

    def _body(self, message: Message, closing: str, opening: int) -> None:
        schema = message.DESCRIPTOR
        known = _fields(schema)
        while self._kind == "name":
            field = known.get(self._value)
            if field is None:
                self._fail(*_unknown_field(schema.name, known, self._value))
            self._field(message, field)
        if self._value != closing or self._kind not in ("mark", "end"):
            if self._kind == "end":
                self._fail("this block is never closed", f"close it with '{closing}'", opening)
            self._fail(f"expected a field of {schema.name}, found {self._shown()}")
        for name in _required(schema):
            if not message.HasField(name):
                self._fail(f"{schema.name} needs the field '{name}'", at=opening)

    def _field(self, message: Message, field: FieldDescriptor) -> None:
        if not field.is_repeated and message.HasField(field.name):
            self._fail(f"'{field.name}' is given twice", "Caffe stops at the second one; keep one")
        self._advance()
        if self._value == ":":
            self._advance()
        elif field.message_type is None:
            self._fail(f"expected ':' after '{field.name}', found {self._shown()}")
        opening = self._start
        if self._value == "[" and field.is_repeated:
            self._list(message, field)
        else:
            self._element(message, field)
        if self._value in (",", ";"):
            self._advance()
        if self._comments.waiting:
            self._beside(message, field, opening)

    def _list(self, message: Message, field: FieldDescriptor) -> None:
        self._advance()
        while self._value != "]":
            opening = self._start
            self._element(message, field)
            if self._value == ",":
                self._advance()
                if self._value == "]":
                    self._fail(f"expected another {field.name} after ',', found ']'")
            elif self._value != "]":
                self._fail(f"expected ',' or ']' in the list of '{field.name}', found {self._shown()}")
            if self._comments.waiting:
                self._beside(message, field, opening)
        self._advance()

    def _element(self, message: Message, field: FieldDescriptor) -> None:
        if self._comments.waiting:
            self._comments.above(self._path_of(message, field, 0))
        if field.message_type is not None:
            self._block(message, field)
        elif field.is_repeated:
            getattr(message, field.name).append(_TAKE[field.cpp_type](self, field))
        else:
            setattr(message, field.name, _TAKE[field.cpp_type](self, field))

    def _block(self, message: Message, field: FieldDescriptor) -> None:
        if self._kind != "mark" or self._value not in _CLOSING:
            self._fail(f"expected '{{' after '{field.name}', found {self._shown()}")
        opening, closing = self._start, _CLOSING[self._value]
        child: Message = getattr(message, field.name)
        if field.is_repeated:
            child = child.add()  # type: ignore[attr-defined]
        else:
            child.SetInParent()
        path = self._path_of(message, field, 1)
        self._prefix.append(f"{path}.")
        self._advance()
        if self._comments.waiting:
            self._comments.beside(path)
        self._body(child, closing, opening)
        self._comments.below(path)
        self._advance()
        self._prefix.pop()

    def _beside(self, message: Message, field: FieldDescriptor, opening: int) -> None:
        block = None if field.message_type is None else opening
        self._comments.beside(self._path_of(message, field, 1), block)

    def _path_of(self, message: Message, field: FieldDescriptor, back: int) -> str:
        prefix = self._prefix[-1] if self._prefix else ""
        index = f"[{len(getattr(message, field.name)) - back}]" if field.is_repeated else ""
        return f"{prefix}{field.name}{index}"

    def _take_int(self, field: FieldDescriptor) -> int:
        kind, low, high = _RANGE[field.cpp_type]
        start, sign, literal = self._start, *self._signed()
        try:
            value = int(f"{sign}{parse_int(literal)}") if self._kind == "number" else high + 1
        except ValueError:
            value = high + 1
        if not low <= value <= high or (sign and low == 0):
            self._fail(f"'{field.name}' takes {kind} ({low} to {high}), not {sign}{self._shown()}", at=start)
        self._advance()
        return value

    def _take_float(self, field: FieldDescriptor) -> float:
        start, sign, literal = self._start, *self._signed()
        try:
            value = parse_float(literal) if self._kind == "number" else _FLOATS[literal.lower()]
        except (KeyError, ValueError):
            self._fail(f"'{field.name}' takes a number, not {sign}{self._shown()}", at=start)
        self._advance()
        return -value if sign else value

    def _take_bool(self, field: FieldDescriptor) -> bool:
        literal = self._value
        value = _BOOLS.get(literal)
        if self._kind == "number" and literal in ("0", "1"):
            value = literal == "1"
        if value is None:
            self._fail(f"'{field.name}' takes true or false, not {self._shown()}")
        self._advance()
        return value

    def _take_enum(self, field: FieldDescriptor) -> int:
        enum = field.enum_type
        assert enum is not None
        start, sign, literal = self._start, *self._signed()
        value = enum.values_by_name.get(literal) if not sign else None
        if self._kind == "number":
            try:
                value = enum.values_by_number.get(int(f"{sign}{parse_int(literal)}"))
            except ValueError:
                value = None
        if value is None:
            self._fail(*_unknown_value(field.name, enum, literal), at=start)
        self._advance()
        return value.number

    def _take_bytes(self, field: FieldDescriptor) -> bytes:
        if self._kind != "string":
            hint = f'write "{self._value}"' if self._kind in ("name", "number") else ""
            self._fail(f"'{field.name}' takes a string in quotes, not {self._shown()}", hint)
        parts: list[bytes] = []
        while self._kind == "string":
            try:
                parts.append(parse_string(self._value))
            except ValueError as error:
                self._fail(f"'{field.name}' holds what is no text or escape: {error}")
            self._advance()
        return b"".join(parts)

    def _take_str(self, field: FieldDescriptor) -> str:
        start = self._start
        try:
            return self._take_bytes(field).decode()
        except UnicodeDecodeError:
            self._fail(f"'{field.name}' is not UTF-8", at=start)

    def _signed(self) -> tuple[str, str]:
        if self._value != "-":
            return "", self._value
        self._advance()
        return "-", self._value

    def _shown(self) -> str:
        if self._kind == "end":
            return "the end of the file"
        if self._kind == "bad" and self._value in ('"', "'"):
            return "a string that does not end on its line"
        return self._value if self._kind == "string" else f"'{self._value[:40]}'"

    def _fail(self, what: str, hint: str = "", at: int | None = None) -> NoReturn:
        line, column = line_column(self._text, self._start if at is None else at)
        raise PrototxtError(f"{self._path}:{line}:{column}", what, hint)


_TAKE: dict[int, Callable[[_Parser, FieldDescriptor], Any]] = {
    FieldDescriptor.CPPTYPE_INT32: _Parser._take_int,
    FieldDescriptor.CPPTYPE_INT64: _Parser._take_int,
    FieldDescriptor.CPPTYPE_UINT32: _Parser._take_int,
    FieldDescriptor.CPPTYPE_UINT64: _Parser._take_int,
    FieldDescriptor.CPPTYPE_DOUBLE: _Parser._take_float,
    FieldDescriptor.CPPTYPE_FLOAT: _Parser._take_float,
    FieldDescriptor.CPPTYPE_BOOL: _Parser._take_bool,
    FieldDescriptor.CPPTYPE_ENUM: _Parser._take_enum,
    FieldDescriptor.CPPTYPE_STRING: _Parser._take_str,
}


def _unknown_field(message: str, fields: Iterable[str], name: str) -> tuple[str, str]:
    near = difflib.get_close_matches(name, fields, n=1)
    return f"{message} has no field '{name}'", f"did you mean '{near[0]}'?" if near else ""


def _unknown_value(field: str, enum: EnumDescriptor, name: str) -> tuple[str, str]:
    names = [value.name for value in enum.values]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"one of {', '.join(names)}"
    return f"'{field}' takes a {enum.name}, not '{name}'", hint
