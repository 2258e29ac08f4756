"""Epochs, iterations and minutes, against the published chains' own numbers."""

from __future__ import annotations

import doctest

import pytest

from caffe_recipes.recipe import graph
from caffe_recipes.recipe.source import load_recipe


def test_the_published_chain_is_72_epochs_and_245_minutes() -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    assert graph.total_iterations(recipe) == 22610
    assert graph.total_images(recipe) == 22610 * 4096
    assert graph.total_epochs(recipe) == pytest.approx(72.29, abs=0.005)
    assert graph.training_minutes(recipe, 6303) == pytest.approx(244.9, abs=0.05)


def test_a_chain_without_branches_makes_a_model_of_all_its_epochs() -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    assert graph.model_epochs(recipe) == graph.total_epochs(recipe)
    assert graph.images_before(recipe, recipe.phases[2]) == (7800 + 3750) * 4096


def test_a_model_of_a_branch_has_fewer_epochs_than_all_phases_together() -> None:
    recipe = load_recipe("stampede2-448n-90ep")
    assert graph.images_before(recipe, recipe.phases[0]) == 0
    assert graph.images_before(recipe, recipe.phases[1]) == 7638 * 14336
    assert graph.model_images(recipe) == 8040 * 14336
    assert graph.model_epochs(recipe) == pytest.approx(89.97, abs=0.005)
    assert graph.total_epochs(recipe) == pytest.approx(94.46, abs=0.005)


def test_each_of_iter_size_batches_counts() -> None:
    recipe = load_recipe("digits-local")
    twice = recipe.phases[0].model_copy(update={"iter_size": 2})
    doubled = recipe.model_copy(update={"phases": (twice, *recipe.phases[1:])})
    more = graph.total_images(doubled) - graph.total_images(recipe)
    assert more == 560 * 64
    assert graph.model_images(doubled) == graph.total_images(doubled)


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(graph).failed == 0
