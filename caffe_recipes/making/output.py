"""Where a recipe that was made goes: a file that is not there yet, with its notes, or standard output."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from caffe_recipes.config.values import FileName
from caffe_recipes.errors import InputError
from caffe_recipes.generate.tree import write_file
from caffe_recipes.review.naming import RECIPE_SUFFIXES


def check_output(path: Path) -> None:
    """Refuse a name that no recipe is read by, and a file that is there; raises InputError."""
    if not path.name.endswith(RECIPE_SUFFIXES):
        raise InputError(path, "is no recipe's name", "end it in .yaml")
    if os.path.lexists(path):
        raise InputError(path, "is there already", "remove it, or give another --out")
    if not path.absolute().parent.is_dir():
        raise InputError(path, "its folder is not there", "make it first")


def choose_name(name: str | None, path: Path | None) -> str | None:
    """Return a recipe's name: as it is given, else as its file is called, so that its jobs find it.

    None without either. Raises InputError for a file whose name no recipe can have.
    """
    if name is not None or path is None:
        return name
    try:
        return TypeAdapter(FileName).validate_python(path.stem)
    except ValidationError:
        what = f"'{path.stem[:100]}' is no recipe's name: letters, digits, '.', '_' and '-' are"
        raise InputError(path, what, "give another --out, or a --name") from None


def write_new(path: Path, text: str) -> None:
    """Write a recipe's YAML in one step where nothing was; raises InputError."""
    check_output(path)
    write_file(path, text.encode())
