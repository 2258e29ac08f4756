"""ImageNet's own archives, read where they lie: never unpacked, in whatever order the records take.

`ILSVRC2012_img_train.tar` is a tar of a tar for each class, `ILSVRC2012_img_val.tar` one of images, whose
labels a list tells. Only headers are read here; an image is its place in the file.
"""

from __future__ import annotations

import os
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
from caffe_recipes.data.tars import load_members
from caffe_recipes.errors import DataError


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
            for name, offset, size in _files(str(path), file, 0, whole):
                if name.endswith(".tar"):
                    folder = PurePosixPath(name).stem
                    for image, start, length in _files(f"{path}: {name}", file, offset, size):
                        yield Picture(f"{folder}/{image}", 0, length, str(path), start)
                else:
                    yield Picture(name, 0, size, str(path), offset)
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}", "give a tar file") from None


def _files(where: str, file: BinaryIO, base: int, size: int) -> Iterator[tuple[str, int, int]]:
    """Yield (name, offset, size) of a tar's files; an image that has no bytes there is refused."""
    for name, place in load_members(where, file, base, size).items():
        if place is None and (is_image(name) or name.endswith(".tar")):
            what = f"'{name}' is no plain file, nor a link to one that is packed there"
            raise DataError(where, what, "pack it again, with tar's --dereference")
        yield name, *(place or (0, 0))
