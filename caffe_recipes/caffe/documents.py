"""A prototxt file as a reader sees it: its message, its comments, and where each field stands.

Which message a file holds shows in the names of its first fields: `layer` is a net's, `base_lr` a solver's.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Generic, TypeVar

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import MOST_BYTES, Comment, read_prototxt
from caffe_recipes.caffe.text.parser import parse_text
from caffe_recipes.caffe.text.tokens import TOKEN
from caffe_recipes.errors import PrototxtError

M = TypeVar("M", bound=Message)

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

    def where(self, field: str = "") -> str:
        """Give `file:line:column` of a field, or of the nearest block around it that the text holds."""
        while field and field not in self.offsets:
            field = field.rpartition(".")[0]
        if not field:
            return self.path
        offset = self.offsets[field]
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
    comments = parse_text(text, message, path)
    text = text.removeprefix("\ufeff")  # the parser skips one, and counts from behind it
    return Document(str(path), text, message, comments, Places(text, type(message)))


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
