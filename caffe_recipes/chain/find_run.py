"""Which run a word names, and the recipe that it was started with; both where the run is."""

from __future__ import annotations

import difflib
import json
import posixpath
import re
from typing import Any

from pydantic import ValidationError

from caffe_recipes.chain.folder import RUNS
from caffe_recipes.chain.run_files import RunFiles, Wanted
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_recipe

_FROZEN = "recipe.json"
_YAML = (".yaml", ".yml")


def find_run(files: RunFiles, root: str, given: str) -> str:
    """Return the folder of a run that is given as a folder, a run's name, a recipe's name or its YAML.

    Of a recipe the latest run is meant. Raises InputError if there is none.
    """
    runs = posixpath.normpath(posixpath.join(root, RUNS))
    if given.endswith(_YAML):
        return posixpath.join(runs, _latest(files, runs, name_recipe(given), given))
    plain = given.rstrip("/") or given
    folders = dict.fromkeys(
        [*([plain] if "/" in plain else []), posixpath.join(root, plain), posixpath.join(runs, plain)]
    )
    looked = files.look([Wanted(f"{folder}/journal.jsonl", most=1) for folder in folders])
    found = [folder for folder, piece in zip(folders, looked.pieces, strict=True) if piece is not None]
    return found[0] if found else posixpath.join(runs, _latest(files, runs, given))


def load_frozen(files: RunFiles, folder: str) -> Recipe:
    """Read the recipe that a run was started with; raises InputError."""
    path = f"{folder}/{_FROZEN}"
    piece = files.look([Wanted(path)]).pieces[0]
    try:
        if piece is None:
            raise ValueError("no such file")
        return Recipe.model_validate(_frozen(json.loads(piece.data)))
    except (ValidationError, ValueError, RecursionError) as error:
        what = "no such file" if piece is None else f"is no run's recipe: {_first(error)}"
        raise InputError(path, what, "watch the run with the version that started it") from None


def name_recipe(given: str) -> str:
    """Return the name of the recipe that a word would name; raises RecipeError for a spoilt YAML."""
    return load_recipe(given).name if given.endswith(_YAML) else given


def numbered_run(name: str) -> tuple[str, int] | None:
    """Return the recipe and the number in a run's name; None for what is no run's.

    >>> numbered_run("digits-local-12"), numbered_run("digits-local")
    (('digits-local', 12), None)
    """
    found = re.fullmatch(r"(.+)-([0-9]{1,9})", name)
    return (found[1], int(found[2])) if found else None


def _latest(files: RunFiles, runs: str, recipe: str, recipe_file: str = "") -> str:
    """Return the name of a recipe's latest run; `recipe_file` is the YAML that it was given by."""
    names = files.names(runs)
    numbered = [(int(found[1]), name) for name in names if (found := _numbered(recipe, name))]
    if numbered:
        return max(numbered)[1]
    where = f"{files.host}:{runs}" if files.host else runs
    if recipe_file or recipe in shipped_recipes():
        first = f"`caffe-recipes run {recipe_file or recipe}` first"
        hint = f"{first}, or give the folder that holds `runs` with --caffe-root"
        raise InputError(where, f"no run of {recipe} is here", hint)
    near = difflib.get_close_matches(recipe, names, n=1)
    hint = f"did you mean '{near[0]}'?" if near else "give the folder that holds `runs` with --caffe-root"
    raise InputError(where, f"no run, and no recipe's, is called {recipe[:80]!r}", hint)


def _numbered(recipe: str, name: str) -> re.Match[str] | None:
    return re.fullmatch(re.escape(recipe) + r"-([0-9]{1,9})", name)


def _frozen(value: Any) -> Any:  # noqa: ANN401 - whatever the JSON held
    """Make lists what a recipe holds."""
    if isinstance(value, dict):
        return {key: _frozen(each) for key, each in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return "not JSON" if isinstance(error, ValueError) else "too deep"
