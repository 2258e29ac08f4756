"""Read recipes from YAML, report mistakes with file and line, and build the JSON schema for editors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from caffe_recipes.config import Location, YamlSource, parse_yaml, validate, write_key
from caffe_recipes.errors import RecipeError
from caffe_recipes.files.yaml_text import load_yaml_text
from caffe_recipes.recipe.checks import find_contradictions
from caffe_recipes.recipe.families import FamilyFile, list_rows, parse_row
from caffe_recipes.recipe.model import (
    TENSORFLOW,
    AnyRecipe,
    Family,
    Recipe,
    Reported,
    SolverSettings,
    TensorFlowRecipe,
    train_by_tensorflow,
)
from caffe_recipes.recipe.paper_rules import Schedule
from caffe_recipes.recipe.shipped import RECIPE_SUFFIXES, is_family, shipped_recipes, split_row
from caffe_recipes.wording import did_you_mean

_OF_CAFFE = (".prototxt", ".pbtxt", ".pt", ".caffemodel", ".solverstate")


_TAKES_ANY = (
    "use it with show, generate, tf log, preflight, stage, run, submit, status, attach, logs or cancel"
)


def load_recipe(name_or_path: str | Path, instead: str = _TAKES_ANY) -> Recipe:
    """Read a recipe for Caffe, as `load_any_recipe` does.

    Also raises RecipeError for one that TensorFlow trains, with what to do `instead`.
    """
    return require_caffe_recipe(load_any_recipe(name_or_path), name_or_path, instead)


def load_any_recipe(name_or_path: str | Path) -> AnyRecipe:
    """Read a recipe: a shipped one by name, any other by the path of its file, a row of a family as FILE:ROW.

    Raises RecipeError, whose `where` is `file:line`, for an unknown name, unreadable YAML, an unknown key, or
    a value that does not validate.
    """
    text, where, folder, row = _read(name_or_path)
    return parse_any_recipe(text, where, folder, row)


def load_tensorflow_run(name_or_path: str | Path) -> TensorFlowRecipe:
    """Read a TensorFlow recipe, or the TensorFlow run of a recipe for Caffe.

    Raises RecipeError as `load_any_recipe` does, and for a recipe without such a run or its data.
    """
    recipe = load_any_recipe(name_or_path)
    if isinstance(recipe, TensorFlowRecipe):
        return recipe
    if recipe.tensorflow is None or recipe.tensorflow.data is None:
        lacking = "tensorflow" if recipe.tensorflow is None else "tensorflow.data"
        raise RecipeError(recipe.name, f"has no `{lacking}`", "add it, with the TFRecords")
    return train_by_tensorflow(recipe)


def locate_keys(name_or_path: str | Path) -> Callable[[Location], str]:
    """Return a function that maps a key's location in a recipe to `file:line`.

    For a key that is not in the file, it returns the line of the nearest key that would contain it.

    >>> locate_keys("digits-local")(("name",))
    'digits-local.yaml:1'
    """
    text, where, _, row = _read(name_or_path)
    return _parse(text, where, row)[0].place


def _read(name_or_path: str | Path) -> tuple[str, str | Path, Path, str | None]:
    """Return a recipe's text, its name in errors, the folder of its own net, and its row in a family."""
    text = str(name_or_path)
    shipped = shipped_recipes()
    if text in shipped:
        file, row = shipped[text]
        return file.read_text("utf-8"), file.name, Path(), row
    text, row = split_row(text)
    path = Path(text)
    if text.endswith(_OF_CAFFE):
        hint = "lint, diff, lr, plot and summary read prototxts; a recipe is a .yaml file"
        raise RecipeError(path, "is a Caffe file, not a recipe", hint)
    if path.is_dir():
        raise RecipeError(path, "is a folder", "give a recipe's name, or the path of its YAML")
    if not text.endswith(RECIPE_SUFFIXES) and not path.is_file():
        names = ", ".join(name for name, one in shipped.items() if one.row is None)
        others = f"the recipes are {names}, and the paper's (`caffe-recipes recipes`); or give a .yaml file"
        raise RecipeError("", f"unknown recipe '{text}'", f"{did_you_mean(text, shipped)} {others}".lstrip())
    return load_yaml_text(path, "recipe", RecipeError), path, path.parent, row


def list_family_rows(name: str) -> list[str] | None:
    """Return the names of the rows of a family that is given by its file; None for any other name.

    Raises RecipeError for a file that is not a family although it has the key.
    """
    if not name.endswith(RECIPE_SUFFIXES) or not Path(name).is_file():
        return None
    text = load_yaml_text(Path(name), "recipe", RecipeError)
    return list_rows(text, name) if is_family(text) else None


def expand_families(names: Iterable[str]) -> list[str]:
    """Return names of recipes, with FILE:ROW for each row of a family that is given by its file.

    Raises RecipeError as `list_family_rows` does.
    """
    found = list[str]()
    for name in names:
        rows = list_family_rows(name)
        found += [name] if rows is None else [f"{name}:{row}" for row in rows]
    return found


def parse_recipe(text: str, where: str | Path, folder: Path, row: str | None = None) -> Recipe:
    """Parse and validate YAML text of a recipe for Caffe, as `parse_any_recipe` does."""
    return require_caffe_recipe(parse_any_recipe(text, where, folder, row), where)


def parse_any_recipe(text: str, where: str | Path, folder: Path, row: str | None = None) -> AnyRecipe:
    """Parse and validate the YAML text of a recipe, or of the `row` of a family.

    The path of a prototxt net is relative to `folder`. Raises RecipeError, as load_recipe does.
    """
    source, family = _parse(text, where, row)
    model = _find_model(source)
    context = {"folder": folder, "family": family}
    recipe = validate(source, model, context, lambda location: _inherited_from(location, source))
    for location, what, hint in find_contradictions(recipe):
        raise source.fault(source.place(location), write_key(location), what, hint)
    return recipe


def require_caffe_recipe(recipe: AnyRecipe, given: str | Path, instead: str = _TAKES_ANY) -> Recipe:
    """Return a recipe that Caffe trains; raises RecipeError for any other, with what to do `instead`."""
    if isinstance(recipe, Recipe):
        return recipe
    what = "is trained by TensorFlow and has no phases, solvers, nets or LMDBs"
    raise RecipeError(str(given), what, instead)


def _find_model(source: YamlSource) -> type[Recipe] | type[TensorFlowRecipe]:
    """Return the model for a recipe's trainer; raises the error of `source` for keys of another trainer."""
    trainer = source.raw.get("trainer")
    if not isinstance(trainer, str) or trainer.lower() != TENSORFLOW:
        return Recipe
    if trainer != TENSORFLOW:
        place = source.place(("trainer",))
        raise source.fault(place, "trainer", f"{trainer} is not a Caffe", f"write {TENSORFLOW}")
    for key in source.raw:
        if key in Recipe.model_fields and key not in TensorFlowRecipe.model_fields:
            hint = "remove it, or use a Caffe as the trainer"
            raise source.fault(source.place((key,)), key, "is not allowed if TensorFlow trains", hint)
    return TensorFlowRecipe


def _parse(text: str, where: str | Path, row: str | None) -> tuple[YamlSource, Family | None]:
    if is_family(text):
        return parse_row(text, where, row)
    if row is not None:
        raise RecipeError(
            where, f"is not a family, so it has no row '{row[:100]}'", "give only the path of the file"
        )
    return parse_yaml(text, where, "recipe", RecipeError), None


def _inherited_from(location: Location, source: YamlSource) -> Location:
    """Return the location of a phase's value in the file: under `solver:` if it is inherited."""
    inherited = ("solver", *location[2:])
    of_phase = len(location) == 3 and location[0] == "phases" and location not in source.lines
    return inherited if of_phase and inherited in source.lines else location


_DEFS = "#/$defs/"


def recipe_schema() -> dict[str, Any]:
    """Return the JSON schema of the YAML of a recipe or a family, which has a key `family`.

    A phase may omit keys that it inherits from `solver:`, and a row those that it inherits from `base:`.

    >>> recipe_schema()["$defs"]["Phase"]["required"]
    ['name', 'net', 'snapshot_prefix']
    """
    defs: dict[str, Any] = {}
    for model in (Recipe, TensorFlowRecipe, Schedule, FamilyFile):
        schema = model.model_json_schema()
        defs |= schema.pop("$defs", {}) | {model.__name__: schema}
    phase = defs["Phase"]
    phase["required"] = [key for key in phase["required"] if key not in SolverSettings.model_fields]
    _add_rows(defs)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "if": {"type": "object", "required": ["family"]},
        "then": _ref("FamilyFile"),
        "else": {
            "if": {
                "type": "object",
                "required": ["trainer"],
                "properties": {"trainer": {"const": TENSORFLOW}},
            },
            "then": _ref("TensorFlowRecipe"),
            "else": _ref("Recipe"),
        },
        "$defs": defs,
    }


def _add_rows(defs: dict[str, Any]) -> None:
    """Define a family's base and rows in the schema: each is a part of a recipe."""
    part = _part_of("Recipe", defs)
    keys = defs[part]["properties"]
    del keys["name"]  # the key of the row is the name
    of_phase = defs["Recipe"]["properties"]["nets"] | {"title": "By phase"}
    of_phase["patternProperties"] = dict.fromkeys(of_phase["patternProperties"], _ref(Reported.__name__))
    keys |= {"schedule": _ref("Schedule"), "reported_by_phase": of_phase}
    family = defs["FamilyFile"]["properties"]
    family["base"] = _ref(part)
    rows = dict.fromkeys(family["rows"]["patternProperties"], _ref(part))
    family["rows"] |= {"patternProperties": rows, "additionalProperties": False}


def _part_of(name: str, defs: dict[str, Any]) -> str:
    """Add a copy of a definition in which no key is required, at any depth; return its name."""
    part = f"PartOf{name}"
    if part not in defs:
        defs[part] = {key: _in_part(rule, defs) for key, rule in defs[name].items() if key != "required"}
    return part


def _in_part(rule: Any, defs: dict[str, Any]) -> Any:  # noqa: ANN401 - any part of a schema
    """Return a schema that refers to the optional copies, except in items of lists, which are complete."""
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
