"""Reading recipes: YAML text to a Recipe, with the file and line of whatever is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from caffe_recipes.caffe.text.source import read_bytes
from caffe_recipes.config.source import Location, Source, parse_yaml, validate, write_key
from caffe_recipes.errors import RecipeError
from caffe_recipes.recipe.checks import find_contradictions
from caffe_recipes.recipe.model import Recipe

_MOST_BYTES = 1_000_000
_OF_CAFFE = (".prototxt", ".pbtxt", ".pt", ".caffemodel", ".solverstate")


def shipped_recipes() -> dict[str, Traversable]:
    """Return the recipes that ship with the package, by name."""
    files = resources.files("caffe_recipes").joinpath("recipes").iterdir()
    return {
        file.name.removesuffix(".yaml"): file
        for file in sorted(files, key=lambda f: f.name)
        if file.name.endswith(".yaml")
    }


def load_recipe(name_or_path: str | Path) -> Recipe:
    """Read a recipe that ships, by name, or one of the user's, by its file's path.

    Raises RecipeError, whose `where` is `file:line`, for an unknown name, unreadable YAML, an unknown key,
    and every value that does not validate.
    """
    return parse_recipe(*_read(name_or_path))


def locate_keys(name_or_path: str | Path) -> Callable[[Location], str]:
    """Return a function that gives `file:line` of a key of a recipe, or of the nearest key around it.

    >>> locate_keys("digits-local")(("name",))
    'digits-local.yaml:1'
    """
    text, where, _ = _read(name_or_path)
    return parse_yaml(text, where, "recipe", RecipeError).place


def _read(name_or_path: str | Path) -> tuple[str, str | Path, Path]:
    """Read a recipe's text; with what errors call it, and the folder of the user's own net."""
    text = str(name_or_path)
    shipped = shipped_recipes()
    if text in shipped:
        return shipped[text].read_text("utf-8"), f"{text}.yaml", Path()
    path = Path(text)
    if text.endswith(_OF_CAFFE):
        hint = "lint, diff, lr, plot and summary read prototxts; a recipe is a .yaml file"
        raise RecipeError(path, "is a file of Caffe's, no recipe", hint)
    if not text.endswith((".yaml", ".yml")) and not path.is_file():
        near = difflib.get_close_matches(text, shipped, n=1)
        meant = f"did you mean '{near[0]}'? " if near else ""
        raise RecipeError(
            "", f"unknown recipe '{text}'", f"{meant}there are {', '.join(shipped)}, or give a .yaml file"
        )
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
    return content, path, path.parent


def parse_recipe(text: str, where: str | Path, folder: Path) -> Recipe:
    """Validate YAML text into a Recipe; `folder` is what the user's own net is found from."""
    source = parse_yaml(text, where, "recipe", RecipeError)
    recipe = validate(source, Recipe, {"folder": folder}, lambda location: _inherited_from(location, source))
    for location, what, hint in find_contradictions(recipe):
        raise RecipeError(source.place(location), f"{write_key(location)}: {what}", hint)
    return recipe


def _inherited_from(location: Location, source: Source) -> Location:
    """Return where a value stands: what a phase inherits from `solver:` is wrong there."""
    inherited = ("solver", *location[2:])
    of_phase = len(location) == 3 and location[0] == "phases" and location not in source.lines
    return inherited if of_phase and inherited in source.lines else location
