"""Read a growing log, or a stream, in pieces of bounded size."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from caffe_recipes.caffe.logs import RANK_LABEL
from caffe_recipes.files.bounded_reads import open_file

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


def split_stream(stream: BinaryIO) -> Iterator[list[str]]:
    """Yield the lines of a stream that cannot be read twice, such as a pipe, as LogFile does, to its end."""
    log = LogFile(Path())
    while piece := stream.read(_PIECE_BYTES):
        if text := log._complete(piece):
            yield text[:-1].split("\n")
    if log._partial_line:
        yield log._complete(b"\n")[:-1].split("\n")


def _find_label(overwritten: re.Match[bytes]) -> bytes:
    label = RANK_LABEL.match(overwritten[0].decode(errors="replace"))
    return label[0].encode() if label else b""
