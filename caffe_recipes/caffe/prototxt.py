"""Read, write and format prototxts. All other modules access prototxt text through this one.

The canonical text indents each block by two spaces, orders fields as `FIELD_ORDERS` in `text/writer.py` does,
puts a block with a single scalar on one line (`include { phase: TRAIN }`), writes an empty block as
`relu_param { }`, and has a blank line after the file's header. Strings are in double quotes; floats have the
fewest digits that every protobuf reads back bit-equal. It keeps single blank lines between outermost fields,
blocks that the author wrote on one line if they fit there, and all comments. A comment stays with the field
that it is above, beside or, if a blank line follows, directly below. A comment that is last in a block stays
last, and one beside a closing brace stays there.

A `Document` is a file with its message, its comments and the position of each field. Which message a file
holds follows from the names of all its outermost fields: `layer` belongs to a net, `base_lr` to a solver.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Generic, TypeGuard, TypeVar

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.text.comments import Comment
from caffe_recipes.caffe.text.parser import ForeignName, NewerForm, parse_text
from caffe_recipes.caffe.text.tokens import TOKEN, find_foreign_byte, line_column
from caffe_recipes.caffe.text.writer import write_text
from caffe_recipes.errors import PrototxtError, hint_for
from caffe_recipes.files.bounded_reads import read_bytes
from caffe_recipes.limits import PROTOTXT_BYTES

__all__ = [
    "MOST_BYTES",
    "NO_COMMENTS",
    "Comment",
    "decode_prototxt",
    "digest",
    "empty_file_error",
    "encode_prototxt",
    "format_prototxt",
    "load_prototxt",
    "parse_prototxt",
    "read_prototxt",
    "render_checked",
    "render_prototxt",
]

MOST_BYTES = PROTOTXT_BYTES

M = TypeVar("M", bound=Message)

NO_COMMENTS: Mapping[str, Comment] = MappingProxyType({})

LAYER = re.compile(r"layer\[(\d+)\]")  # the beginning of a path in a net, with the layer's index


def parse_prototxt(text: str, cls: type[M], path: str | Path = "<text>") -> M:
    """Parse text into a message. Raises PrototxtError at the first mistake that Caffe would refuse.

    >>> from caffe_recipes.caffe import pb
    >>> parse_prototxt("stage: 'a' level 2", pb.NetState, "n.prototxt")
    Traceback (most recent call last):
    caffe_recipes.errors.PrototxtError: n.prototxt:1:18: expected ':' after 'level', not '2'
    """
    return parse_document(text, path, cls).message


def load_prototxt(path: str | Path, cls: type[M]) -> M:
    """Read a prototxt file. Raises PrototxtError if it is missing, not text, or has no fields.

    Caffe accepts an empty file as a message without fields, and trains nothing. An empty solver or net is
    usually the result of a failed copy, so it is an error here. `parse_prototxt` accepts empty text.
    """
    return load_document(path, cls).message


def empty_file_error(path: str | Path) -> PrototxtError:
    """Return the error for a prototxt without fields."""
    return PrototxtError(path, "is empty: it has no fields", "check that it was copied completely")


def read_prototxt(path: str | Path, max_bytes: int = MOST_BYTES) -> str:
    """Read a file's text. Raises PrototxtError if it is unreadable, too large, or not UTF-8."""
    try:
        data = read_bytes(path, max_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise PrototxtError(path, f"cannot be read: {reason}", hint_for(error, "check the path")) from error
    return decode_prototxt(data, path, max_bytes)


def decode_prototxt(data: bytes, path: str | Path, max_bytes: int = MOST_BYTES) -> str:
    """Decode a prototxt's bytes. Raises PrototxtError if they exceed `max_bytes` or are not UTF-8.

    A comment may contain any byte, since Caffe never reads it: a byte that is not UTF-8 becomes a lone
    surrogate (`surrogateescape`), which `encode_prototxt` turns back into the byte.
    """
    if len(data) > max_bytes:
        _refuse_binary(data, path)
        what = f"is over {max_bytes:,} bytes"
        raise PrototxtError(path, what, "if it is a prototxt, raise the limit with --max-bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        text = data.decode(errors="surrogateescape")
    found = find_foreign_byte(text)
    if found is None:
        return text
    _refuse_binary(data, path)
    line, column = line_column(text, found)
    what = f"byte {ord(text[found]) - 0xDC00:#04x} is not UTF-8"
    raise PrototxtError(f"{path}:{line}:{column}", what, "write UTF-8; only comments may contain other bytes")


def _refuse_binary(data: bytes, path: str | Path) -> None:
    """Raise PrototxtError for the bytes of a model: they hold zeros, as text does only in UTF-16."""
    if b"\0" in data and not data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        what = "is a binary file, such as the weights of a model, and not the text of a prototxt"
        hint = (
            "give the net or solver; weights go with -weights (caffe-torch), --weights (classify, export) or "
            "--fold-bn (deploy)"
        )
        raise PrototxtError(path, what, hint)


def encode_prototxt(text: str) -> bytes:
    """Encode a prototxt's text, restoring the bytes in comments that were not UTF-8."""
    return text.encode(errors="surrogateescape")


def render_prototxt(message: Message, comments: Mapping[str, Comment] = NO_COMMENTS) -> str:
    """Return the canonical text of a message, with comments by field path (`layer[3].data_param.source`).

    The path `""` is the file itself: the comment above it is the header, the one below it ends the file.
    Raises PrototxtError if the field of a comment is not set in the message.
    """
    return write_text(message, comments)


def render_checked(message: Message, comments: Mapping[str, Comment], path: str | Path = "<text>") -> str:
    """Return the canonical text of a message. Raises PrototxtError if it does not read back unchanged."""
    text = render_prototxt(message, comments)
    if digest(parse_prototxt(text, type(message), path)) != digest(message):
        what = "would not read back as the same message"
        raise PrototxtError(path, what, "nothing was written; please report this file")
    return text


def format_prototxt(text: str, cls: type[Message], path: str | Path = "<text>") -> str:
    """Return text in canonical form: the same message, with every comment at its field."""
    message = cls()
    comments = parse_text(text, message, path).comments
    return render_checked(message, comments, path)


def digest(message: Message) -> str:
    """Return the SHA-256 of a message's deterministic binary form, in hex."""
    return hashlib.sha256(message.SerializePartialToString(deterministic=True)).hexdigest()


# The messages that Caffe and its tools read from files, by what such a file is usually called.
KINDS: Mapping[str, type[Message]] = {
    "net": pb.NetParameter,
    "solver": pb.SolverParameter,
    "solver of several phases": pb.MultiPhaseSolverParameter,
    "label map": pb.LabelMap,
}


def is_kind(message: Message, cls: type[M]) -> TypeGuard[M]:
    """Return whether a message is a `cls`, also in a schema that was extended for another Caffe.

    >>> is_kind(pb.NetParameter(), pb.NetParameter), is_kind(pb.NetParameter(), pb.SolverParameter)
    (True, False)
    """
    return bool(message.DESCRIPTOR.full_name == cls.DESCRIPTOR.full_name)


class Places(Mapping[str, int]):
    """The offset, in characters, of the name of each field or of each value of a list, by the field's path.

    The text is parsed again when the first offset is looked up, because a file without findings needs none,
    and the paths take more memory than anything else.
    """

    def __init__(self, text: str, cls: type[Message]) -> None:
        """Store a text that has been parsed as a `cls`."""
        self._text, self._cls = text, cls

    def __getitem__(self, path: str) -> int:
        """Return the offset of a field."""
        return self._found[path]

    def __iter__(self) -> Iterator[str]:
        """Yield the paths in the order in which they appear in the text."""
        return iter(self._found)

    def __len__(self) -> int:
        """Return the number of fields in the text."""
        return len(self._found)

    @cached_property
    def _found(self) -> dict[str, int]:
        offsets: dict[str, int] = {}
        parse_text(self._text, self._cls(), "", offsets)
        return offsets


@dataclass(frozen=True)
class Document(Generic[M]):
    """A prototxt's message with its text, comments and offsets by field path (`layer[3].name`)."""

    path: str
    text: str
    message: M
    comments: Mapping[str, Comment]
    offsets: Mapping[str, int]
    newer_forms: tuple[NewerForm, ...] = ()  # those that a Caffe built with an old protobuf cannot read
    foreign: tuple[ForeignName, ...] = ()  # names that our Caffe does not have; see `dialects/schema.py`
    given: Message | None = None  # the message with all fields of another dialect, which `message` lacks

    def where(self, field: str = "") -> str:
        """Return `file:line:column` of a field, or of the nearest block that contains it in the text."""
        while field and field not in self.offsets:
            field = field.rpartition(".")[0]
        if not field:
            return self.path
        return self.place(self.offsets[field])

    def place(self, offset: int) -> str:
        """Return `file:line:column` of an offset, such as `NewerForm.offset`."""
        line = bisect_right(self._line_starts, offset)
        return f"{self.path}:{line}:{offset - self._line_starts[line - 1] + 1}"

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]


def load_document(
    path: str | Path, cls: type[M] | None = None, *, max_bytes: int = MOST_BYTES
) -> Document[M]:
    """Read a prototxt file as a `cls`, or as the message that its fields belong to.

    Raises PrototxtError if it is missing, not text, larger than `max_bytes`, has no fields, or holds another
    message.
    """
    document = parse_document(read_prototxt(path, max_bytes), path, cls)
    if not document.message.ListFields():
        raise empty_file_error(path)
    return document


def parse_document(text: str, path: str | Path = "<text>", cls: type[M] | None = None) -> Document[M]:
    """Parse text as a `cls`, or as the message that its fields belong to. Raises PrototxtError on failure."""
    message: M = (cls or guess_class(text, path))()  # type: ignore[assignment]  # without `cls`, M is any message
    comments, newer_forms = parse_text(text, message, path)
    text = text.removeprefix("\ufeff")  # the parser skips a byte-order mark, and counts offsets from after it
    return Document(str(path), text, message, comments, Places(text, type(message)), newer_forms)


def guess_class(
    text: str, path: str | Path = "", kinds: Mapping[str, type[Message]] = KINDS
) -> type[Message]:
    """Guess a text's message: the one of `kinds` that has most of the outermost fields, repeats included.

    Among those with equally many, the file's name decides, or else their order in `kinds`.

    >>> guess_class("name: 'x' base_lr: 1 max_iter: 9").DESCRIPTOR.name
    'SolverParameter'
    """
    given = Counter(_outer_names(text))
    counts = {
        kind: sum(count for name, count in given.items() if name in cls.DESCRIPTOR.fields_by_name)
        for kind, cls in kinds.items()
    }
    likely = [kind for kind, count in counts.items() if count == max(counts.values())]
    named = "solver" if "solver" in PurePath(path).name else likely[0]
    return kinds[named if named in likely else likely[0]]


def has_known_field(text: str, kinds: Mapping[str, type[Message]] = KINDS) -> bool:
    """Return whether one of the outermost fields of a text is in a message of `kinds`."""
    return any(name in cls.DESCRIPTOR.fields_by_name for name in _outer_names(text) for cls in kinds.values())


def _outer_names(text: str) -> Iterator[str]:
    """Yield the names of the outermost fields."""
    depth, before = 0, ""
    for match in TOKEN.finditer(text):
        mark = match["mark"] or ""
        depth += (mark in "{<[") - (mark in "}>]") if mark else 0
        if depth == 0 and match["name"] and before not in (":", "-"):
            yield match["name"]
        before = before if match["comment"] else mark
