"""Reading recipes: YAML text to a Recipe, with the file and line of whatever is wrong."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path

from caffe_recipes.caffe.text.source import read_bytes
from caffe_recipes.config.source import Location, Source, parse_yaml, validate, write_key
from caffe_recipes.errors import RecipeError
from caffe_recipes.recipe.checks import find_contradictions
from caffe_recipes.recipe.families import parse_row
from caffe_recipes.recipe.model import Family, Recipe
from caffe_recipes.recipe.shipped import is_family
from caffe_recipes.recipe.shipped import shipped_recipes as shipped_recipes

_MOST_BYTES = 1_000_000
_SUFFIXES = (".yaml", ".yml")
_OF_CAFFE = (".prototxt", ".pbtxt", ".pt", ".caffemodel", ".solverstate")


def load_recipe(name_or_path: str | Path) -> Recipe:
    """Read a recipe that ships, by name, or one of the user's, by its file's path; a family's as FILE:ROW.

    Raises RecipeError, whose `where` is `file:line`, for an unknown name, unreadable YAML, an unknown key,
    and every value that does not validate.
    """
    text, where, folder, row = _read(name_or_path)
    return parse_recipe(text, where, folder, row)


def locate_keys(name_or_path: str | Path) -> Callable[[Location], str]:
    """Return a function that gives `file:line` of a key of a recipe, or of the nearest key around it.

    >>> locate_keys("digits-local")(("name",))
    'digits-local.yaml:1'
    """
    text, where, _, row = _read(name_or_path)
    return _parse(text, where, row)[0].place


def _read(name_or_path: str | Path) -> tuple[str, str | Path, Path, str | None]:
    """Read a recipe's text; with what errors call it, the folder of the user's net, and a family's row."""
    text = str(name_or_path)
    shipped = shipped_recipes()
    if text in shipped:
        file, row = shipped[text]
        return file.read_text("utf-8"), file.name, Path(), row
    text, row = split_row(text)
    path = Path(text)
    if text.endswith(_OF_CAFFE):
        hint = "lint, diff, lr, plot and summary read prototxts; a recipe is a .yaml file"
        raise RecipeError(path, "is a file of Caffe's, no recipe", hint)
    if not text.endswith(_SUFFIXES) and not path.is_file():
        near = difflib.get_close_matches(text, shipped, n=1)
        meant = f"did you mean '{near[0]}'? " if near else ""
        there = ", ".join(name for name, one in shipped.items() if one.row is None)
        hint = f"{meant}there are {there}, the paper's (`caffe-recipes recipes`), or give a .yaml file"
        raise RecipeError("", f"unknown recipe '{text}'", hint)
    try:
        data = read_bytes(path, _MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise RecipeError(path, f"is over {_MOST_BYTES:,} bytes", "is it a recipe?")
        content = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(path, "not UTF-8 text", "a recipe is a YAML file") from error
    except OSError as error:
        raise RecipeError(
            path, f"cannot be read: {error.strerror}", "give the path of a recipe's YAML"
        ) from error
    return content, path, path.parent, row


def split_row(text: str) -> tuple[str, str | None]:
    """Split the path of a family's file from the row that is named behind it.

    >>> split_row("my/family.yaml:big"), split_row("my/recipe.yaml"), split_row("a:b.yaml")
    (('my/family.yaml', 'big'), ('my/recipe.yaml', None), ('a:b.yaml', None))
    """
    path, colon, row = text.rpartition(":")
    # Path.exists raises where a name is too long.
    is_split = colon and path.endswith(_SUFFIXES) and not os.path.exists(text)  # noqa: PTH110
    return (path, row) if is_split else (text, None)


def parse_recipe(text: str, where: str | Path, folder: Path, row: str | None = None) -> Recipe:
    """Validate YAML text into a Recipe: that of a family's `row`, if it is one.

    `folder` is what the user's own net is found from.
    """
    source, family = _parse(text, where, row)
    context = {"folder": folder, "family": family}
    recipe = validate(source, Recipe, context, lambda location: _inherited_from(location, source))
    for location, what, hint in find_contradictions(recipe):
        raise RecipeError(source.place(location), f"{write_key(location)}: {what}", hint)
    return recipe


def _parse(text: str, where: str | Path, row: str | None) -> tuple[Source, Family | None]:
    if is_family(text):
        return parse_row(text, where, row)
    if row is not None:
        raise RecipeError(where, f"has no rows, so none named '{row[:100]}'", "give the file's path alone")
    return parse_yaml(text, where, "recipe", RecipeError), None


def _inherited_from(location: Location, source: Source) -> Location:
    """Return where a value stands: what a phase inherits from `solver:` is wrong there."""
    inherited = ("solver", *location[2:])
    of_phase = len(location) == 3 and location[0] == "phases" and location not in source.lines
    return inherited if of_phase and inherited in source.lines else location
