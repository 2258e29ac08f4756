"""The folder of our caches, which nobody else can write to."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from caffe_recipes.files.atomic_writes import write_whole
from caffe_recipes.trust import find_other_writer, is_changed_by_group


def cache_folder() -> Path:
    """Return the path of our folder in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home.startswith("/") else Path.home() / ".cache") / "caffe-recipes"


def private_cache(cache: Path) -> Path:
    """Return the cache folder, created if needed.

    Raises OSError if other users can write there, and so could plant what is read from it.
    """
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = cache.stat()
    if find_other_writer(status) or is_changed_by_group(cache):
        raise PermissionError(errno.EPERM, "other users can write there", str(cache))
    return cache


def write_cache_file(path: Path, text: str) -> None:
    """Write a file of the cache atomically, readable only by the user. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole({path: text.encode()}, mode=0o600)
