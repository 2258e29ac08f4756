"""The JSON schema of a recipe's YAML, and of a family's, for editors."""

from __future__ import annotations

from typing import Any

from caffe_recipes.recipe.families import FamilyFile
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.phases import Reported, SolverSettings
from caffe_recipes.recipe.schedule import Schedule

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
