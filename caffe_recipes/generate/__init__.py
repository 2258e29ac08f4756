"""Recipe -> {path: text}, pure; comparing with what is on disk. Floor 3.

Importing any module of this package makes it the attribute `generate` of `caffe_recipes`, which is to be the
function of that name: so the package can be called, and is that function.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caffe_recipes.recipe.model import Recipe


class _CallablePackage(ModuleType):
    def __call__(self, recipe: Recipe) -> dict[str, str]:
        """Return the text of each file of a recipe by its path."""
        from caffe_recipes.generate.files import generate

        return generate(recipe)


sys.modules[__name__].__class__ = _CallablePackage
