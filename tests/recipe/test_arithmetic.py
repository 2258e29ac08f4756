"""Epochs, iterations and minutes, against the published chain's own numbers."""

from __future__ import annotations

import doctest

import pytest

from caffe_recipes.recipe import arithmetic
from caffe_recipes.recipe.source import load_recipe


def test_the_published_chain_is_72_epochs_and_245_minutes() -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    assert arithmetic.total_iterations(recipe) == 22610
    assert arithmetic.total_epochs(recipe) == pytest.approx(72.29, abs=0.005)
    assert arithmetic.training_minutes(recipe, 6303) == pytest.approx(244.9, abs=0.05)


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(arithmetic).failed == 0
