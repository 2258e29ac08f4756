"""A tar read where it lies: which files it would leave when unpacked, and where in it their bytes are."""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
from pathlib import PurePosixPath
from typing import BinaryIO

from caffe_recipes.errors import DataError

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}
_COPY_AGAIN = "copy the archive again, and compare its digest"
_MOST_LINKS = 40  # one behind the other, as Linux follows

Place = tuple[int, int]  # offset, size


def load_members(where: str, file: BinaryIO, base: int, size: int) -> dict[str, Place | None]:
    """Give the places in `file` of a tar's files by name; None is of what is no file, nor a link to one.

    The tar is `size` bytes of `file` from `base`. As tar does, the last of a name counts, and names are taken
    without a `/` before them. Raises DataError, or OSError.
    """
    part = _Part(file, base, size)
    found: dict[str, Place | str | None] = {}  # a symbolic link's target is looked for when all are there
    try:
        with tarfile.open(fileobj=part, mode="r:") as tar:
            for member in tar:
                if not member.isdir():
                    if member.isreg() and member.offset_data + member.size > size:
                        raise DataError(where, f"is cut short in '{member.name}'", _COPY_AGAIN)
                    found[_plain(member.name)] = _place(member, base, found)
            _check_end(where, part, tar.offset)
    except tarfile.TarError as error:
        part.seek(0)
        kind = _COMPRESSED.get(part.read(2))
        if kind:
            raise DataError(
                where, f"is compressed by {kind}", "decompress it: images are read in any order"
            ) from None
        raise DataError(where, f"is no whole tar: {error}", _COPY_AGAIN) from None
    return {name: _follow(place, found) for name, place in found.items()}


def _plain(name: str) -> str:
    return str(PurePosixPath(name.lstrip("/")))  # './a' is 'a'


def _place(member: tarfile.TarInfo, base: int, found: dict[str, Place | str | None]) -> Place | str | None:
    if member.isreg() and not member.issparse():
        return base + member.offset_data, member.size
    if member.islnk():  # to what has that name so far, whatever takes the name later
        return found.get(_plain(member.linkname))
    if member.issym():
        return posixpath.normpath(posixpath.join(posixpath.dirname(_plain(member.name)), member.linkname))
    return None


def _follow(place: Place | str | None, found: dict[str, Place | str | None]) -> Place | None:
    for _ in range(_MOST_LINKS):
        if not isinstance(place, str):
            return place
        path = PurePosixPath(place)
        linked = next((folder for folder in path.parents if isinstance(found.get(str(folder)), str)), None)
        if linked is None:
            place = found.get(place)
        else:
            place = posixpath.normpath(f"{found[str(linked)]}/{path.relative_to(linked)}")
    return None  # they lead in a circle


def _check_end(where: str, part: _Part, offset: int) -> None:
    """Raise DataError unless a tar's end stands behind its last member: tarfile takes all else for one."""
    part.seek(offset)
    end = part.read(2 * tarfile.BLOCKSIZE)
    if any(end[: tarfile.BLOCKSIZE]) and len(end) >= tarfile.BLOCKSIZE:
        raise DataError(where, f"is damaged: holds no header at byte {offset:,}", _COPY_AGAIN)
    if len(end) < 2 * tarfile.BLOCKSIZE:
        what = "ends in a header" if any(end) else "lacks a tar's end, two blocks of zeros"
        raise DataError(where, f"is cut short: {what}", _COPY_AGAIN)


class _Part(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._start, self._size, self._place = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        return self._place

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._place)
        data = os.pread(self._file.fileno(), left if size < 0 else min(size, left), self._start + self._place)
        self._place += len(data)
        return data
