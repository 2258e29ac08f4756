"""Which phases are planned beside the main line, and on which hosts; nothing is trained."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.branches import BranchPlan, HostGroup, plan_branches
from caffe_recipes.run.context import RunOptions, RunSetup, find_setting
from caffe_recipes.run.events import Finish, Launch, RunState
from caffe_recipes.run.journal import Journal
from caffe_recipes.run.training_plan import plan_training
from tests.run.conftest import Place
from tests.run.recorded_run import launch_of, launched
from tests.run.several_hosts import connect

LAST = "  - {name: last, net: train_val_noaug,"
BRANCHES = """\
  - {name: side, weights: init, net: train_val_noaug, base_lr: 0.01, max_iter: 4, snapshot_prefix: tmp/side}
  - {name: deep, weights: side, net: train_val_noaug, base_lr: 0.01, max_iter: 4, snapshot_prefix: tmp/deep}
  - {name: late, weights: cyc1, net: train_val_noaug, base_lr: 0.01, max_iter: 2, snapshot_prefix: tmp/late}
"""
BESIDE = ["side", "deep", "late"]


@pytest.fixture
def graph(place: Place) -> Place:
    place.edit(LAST, BRANCHES + LAST.replace("name: last,", "name: last, weights: cyc1,"))
    return place


def planned(
    place: Place,
    *hosts: str,
    state: RunState | None = None,
    side_by_side: bool = True,
    until: str | None = None,
) -> tuple[RunSetup, BranchPlan]:
    (place.root / "hosts").write_text("".join(f"{name}\n" for name in hosts))
    recipe = load_recipe(place.recipe)
    options = RunOptions(root=place.root, hostfile=place.root / "hosts", side_by_side=side_by_side)
    setting = find_setting(recipe, options, connect)
    return plan_branches(setting, plan_training(recipe, "runs/small-1", until), state or RunState())


def phases(plan: BranchPlan) -> tuple[list[str], list[str]]:
    return [step.phase for step in plan.main], [step.phase for step in plan.beside]


def done(*phases: str) -> dict[str, Finish]:
    return {phase: Finish(phase, f"{phase}.caffemodel", "0", 1.0, None, None, {}) for phase in phases}


@contextmanager
def left(place: Place, phase: str, *hosts: str) -> Iterator[Launch]:
    """Have a process of a killed run train a phase, beside the main line if that has no journal yet."""
    beside = place.root / f"runs/small-1/branches/{phase}"
    (beside / "logs").mkdir(parents=True)
    log = beside / f"logs/{phase}-1.log"
    with log.open("w") as output:
        process = subprocess.Popen(["sleep", "60"], stdout=output, start_new_session=True)
    journal = Journal(beside / "journal.jsonl", create=True)
    journal.write("launched", **launched(phase, log=str(log.relative_to(place.root)), hosts=list(hosts))[1])
    found = journal.state().launch
    journal.close()
    assert found is not None
    try:
        yield found
    finally:
        process.kill()
        process.wait()


def test_the_last_spares_train_branches_and_the_first_stay(graph: Place) -> None:
    graph.edit("nodes: 1", "nodes: 2")
    setting, plan = planned(graph, "a", "b", "s", "n1", "n2", "n3", "n4")
    assert phases(plan) == (["init", "cyc1", "last"], BESIDE)
    assert plan.groups == (HostGroup(("n3", "n4")), HostGroup(("n1", "n2")))
    assert setting.spares == ("s",)


def test_hosts_are_split_into_at_most_as_many_groups_as_branches(graph: Place) -> None:
    setting, plan = planned(graph, "a", "s1", "s2", "n1", "n2", "n3")
    assert [group.hosts for group in plan.groups] == [("n3",), ("n2",), ("n1",)]
    assert setting.spares == ("s1", "s2")


def test_without_side_by_side_no_group_trains_beside_the_main_line(graph: Place) -> None:
    setting, plan = planned(graph, "a", "b", side_by_side=False)
    assert phases(plan) == (["init", "cyc1", "side", "deep", "late", "last"], [])
    assert (plan.groups, setting.spares) == ((), ("b",))


def test_a_branch_begun_side_by_side_stays_one_with_its_descendants(graph: Place) -> None:
    state = RunState(branches={"side": "runs/small-1/branches/side"})
    _, plan = planned(graph, "a", "b", side_by_side=False, state=state)
    assert phases(plan) == (["init", "cyc1", "late", "last"], ["side", "deep"])
    assert plan.groups == ()


def test_a_branch_begun_by_the_main_line_stays_in_it_and_comes_first(graph: Place) -> None:
    state = RunState(finished=done("init"), attempts={"init": 1, "late": 1}, launch=launch_of("late"))
    _, plan = planned(graph, "a", "b", state=state)
    assert phases(plan) == (["init", "late", "cyc1", "last"], ["side", "deep"])


def test_when_no_branch_is_left_no_more_hosts_are_needed(graph: Place) -> None:
    _, plan = planned(graph, "a", state=RunState(finished=done("init", *BESIDE)))
    assert phases(plan) == (["init", "side", "deep", "late", "cyc1", "last"], [])


def test_a_trainer_that_a_killed_run_left_keeps_its_hosts(graph: Place) -> None:
    state = RunState(branches={"side": "runs/small-1/branches/side"})
    with left(graph, "side", "n2"):
        setting, plan = planned(graph, "a", "n1", "n2", "n3", state=state)
        assert plan.groups == (HostGroup(("n2",), "side"), HostGroup(("n3",)), HostGroup(("n1",)))
        assert setting.spares == ()
        setting, plan = planned(graph, "a", "n1", "n2", state=state, side_by_side=False)
        assert plan.groups == (HostGroup(("n2",), "side", takes_more=False),)
        assert setting.spares == ("n1",)
        _, plan = planned(graph, "a", state=state)
        assert plan.groups == (HostGroup(("n2",), "side", takes_more=False),), (
            "though it is in no hostfile now"
        )


def test_such_a_trainer_on_hosts_of_the_main_line_is_named(graph: Place) -> None:
    state = RunState(branches={"side": "runs/small-1/branches/side"})
    with (
        left(graph, "side", "n2"),
        pytest.raises(
            InputError,
            match=r"n2: phase side of a killed run is still training; resume with the previous",
        ),
    ):
        planned(graph, "n2", "n1", state=state)


def test_after_the_main_line_its_hosts_continue_with_the_branches(graph: Place) -> None:
    folders = {phase: f"runs/small-1/branches/{phase}" for phase in ("side", "late")}
    state = RunState(finished=done("init", "cyc1", "last"), branches=folders)
    with left(graph, "late", "a"):
        for side_by_side in (True, False):
            _, plan = planned(graph, "a", state=state, side_by_side=side_by_side)
            assert (plan.groups, plan.is_held) == ((HostGroup(("a",), "late"),), True)
        _, plan = planned(graph, "a", "n1", "n2", state=state)
        assert plan.groups == (HostGroup(("a",), "late"), HostGroup(("n2",)), HostGroup(("n1",)))


def test_a_trainer_of_a_phase_that_is_not_to_be_trained_now_is_named(graph: Place) -> None:
    state = RunState(branches={"late": "runs/small-1/branches/late"})
    with (
        left(graph, "late", "n2"),
        pytest.raises(
            InputError, match="--until: phase late of a killed run is still training; leave out --until"
        ),
    ):
        planned(graph, "a", "n1", "n2", state=state, until="side")


def test_side_by_side_is_refused_if_the_run_ends_before_the_branches(graph: Place) -> None:
    with pytest.raises(InputError, match="--side-by-side: small has no branches"):
        planned(graph, "a", "b", until="cyc1")
