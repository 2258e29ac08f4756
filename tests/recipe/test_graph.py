"""A recipe as a graph: where its branches end, and which phases a model has passed."""

from __future__ import annotations

import pytest

from caffe_recipes.recipe import graph
from caffe_recipes.recipe.graph import find_leaves, line_to, main_line
from caffe_recipes.recipe.source import load_recipe


@pytest.mark.parametrize("name", ["stampede2-64n-72ep", "stampede2-448n-90ep", "digits-local"])
def test_a_line_has_one_leaf_its_last_phase(name: str) -> None:
    recipe = load_recipe(name)
    assert find_leaves(recipe) == recipe.phases[-1:]


def test_the_cyclic_digits_end_in_five_collapses_one_per_cycle() -> None:
    recipe = load_recipe("digits-cyclic")
    leaves = find_leaves(recipe)
    assert [leaf.name for leaf in leaves] == [f"collapse{number}" for number in range(1, 6)]
    for number, leaf in enumerate(leaves, 1):
        cycles = [f"cyc{each}" for each in range(1, number + 1)]
        assert [phase.name for phase in line_to(recipe, leaf)] == ["init", *cycles, leaf.name]


@pytest.mark.parametrize("name", ["stampede2-64n-72ep", "digits-local"])
def test_a_line_is_its_own_main_one(name: str) -> None:
    recipe = load_recipe(name)
    assert main_line(recipe) == recipe.phases


@pytest.mark.parametrize(("name", "end"), [("digits-cyclic", "collapse5"), ("paper-f4-4096-120ep", "c6")])
def test_the_main_line_goes_through_all_cycles_and_waits_for_no_branch(name: str, end: str) -> None:
    recipe = load_recipe(name)
    line = main_line(recipe)
    assert [phase.name for phase in line[-2:]] == ["cyc5", end]
    assert {recipe.starts_from(phase) for phase in line[1:]} <= {*line}


# Epochs, iterations and minutes, against the published chains' own numbers.


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
