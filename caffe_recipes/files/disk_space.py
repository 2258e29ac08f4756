"""Reserve and release the space after the end of a file."""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from pathlib import Path

# The errors of a full file system; not every file system can reserve space.
FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_KEEP_SIZE = 1
_libc = ctypes.CDLL(None, use_errno=True)


def reserve(path: Path, ahead_bytes: int) -> bool:
    """Reserve `ahead_bytes` after the end of a file; return whether the disk is full.

    The file can then grow even if others fill up the disk; its size does not change yet. Free space is read
    before the reservation, which therefore does not count.
    """
    try:
        with path.open("rb+") as file:
            is_full = os.fstatvfs(file.fileno()).f_bavail == 0
            end = ctypes.c_int64(os.fstat(file.fileno()).st_size)
            for part in (1, 8, 64):  # with less free space, reserve less
                ahead = ctypes.c_int64(ahead_bytes // part)
                if _libc.fallocate(file.fileno(), _KEEP_SIZE, end, ahead) == 0:
                    return is_full
            return is_full or ctypes.get_errno() in FULL
    except OSError:
        return False


def release(path: Path) -> None:
    """Free the space that was reserved after the end of a file."""
    with suppress(OSError):
        os.truncate(path, path.stat().st_size)
