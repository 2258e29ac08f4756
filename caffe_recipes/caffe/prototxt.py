"""Prototxt text: the one parser and the one formatter.

The canonical text: two spaces per block; fields in the order of `field_order.py`; a block that holds one
scalar on one line (`include { phase: TRAIN }`), an empty one as `relu_param { }`; no blank line but after
the file's header; strings in double quotes; floats in the fewest digits that read back bit-equal. A comment
moves with the field that it stands above or beside; what stands last in a block stays last in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from google.protobuf.message import Message

from caffe_recipes.caffe.text.comments import Comment
from caffe_recipes.caffe.text.parser import parse_text
from caffe_recipes.caffe.text.source import read_bytes
from caffe_recipes.caffe.text.writer import write_text
from caffe_recipes.errors import PrototxtError

__all__ = [
    "MOST_BYTES",
    "Comment",
    "decode_prototxt",
    "digest",
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
    """Decode a prototxt's bytes; PrototxtError if they are over `max_bytes`, or are not UTF-8."""
    if len(data) > max_bytes:
        raise PrototxtError(path, f"is over {max_bytes:,} bytes", "is it a prototxt? --max-bytes takes more")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        what = f"is no text: byte {data[error.start]:#04x} at offset {error.start} is not UTF-8"
        raise PrototxtError(path, what, "give a prototxt") from error


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
    comments = parse_text(text, message, path)
    return render_checked(message, comments, path)


def digest(message: Message) -> str:
    """Hash the deterministic binary form of a message: SHA-256, in hex."""
    return hashlib.sha256(message.SerializePartialToString(deterministic=True)).hexdigest()
