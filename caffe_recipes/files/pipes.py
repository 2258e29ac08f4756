"""Read pipes, whose writer may be anybody, and wait until they are read."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import termios
import time
from contextlib import suppress
from pathlib import Path

_PATIENCE_S = 2.0  # for the other end of a pipe
_SILENCES = 10  # that all of a named pipe may take
PIECE_BYTES = 1 << 20


def read_pipe(descriptor: int, most_bytes: int, silence_s: float) -> bytes:
    """Read a pipe that was opened without blocking, as read_bytes describes; raises TimeoutError."""
    is_named = not str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("pipe:")
    begun = heard = time.monotonic()
    pieces: list[bytes] = []
    has_writer = False
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    while most_bytes > 0:
        left_s = min(heard + silence_s, begun + _SILENCES * silence_s) - time.monotonic()
        if is_named and left_s < 0:
            raise TimeoutError(errno.ETIMEDOUT, "it is a pipe whose writer does not finish")
        try:
            piece = os.read(descriptor, min(PIECE_BYTES, most_bytes))
        except BlockingIOError:
            has_writer = True
            ready.poll(left_s * 1000 if is_named else None)
            continue
        if piece:
            pieces.append(piece)
            most_bytes -= len(piece)
            heard, has_writer = time.monotonic(), True
        elif has_writer:
            break
        elif time.monotonic() - begun > _PATIENCE_S:
            raise TimeoutError(errno.ETIMEDOUT, "it is a pipe without a writer")
        else:
            time.sleep(0.01)
    return b"".join(pieces)


def wait_until_read(descriptor: int, at_most_s: float = 60.0) -> None:
    """Wait until the reader of a pipe or socket has read everything, `at_most_s` seconds at most.

    Without this, the last lines are lost if the reader reacts to the end of this process before it reads
    them. Returns at once for anything but a pipe or socket.
    """
    until = time.monotonic() + at_most_s
    with suppress(OSError):
        mode = os.fstat(descriptor).st_mode
        ask = termios.FIONREAD if stat.S_ISFIFO(mode) else termios.TIOCOUTQ if stat.S_ISSOCK(mode) else 0
        readers = select.poll()
        readers.register(descriptor, 0)  # reports only that no reader is left
        while ask and any(fcntl.ioctl(descriptor, ask, bytes(4))) and time.monotonic() < until:
            if readers.poll(1):
                break
