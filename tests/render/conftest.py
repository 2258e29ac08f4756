"""Recipes that differ from `digits-local` in a few keys."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.source import parse_recipe

MakeRecipe = Callable[..., Recipe]


@pytest.fixture
def make_recipe(tmp_path: Path) -> MakeRecipe:
    """Return a recipe after `change` was applied to the YAML's values; its folder is `tmp_path`."""
    text = resources.files("caffe_recipes").joinpath("recipes", "digits-local.yaml").read_text()

    def make(change: Callable[[dict[str, Any]], object] = lambda raw: None) -> Recipe:
        raw = yaml.safe_load(text)
        change(raw)
        return parse_recipe(yaml.safe_dump(raw), "test.yaml", tmp_path)

    return make
