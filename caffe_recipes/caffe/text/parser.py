"""Parse protobuf's text format, with the position of each field and all comments.

The parser accepts and refuses the same text as the C++ parsers of protobuf 3.10 to 3.21, so that a Caffe
built with one of them can read whatever is accepted here. There are three exceptions: extensions are refused,
since the schema has none; a string that is not UTF-8 is refused; and a byte-order mark, which C++ refuses,
is skipped (and dropped by formatting). Protobuf 2.5 to 3.6, with which older Caffes were built, cannot read
some of the accepted forms: each is reported as a `NewerForm` with its position, and canonical text contains
none of them. Hexadecimal and octal floats, which only 2.5 reads, are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import OURS, load_dialects
from caffe_recipes.caffe.text.comments import Comment, CommentCollector
from caffe_recipes.caffe.text.hints import hint_for_field, hint_for_value
from caffe_recipes.caffe.text.tokens import TOKEN, line_column, parse_float, parse_int, parse_string
from caffe_recipes.caffe.text.writer import FIRST_FOREIGN, FLOAT_MAX, fields_of, float_text, string_text
from caffe_recipes.errors import PrototxtError
from caffe_recipes.limits import hint_at_limit, limit

_MOST_SHOWN = 60
_MOST_DEPTH = 50
V1_TYPE = "V1LayerParameter.LayerType"  # the enum of old layer types, to which forks add theirs
_BACKSLASH = r"a backslash is written \\"
_CLOSING = {"{": "}", "<": ">"}
_INTEGERS = {
    FieldDescriptor.TYPE_INT32: ("an int32", -(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: ("an int64", -(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT32: ("a uint32", 0, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: ("a uint64", 0, (1 << 64) - 1),
}
_FLOATS = {"inf": float("inf"), "infinity": float("inf"), "nan": float("nan")}
_BOOLS = {"true": 1, "True": 1, "t": 1, "false": 0, "False": 0, "f": 0}
_MOST_FORMS = 100
_UINT64_MAX = str((1 << 64) - 1)
_FLOAT_OVERFLOW = (2 - 2.0**-24) * 2.0**127  # the least number that rounds to infinity as a float32


@dataclass(frozen=True, slots=True)
class NewerForm:
    """A way of writing a field that a Caffe built with an old protobuf cannot read.

    `offset` is the character where it starts, and `field` the path of the field or list. `effect` is what the
    protobuf releases `versions` do ("refuse the file"), and `write` is a form that all releases read.
    """

    offset: int
    field: str
    what: str
    versions: str
    effect: str
    write: str


class UnknownNameError(PrototxtError):
    """A field or an enum value that the message does not have; another Caffe may have it."""


@dataclass(slots=True)
class ForeignName:
    """A field or an enum value that our Caffe does not have, with the offset of its first place.

    `owner` is the message or enum (`PoolingParameter.PoolMethod`), or the block of a foreign field
    (`LayerParameter.Block_bn_param`).
    """

    owner: str
    name: str
    offset: int
    kind: Literal["value", "block", "enum value"] = "value"
    is_repeated: bool = False


def foreign_block(owner: str, field: str) -> str:
    """Return the name of the message that stands for the block of a foreign field."""
    return f"{owner}.Block_{field}"


class ParsedText(NamedTuple):
    """The comments of a text by field path, and the forms in it that old protobufs cannot read."""

    comments: Mapping[str, Comment]
    newer_forms: tuple[NewerForm, ...]


def parse_text(
    text: str, message: Message, path: str | Path, offsets: dict[str, int] | None = None
) -> ParsedText:
    """Fill a message from text; return its comments, and the first 100 forms that old protobufs cannot read.

    `offsets`, if given, is filled with the offset of each field's name, or of each value in a list. Raises
    PrototxtError, which names `path`, at the first mistake.
    """
    return _Parser(text.removeprefix("\ufeff"), path, offsets).parse(message)


Foreign = dict[tuple[str, str], ForeignName]


def survey_text(text: str, message: Message, path: str | Path, foreign: Foreign) -> None:
    """Fill `foreign` with the names that our Caffe does not have, in order; those are no mistake here.

    Raises PrototxtError at the first other mistake. The message is left filled in part.
    """
    _Parser(text.removeprefix("\ufeff"), path, None, foreign).parse(message)


def canonical_literal(literal: str) -> str:
    """Return a number in the form that all of its value have, whatever the type of its field; or a word.

    Raises ValueError for a bad number.

    >>> [canonical_literal(literal) for literal in ("1e-3", "1.0", "0x10", "true")]
    ['0.001', '1', '16', 'true']
    """
    if literal[0] not in ".0123456789":
        return literal
    try:
        return str(parse_int(literal))
    except ValueError:
        return float_text(parse_float(literal), is_double=True)


def _owner_name(of: Any) -> str:  # noqa: ANN401 - a message's descriptor or an enum's
    return str(of.full_name).removeprefix("caffe.")


@functools.cache
def _required(message: Descriptor) -> tuple[str, ...]:
    return tuple(field.name for field in message.fields if field.is_required)


class _Parser:
    """A recursive-descent parser with one token of lookahead.

    Its depth is bounded, since no message contains itself; that of blocks without a schema, by a limit. In a
    survey, fields and enum values that the message lacks are passed over, and collected in `foreign`, with
    those that only other Caffes have.
    """

    def __init__(
        self,
        text: str,
        path: str | Path,
        offsets: dict[str, int] | None,
        foreign: Foreign | None = None,
    ) -> None:
        self._foreign: Foreign = {} if foreign is None else foreign
        self._is_survey = foreign is not None
        self._text = text
        self._offsets = offsets
        self._path = path
        self._matches = TOKEN.finditer(text)
        self._comments = CommentCollector(text)
        self._prefix = ""
        self._values, self._most_values = 0, limit("prototxt-values")
        self._most_blocks = limit("prototxt-layers")
        self._newer: list[NewerForm] = []
        self._end = 0  # of the token before the current one
        self._read_token()

    def parse(self, message: Message) -> ParsedText:
        self._comments.attach_header(self._start)
        self._body(message, "", 0)
        if self._comments.pending:
            self._comments.note_apart("", self._end, self._comments.pending[0].start("comment"))
            self._comments.attach_below("")
        return ParsedText(self._comments.found, tuple(self._newer))

    def _advance(self) -> None:
        self._end = self._match.end()
        self._read_token()

    def _read_token(self) -> None:
        match = next(self._matches)
        kind = match.lastgroup
        while kind == "comment":
            self._comments.pending.append(match)
            match = next(self._matches)
            kind = match.lastgroup
        assert kind
        self._match, self._kind, self._value = match, kind, match[kind]

    @property
    def _start(self) -> int:
        return self._match.start(self._kind)

    def _body(self, message: Message, closing: str, opening: int) -> None:
        """Read fields up to the token `closing`, which is not consumed; "" is the end of the text."""
        schema = message.DESCRIPTOR
        known = fields_of(schema)
        foreign: set[str] = set()
        while self._kind == "name":
            if self._is_survey and not self._survey_field(_owner_name(schema), known, foreign):
                continue
            if self._value not in known:
                what = f"{schema.name} has no field {self._quote()}"
                self._fail(what, hint_for_field(schema.name, known, self._value), error=UnknownNameError)
            self._field(message, known[self._value])
        if self._value != closing:
            if self._kind == "end":
                self._fail("this block is never closed", f"add a '{closing}'", opening)
            self._fail(f"expected a field of {schema.name}, not {self._quote()}", self._body_hint(closing))
        for name in _required(schema):
            if not message.HasField(name):
                self._fail(
                    f"{schema.name} needs the field '{name}'", "Caffe refuses the file without it", opening
                )

    def _body_hint(self, closing: str) -> str:
        if self._value in ("}", ">"):
            return f"this block closes with '{closing}'" if closing else "no block is open here"
        return "a field is written name: value, or name { ... }"

    def _survey_field(self, owner: str, known: Mapping[str, FieldDescriptor], given: set[str]) -> bool:
        """Return whether the schema has the next field; if not, pass over it. Note it if ours lacks it.

        `given` are the fields of this block that have been passed over.
        """
        if self._value in known:
            if not load_dialects()[OURS].knows(owner, self._value):
                self._foreign.setdefault((owner, self._value), ForeignName(owner, self._value, self._start))
            return True
        self._pass_over(owner, given)
        return False

    def _pass_over(self, owner: str, given: set[str], depth: int = 1) -> None:
        """Read a field without a schema: a value, a block, or a list of either; `given` are earlier ones."""
        name = self._value
        if depth > _MOST_DEPTH:
            self._fail(f"blocks are nested more than {_MOST_DEPTH} deep")
        found = self._foreign.setdefault((owner, name), ForeignName(owner, name, self._start))
        found.is_repeated |= name in given
        given.add(name)
        self._advance()
        has_colon = self._value == ":"
        if has_colon:
            self._advance()
        elif self._value not in _CLOSING:
            self._fail(f"expected ':' after '{name}', not {self._quote()}")
        is_list = has_colon and self._value == "["
        if is_list:
            found.is_repeated = True
            self._advance()
        while not (is_list and self._value == "]"):
            if self._value in _CLOSING:
                found.kind = "block"
                self._pass_over_block(foreign_block(owner, name), depth)
            else:
                self._literal(name)
            if not is_list:
                break
            if self._value not in (",", "]"):
                self._fail(f"expected ',' or ']' in the list of '{name}', not {self._quote()}")
            if self._value == ",":
                self._advance()
        if is_list:
            self._advance()
        if self._value in (",", ";"):
            self._advance()

    def _pass_over_block(self, owner: str, depth: int) -> None:
        opening, closing = self._start, _CLOSING[self._value]
        given: set[str] = set()
        self._advance()
        while self._kind == "name":
            self._pass_over(owner, given, depth + 1)
        if self._kind == "end":
            self._fail("this block is never closed", f"add a '{closing}'", opening)
        if self._value != closing:
            self._fail(f"expected a field, not {self._quote()}", self._body_hint(closing))
        self._advance()

    def _literal(self, name: str) -> str:
        """Read a value of any type; return its canonical text."""
        start, sign = self._start, "-" if self._is_negative() else ""
        if self._kind == "string" and not sign:
            data = self._string(name)
            try:
                return string_text(data.decode())
            except UnicodeDecodeError:
                return string_text(data)
        if self._kind not in ("name", "number"):
            self._fail(f"'{name}' needs a value, not {self._quote(start)}", at=start)
        try:
            text = f"{sign}{canonical_literal(self._value)}"
        except ValueError:
            self._fail(f"'{name}' takes a number, not {self._quote(start)}", at=start)
        self._advance()
        return text

    def _read_literal(self, field: FieldDescriptor) -> str:
        return self._literal(field.name)

    def _field(self, message: Message, field: FieldDescriptor) -> None:
        if not field.is_repeated and message.HasField(field.name):
            self._fail(f"'{field.name}' is given twice", "Caffe refuses a second one; keep one of the two")
        name, before = self._start, self._end
        if before and not self._prefix and name - before > 1:
            self._comments.note_apart(self._path_of(message, field, 0), before, name)
        self._advance()
        if self._value == ":":
            self._advance()
        elif field.message_type is None:
            self._fail(f"expected ':' after '{field.name}', not {self._quote()}")
        opening = self._start
        if self._value == "[" and field.is_repeated:
            self._list(message, field)
        else:
            self._field_value(message, field, name)
        last = self._end
        if self._value in (",", ";"):
            self._advance()
        if self._comments.pending and (path := self._attach_comments(message, field, opening, last)):
            self._comments.attach_after(path, self._end, self._start if self._kind == "name" else None)

    def _list(self, message: Message, field: FieldDescriptor) -> None:
        start = self._start
        self._advance()
        if self._value == "]":
            self._note_newer(field, start, "an empty list", "2.5 to 3.0", "nothing")
            self._advance()
            return
        if field.message_type is not None:
            self._note_newer(field, start, "a list of blocks", "2.5", f"{field.name} {{ ... }} for each")
        while True:
            opening = self._start
            self._field_value(message, field, opening)
            if self._value not in (",", "]"):
                self._fail(f"expected ',' or ']' in the list of '{field.name}', not {self._quote()}")
            is_last, last = self._value == "]", self._end
            self._advance()
            if self._comments.pending:
                self._attach_comments(message, field, opening, last)
            if is_last:
                return

    def _field_value(self, message: Message, field: FieldDescriptor, start: int) -> None:
        self._values += 1
        if self._values > self._most_values:
            self._fail(f"more than {self._most_values:,} fields", hint_at_limit("prototxt-values"))
        if self._offsets is not None:
            self._offsets[self._path_of(message, field, 0)] = start
        if self._comments.pending:
            self._comments.attach_above(self._path_of(message, field, 0))
        if field.message_type is not None:
            self._block(message, field)
        else:
            read = _READERS[field.type] if field.number < FIRST_FOREIGN else _Parser._read_literal
            value = read(self, field)
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)

    def _block(self, message: Message, field: FieldDescriptor) -> None:
        if self._value not in _CLOSING:
            self._fail(f"expected '{{' after '{field.name}', not {self._quote()}")
        opening, closing = self._start, _CLOSING[self._value]
        if field.is_repeated:
            children = getattr(message, field.name)
            if len(children) >= self._most_blocks:
                self._fail(
                    f"more than {self._most_blocks:,} of '{field.name}'", hint_at_limit("prototxt-layers")
                )
            child = children.add()
        else:
            child = getattr(message, field.name)
            child.SetInParent()
        outer, path = self._prefix, self._path_of(message, field, 1)
        self._prefix = f"{path}."
        self._advance()
        if self._comments.pending:
            self._comments.attach_opening(path)
        self._body(child, closing, opening)
        if self._comments.pending:
            self._comments.attach_below(path)
        self._comments.note_inline(path, opening, self._start)
        self._advance()
        self._prefix = outer

    def _attach_comments(self, message: Message, field: FieldDescriptor, opening: int, last: int) -> str:
        """Attach the comments inside and beside a field; return its path, or "" for an empty list."""
        if field.is_repeated and not getattr(message, field.name):
            return ""
        path = self._path_of(message, field, 1)
        block = None if field.message_type is None else opening
        self._comments.attach_inside(path, block, last, self._end)
        return path

    def _path_of(self, message: Message, field: FieldDescriptor, back: int) -> str:
        """Return the path of the last element of a field (`back` is 1), or of the next one (0)."""
        index = f"[{len(getattr(message, field.name)) - back}]" if field.is_repeated else ""
        return f"{self._prefix}{field.name}{index}"

    def _read_integer(self, field: FieldDescriptor) -> int:
        kind, low, high = _INTEGERS[field.type]
        start, is_signed = self._start, self._value == "-"
        value = self._integer()
        if value is None or not low <= value <= high or (is_signed and low == 0):
            what = f"'{field.name}' takes {kind}, {low} to {high}, not {self._quote(start)}"
            self._fail(what, self._number_hint(""), start)
        self._advance()
        return value

    def _read_float(self, field: FieldDescriptor) -> float:
        start = self._start
        is_negative = self._is_negative()
        try:
            value = parse_float(self._value) if self._kind == "number" else _FLOATS[self._value.lower()]
        except (KeyError, ValueError):
            what = f"'{field.name}' takes a number, not {self._quote(start)}"
            self._fail(what, self._number_hint("write it in decimal"), start)
        value = -value if is_negative else value
        if abs(value) >= 2.0**64:
            self._note_newer_float(field, start, value)
        self._advance()
        return value

    def _note_newer_float(self, field: FieldDescriptor, start: int, value: float) -> None:
        is_double = field.type == FieldDescriptor.TYPE_DOUBLE
        if self._value.isdigit() and (len(self._value) > len(_UINT64_MAX) or self._value > _UINT64_MAX):
            what, versions, effect = "an integer beyond 64 bits", "2.5 to 3.6", "refuse the file"
        elif not is_double and FLOAT_MAX < abs(value) < _FLOAT_OVERFLOW:
            what, versions, effect = "a number above the largest float", "3.0 to 3.6", "read it as inf"
        else:
            return
        self._note_newer(field, start, what, versions, float_text(value, is_double), effect)

    def _read_bool(self, field: FieldDescriptor) -> bool:
        value = self._integer() if self._kind == "number" else _BOOLS.get(self._value)
        if value not in (0, 1):
            self._fail(f"'{field.name}' takes true or false, not {self._quote()}")
        if self._value in ("True", "False"):
            self._note_newer(field, self._start, self._value, "2.5", self._value.lower())
        self._advance()
        return bool(value)

    def _read_enum(self, field: FieldDescriptor) -> int:
        enum = field.enum_type
        assert enum is not None
        start = self._start
        if self._kind == "name":
            value = enum.values_by_name.get(self._value)
        else:
            number = self._integer()
            # Python's protobuf looks a number up by its lowest 32 bits.
            fits = number is not None and -(1 << 31) <= number < 1 << 31
            value = enum.values_by_number.get(number) if number is not None and fits else None
        if value is None or self._is_survey:
            owner = _owner_name(enum)
            is_type = owner == V1_TYPE and self._kind == "name"
            name = value.name if value else self._value
            if self._is_survey and (value or is_type) and not load_dialects()[OURS].knows(owner, name):
                self._foreign.setdefault((owner, name), ForeignName(owner, name, start, "enum value"))
                value = value or enum.values[0]
        if value is None:
            hint = hint_for_value(owner, list(enum.values_by_name), self._value)
            what = f"'{field.name}' takes a value of {owner}, not {self._quote(start)}"
            self._fail(what, hint, start, UnknownNameError)
        self._advance()
        return value.number

    def _read_bytes(self, field: FieldDescriptor) -> bytes:
        if self._kind != "string":
            hint = f'write "{self._value[:_MOST_SHOWN]}"' if self._kind in ("name", "number") else ""
            old_types = pb.V1LayerParameter.LayerType.DESCRIPTOR.values_by_name
            if field.name == "type" and self._value in old_types:
                hint = 'write a type such as "Convolution" in quotes, or `layers`, the old format'
            self._fail(f"'{field.name}' takes a string in quotes, not {self._quote()}", hint)
        return self._string(field.name)

    def _string(self, name: str) -> bytes:
        parts: list[bytes] = []
        while self._kind == "string":
            try:
                parts.append(parse_string(self._value))
            except ValueError as error:
                escape = str(error)  # only the newest protobuf accepts a capital X
                hint = f"write {escape.lower()}" if escape.startswith(r"\X") else _BACKSLASH
                self._fail(f"'{name}' contains the invalid escape {error}", hint)
            self._advance()
        return b"".join(parts)

    def _read_str(self, field: FieldDescriptor) -> str:
        start = self._start
        try:
            return self._read_bytes(field).decode()
        except UnicodeDecodeError:
            self._fail(f"'{field.name}' takes text, but its escapes are not UTF-8", at=start)

    def _integer(self) -> int | None:
        """Read an optional sign and an integer, whose token stays current; None if it is not an integer."""
        is_negative = self._is_negative()
        try:
            value = parse_int(self._value) if self._kind == "number" else None
        except ValueError:
            return None
        return -value if is_negative and value is not None else value

    def _number_hint(self, usual: str) -> str:
        return (
            "remove the '_', or put a space after the number"
            if "_" in self._value and self._kind == "number"
            else usual
        )

    def _is_negative(self) -> bool:
        if self._value != "-":
            return False
        self._advance()
        return True

    def _note_newer(
        self,
        field: FieldDescriptor,
        start: int,
        what: str,
        versions: str,
        write: str,
        effect: str = "refuse the file",
    ) -> None:
        if len(self._newer) < _MOST_FORMS:
            path = f"{self._prefix}{field.name}"
            self._newer.append(NewerForm(start, path, what, f"protobuf {versions}", effect, write))

    def _quote(self, start: int | None = None) -> str:
        """Quote the current token, or the text from `start` to its end, on one line."""
        if self._kind == "end":
            return "the end of the text"
        if self._value in ('"', "'"):
            return "a string that does not end on its line"
        shown = self._text[self._start if start is None else start : self._match.end()]
        if len(shown) > _MOST_SHOWN:
            shown = f"{shown[:_MOST_SHOWN]}..."
        return shown if self._kind == "string" and shown.isprintable() else repr(shown)

    def _fail(
        self, what: str, hint: str = "", at: int | None = None, error: type[PrototxtError] = PrototxtError
    ) -> NoReturn:
        line, column = line_column(self._text, self._start if at is None else at)
        raise error(f"{self._path}:{line}:{column}", what, hint)


_READERS: dict[int, Callable[[_Parser, FieldDescriptor], Any]] = {
    **dict.fromkeys(_INTEGERS, _Parser._read_integer),
    FieldDescriptor.TYPE_DOUBLE: _Parser._read_float,
    FieldDescriptor.TYPE_FLOAT: _Parser._read_float,
    FieldDescriptor.TYPE_BOOL: _Parser._read_bool,
    FieldDescriptor.TYPE_ENUM: _Parser._read_enum,
    FieldDescriptor.TYPE_STRING: _Parser._read_str,
    FieldDescriptor.TYPE_BYTES: _Parser._read_bytes,
}
