"""The images that a user names: by a list, a folder of classes, or ImageNet's archives."""

from __future__ import annotations

from pathlib import Path

from caffe_recipes.data.archives import is_archive, load_archive
from caffe_recipes.data.folders import load_folder
from caffe_recipes.data.labels import load_classes
from caffe_recipes.data.lists import load_list
from caffe_recipes.data.pictures import Pictures
from caffe_recipes.errors import DataError, InputError


def load_pictures(
    images: Path, *, root: Path | None = None, labels: Path | None = None, class_list: Path | None = None
) -> Pictures:
    """Find the images of a list, folder or tar; raises InputError.

    `root` is of a list's paths, `labels` of a tar's images; `class_list` names the classes of folders and
    tars in label order.
    """
    known = load_classes(class_list) if class_list is not None else None
    if images.exists() and not images.is_dir() and not images.is_file():
        # It is read twice, to see what it is, and a pipe's beginning would be gone.
        raise DataError(images, "is a pipe or a device", "write the list to a file, and give that")
    try:
        kind = "folder" if images.is_dir() else "tar" if is_archive(images) else "list"
    except (OSError, ValueError) as error:
        what = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise DataError(images, what, "give a list, a folder or a tar of images") from None
    for name, given, kinds in (
        ("--root", root, ("list",)),
        ("--labels", labels, ("tar",)),
        ("--class-list", class_list, ("folder", "tar")),
    ):
        if given is not None and kind not in kinds:
            raise InputError(name, f"does not go with a {kind} of images", "leave it out")
    if kind == "folder":
        return load_folder(images, known)
    return load_archive(images, labels, known) if kind == "tar" else load_list(images, root)
