"""Where the launcher's ranks were, against where the hostfile has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from caffe_recipes.chain.preflight.launcher import Places, misplaced_ranks
from caffe_recipes.chain.setting import Options, Setting, find_setting
from caffe_recipes.cluster.testing import StandInHost
from caffe_recipes.recipe.source import load_recipe

if TYPE_CHECKING:
    from tests.chain.conftest import Place

TWO = {"a": "node-a", "b": "node-b"}
WELL = {0: "node-a", 1: "node-a", 2: "node-b", 3: "node-b"}


@pytest.fixture
def setting(place: Place) -> Setting:
    recipe = load_recipe(place.recipe)
    return find_setting(recipe, Options(root=place.root), lambda name, copy_with: StandInHost(name))


def test_ranks_where_the_hostfile_has_them_are_no_finding(setting: Setting) -> None:
    assert misplaced_ranks(Places(WELL, TWO, 2), setting) == []
    same = {"localhost": "here", "127.0.0.1": "here"}
    assert misplaced_ranks(Places(dict.fromkeys(range(4), "here"), same, 2), setting) == []


@pytest.mark.parametrize(
    ("by_rank", "said", "hosts", "mark"),
    [
        (
            {0: "node-b", 1: "node-b", 2: "node-a", 3: "node-a"},
            "rank 0 is on node-b, and not on a",
            (),
            "failed",
        ),
        ({0: "node-a", 1: "node-a"}, "b: gets no ranks from the launcher instead of 2", ("b",), "failed"),
        (dict.fromkeys(range(4), "node-a"), "a: gets 4 ranks from the launcher", ("a",), "failed"),
        ({**WELL, 3: "node-c"}, "1 rank is on node-c, which is no host of ours", (), "failed"),
        ({**WELL, 1: "node-b", 2: "node-a"}, "has not the ranks that its line", ("a", "b"), "warn"),
    ],
)
def test_ranks_elsewhere_are_told_with_their_hosts(
    setting: Setting, by_rank: dict[int, str], said: str, hosts: tuple[str, ...], mark: str
) -> None:
    found = misplaced_ranks(Places(by_rank, TWO, 2), setting)
    assert [(one.mark, one.hosts) for one in found if said in one.said] == [(mark, hosts)]
