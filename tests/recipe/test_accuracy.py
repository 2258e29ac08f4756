"""The paper's pairs of epochs and accuracy."""

from __future__ import annotations

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.recipe.accuracy import TARGETS, describe_target, find_target
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_recipe


@pytest.mark.parametrize(
    ("percent", "epochs", "section"),
    [
        (73, 29, "V-A"),
        (74, 50, "V-A"),
        (75, 90, "V-A"),
        (75.5, 48, "VI"),
        (76, 64, "VI"),
        (76.5, 78, "VI"),
        (77, 120, "IV-D"),
        (77.5, 120, "VI"),
    ],
)
def test_each_accuracy_that_a_section_of_the_paper_states_has_its_epochs(
    percent: float, epochs: int, section: str
) -> None:
    found = find_target(load_recipe("stampede2-448n-90ep"), percent)
    assert found.epochs == epochs
    assert f"section {section}" in found.how


def test_the_runs_of_table_ix_are_those_of_the_recipes() -> None:
    runs = {
        (recipe.reported.top1_percent, round(recipe.reported.epochs or 0), recipe.cluster.global_batch)
        for recipe in map(load_recipe, (name for name in shipped_recipes() if name.startswith("paper-t9")))
    }
    assert {(one.percent, one.epochs, one.batch) for one in TARGETS if "Table IX" in one.how} == runs


def test_the_accuracies_rise_and_a_batch_beyond_the_paper_s_is_noted() -> None:
    assert [one.percent for one in TARGETS] == sorted(one.percent for one in TARGETS)
    goal = find_target(load_recipe("stampede2-448n-90ep"), 77)
    assert len([*describe_target(goal, 12_288)]) == 1
    assert [*describe_target(goal, 14_336)][1].startswith(
        "14,336 images per iteration: the paper trained with 4,096"
    )
    large = find_target(load_recipe("stampede2-448n-90ep"), 75.31)
    assert [*describe_target(large, 49_152)][
        1
    ] == "49,152 images per iteration: the paper trained with 32,768"


def test_an_unknown_accuracy_names_those_that_are_known() -> None:
    with pytest.raises(InputError, match=r"the epochs to 76\.9% top-1 are unknown; .* 77 \(120 epochs\)"):
        find_target(load_recipe("stampede2-448n-90ep"), 76.9)
