"""What a run does after a failed launch, by policy; on this machine, with the stand-in for caffe."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import LocalHost, open_host
from caffe_recipes.errors import HostFailed, RunFailed
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.branches import on_hosts
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.context import LaunchFailed, Run, RunOptions, RunSetup, Spares, find_setting
from caffe_recipes.run.events import Event, Failed, Notice
from caffe_recipes.run.policy import Policy
from caffe_recipes.run.recovery import recover, replace_hosts
from caffe_recipes.run.signals import Interrupted, Interrupts
from tests.run.conftest import Place
from tests.stand_in_host import StandInHost


def events(place: Place) -> list[str]:
    kinds = ("launched", "failed", "retrying", "finished")
    return [str(event["event"]) for event in place.events() if event["event"] in kinds]


def test_without_a_policy_the_first_failure_ends_the_run(place: Place) -> None:
    place.behave(init="ends-early")
    with pytest.raises(RunFailed, match="phase init: failed: it ended after iteration 6 of 8"):
        place.run()
    assert events(place) == ["launched", "failed"]


def test_a_failed_launch_is_tried_again_so_often(place: Place) -> None:
    place.behave(init="ends-early")
    with pytest.raises(RunFailed, match=r"phase init: failed: .*; log: .*/init-3.log; after 2 retries"):
        place.run(policy=Policy("retry", retries=2))
    assert events(place) == ["launched", "failed", "retrying"] * 2 + ["launched", "failed"]
    assert "retrying (2 of 2)" in place.output.getvalue()
    place.behave()
    place.run()
    assert place.trained() == ["init"] * 4 + ["cyc1", "last"]


def test_each_phase_has_its_retries(place: Place) -> None:
    place.behave(cyc1="ends-early")
    with pytest.raises(RunFailed, match="phase cyc1: failed"):
        place.run(policy=Policy("retry", retries=1))
    assert place.trained() == ["init", "cyc1", "cyc1"]


def test_to_replace_without_a_dead_host_is_to_retry(place: Place) -> None:
    place.behave(init="nan")
    (place.root / "release").touch()
    with pytest.raises(RunFailed, match="phase init: failed: the loss is nan"):
        place.run(policy=Policy("replace", retries=1))
    assert events(place) == ["launched", "failed", "retrying", "launched", "failed"]


def test_our_own_full_disk_costs_no_retry_and_no_training(place: Place) -> None:
    class Unkept(LocalHost):
        def fetch(self, path: str, to: Path) -> None:
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
            try:  # the limit refuses what is written, as a full disk does
                super().fetch(path, to)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    place.connect = lambda name: Unkept()
    with pytest.raises(RunFailed) as caught:
        place.run(policy=Policy("retry"))
    assert "cannot be written: File too large; raise the limit on the size of files" in str(caught.value)
    assert str(caught.value).endswith(", and run again")
    assert events(place) == ["launched", "failed"]
    place.connect = open_host
    place.run()
    assert place.trained() == ["init", "cyc1", "last"]


DEAD = HostFailed("", "does not answer: no route to host", "boot it")


def setting_of(place: Place, policy: Policy, *dead: str) -> RunSetup:
    """One host and two spares, of which some are dead."""
    (place.root / "hosts").write_text("n1\nn2\nn3\n")

    def connect(name: str, copy_with: str) -> Host:
        return StandInHost(name, fault=DEAD if name in dead else None)

    options = RunOptions(root=place.root, hostfile=Path(place.root / "hosts"), policy=policy)
    return find_setting(load_recipe(place.recipe), options, connect)


def run_of(setting: RunSetup) -> tuple[Run, list[str], list[dict[str, Any]]]:
    """Return a run, its messages, and its journal."""
    messages: list[str] = []
    journal: list[dict[str, Any]] = []
    reporter = Reporter()
    run = Run(
        "",
        setting,
        Mock(),
        "runs/small-1",
        Mock(),
        reporter,
        Interrupts(),
        Mock(),
        (reporter.observe,),
        spares=Spares(setting.spares),
    )
    reporter.say = lambda text, **_: messages.append(text)  # type: ignore[method-assign]

    def append(event: Event, patience_s: float = 0.0) -> None:
        journal.append({"event": event.name, **event.details()})

    run.journal.append = append  # type: ignore[method-assign]
    return run, messages, journal


def test_if_no_spare_answers_each_is_named_with_its_error(place: Place) -> None:
    run, messages, journal = run_of(setting_of(place, Policy("replace"), "n1", "n2", "n3"))
    with pytest.raises(LaunchFailed) as caught:
        recover(run, LaunchFailed("it ended", host="n1"), 1)
    why = "does not answer: no route to host"
    what = f"n1: no spare answers (n2: {why}; n3: {why})"
    assert str(caught.value) == f"{what}; add hosts to the hostfile"
    notices = [
        "checking which hosts answer",
        f"n2 cannot be used as a spare: {why}",
        f"n3 cannot be used as a spare: {why}",
    ]
    assert messages[2:] == notices
    assert journal[1:] == [
        *({"event": Notice.name, **Notice(message).details()} for message in notices),
        {"event": Failed.name, **Failed(what, host="n1").details()},
    ]


def test_a_spare_that_does_not_answer_is_skipped(place: Place) -> None:
    run, messages, _ = run_of(setting_of(place, Policy("replace"), "n1", "n2"))
    assert [host.name for host in recover(run, LaunchFailed("it ended"), 1).setting.hosts] == ["n3"]
    assert messages[-1] == "n3 replaces n1"


def test_without_spares_no_attempt_is_reported(place: Place) -> None:
    setting = replace_hosts(setting_of(place, Policy("replace")), ["n1"])
    setting = replace_hosts(setting, ["n2"])
    with pytest.raises(LaunchFailed, match=r"^n3: no spare is left; add hosts"):
        replace_hosts(setting, ["n3"])


def test_after_a_stop_request_no_more_hosts_are_tried(place: Place) -> None:
    run, messages, _ = run_of(setting_of(place, Policy("replace"), "n1"))
    run.interrupts.asked = 2
    with pytest.raises(Interrupted):
        recover(run, LaunchFailed("it ended"), 1)
    assert messages[-1] == "checking which hosts answer"


def test_the_main_line_and_a_branch_never_take_the_same_spare(place: Place) -> None:
    run, _, _ = run_of(setting_of(place, Policy("replace"), "n1"))
    branch = replace(run, setting=on_hosts(run.setting, ["n1"]))
    assert [host.name for host in recover(branch, LaunchFailed("it ended"), 1).setting.hosts] == ["n2"]
    assert [host.name for host in recover(run, LaunchFailed("it ended"), 1).setting.hosts] == ["n3"]
    with pytest.raises(LaunchFailed, match="n1: no spare is left"):
        recover(branch, LaunchFailed("it ended"), 2)
