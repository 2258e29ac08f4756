"""The JSON schema of a recipe's YAML, for editors."""

from __future__ import annotations

from typing import Any

from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.phases import SolverSettings


def recipe_schema() -> dict[str, Any]:
    """Return the schema of what a person writes: a phase may leave to `solver:` what it inherits from there.

    >>> recipe_schema()["$defs"]["Phase"]["required"]
    ['name', 'net', 'snapshot_prefix']
    """
    schema = Recipe.model_json_schema()
    phase = schema["$defs"]["Phase"]
    phase["required"] = [key for key in phase["required"] if key not in SolverSettings.model_fields]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
