"""The folder in which something large grows until it is whole: one process at a time, and one plan."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from caffe_recipes.errors import DataError
from caffe_recipes.files import write_whole

GOES_ON = "the same command goes on where it was"


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
