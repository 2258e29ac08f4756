"""What `adopt`, `new` and `rescale` return."""

from __future__ import annotations

from dataclasses import dataclass

from caffe_recipes.recipe.model import Recipe


@dataclass(frozen=True)
class Made:
    """A recipe that was made, its YAML, and what is to be told of it."""

    recipe: Recipe
    text: str
    notes: tuple[str, ...]
