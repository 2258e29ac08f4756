"""Reading recipes: YAML text to a Recipe, with the file and line of whatever is wrong.

The recipes that ship, by name: files of their own, and rows of families; found without reading YAML.

The JSON schema of a recipe's YAML, and of a family's, for editors.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from caffe_recipes.config import Location, YamlSource, parse_yaml, validate, write_key
from caffe_recipes.errors import RecipeError
from caffe_recipes.files import load_yaml_text
from caffe_recipes.recipe.checks import find_contradictions
from caffe_recipes.recipe.families import FamilyFile, parse_row
from caffe_recipes.recipe.model import Family, Recipe, Reported, SolverSettings
from caffe_recipes.recipe.rules import Schedule
from caffe_recipes.recipe.shipped import is_family, shipped_recipes
from caffe_recipes.wording import did_you_mean

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
    if path.is_dir():
        raise RecipeError(path, "is a folder", "give a recipe's name, or its YAML")
    if not text.endswith(_SUFFIXES) and not path.is_file():
        there = ", ".join(name for name, one in shipped.items() if one.row is None)
        others = f"there are {there}, the paper's (`caffe-recipes recipes`), or give a .yaml file"
        raise RecipeError("", f"unknown recipe '{text}'", f"{did_you_mean(text, shipped)} {others}".lstrip())
    return load_yaml_text(path, "recipe", RecipeError), path, path.parent, row


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
        raise source.fault(source.place(location), write_key(location), what, hint)
    return recipe


def _parse(text: str, where: str | Path, row: str | None) -> tuple[YamlSource, Family | None]:
    if is_family(text):
        return parse_row(text, where, row)
    if row is not None:
        raise RecipeError(where, f"has no rows, so none named '{row[:100]}'", "give the file's path alone")
    return parse_yaml(text, where, "recipe", RecipeError), None


def _inherited_from(location: Location, source: YamlSource) -> Location:
    """Return where a value stands: what a phase inherits from `solver:` is wrong there."""
    inherited = ("solver", *location[2:])
    of_phase = len(location) == 3 and location[0] == "phases" and location not in source.lines
    return inherited if of_phase and inherited in source.lines else location


_DEFS = "#/$defs/"


def recipe_schema() -> dict[str, Any]:
    """Return the schema of what a person writes: a recipe, or a family of them, which has a key `family`.

    A phase may leave to `solver:` what it inherits from there, a row to `base:` whatever it likes.

    >>> recipe_schema()["$defs"]["Phase"]["required"]
    ['name', 'net', 'snapshot_prefix']
    """
    defs: dict[str, Any] = {}
    for model in (Recipe, Schedule, FamilyFile):
        schema = model.model_json_schema()
        defs |= schema.pop("$defs", {}) | {model.__name__: schema}
    phase = defs["Phase"]
    phase["required"] = [key for key in phase["required"] if key not in SolverSettings.model_fields]
    _add_rows(defs)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "if": {"type": "object", "required": ["family"]},
        "then": _ref("FamilyFile"),
        "else": _ref("Recipe"),
        "$defs": defs,
    }


def _add_rows(defs: dict[str, Any]) -> None:
    """Say what stands in a family's base and in each of its rows: parts of one recipe."""
    part = _part_of("Recipe", defs)
    keys = defs[part]["properties"]
    del keys["name"]  # which is the row's key
    of_phase = defs["Recipe"]["properties"]["nets"] | {"title": "By phase"}
    of_phase["patternProperties"] = dict.fromkeys(of_phase["patternProperties"], _ref(Reported.__name__))
    keys |= {"schedule": _ref("Schedule"), "reported_by_phase": of_phase}
    family = defs["FamilyFile"]["properties"]
    family["base"] = _ref(part)
    rows = dict.fromkeys(family["rows"]["patternProperties"], _ref(part))
    family["rows"] |= {"patternProperties": rows, "additionalProperties": False}


def _part_of(name: str, defs: dict[str, Any]) -> str:
    """Add a definition of which nothing is required, nor of the mappings in it; return its name."""
    part = f"PartOf{name}"
    if part not in defs:
        defs[part] = {key: _in_part(rule, defs) for key, rule in defs[name].items() if key != "required"}
    return part


def _in_part(rule: Any, defs: dict[str, Any]) -> Any:  # noqa: ANN401 - any part of a schema
    """Refer to parts wherever mappings are merged key by key; the items of a list are whole."""
    if isinstance(rule, list):
        return [_in_part(each, defs) for each in rule]
    if not isinstance(rule, dict):
        return rule
    changed = {key: each if key == "items" else _in_part(each, defs) for key, each in rule.items()}
    if "$ref" in rule:
        changed |= _ref(_part_of(rule["$ref"].removeprefix(_DEFS), defs))
    return changed


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"{_DEFS}{name}"}
