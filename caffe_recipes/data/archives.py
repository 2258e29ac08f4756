"""Find the images in ImageNet's archives without unpacking them, and read the size from a JPEG's header.

`ILSVRC2012_img_train.tar` contains a tar for each class, and `ILSVRC2012_img_val.tar` only images, with their
labels in a separate list. Only the tar headers are read here. An image is represented by its offset and size
in the archive, so images can be read in any order.
"""

from __future__ import annotations

import io
import os
import posixpath
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from caffe_recipes.data.images import (
    Picture,
    Pictures,
    check_name,
    check_nesting,
    is_image,
    load_labels,
    name_classes,
    number_classes,
)
from caffe_recipes.errors import DataError
from caffe_recipes.files.bounded_reads import reading
from caffe_recipes.limits import MOST_TAR_HEADER_BYTES, hint_at_limit, limit

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}
_LONG_NUMBER = re.compile(rb"[0-9]{101}")  # which tarfile would search from each of its digits
_COPY_HINT = "copy the archive again, and compare its digest"
_MAX_LINKS = 40  # in a chain, as in Linux

Extent = tuple[int, int]  # offset, size


def load_members(where: str, file: BinaryIO, base: int, size: int) -> dict[str, Extent | None]:
    """Return the (offset, size) in `file` of each file in a tar, by name; None for other kinds of members.

    The tar is the `size` bytes of `file` from `base` on. Links to files are followed. As in tar itself, the
    last member with a name wins, and a leading `/` is dropped. Raises DataError or OSError.
    """
    part = _FileSlice(file, base, size)
    found: dict[str, Extent | str | None] = {}  # str: the target of a symbolic link
    try:
        with tarfile.open(fileobj=part, mode="r:") as tar:
            count = 0
            while (member := tar.next()) is not None:
                count += 1
                if count > limit("tar-members"):
                    what = f"contains more than {limit('tar-members'):,} files"
                    raise DataError(where, what, hint_at_limit("tar-members"))
                tar.members = []  # type: ignore[attr-defined]  # tarfile would keep all members in memory
                if not member.isdir():
                    if member.isreg() and member.offset_data + member.size > size:
                        raise DataError(where, f"is truncated in '{member.name}'", _COPY_HINT)
                    found[_normalise(member.name)] = _locate(member, base, found)
            _check_end(where, part, tar.offset)
    except DataError:
        raise
    except (tarfile.TarError, ValueError, ArithmeticError, LookupError, RecursionError, TypeError) as error:
        part.seek(0)
        kind = _COMPRESSED.get(part.read(2))
        if kind:
            raise DataError(
                where, f"is {kind}-compressed", "decompress it, since its images are read in random order"
            ) from None
        what = str(error) if isinstance(error, tarfile.TarError) else "a header is malformed"
        raise DataError(where, f"is not a complete tar: {what}", _COPY_HINT) from None
    return {name: _resolve(extent, found) for name, extent in found.items()}


def _normalise(name: str) -> str:
    return str(PurePosixPath(name.lstrip("/")))  # './a' becomes 'a'


def _locate(member: tarfile.TarInfo, base: int, found: dict[str, Extent | str | None]) -> Extent | str | None:
    if member.isreg() and not member.issparse():
        return base + member.offset_data, member.size
    if member.islnk():  # to the earlier member of that name, even if a later one replaces it
        return found.get(_normalise(member.linkname))
    if member.issym():
        return posixpath.normpath(posixpath.join(posixpath.dirname(_normalise(member.name)), member.linkname))
    return None


def _resolve(extent: Extent | str | None, found: dict[str, Extent | str | None]) -> Extent | None:
    for _ in range(_MAX_LINKS):
        if not isinstance(extent, str):
            return extent
        path = PurePosixPath(extent)
        linked = next((folder for folder in path.parents if isinstance(found.get(str(folder)), str)), None)
        if linked is None:
            extent = found.get(extent)
        else:
            extent = posixpath.normpath(f"{found[str(linked)]}/{path.relative_to(linked)}")
    return None  # the links form a loop


def _check_end(where: str, part: _FileSlice, offset: int) -> None:
    """Raise DataError unless the end marker follows the last member, where tarfile accepts anything."""
    part.seek(offset)
    end = part.read(2 * tarfile.BLOCKSIZE)
    if any(end[: tarfile.BLOCKSIZE]) and len(end) >= tarfile.BLOCKSIZE:
        raise DataError(where, f"is damaged: no header found at byte {offset:,}", _COPY_HINT)
    if len(end) < 2 * tarfile.BLOCKSIZE:
        what = "it ends in a header" if any(end) else "its end marker, two blocks of zeros, is missing"
        raise DataError(where, f"is truncated: {what}", _COPY_HINT)


class _FileSlice(io.RawIOBase):
    """A slice of a file that can be read like a separate file."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._start, self._size, self._position = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = (
            offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        )
        return self._position

    def read(self, size: int = -1) -> bytes:
        if size > MOST_TAR_HEADER_BYTES:  # only headers are read, and a damaged one may claim any size
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        left = max(0, self._size - self._position)
        data = os.pread(
            self._file.fileno(), left if size < 0 else min(size, left), self._start + self._position
        )
        self._position += len(data)
        if _LONG_NUMBER.search(data):
            raise tarfile.ReadError("a header with a number of over 100 digits")
        return data


def is_archive(path: Path) -> bool:
    """Return whether a file is a tar, by its name or content. Raises OSError."""
    if path.suffix == ".tar" or path.name.endswith((".tar.gz", ".tgz")):
        return True
    with path.open("rb") as file:
        return file.read(262)[257:] == b"ustar"


def load_archive(path: Path, labels: Path | None = None, known: Sequence[str] | None = None) -> Pictures:
    """Return the images in an archive with their labels, sorted by class and name. Raises DataError.

    A class is an inner tar or a folder. Classes are numbered in the order of `known`, by default by name. An
    archive that contains only images needs `labels`, the file with a label for each.
    """
    files = sorted(_read_files(path), key=lambda picture: picture.name)
    pictures = [picture for picture in files if is_image(picture.name)]
    ignored = tuple(picture.name for picture in files if not is_image(picture.name))
    if not pictures:
        raise DataError(path, "contains no images", "give ImageNet's own tar, or a list or folder of images")
    for picture in pictures:
        check_name(picture.name, path)
    flat = [picture for picture in pictures if "/" not in picture.name]
    if labels is not None:
        by_name, classes = load_labels(labels, [picture.name for picture in pictures], known)
        labelled = [picture._replace(label=by_name[picture.name]) for picture in pictures]
        return Pictures(path, labelled, classes, ignored)
    if flat:
        what = f"does not give the classes of its images, e.g. '{flat[0].name}'"
        raise DataError(path, what, "give the list of their labels with --labels")
    hint = "give a tar of the contents of '{}', so that its top-level folders are the classes"
    check_nesting((picture.name for picture in pictures), path, hint)
    numbers = number_classes({_class_of(picture) for picture in pictures}, known, path)
    labelled = [picture._replace(label=numbers[_class_of(picture)]) for picture in pictures]
    return Pictures(path, labelled, name_classes(numbers), ignored)


def _class_of(picture: Picture) -> str:
    return picture.name.partition("/")[0]


def _read_files(path: Path) -> Iterator[Picture]:
    """Yield the files in an archive, without labels, named `class/file` or `file`."""
    with reading(path, DataError, "give a tar file"), path.open("rb") as file:
        whole = os.fstat(file.fileno()).st_size
        for name, offset, size in _list_files(str(path), file, 0, whole):
            if name.endswith(".tar"):
                folder = PurePosixPath(name).stem
                for image, start, length in _list_files(f"{path}: {name}", file, offset, size):
                    yield Picture(f"{folder}/{image}", 0, length, str(path), start)
            else:
                yield Picture(name, 0, size, str(path), offset)


def _list_files(where: str, file: BinaryIO, base: int, size: int) -> Iterator[tuple[str, int, int]]:
    """Yield (name, offset, size) of the files in a tar. Raises DataError if an image is not a file in it."""
    for name, extent in load_members(where, file, base, size).items():
        if extent is None and (is_image(name) or name.endswith(".tar")):
            what = f"'{name}' is not a regular file or a link to one in the archive"
            raise DataError(where, what, "pack it again with tar --dereference")
        yield name, *(extent or (0, 0))
