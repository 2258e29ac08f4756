"""The folder in which something large grows until it is whole: one process at a time, and one plan."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from caffe_recipes.errors import DataError, RunFailed
from caffe_recipes.files import write_whole

GOES_ON = "the same command goes on where it was"

# The machine's fault, not that of what the user gave; LMDB calls a write that is cut short EIO.
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))
_FAILED = _FULL | {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ESTALE}


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Tell what keeps `out` from being written: RunFailed if that is the machine, else DataError.

    Errors of LMDB's own are passed on, with numbers below 0.
    """
    try:
        yield
    except (OSError, lmdb.Error) as error:
        number = error.errno if isinstance(error, OSError) else getattr(error, "code", errno.EIO)
        if number is None or number < 0:
            raise
        hint = f"{'make room on its disk' if number in _FULL else 'mend that'}; {GOES_ON}"
        kind = RunFailed if number in _FAILED else DataError
        raise kind(out, f"cannot be written: {os.strerror(number)}", hint) from None


@contextmanager
def locked(partial: Path) -> Iterator[None]:
    """Let one process build at a time."""
    descriptor = os.open(partial / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # of this alone: a process that cannot be started is one, too
            raise DataError(partial, "another build is under way there", "wait for its end") from None
        yield
    finally:
        os.close(descriptor)


def check_plan(partial: Path, digest: str) -> None:
    """Raise DataError if what is there was begun with another plan."""
    path = partial / "plan"
    if not path.exists():
        write_whole({path: digest.encode()}, is_synced=True)
    elif path.read_bytes() != digest.encode():
        what = "was begun with other images or settings"
        raise DataError(partial, what, "remove it, or give the images and settings that it was begun with")
