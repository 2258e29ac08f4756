"""Rewrite prototxt files: compute all new texts first, then write them or show a diff.

Nothing is written until every new text is known and parses to the same message. Each file is replaced
atomically and keeps its mode; a symbolic link is followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.caffe.prototxt import (
    MOST_BYTES,
    empty_file_error,
    encode_prototxt,
    format_prototxt,
    guess_class,
    read_prototxt,
)
from caffe_recipes.errors import InputError
from caffe_recipes.files import render_unified, write_whole
from caffe_recipes.review.naming import refuse_foreign_link, walk_prototxts


@dataclass(frozen=True)
class Rewrite:
    """The old and the new text of a file."""

    path: str
    before: str
    after: str

    @property
    def is_change(self) -> bool:
        """Whether the texts differ."""
        return self.before != self.after


def find_prototxts(paths: Iterable[str]) -> list[str]:
    """Replace each folder with the `*.prototxt` and `*.pt` files below it, sorted; list each file once.

    Skips folders whose names start with a dot, and does not follow links to folders. Raises InputError for a
    folder without prototxts.
    """
    by_real_path: dict[str, str] = {}
    for path in paths:
        files = [path]
        if os.path.isdir(path):  # noqa: PTH112 - a NUL is no error here
            files = [file for _, found in walk_prototxts(path) for file in found if os.path.isfile(file)]  # noqa: PTH113
        if not files:
            raise InputError(path, "contains no prototxt files", "name the files")
        for file in files:
            by_real_path.setdefault(os.path.realpath(file) if "\0" not in file else file, file)
    return list(by_real_path.values())


def plan_format(path: str, *, max_bytes: int = MOST_BYTES, is_found: bool = False) -> Rewrite:
    """Read a file and format it canonically. Raises PrototxtError if it is not a prototxt.

    Also raises it if the file, which `is_found` in a folder, is a link to a file that is not the user's.
    """
    if is_found:
        refuse_foreign_link(path, Path(path).parent)
    text = read_prototxt(path, max_bytes)
    return Rewrite(path, text, format_text(text, path))


def format_text(text: str, path: str) -> str:
    """Format a prototxt of any kind canonically. Raises PrototxtError if it is not one, or has no fields."""
    formatted = format_prototxt(text, guess_class(text, path), path)
    if all(line.startswith("#") for line in formatted.split("\n") if line):
        raise empty_file_error(path)
    return formatted


def render_diff(rewrite: Rewrite) -> str:
    """Render a change as a unified diff; empty if nothing changes."""
    return render_unified(rewrite.path, rewrite.before, rewrite.after)


def check_writable(path: str, hint: str) -> None:
    """Raise InputError for a path that exists but is not a regular file, such as a pipe or a folder."""
    if Path(path).exists() and not Path(path).is_file():
        raise InputError(path, "is not a regular file that can be written", hint)


def save_rewrites(rewrites: Iterable[Rewrite]) -> list[Rewrite]:
    """Write the changed files and return them. Raises InputError, with nothing written, if one cannot be.

    All new texts are in temporary files beside the originals before the first one is renamed.
    """
    changed = [rewrite for rewrite in rewrites if rewrite.is_change]
    try:
        write_whole({Path(rewrite.path): encode_prototxt(rewrite.after) for rewrite in changed})
    except OSError as error:
        what = f"cannot be written ({error.strerror})"
        raise InputError(error.filename, what, "check its folder, its permissions and the disk") from error
    return changed
