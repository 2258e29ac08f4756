"""ImageNet's own archives, read where they lie: never unpacked, in whatever order the records take.

`ILSVRC2012_img_train.tar` is a tar of a tar for each class, `ILSVRC2012_img_val.tar` one of images, whose
labels a list tells. Only headers are read here; an image is its place in the file.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from caffe_recipes.data.labels import load_labels
from caffe_recipes.data.pictures import (
    Picture,
    Pictures,
    check_name,
    check_nesting,
    is_image,
    name_classes,
    number_classes,
)
from caffe_recipes.errors import DataError

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}
_COPY_AGAIN = "copy the archive again, and compare its digest"


def is_archive(path: Path) -> bool:
    """Tell if a file is a tar, by its name or what is in it; raises OSError."""
    if path.suffix == ".tar" or path.name.endswith((".tar.gz", ".tgz")):
        return True
    with path.open("rb") as file:
        return file.read(262)[257:] == b"ustar"


def load_archive(path: Path, labels: Path | None = None, known: Sequence[str] | None = None) -> Pictures:
    """Find the images of an archive, each class's sorted by name; raises DataError.

    A class is an inner tar or a folder, labelled in the order of the names unless `known` says otherwise. An
    archive of images alone needs `labels`, a list of them.
    """
    files = sorted(_read_files(path), key=lambda picture: picture.name)
    pictures = [picture for picture in files if is_image(picture.name)]
    left_out = tuple(picture.name for picture in files if not is_image(picture.name))
    if not pictures:
        raise DataError(path, "holds no images", "give ImageNet's own tar, or a list or folder of images")
    for picture in pictures:
        check_name(picture.name, path)
    flat = [picture for picture in pictures if "/" not in picture.name]
    if labels is not None:
        by_name, classes = load_labels(labels, [picture.name for picture in pictures], known)
        labelled = [picture._replace(label=by_name[picture.name]) for picture in pictures]
        return Pictures(path, labelled, classes, left_out)
    if flat:
        what = f"does not tell the classes of its images, of '{flat[0].name}' to begin with"
        raise DataError(path, what, "give the list of their labels with --labels")
    hint = "give a tar of what is in '{}', whose first folders are the classes"
    check_nesting((picture.name for picture in pictures), path, hint)
    numbers = number_classes({_class_of(picture) for picture in pictures}, known, path)
    labelled = [picture._replace(label=numbers[_class_of(picture)]) for picture in pictures]
    return Pictures(path, labelled, name_classes(numbers), left_out)


def _class_of(picture: Picture) -> str:
    return picture.name.partition("/")[0]


def _read_files(path: Path) -> Iterator[Picture]:
    """Yield an archive's files, without labels, named `class/file` or `file`."""
    try:
        with path.open("rb") as file:
            whole = os.fstat(file.fileno()).st_size
            for name, offset, size in _members(str(path), file, 0, whole):
                if name.endswith(".tar"):
                    inner = _Part(file, offset, size)
                    folder = PurePosixPath(name).stem
                    for image, start, length in _members(f"{path}: {name}", inner, offset, size):
                        yield Picture(f"{folder}/{image}", 0, length, str(path), start)
                else:
                    yield Picture(name, 0, size, str(path), offset)
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}", "give a tar file") from None


def _members(where: str, file: BinaryIO | _Part, base: int, size: int) -> Iterator[tuple[str, int, int]]:
    """Yield (name, offset, size) of a tar's files; it is `size` bytes from `base` in the outermost file."""
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                if member.isreg():
                    if member.offset_data + member.size > size:
                        raise DataError(where, f"is cut short in '{member.name}'", _COPY_AGAIN)
                    name = str(PurePosixPath(member.name))  # './a' is 'a'
                    yield name, base + member.offset_data, member.size
            _check_end(where, file, tar.offset)
    except tarfile.TarError as error:
        file.seek(0)
        kind = _COMPRESSED.get(file.read(2))
        if kind:
            raise DataError(
                where, f"is compressed by {kind}", "decompress it: images are read in any order"
            ) from None
        raise DataError(where, f"is no whole tar: {error}", _COPY_AGAIN) from None


def _check_end(where: str, file: BinaryIO | _Part, offset: int) -> None:
    """Raise DataError unless a tar's end stands behind its last member: tarfile takes all else for one."""
    file.seek(offset)
    end = file.read(2 * tarfile.BLOCKSIZE)
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
