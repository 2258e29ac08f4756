"""Read paths that may be pipes, devices or endless files, and no more of them than a limit allows.

What other users could have put there can be refused as it is read.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from caffe_recipes.errors import CaffeRecipesError, hint_for
from caffe_recipes.files.pipes import PIECE_BYTES, read_pipe
from caffe_recipes.limits import LIMITS_VARIABLE, limit
from caffe_recipes.trust import (
    UntrustedPathError,
    check_read,
    is_changed_by_group,
    is_open,
    is_own,
    naming,
    open_place,
    path_of,
)

_SILENCE_S = 60.0  # of the writer of a named pipe, who may be anybody


def read_bytes(path: str | Path, most_bytes: int, *, silence_s: float = _SILENCE_S) -> bytes:
    """Read at most `most_bytes` of a file, a pipe or a terminal; raises OSError for anything else.

    A pipe with a writer is read to its end; one without a writer for 2 s raises TimeoutError. So does a named
    pipe whose writer sends nothing for `silence_s`, or does not end within ten times as long. The pipe of a
    process substitution, `<(...)`, has no name: only the user can write to it, and it may take any time.
    """
    with _open_at_once(path) as file:
        return _read_open(file, most_bytes, silence_s)


def _read_open(file: BinaryIO, most_bytes: int, silence_s: float) -> bytes:
    descriptor = file.fileno()
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or file.isatty()):
        raise OSError(errno.EINVAL, "it is a device, not a file")
    if stat.S_ISFIFO(mode):
        return read_pipe(descriptor, most_bytes, silence_s)
    os.set_blocking(descriptor, True)
    return read_pieces(file, most_bytes)


def read_trusted(path: Path, most_bytes: int) -> bytes:
    """Read as read_bytes does, but only what no other user could have put there; raises UntrustedPathError.

    A pipe or here-document is the user's own.
    """
    with _open_at_once(path) as file:
        if not _is_inherited(file.fileno()):
            check_read(path, file.fileno())
        return _read_open(file, most_bytes, _SILENCE_S)


def _is_inherited(descriptor: int) -> bool:
    """Return whether a file is one without a name that this process was given, as `<(...)` and `<<EOF` do."""
    status = os.fstat(descriptor)
    is_removed = stat.S_ISREG(status.st_mode) and status.st_nlink == 0 and status.st_uid == os.geteuid()
    if not is_removed and not path_of(descriptor).startswith("pipe:"):
        return False
    for other in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - names
        with suppress(OSError):  # the descriptor of the listing itself
            if other != descriptor and os.path.sameopenfile(other, descriptor):
                return True
    return False


class NotAFileError(OSError):
    """Raised for a pipe or a device where a file was expected."""


def open_file(path: str | Path, *, takes_unnamed_pipes: bool = False) -> BinaryIO:
    """Open a file for reading; raises NotAFileError for a pipe, which is not waited for, or anything else.

    With `takes_unnamed_pipes`, the pipe of `<(...)` is opened, to which only the user can write.
    """
    file = _open_at_once(path)
    if takes_unnamed_pipes and path_of(file.fileno()).startswith("pipe:"):
        os.set_blocking(file.fileno(), True)
        return file
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotAFileError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
    return file


def read_code(path: Path, most_bytes: int) -> bytes:
    """Read at most `most_bytes` of a file that nobody but this user, root and its folder's owner can change.

    A group that can write to the folder is trusted as its owner is, except within a world-writable folder.
    Raises UntrustedPathError if others could have put the file there, changed it or led the path to it, and
    OSError for a pipe or a device.
    """
    with naming(path), open_place(path, writes=True) as place:
        flags = os.O_NOFOLLOW | os.O_NONBLOCK
        folder, around = place.folder.number, place.folder.status
        with open(
            place.name, "rb", opener=lambda name, mode: os.open(name, mode | flags, dir_fd=folder)
        ) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise NotAFileError(errno.EINVAL, "it is a pipe or a device, not a file")
            if is_open(around):
                raise UntrustedPathError(f"anybody can put files into its folder {place.folder.path}")
            if is_open(status):
                raise UntrustedPathError("anybody can change it")
            by_group = is_changed_by_group(f"/proc/self/fd/{folder}")
            if not (is_own(status.st_uid) or status.st_uid == around.st_uid or by_group):
                raise UntrustedPathError(f"it belongs to user {status.st_uid}, who can change it")
            return read_pieces(file, most_bytes)


def _open_at_once(path: str | Path) -> BinaryIO:
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


@contextmanager
def reading(path: str | Path, fault: type[CaffeRecipesError], hint: str) -> Iterator[None]:
    """Turn an OSError into a `fault` with the text `PATH: cannot be read: REASON; hint`."""
    try:
        yield
    except OSError as error:
        raise fault(path, f"cannot be read: {error.strerror or error}", hint_for(error, hint)) from None


def load_within(path: str | Path, name: str, fault: type[CaffeRecipesError], hint: str) -> bytes:
    """Read a file within the limit `name`, as read_within does; raises `fault`, as `reading` does."""
    with reading(path, fault, hint):
        return read_within(path, name)


def read_within(path: str | Path, name: str) -> bytes:
    """Read a file, as read_bytes does; raises OSError for one above the limit `name`, in bytes."""
    most = limit(name)
    data = read_bytes(path, most + 1)
    if len(data) > most:
        raise too_large(path, name)
    return data


class TooLargeError(OSError):
    """A file above a limit of ours, which its text says how to raise."""

    hint = ""


def too_large(path: str | Path, name: str) -> OSError:
    """Return the error for a file, or a part of one, that is above a limit."""
    what = f"it is over {limit(name):,} bytes ({LIMITS_VARIABLE}={name}=N raises this limit)"
    return TooLargeError(errno.EFBIG, what, str(path))


def read_pieces(file: BinaryIO, most_bytes: int) -> bytes:
    """Read at most `most_bytes`, allocating memory only for existing bytes."""
    pieces: list[bytes] = []
    while most_bytes > 0:
        wanted = min(PIECE_BYTES, most_bytes)
        pieces.append(file.read(wanted))
        if len(pieces[-1]) < wanted:  # the end; reading a terminal again would need a second Ctrl-D
            break
        most_bytes -= wanted
    return b"".join(pieces)
