"""A recipe as a graph: where its branches end, and which phases a model has passed."""

from __future__ import annotations

import pytest

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
