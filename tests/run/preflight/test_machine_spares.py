"""Spares: checked like the hosts; unfit ones are named and left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.cluster.commands import Completed
from caffe_recipes.cluster.hosts import LocalHost, open_host
from caffe_recipes.errors import ClusterError, HostFailed
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.context import RunOptions, find_setting
from caffe_recipes.run.events import Finish, RunState
from caffe_recipes.run.policy import Policy
from caffe_recipes.run.preflight.findings import CheckResult
from caffe_recipes.run.preflight.machine import check_spares
from caffe_recipes.run.preflight.nodes import NodeView, look_at_nodes
from caffe_recipes.run.training_plan import plan_steps, plan_training
from tests.stand_in_host import StandInHost

if TYPE_CHECKING:
    from tests.run.conftest import Place

Change = Callable[[str], str]
SIDE = "weights: init, net: train_val_noaug, base_lr: 0.01, max_iter: 4, snapshot_prefix: tmp/side}\n"
FOLDER = r"^(\S+: folder \d+) (\d+) "


@pytest.fixture
def look(place: Place) -> NodeView:
    """Look at this machine, which has no spares yet."""
    recipe = load_recipe(place.recipe)
    setting = find_setting(recipe, RunOptions(root=place.root), open_host)
    return look_at_nodes(setting, plan_training(recipe, "runs/small-1"), RunState())


def spare(name: str, change: Change = str) -> StandInHost:
    """Return a machine like this one, except for its name and changes to its answers."""

    def answer(argv: tuple[str, ...], stdin: bytes) -> Completed:
        running = LocalHost().start(argv, 60)
        done = running.finish(60, stdin)
        output = re.sub(r"^(\S+: name) .*", rf"\1 {name}", done.stdout, flags=re.M)
        # Memory and ranks of other tests on this machine do not matter.
        output = re.sub(
            r"^\S+: (memory MemAvailable.*|rank \d+ \d+ [0-9a-f]{16}/.*)\n", "", output, flags=re.M
        )
        return Completed(done.returncode, change(output), done.stderr)

    return StandInHost(name, answer)


def results_of(look: NodeView, *spares: StandInHost, policy: Policy | None = None) -> list[CheckResult]:
    hosts = {host.name: host for host in spares}
    policy = policy or look.setting.policy
    setting = replace(look.setting, spares=tuple(hosts), connect=lambda name: hosts[name], policy=policy)
    found = check_spares(replace(look, setting=setting))
    assert all(host.closed for host in spares)
    assert {one.subject for one in found} <= {"spares"}
    assert "failed" not in {one.mark for one in found}
    return found


def test_without_spares_the_check_reports_nothing(look: NodeView) -> None:
    assert results_of(look) == []


def test_spares_that_match_the_hosts_pass(look: NodeView) -> None:
    found = results_of(look, spare("n8"), spare("n9"))
    assert [(one.mark, one.message) for one in found] == [("ok", "n[8-9]: no problems found")]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda text: text.replace(": program program", ": program absent"), "no such program there"),
        (lambda text: re.sub(r": root \d+", ": root -", text), "no such folder there"),
        (
            lambda text: re.sub(r"^(\S+: folder \d+) \d+", r"\1 9", text, flags=re.M),
            "has 9 bytes free, but the LMDB needs",
        ),
        (
            lambda text: re.sub(
                r"^(\S+:) usable", r"\1 rank 3 95 ab/init-1 alice\n\1 usable", text, flags=re.M
            ),
            "1 rank of another launch, ab/init-1",
        ),
        (lambda text: text.replace("name n9", "name NAME"), "is the same machine as localhost"),
    ],
)
def test_failures_that_stop_a_host_make_a_spare_unfit(look: NodeView, change: Change, expected: str) -> None:
    name = look.facts["localhost"].node_name
    found = results_of(
        look, spare("n8"), spare("n9", lambda text: change(text).replace("name NAME", f"name {name}"))
    )
    assert [(one.mark, one.hosts, one.unfit) for one in found] == [("warn", ("n9",), True)]
    assert expected in found[0].message


def test_a_spare_that_cannot_be_reached_is_unfit(look: NodeView) -> None:
    silent = StandInHost("n9", fault=HostFailed("n9", "did not respond for 15 s", "check the host"))
    found = results_of(look, silent, spare("n8"))
    assert [(one.message, one.unfit) for one in found] == [
        ("n9: did not respond for 15 s; check the host", True)
    ]


def test_a_spare_whose_clock_is_wrong_may_be_used(look: NodeView) -> None:
    late = spare(
        "n9", lambda text: re.sub(r": clock (\d+)", lambda found: f": clock {int(found[1]) - 99}", text)
    )
    found = results_of(look, late)
    assert [(one.mark, one.unfit) for one in found] == [("warn", False)]
    assert re.search(r"n9: its clock is (98|99)\.\d s behind this machine's", found[0].message)


def test_the_trainer_is_tried_on_spares_that_may_be_used(look: NodeView, place: Place) -> None:
    (place.root / "caffe").write_text("#!/bin/sh\necho no licence\nexit 1\n")
    assert [one.mark for one in results_of(look, spare("n9"))] == ["ok"]
    found = results_of(look, spare("n9"), policy=Policy("replace"))
    assert [(one.hosts, one.unfit) for one in found] == [(("n9",), True)]
    assert "does not train a tiny net: it exits with 1; its last line: no licence" in found[0].message
    assert (
        results_of(replace(look, under_way="a launch"), spare("n9"), policy=Policy("replace"))[0].mark == "ok"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: re.sub(FOLDER, r"\1 9 ", text, flags=re.M), "has 9 bytes free, "),
        (lambda text: re.sub(f"{FOLDER}1", r"\1 \2 0", text, flags=re.M), "cannot be written to"),
    ],
)
def test_a_spare_that_cannot_hold_snapshots_trains_no_branch(
    place: Place, change: Change, message: str
) -> None:
    last = "  - {name: last, "
    place.edit(last, f"{last.replace('last', 'side')}{SIDE}{last}weights: cyc1, ")
    place.edit("data/train_lmdb, images: 128", "no_such_lmdb, images: 128")
    setting = find_setting(load_recipe(place.recipe), RunOptions(root=place.root), open_host)
    look = look_at_nodes(setting, plan_training(setting.recipe, "runs/small-1"), RunState())
    assert [one.mark for one in results_of(look, spare("n9", change))] == ["ok"]
    beside = replace(look, setting=replace(look.setting, side_by_side=True))
    assert [one.mark for one in results_of(beside, spare("n9"))] == ["ok"]
    found = results_of(beside, spare("n8"), spare("n9", change))
    assert [(one.hosts, one.unfit) for one in found] == [(("n9",), True)]
    assert message in found[0].message
    steps = plan_steps(setting.recipe)
    line = {step.phase: Finish(step.phase, "", "", 1.0, None, None, {}) for step in steps}
    trained = replace(beside, state=RunState(finished=line))
    assert [one.mark for one in results_of(trained, spare("n9", change))] == ["ok"], "no branch is left"


def test_a_run_leaves_unfit_spares_out(place: Place) -> None:
    (place.root / "hostfile").write_text("localhost\n127.0.0.1\n")
    (place.root / "caffe").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(ClusterError, match=r"\./caffe: does not train a tiny net: it exits with 1"):
        place.run(policy=Policy("replace"))
    output = place.output.getvalue()
    assert "warn    spares         127.0.0.1: is the same machine as localhost" in output
    assert "checking again" not in output
