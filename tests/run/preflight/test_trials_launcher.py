"""Where the launcher's ranks were, against where the hostfile has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from caffe_recipes.errors import ClusterError, CommandTimedOut
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.context import RunOptions, RunSetup, find_setting
from caffe_recipes.run.preflight.trials import RankPlaces, misplaced_ranks, start_patiently
from tests.stand_in_host import StandInHost

if TYPE_CHECKING:
    from tests.run.conftest import Place

TWO = {"a": "node-a", "b": "node-b"}
WELL = {0: "node-a", 1: "node-a", 2: "node-b", 3: "node-b"}


@pytest.fixture
def setting(place: Place) -> RunSetup:
    recipe = load_recipe(place.recipe)
    return find_setting(recipe, RunOptions(root=place.root), lambda name, copy_with: StandInHost(name))


def test_ranks_where_the_hostfile_has_them_are_not_a_finding(setting: RunSetup) -> None:
    assert misplaced_ranks(RankPlaces(WELL, TWO, 2), setting) == []
    same = {"localhost": "here", "127.0.0.1": "here"}
    assert misplaced_ranks(RankPlaces(dict.fromkeys(range(4), "here"), same, 2), setting) == []


@pytest.mark.parametrize(
    ("by_rank", "expected", "hosts", "mark"),
    [
        (
            {0: "node-b", 1: "node-b", 2: "node-a", 3: "node-a"},
            "rank 0 is on node-b, not on a",
            (),
            "failed",
        ),
        ({0: "node-a", 1: "node-a"}, "b: gets no ranks from the launcher instead of 2", ("b",), "failed"),
        (dict.fromkeys(range(4), "node-a"), "a: gets 4 ranks from the launcher", ("a",), "failed"),
        ({**WELL, 3: "node-c"}, "1 rank is on node-c, which is not one of the run's hosts", (), "failed"),
        ({**WELL, 1: "node-b", 2: "node-a"}, "does not have the ranks that its line", ("a", "b"), "warn"),
    ],
)
def test_ranks_elsewhere_are_reported_with_their_hosts(
    setting: RunSetup, by_rank: dict[int, str], expected: str, hosts: tuple[str, ...], mark: str
) -> None:
    found = misplaced_ranks(RankPlaces(by_rank, TWO, 2), setting)
    assert [(one.mark, one.hosts) for one in found if expected in one.message] == [(mark, hosts)]


@pytest.mark.parametrize(("by_slurm", "starts", "is_started"), [(True, 2, True), (False, 1, False)])
def test_a_failed_trial_with_srun_is_retried_once(by_slurm: bool, starts: int, is_started: bool) -> None:
    began: list[str] = []
    waited: list[str] = []

    def start() -> str:
        began.append("")
        if len(began) == 1:
            raise CommandTimedOut("localhost", "sh", 120)
        return "started"

    def wait() -> bool:
        waited.append("")
        return by_slurm

    try:
        assert start_patiently(start, wait) == "started"
    except ClusterError:
        assert not is_started
    assert (len(began), len(waited)) == (starts, starts)
