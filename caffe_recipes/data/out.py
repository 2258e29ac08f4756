"""Where an LMDB is to stand: seen before a million images are looked for, and before anything is written."""

from __future__ import annotations

import os
from pathlib import Path

from caffe_recipes.errors import DataError

# NAME_MAX, but for `.NAME.manifest.json.PID`, the longest name that is made of it.
_MOST_NAME_BYTES = 255 - len("..manifest.json.4194304")


def check_out(out: Path, images: Path) -> None:
    """Raise DataError if `out` has too long a name, or would be taken for a class of the folder `images`."""
    length = len(os.fsencode(out.name))
    if length > _MOST_NAME_BYTES:
        what = f"the name has {length} bytes, and {_MOST_NAME_BYTES} leave room for those of its other files"
        raise DataError(out, what, "shorten it")
    if images.is_dir() and Path(os.path.realpath(out)).is_relative_to(os.path.realpath(images)):
        raise DataError(out, f"lies within {images}, whose folders are classes", "give a path beside it")
