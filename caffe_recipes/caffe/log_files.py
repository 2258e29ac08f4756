"""Read a growing log, or a whole one, in pieces of bounded size."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from caffe_recipes.caffe.logs import RANK_LABEL
from caffe_recipes.files.bounded_reads import open_file

_STDIN = Path("-")
_GZIP = b"\x1f\x8b"

# The most of a log, and of a line, that is held in memory, even if a program floods its log.
_PIECE_BYTES = 1 << 15
LONGEST_LINE_BYTES = 1 << 16
# What the rest of its line overwrites, and the carriage returns before a line feed.
_OVERWRITTEN = re.compile(rb"^[^\n]*\r(?=[^\r\n])", re.MULTILINE)
_RETURNS = re.compile(rb"(?<!\r)\r+(?=\n)")


class LogFile:
    """A growing log, read in pieces of bounded size; `offset` is the number of bytes already read."""

    def __init__(self, path: Path) -> None:
        """Start at the beginning; the file need not exist yet."""
        self.path = path
        self.offset = 0
        self._partial_line = b""  # the start of a line that is not complete yet

    def unread_bytes(self) -> int:
        """Return the number of bytes not read yet. Raises OSError if the file is unreadable."""
        try:
            return max(0, self.path.stat().st_size - self.offset)
        except FileNotFoundError:
            return 0

    def read(self, most_bytes: int | None = None, *, to_end: bool = False) -> Iterator[list[str]]:
        """Yield the new complete lines, in groups; with `to_end`, also an incomplete last line."""
        for text in self.read_texts(most_bytes, to_end=to_end):
            yield text[:-1].split("\n")

    def read_texts(self, most_bytes: int | None = None, *, to_end: bool = False) -> Iterator[str]:
        """Yield the new complete lines as texts of many lines; with `to_end`, also an incomplete last line.

        Only line feeds end a line. Of a line with carriage returns, as progress bars write them, what follows
        the last one is its text, after the label of its rank.
        At most `most_bytes` are read, and nothing that is written meanwhile, which could be endless. Lines
        are truncated to LONGEST_LINE_BYTES. Raises OSError if the file is unreadable.
        """
        try:
            file = open_file(self.path)
        except FileNotFoundError:
            return
        with file:
            left = os.fstat(file.fileno()).st_size - self.offset
            left = left if most_bytes is None else min(left, most_bytes)
            file.seek(self.offset)
            while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
                left -= len(piece)
                self.offset += len(piece)
                if text := self._complete(piece):
                    yield text
        if to_end and self._partial_line:
            yield self._complete(b"\n")

    def _complete(self, piece: bytes) -> str:
        """Return the lines that a further piece completes."""
        text = self._partial_line + piece
        if b"\r" in text:
            text = _RETURNS.sub(b"", _OVERWRITTEN.sub(_find_label, text))
        end = text.rfind(b"\n") + 1
        self._partial_line = text[end : end + LONGEST_LINE_BYTES]
        text = text[:end]
        # A line that is too long has no line break in at least one of these parts.
        half = LONGEST_LINE_BYTES // 2
        if any(text.find(b"\n", start, start + half) < 0 for start in range(0, end, half)):
            text = b"".join(line[:LONGEST_LINE_BYTES] + b"\n" for line in text.split(b"\n")[:-1])
        return text.decode(errors="replace")


def name_log(path: Path) -> str:
    """Return a log's name for messages: its path, or that it is standard input.

    >>> name_log(Path("-")), name_log(Path("a/train.log"))
    ('standard input', 'a/train.log')
    """
    return "standard input" if path == _STDIN else str(path)


def hint_for_log(path: Path, hint: str) -> str:
    """Return what to give instead of a folder, or of a named pipe, which is not waited for; else `hint`."""
    if path.is_dir():
        return f"give the logs in it, e.g. {path}/*.log"
    return (
        f"read it with another program (`cat {path}`), and give its output as `-`" if path.is_fifo() else hint
    )


def read_whole_log(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a log, to its end, as LogFile does: many at once, and whether they are complete.

    It may be a file, the pipe of `<(...)`, or `-`, which is standard input; each may be compressed by gzip.
    Only the last line can be incomplete. Raises OSError if it cannot be read.
    """
    opened: AbstractContextManager[BinaryIO] = (
        nullcontext(sys.stdin.buffer) if path == _STDIN else open_file(path, takes_unnamed_pipes=True)
    )
    with opened as stream:
        log = LogFile(path)
        for piece in _unpack(_read_pieces(stream, path)):
            if text := log._complete(piece):
                yield text, True
        if log._partial_line:
            yield log._complete(b"\n"), False


def _read_pieces(stream: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the bytes of a stream; of a file, none that are written meanwhile, which could be endless."""
    left = sys.maxsize
    if path != _STDIN and stat.S_ISREG((status := os.fstat(stream.fileno())).st_mode):
        left = status.st_size
    while left > 0 and (piece := stream.read(min(left, _PIECE_BYTES))):
        left -= len(piece)
        yield piece


def _unpack(pieces: Iterator[bytes]) -> Iterator[bytes]:
    first = next(pieces, b"")
    pieces = chain([first], pieces)
    return _gunzip(pieces) if first.startswith(_GZIP) else pieces


def _gunzip(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield what gzip has compressed, in pieces of bounded size; the end may be missing."""
    unpacker, is_between = zlib.decompressobj(wbits=31), False
    for piece in pieces:
        while piece := piece.lstrip(b"\0") if is_between else piece:  # gzip ignores zeros at the end
            try:
                data = unpacker.decompress(piece, _PIECE_BYTES)
            except zlib.error:
                raise OSError(errno.EINVAL, "its compressed data is damaged") from None
            if data:
                yield data
            piece, is_between = unpacker.unconsumed_tail, unpacker.eof
            if unpacker.eof:  # gzip appends to a file what is compressed next
                piece, unpacker = unpacker.unused_data, zlib.decompressobj(wbits=31)


def _find_label(overwritten: re.Match[bytes]) -> bytes:
    label = RANK_LABEL.match(overwritten[0].decode(errors="replace"))
    return label[0].encode() if label else b""
