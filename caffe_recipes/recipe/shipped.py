"""The recipes that ship, by name: files of their own, and rows of families; found without reading YAML."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

_SUFFIX = ".yaml"
_FAMILY = re.compile(r"^family:", re.MULTILINE)
_ROW = re.compile(r"^  ([A-Za-z0-9][A-Za-z0-9._-]*):", re.MULTILINE)


class Shipped(NamedTuple):
    """Where a recipe is: its file, and its row if that is a family's."""

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
    """Return where each recipe is that ships with the package: files first by name, rows in their order.

    >>> shipped_recipes()["paper-t2-8192-256n"].file.name
    'paper-stampede2-knl.yaml'
    """
    return dict(sorted(_find_all(), key=lambda item: item[1].row is not None))


def is_family(text: str) -> bool:
    """Whether a recipe's YAML holds a family of recipes.

    >>> is_family("# ours\\nfamily: ours\\n"), is_family("name: family\\n")
    (True, False)
    """
    return _FAMILY.search(text) is not None


def find_rows(text: str) -> list[str]:
    """Find the names of a family's rows in its text: `rows:` is its last key, and they are indented by 2.

    >>> find_rows("family: ours\\nbase:\\n  title: x\\nrows:\\n  a:\\n    title: y\\n  b: {}\\n")
    ['a', 'b']
    """
    return _ROW.findall(text.partition("\nrows:")[2])
