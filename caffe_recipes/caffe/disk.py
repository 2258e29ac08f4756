"""What keeps records from being written, in one line: the machine, or what the user gave."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from caffe_recipes.errors import DataError, RunFailed

# The machine's fault, not that of what the user gave; LMDB calls a write that is cut short EIO.
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))
_FAILED = _FULL | {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ESTALE}


@contextmanager
def writing(out: Path, then: str = "") -> Iterator[None]:
    """Tell what keeps `out` from being written: RunFailed if that is the machine, else DataError.

    `then` says what to do when that is mended. Errors of LMDB's own are passed on, with numbers below 0.
    """
    try:
        yield
    except (OSError, lmdb.Error) as error:
        number = error.errno if isinstance(error, OSError) else getattr(error, "code", errno.EIO)
        if number is None or number < 0:
            raise
        hint = "make room on its disk" if number in _FULL else "mend that"
        kind = RunFailed if number in _FAILED else DataError
        what = f"cannot be written: {os.strerror(number)}"
        raise kind(out, what, f"{hint}; {then}" if then else hint) from None
