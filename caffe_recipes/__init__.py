"""caffe-recipes: large-minibatch Caffe training recipes as values; everything else is a function of them.

>>> import caffe_recipes as cr
>>> sorted(cr.generate(cr.load_recipe("stampede2-64n-72ep")))[0]
'jobs/stampede2-64n-72ep/run.sh'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caffe_recipes.generate.files import generate as generate
    from caffe_recipes.recipe.model import Recipe as Recipe
    from caffe_recipes.recipe.source import load_recipe as load_recipe

_HOME = {
    "Recipe": "caffe_recipes.recipe.model",
    "generate": "caffe_recipes.generate.files",
    "load_recipe": "caffe_recipes.recipe.source",
}
__all__ = ["Recipe", "generate", "load_recipe"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attribute
    """Import a public name when it is first used, so that `caffe-torch` does not pay for recipes."""
    if name not in _HOME:
        raise AttributeError(f"module 'caffe_recipes' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)
