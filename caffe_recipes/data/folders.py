"""A folder of images: a subfolder for each class, labelled in the order of their names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

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


def load_folder(folder: Path, known: Sequence[str] | None = None) -> Pictures:
    """Find the images of a folder's classes, sorted by name; `known` names the classes in label order.

    Other files than images, and names that begin with a dot, are left out. Raises DataError.
    """
    try:
        with os.scandir(folder) as entries:
            seen = sorted((entry.name, entry.is_dir()) for entry in entries if entry.name[0] != ".")
    except OSError as error:
        raise DataError(
            error.filename, f"cannot be read: {error.strerror}", "give a list or a folder"
        ) from None
    names = [name for name, is_folder in seen if is_folder]
    if not names:
        hint = "make a subfolder for each class, or give a list of images"
        raise DataError(folder, "has no subfolders of classes", hint)
    loose = next((name for name, is_folder in seen if not is_folder and is_image(name)), None)
    if loose is not None:
        hint = "move it into its class's folder, or give a list of images"
        raise DataError(folder / loose, "lies beside the folders of classes", hint)
    labels = number_classes(set(names), known, folder)
    pictures: list[Picture] = []
    left_out: list[str] = []
    for name in names:
        before = len(pictures)
        for path in _find_files(folder / name):
            relative = os.path.relpath(path, folder)
            if not is_image(relative):
                left_out.append(relative)
                continue
            if not path.is_file():
                raise DataError(path, "is no file, or a link to none", "mend or remove it")
            check_name(relative, folder)
            pictures.append(Picture(relative, labels[name], path.stat().st_size, str(path)))
        if len(pictures) == before:
            if (folder / name / "data.mdb").exists():
                raise DataError(folder / name, "is an LMDB among folders of classes", "move it elsewhere")
            hint = "remove the folder, or put the class's images there"
            raise DataError(folder / name, "holds no images", hint)
    # Only now: a folder of no images is told for what it is.
    check_nesting((picture.name for picture in pictures), folder, f"give --images {folder}/{{}}")
    return Pictures(folder, pictures, name_classes(labels), tuple(sorted(left_out)))


def _find_files(folder: Path) -> Iterator[Path]:
    """Yield each file at or beneath a folder, sorted."""

    def fail(error: OSError) -> None:
        raise DataError(error.filename, f"cannot be read: {error.strerror}", "check its permissions")

    for parent, folders, files in os.walk(folder, onerror=fail):
        folders.sort()
        for name in sorted(files):
            yield Path(parent, name)
