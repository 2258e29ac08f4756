"""Decide whose text may be printed: what lies in what the user named, the current folder or the Caffe root.

A solver or a recipe may name any file of this machine, and a link in a folder from elsewhere may lead to one,
while the log of a CI job may be public. Such a file may be read and checked, but is not quoted.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from caffe_recipes.errors import PrototxtError

# A folder that the user named, or the Caffe root, if there is one.
Home = str | Path | None
_HIDDEN = "is not a prototxt that can be read", "give the file itself, to see why"


def is_quotable(file: str | Path, *homes: Home) -> bool:
    """Return whether a file, behind all links, is in one of these folders or in the current one."""
    path = real_path(file)
    return any(path.is_relative_to(real_path(home)) for home in (*homes, "") if home is not None)


@contextmanager
def hiding_foreign_text(file: str | Path, *homes: Home) -> Iterator[None]:
    """Hide why a file is not a prototxt, which quotes its text, unless it `is_quotable`."""
    try:
        yield
    except PrototxtError:
        if is_quotable(file, *homes):
            raise
        raise PrototxtError(file, *_HIDDEN) from None


def refuse_foreign_names(file: str | Path, names: Collection[object], *homes: Home) -> None:
    """Raise PrototxtError if a file that is not quotable has names that would be reported."""
    if names and not is_quotable(file, *homes):
        raise PrototxtError(file, *_HIDDEN)


def refuse_foreign_link(file: str | Path, folder: str | Path) -> None:
    """Raise PrototxtError for a file found in a folder that is a link to one that is not quoted.

    For commands that print the text or the values of what they find.
    """
    if "\0" not in str(file) and not is_quotable(file, folder):  # nothing has such a name
        raise PrototxtError(file, "is a link to a file outside its folder", "give the file itself")


def real_path(path: str | Path) -> Path:
    """Resolve the links in a path as far as possible; unlike `Path.resolve`, does not raise for loops."""
    return Path(os.path.realpath(path))
