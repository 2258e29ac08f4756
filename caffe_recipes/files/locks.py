"""Lock files, which nobody else can open to hold the lock."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def open_lock(path: Path) -> int:
    """Open a lock file, created if missing, with mode 0600; return its descriptor. Raises OSError.

    Mode 0600, since whoever can read a lock file can hold the lock. A file of another user is refused, unless
    this user is root. O_NONBLOCK, since opening a pipe of that name would wait for a reader forever.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    try:
        if os.geteuid() not in (0, os.fstat(file).st_uid):
            raise PermissionError(
                errno.EPERM, "it belongs to another user, who could hold the lock", str(path)
            )
    except OSError:
        os.close(file)
        raise
    return file


def try_lock(file: int, how: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file without waiting; return False if another process holds the lock.

    Raises OSError if the file system has no locks.
    """
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def lock(path: Path, busy: Exception) -> Iterator[None]:
    """Hold the exclusive lock of a file, created if missing; raises `busy` if another process holds it.

    Raises OSError as open_lock and try_lock do.
    """
    file = open_lock(path)
    try:
        if not try_lock(file):
            raise busy
        yield
    finally:
        os.close(file)
