"""What a word on the command line names: a recipe, one of its nets, a file, a folder; or nothing.

The one place that decides it. The name of a recipe that ships goes before a file or folder of that name,
which `./NAME` means: inside `prototxt/`, where a folder for each recipe stands, names are recipes still.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from caffe_recipes.errors import InputError
from caffe_recipes.recipe.shipped import is_family, shipped_recipes

Kind = Literal["recipe", "net", "file", "folder"]

RECIPE_SUFFIXES = (".yaml", ".yml")
_MOST_CHARACTERS = 1_000_000

# A word with such an end is a file's path: `solver_a.pt`, but not `v1.2` or `stampede2-64n-72ep`.
_FILE = re.compile(r"\.[A-Za-z]\w*\Z")


@dataclass(frozen=True)
class Named:
    """What a word names. `path` is what is read: a file, a folder, a recipe's name or its YAML.

    `net` is that of `RECIPE:net`, or empty for `RECIPE:`, the recipe's first. The recipe may be a row of a
    user's family, `FILE.yaml:row`.
    """

    text: str
    kind: Kind
    path: str
    net: str = ""


def find_named(text: str) -> Named | None:
    """Tell what a word names, or None.

    >>> find_named("digits-local").kind, find_named("digits-local:train_val").net, find_named("digits")
    ('recipe', 'train_val', None)
    """
    if text in shipped_names():
        return Named(text, "recipe", text)
    if os.path.exists(text):  # noqa: PTH110 - Path.exists raises where a name is too long
        if Path(text).is_dir():
            return Named(text, "folder", text)
        return Named(text, "recipe" if text.endswith(RECIPE_SUFFIXES) else "file", text)
    recipe, colon, net = text.rpartition(":")
    if not colon:
        return None
    if _is_family_file(recipe):
        return Named(text, "recipe", text)
    if recipe in shipped_names() or _is_yaml_file(recipe) or _is_family_file(recipe.rpartition(":")[0]):
        return Named(text, "net", recipe, net)
    return None


def need_named(text: str, kinds: Collection[Kind], wanted: str) -> Named:
    """Tell what a word names, if it is of these kinds; `wanted` says what to give instead.

    Raises InputError for what is nothing, and for what is of another kind.

    >>> need_named("digits-local", ["file", "folder"], "a solver's file")
    Traceback (most recent call last):
    caffe_recipes.errors.InputError: digits-local: is a recipe; give a solver's file
    """
    named = find_named(text)
    if named is None:
        raise nothing_named(text)
    if named.kind not in kinds:
        what = "a recipe's net" if named.kind == "net" else f"a {named.kind}"
        raise InputError(text, f"is {what}", f"give {wanted}")
    return named


def recipe_named(text: str) -> str:
    """Give what `load_recipe` reads; InputError for a folder, a net, and a file that is not there."""
    named = find_named(text)
    if named is None and (text.endswith(RECIPE_SUFFIXES) or not _is_path(text)):
        return text  # `load_recipe` says why it cannot be read, or which names there are
    if named is not None and named.kind == "net" and _is_yaml_file(named.path):
        return text  # a row is meant: `load_recipe` says that there is none
    return need_named(text, ["recipe", "file"], "a recipe's name, or its YAML").path


def nothing_named(text: str, kinds: str = "recipe, file or folder", hint: str = "") -> InputError:
    """Say of a word that names nothing what it may have been meant to be.

    >>> str(nothing_named("digits-lokal"))
    "'digits-lokal' is no recipe, file or folder; did you mean 'digits-local'?"
    >>> str(nothing_named("solver_a.pt"))
    'solver_a.pt: there is no such file; check the path'
    """
    if os.path.islink(text):  # noqa: PTH114 - Path.is_symlink raises where a name is too long
        return InputError(text, _broken_link(text), "mend the link")
    if _is_path(text):
        near = difflib.get_close_matches(Path(text).name, _names_beside(text), n=1, cutoff=0.8)
        return InputError(
            text, "there is no such file", f"did you mean '{near[0]}'?" if near else "check the path"
        )
    near = difflib.get_close_matches(text[:200], shipped_names(), n=1)
    said = f"did you mean '{near[0]}'?" if near else hint or "`caffe-recipes recipes` lists the recipes"
    return InputError("", f"'{text}' is no {kinds}", said)


def shipped_names() -> list[str]:
    """List the recipes that ship, without taking their YAML apart.

    >>> "digits-local" in shipped_names()
    True
    """
    return sorted(shipped_recipes())


def _is_yaml_file(path: str) -> bool:
    return path.endswith(RECIPE_SUFFIXES) and os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises


def _is_family_file(path: str) -> bool:
    """Whether a file holds a family of recipes, so that a word behind its name is a row, and not a net."""
    if not _is_yaml_file(path):
        return False
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return is_family(file.read(_MOST_CHARACTERS))
    except OSError:
        return False


def _is_path(text: str) -> bool:
    return ":" not in text and _FILE.search(text) is not None


def _broken_link(text: str) -> str:
    try:
        os.stat(text)  # noqa: PTH116 - beside os.path
    except OSError as error:
        return f"cannot be read ({error.strerror}): it is a link to {os.readlink(text)}"  # noqa: PTH115
    return "is a link, and cannot be read"


def _names_beside(text: str) -> list[str]:
    try:
        return sorted(entry.name for entry in Path(text).parent.iterdir())
    except (OSError, ValueError):
        return []
