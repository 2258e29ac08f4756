"""Find the recipes that ship with the package, by name: single files, and rows of families.

Names are found by patterns, since parsing every YAML file would slow down each command.
"""

from __future__ import annotations

import os
import re
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

_SUFFIX = ".yaml"
_FAMILY = re.compile(r"^family:", re.MULTILINE)
_ROW = re.compile(r"^  ([A-Za-z0-9][A-Za-z0-9._-]*):", re.MULTILINE)

# What the name of a recipe's file ends with.
RECIPE_SUFFIXES = (".yaml", ".yml")


class Shipped(NamedTuple):
    """The file of a recipe, and its row if the file contains a family."""

    file: Traversable
    row: str | None = None


@cache
def _find_all() -> tuple[tuple[str, Shipped], ...]:
    files = resources.files("caffe_recipes").joinpath("recipes").iterdir()
    found: list[tuple[str, Shipped]] = []
    for file in sorted(files, key=lambda file: file.name):
        if file.name.endswith(_SUFFIX):
            text = file.read_text("utf-8")
            names = find_rows(text) if is_family(text) else None
            found += (
                [(file.name.removesuffix(_SUFFIX), Shipped(file))]
                if names is None
                else [(name, Shipped(file, name)) for name in names]
            )
    return tuple(found)


def shipped_recipes() -> dict[str, Shipped]:
    """Return the shipped recipes as {name: place}: single files by name, then the rows of families.

    >>> shipped_recipes()["paper-t2-8192-256n"].file.name
    'paper-stampede2-knl.yaml'
    """
    return dict(sorted(_find_all(), key=lambda item: item[1].row is not None))


def is_family(text: str) -> bool:
    """Return whether the text of a YAML file is a family of recipes.

    >>> is_family("# ours\\nfamily: ours\\n"), is_family("name: family\\n")
    (True, False)
    """
    return _FAMILY.search(text) is not None


def find_rows(text: str) -> list[str]:
    """Return the names of a family's rows; `rows:` must be its last key, and the names indented by 2 spaces.

    >>> find_rows("family: ours\\nbase:\\n  title: x\\nrows:\\n  a:\\n    title: y\\n  b: {}\\n")
    ['a', 'b']
    """
    return _ROW.findall(text.partition("\nrows:")[2])


def split_row(text: str) -> tuple[str, str | None]:
    """Split FILE:ROW into the path of a family's file and the row; the row is None if none is given.

    >>> split_row("my/family.yaml:big"), split_row("my/recipe.yaml"), split_row("a:b.yaml")
    (('my/family.yaml', 'big'), ('my/recipe.yaml', None), ('a:b.yaml', None))
    """
    path, colon, row = text.rpartition(":")
    # Path.exists raises if a name is too long.
    is_split = colon and path.endswith(RECIPE_SUFFIXES) and not os.path.exists(text)  # noqa: PTH110
    return (path, row) if is_split else (text, None)
