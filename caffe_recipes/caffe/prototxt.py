"""Prototxt text: the one parser and the one formatter.

The canonical text: two spaces per block; fields in the order of `field_order.py`; a block that holds one
scalar on one line (`include { phase: TRAIN }`), an empty one as `relu_param { }`; a blank line after the
file's header; strings in double quotes; floats in the fewest digits that read back bit-equal in every
protobuf. Of what a person wrote it keeps one blank line between outermost fields, a block that stands on one
line and fits there, and each comment with the field that it stands above, beside or, before a blank line,
directly below; what stands last in a block stays last in it, and beside a closing brace stays there.

A prototxt file as a reader sees it: its message, its comments, and where each field stands.

Which message a file holds shows in the names of its first fields: `layer` is a net's, `base_lr` a solver's.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Generic, TypeVar

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.text.comments import Comment
from caffe_recipes.caffe.text.parser import NewerForm, parse_text
from caffe_recipes.caffe.text.tokens import TOKEN, find_foreign_byte, line_column
from caffe_recipes.caffe.text.writer import write_text
from caffe_recipes.errors import PrototxtError
from caffe_recipes.files import read_bytes

__all__ = [
    "MOST_BYTES",
    "Comment",
    "decode_prototxt",
    "digest",
    "encode_prototxt",
    "format_prototxt",
    "load_prototxt",
    "parse_prototxt",
    "read_prototxt",
    "render_checked",
    "render_prototxt",
]

# No prototxt of the field comes near; a caffemodel or a log given by mistake often lies above.
MOST_BYTES = 16_000_000

M = TypeVar("M", bound=Message)

_NO_COMMENTS: Mapping[str, Comment] = MappingProxyType({})


def parse_prototxt(text: str, cls: type[M], path: str | Path = "<text>") -> M:
    """Parse text into a message; PrototxtError at the first thing that Caffe would refuse.

    >>> from caffe_recipes.caffe import pb
    >>> parse_prototxt("stage: 'a' levle: 2", pb.NetState, "n.prototxt")
    Traceback (most recent call last):
    caffe_recipes.errors.PrototxtError: n.prototxt:1:12: NetState has no field 'levle'; did you mean 'level'?
    """
    message = cls()
    parse_text(text, message, path)
    return message


def load_prototxt(path: str | Path, cls: type[M]) -> M:
    """Read a prototxt file; PrototxtError if it is missing, no text, or holds no field at all.

    Caffe takes an empty file for a message without fields and trains nothing; an empty solver or net is
    a copy that failed, so it is an error here. `parse_prototxt` takes empty text.
    """
    text = read_prototxt(path)
    message = parse_prototxt(text, cls, path)
    if not message.ListFields():
        raise PrototxtError(path, f"holds no field of {cls.DESCRIPTOR.name}", "was it copied whole?")
    return message


def read_prototxt(path: str | Path, max_bytes: int = MOST_BYTES) -> str:
    """Read a file's text; PrototxtError if it cannot be read, is over `max_bytes`, or is not UTF-8."""
    try:
        data = read_bytes(path, max_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise PrototxtError(path, f"cannot be read ({reason})", "check the path") from error
    return decode_prototxt(data, path, max_bytes)


def decode_prototxt(data: bytes, path: str | Path, max_bytes: int = MOST_BYTES) -> str:
    """Decode a prototxt's bytes; PrototxtError if they are over `max_bytes`, or are not UTF-8.

    A comment may hold any byte, as Caffe never reads it: what is not UTF-8 becomes a lone surrogate
    (`surrogateescape`), of which `encode_prototxt` makes the byte again.
    """
    if len(data) > max_bytes:
        raise PrototxtError(path, f"is over {max_bytes:,} bytes", "is it a prototxt? --max-bytes takes more")
    try:
        return data.decode()
    except UnicodeDecodeError:
        text = data.decode(errors="surrogateescape")
    found = find_foreign_byte(text)
    if found is None:
        return text
    line, column = line_column(text, found)
    what = f"byte {ord(text[found]) - 0xDC00:#04x} is not UTF-8"
    raise PrototxtError(f"{path}:{line}:{column}", what, "write UTF-8; only comments may hold other bytes")


def encode_prototxt(text: str) -> bytes:
    """Encode a prototxt's text, with the bytes of its comments that are not UTF-8."""
    return text.encode(errors="surrogateescape")


def render_prototxt(message: Message, comments: Mapping[str, Comment] = _NO_COMMENTS) -> str:
    """Write the canonical text of a message, with comments by field path (`layer[3].data_param.source`).

    The path `""` is the file: its header is above, its last lines are below. PrototxtError where a comment's
    field is not in the message.
    """
    return write_text(message, comments)


def render_checked(message: Message, comments: Mapping[str, Comment], path: str | Path = "<text>") -> str:
    """Write the canonical text of a message, and make sure that it reads back as the very same."""
    text = render_prototxt(message, comments)
    if digest(parse_prototxt(text, type(message), path)) != digest(message):
        what = "would read back as another message"
        raise PrototxtError(path, what, "nothing is written; report this file")
    return text


def format_prototxt(text: str, cls: type[Message], path: str | Path = "<text>") -> str:
    """Rewrite text canonically: the very same message, every comment with what it stands by."""
    message = cls()
    comments = parse_text(text, message, path).comments
    return render_checked(message, comments, path)


def digest(message: Message) -> str:
    """Hash the deterministic binary form of a message: SHA-256, in hex."""
    return hashlib.sha256(message.SerializePartialToString(deterministic=True)).hexdigest()


# The messages that Caffe and its tools read from a file of their own, by what people call the file.
KINDS: Mapping[str, type[Message]] = {
    "net": pb.NetParameter,
    "solver": pb.SolverParameter,
    "solver of several phases": pb.MultiPhaseSolverParameter,
    "label map": pb.LabelMap,
}


class Places(Mapping[str, int]):
    """Characters to the name of each field that a text gives, or to the value in a list, by the field's path.

    Counted by reading the text once more when the first is asked for: of a file without findings none is,
    and the paths take more memory than all else.
    """

    def __init__(self, text: str, cls: type[Message]) -> None:
        """Take a text that has been read as a `cls`."""
        self._text, self._cls = text, cls

    def __getitem__(self, path: str) -> int:
        """Give the place of a field."""
        return self._found[path]

    def __iter__(self) -> Iterator[str]:
        """Walk through the paths in the order of the text."""
        return iter(self._found)

    def __len__(self) -> int:
        """Count the fields that the text gives."""
        return len(self._found)

    @cached_property
    def _found(self) -> dict[str, int]:
        offsets: dict[str, int] = {}
        parse_text(self._text, self._cls(), "", offsets)
        return offsets


@dataclass(frozen=True)
class Document(Generic[M]):
    """A prototxt's message with the text it came from; fields are named by path (`layer[3].name`)."""

    path: str
    text: str
    message: M
    comments: Mapping[str, Comment]
    offsets: Mapping[str, int]
    newer_forms: tuple[NewerForm, ...] = ()  # what a Caffe built with an old protobuf cannot read

    def where(self, field: str = "") -> str:
        """Give `file:line:column` of a field, or of the nearest block around it that the text holds."""
        while field and field not in self.offsets:
            field = field.rpartition(".")[0]
        if not field:
            return self.path
        return self.place(self.offsets[field])

    def place(self, offset: int) -> str:
        """Give `file:line:column` of a character, as of `NewerForm.offset`."""
        line = bisect_right(self._line_starts, offset)
        return f"{self.path}:{line}:{offset - self._line_starts[line - 1] + 1}"

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]


def load_document(
    path: str | Path, cls: type[M] | None = None, *, max_bytes: int = MOST_BYTES
) -> Document[M]:
    """Read a prototxt file, of the message that its fields tell unless `cls` says it.

    Raises PrototxtError if it is missing, no text, over `max_bytes`, holds no field, or is no such message.
    """
    document = parse_document(read_prototxt(path, max_bytes), path, cls)
    if not document.message.ListFields():
        raise PrototxtError(path, "holds no field at all", "was it copied whole?")
    return document


def parse_document(text: str, path: str | Path = "<text>", cls: type[M] | None = None) -> Document[M]:
    """Parse text, into the message that its fields tell unless `cls` says it; raises PrototxtError."""
    message: M = (cls or guess_class(text, path))()  # type: ignore[assignment]  # the caller asks for any
    comments, newer_forms = parse_text(text, message, path)
    text = text.removeprefix("\ufeff")  # the parser skips one, and counts from behind it
    return Document(str(path), text, message, comments, Places(text, type(message)), newer_forms)


def guess_class(
    text: str, path: str | Path = "", kinds: Mapping[str, type[Message]] = KINDS
) -> type[Message]:
    """Tell the message of a text by its first field that only one of `kinds` has; else by the file's name.

    >>> guess_class("debug_info: true base_lr: 1").DESCRIPTOR.name
    'SolverParameter'
    """
    for name in _outer_names(text):
        having = [cls for cls in kinds.values() if name in cls.DESCRIPTOR.fields_by_name]
        if len(having) == 1:
            return having[0]
    return kinds["solver" if "solver" in PurePath(path).name else "net"]


def _outer_names(text: str) -> Iterator[str]:
    """Yield the names of fields outside every block; values that are words come along, and harm nothing."""
    depth = 0
    for match in TOKEN.finditer(text):
        if match.lastgroup == "mark":
            depth += (match["mark"] in "{<") - (match["mark"] in "}>")
        elif match.lastgroup == "name" and depth == 0:
            yield match["name"]
