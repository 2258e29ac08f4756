"""Reading a path that may be a pipe, a device, endless, or silent."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path
from typing import BinaryIO

_PATIENCE_S = 2.0  # for the other end of a pipe
_PIECE_BYTES = 1 << 20


def read_bytes(path: str | Path, most_bytes: int) -> bytes:
    """Read at most `most_bytes` of a file, a pipe or a terminal; OSError for anything else.

    A pipe that somebody holds open is read to its end; where nobody does, opening it does not wait for ever.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or file.isatty()):
            raise OSError(errno.EINVAL, "a device is no file")
        start = _await_writer(descriptor, most_bytes) if stat.S_ISFIFO(mode) else b""
        os.set_blocking(descriptor, True)
        return start + read_pieces(file, most_bytes - len(start))


def read_pieces(file: BinaryIO, most_bytes: int) -> bytes:
    """Read at most `most_bytes`, without asking for the memory of all of them at once."""
    pieces: list[bytes] = []
    while most_bytes > 0:
        wanted = min(_PIECE_BYTES, most_bytes)
        pieces.append(file.read(wanted))
        if len(pieces[-1]) < wanted:  # the end: a terminal, asked again, would want it typed again
            break
        most_bytes -= wanted
    return b"".join(pieces)


def _await_writer(descriptor: int, most_bytes: int) -> bytes:
    """Return what a pipe holds as soon as it holds something, or nothing once it has a writer."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            start = os.read(descriptor, min(_PIECE_BYTES, most_bytes))
        except BlockingIOError:
            return b""
        if start or not most_bytes:
            return start
        if time.monotonic() > until:
            raise TimeoutError(errno.ETIMEDOUT, "a pipe that nobody writes to")
        time.sleep(0.01)
