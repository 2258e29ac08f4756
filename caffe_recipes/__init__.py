"""Describe a multi-phase Caffe training once, in YAML; get its solvers, nets, job scripts, and a run that
survives crashes.

>>> import caffe_recipes as cr
>>> max(cr.generate(cr.load_recipe("stampede2-64n-72ep")))
'prototxt/stampede2-64n-72ep/train_val_noaug.prototxt'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caffe_recipes.api import diff, lint, read_log, run_recipe, runs, torch_module
    from caffe_recipes.recipe.model import Recipe
    from caffe_recipes.recipe.source import load_recipe
    from caffe_recipes.render.recipe_files import generate


# The public names, each with its module.
_HOME = {
    "Recipe": "caffe_recipes.recipe.model",
    "diff": "caffe_recipes.api",
    "generate": "caffe_recipes.render.recipe_files",
    "lint": "caffe_recipes.api",
    "load_recipe": "caffe_recipes.recipe.source",
    "read_log": "caffe_recipes.api",
    "runs": "caffe_recipes.api",
    "torch_module": "caffe_recipes.api",
    "run_recipe": "caffe_recipes.api",
}
__all__ = [
    "Recipe",
    "diff",
    "generate",
    "lint",
    "load_recipe",
    "read_log",
    "run_recipe",
    "runs",
    "torch_module",
]


def __dir__() -> list[str]:
    """Return the public names, and those of every module."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attribute
    """Import a public name when it is first used, so that `caffe-torch` does not pay for recipes."""
    if name not in _HOME:
        raise AttributeError(f"module 'caffe_recipes' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)
