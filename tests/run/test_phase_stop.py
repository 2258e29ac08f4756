"""Phases that stop before max_iter, and phases that start from an intermediate snapshot of another."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.errors import InputError, RunFailed

if TYPE_CHECKING:
    import subprocess

    from tests.run.conftest import Place

# Far beyond what a test waits for.
ENDLESS = 1_000_000
STOPPED = f"max_iter: {ENDLESS}, stop_iter: 8"
KEPT = "runs/small-1/snapshots"


@pytest.fixture
def stopped(place: Place) -> Place:
    """Let the first phase's schedule continue beyond the phase."""
    place.edit("max_iter: 8", STOPPED)
    return place


def kept(place: Place) -> list[str]:
    return sorted(path.name for path in (place.root / KEPT).iterdir())


def wait_for_log(place: Place, text: str, phase: str = "init") -> None:
    log = place.root / f"runs/small-1/logs/{phase}-1.log"
    deadline = time.monotonic() + 600
    while not log.exists() or text not in log.read_text():
        assert time.monotonic() < deadline, f"the log never said: {text}"
        time.sleep(0.02)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.mark.parametrize("behaviour", ["well", "fast", "says-no-end", "dies-after", "nan-after"])
def test_a_phase_is_stopped_and_finished_once_the_snapshot_of_its_last_iteration_is_whole(
    stopped: Place, behaviour: str
) -> None:
    stopped.behave(init=behaviour)
    state = stopped.run()
    assert stopped.trained() == ["init", "cyc1", "last"]
    assert kept(stopped) == [
        "small_cyc1_iter_6.caffemodel",
        "small_init_iter_8.caffemodel",
        "small_last_iter_4.caffemodel",
    ]
    loss = state.finished["init"].loss
    assert loss is not None
    assert loss >= 2.5 / 9  # the last up to iteration 8, whatever came after it
    output = stopped.output.getvalue()
    assert "init: 8 iterations from the nets' fillers" in output
    assert f"/{ENDLESS}" not in output
    table = output[output.index("\nphase ") + 1 :].splitlines()
    assert table[1].split()[:3] == ["init", "8", "4.00"]
    assert table[4].split()[:3] == ["all", "18", "9.00"]


def test_a_trainer_stopped_too_late_leaves_its_last_snapshot_in_place(stopped: Place) -> None:
    stopped.run()
    log = (stopped.root / "runs/small-1/logs/init-1.log").read_text()
    assert "Optimization stopped early" in log
    extra = set((stopped.root / "tmp").glob("small_init_iter_*")) - {
        stopped.root / "tmp/small_init_iter_8.caffemodel"
    }
    assert extra
    assert {"event": "stopping", "phase": "init", "iteration": 8}.items() <= next(
        event for event in stopped.events() if event["event"] == "stopping"
    ).items()


def test_a_trainer_that_ignores_the_stop_is_ended_and_its_phase_finished(stopped: Place) -> None:
    stopped.behave(init="ignores-int")
    stopped.run(stop_grace_s=0.5)
    log = (stopped.root / "runs/small-1/logs/init-1.log").read_text()
    assert "Optimization stopped early" not in log, "it did what it is to ignore"
    assert f"Iteration {ENDLESS}" not in log, "it was waited for"
    assert not stopped.processes()
    assert stopped.trained() == ["init", "cyc1", "last"]


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("never-snapshots", "the snapshot is missing"),
        ("writes-nothing", "the snapshot is missing"),
        ("empty", "the snapshot is empty"),
        ("truncated", "truncated"),
        ("other", "the snapshot does not fit net Small: layer 'conv1' is missing"),
        ("cut-short", "a rank was killed by signal 9 (out of memory?) after iteration 6 of 8"),
        ("nan", "the loss is nan at iteration 2"),
    ],
)
def test_a_phase_that_is_to_be_stopped_fails_without_its_snapshot(
    stopped: Place, behaviour: str, reason: str
) -> None:
    stopped.behave(init=behaviour)
    with pytest.raises(RunFailed) as caught:
        stopped.run()
    assert reason in str(caught.value)
    assert kept(stopped) == []
    stopped.behave()
    assert stopped.run().outputs
    assert stopped.trained() == ["init", "init", "cyc1", "last"]


@pytest.mark.slow
def test_a_phase_stopped_by_somebody_else_before_its_snapshot_is_not_finished(stopped: Place) -> None:
    stopped.behave(init="waits")
    run = stopped.start()
    wait_for_log(stopped, "Iteration 4, lr")
    for process in stopped.processes(named="mpiexec"):
        os.kill(process, signal.SIGINT)
    (stopped.root / "release").touch()
    _, stderr = run.communicate(timeout=600)
    assert run.returncode == 3
    assert "phase init: failed: it was stopped early by a signal" in stderr


def test_a_run_killed_before_the_snapshot_stops_its_trainer_when_called_again(stopped: Place) -> None:
    stopped.behave(init="waits")
    run = stopped.start()
    wait_for_log(stopped, "Iteration 4, lr")
    kill(run)
    (stopped.root / "release").touch()
    wait_for_log(stopped, "Iteration 40, lr")
    assert stopped.processes(), "nobody stops it"
    code, stdout, stderr = stopped.call()
    assert (code, stderr) == (0, "")
    assert "the trainer of a killed run is still training" in stdout
    assert stopped.trained() == ["init", "cyc1", "last"]


@pytest.mark.slow
def test_a_run_killed_while_its_trainer_stops_takes_what_that_leaves(stopped: Place) -> None:
    stopped.behave(init="lingers")
    run = stopped.start()
    wait_for_log(stopped, "Sending Ctrl-C to processes")
    kill(run)
    (stopped.root / "release").touch()
    stopped.wait_for_no_process()
    code, stdout, _ = stopped.call()
    assert code == 0
    assert "the trainer of a killed run has since ended" in stdout
    assert stopped.trained() == ["init", "cyc1", "last"]


@pytest.mark.slow
def test_a_run_killed_while_its_trainer_lingers_stops_it_again(stopped: Place) -> None:
    stopped.behave(init="lingers")
    run = stopped.start()
    wait_for_log(stopped, "Sending Ctrl-C to processes")
    kill(run)
    code, stdout, _ = stopped.call()
    assert code == 0
    assert "the trainer of a killed run is still training" in stdout
    assert stopped.trained() == ["init", "cyc1", "last"]


@pytest.mark.slow
def test_a_run_interrupted_while_its_trainer_stops_keeps_the_phase(stopped: Place) -> None:
    stopped.behave(init="ignores-int")
    run = stopped.start()
    wait_for_log(stopped, "Sending Ctrl-C to processes")
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=600)
    assert run.returncode == 130
    stopped.wait_for_no_process()
    assert stopped.events()[-1]["event"] == "interrupted"
    code, stdout, _ = stopped.call()
    assert code == 0, stdout
    assert stopped.trained() == ["init", "cyc1", "last"]


BRANCH = "name: last, weights: init, weights_iter: 4,"


@pytest.fixture
def branched(place: Place) -> Place:
    """Let the last phase start from an intermediate snapshot of the first."""
    place.edit("max_iter: 8", "max_iter: 8, snapshot: 4")
    place.edit("name: last,", BRANCH)
    return place


def test_a_phase_starts_from_an_intermediate_snapshot_of_another(branched: Place) -> None:
    state = branched.run()
    assert (branched.root / "trained.txt").read_text().splitlines() == [
        "init -",
        f"cyc1 {KEPT}/small_init_iter_8.caffemodel",
        f"last {KEPT}/small_init_iter_4.caffemodel",
    ]
    assert kept(branched) == [
        "small_cyc1_iter_6.caffemodel",
        "small_init_iter_4.caffemodel",
        "small_init_iter_8.caffemodel",
        "small_last_iter_4.caffemodel",
    ]
    assert list(state.finished["init"].needed) == [f"{KEPT}/small_init_iter_4.caffemodel"]


def test_a_phase_without_the_snapshot_that_a_later_one_needs_is_not_finished(branched: Place) -> None:
    branched.behave(init="never-snapshots")
    with pytest.raises(
        RunFailed,
        match=r"phase init: failed: localhost:.*small_init_iter_4.caffemodel: the snapshot is missing",
    ):
        branched.run()
    assert not branched.state().finished
    branched.behave()
    assert branched.run().outputs
    assert branched.trained() == ["init", "init", "cyc1", "last"]


def test_an_old_snapshot_is_not_mistaken_for_one_that_a_later_phase_needs(branched: Place) -> None:
    branched.run()
    branched.behave(init="never-snapshots")
    with pytest.raises(RunFailed, match="the snapshot is an old file"):
        branched.run(new=True)


def test_a_needed_snapshot_damaged_since_is_not_built_upon(branched: Place) -> None:
    branched.behave(last="ends-early")
    with pytest.raises(RunFailed):
        branched.run()
    path = branched.root / KEPT / "small_init_iter_4.caffemodel"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    before = branched.tree()
    with pytest.raises(InputError, match="is no longer the snapshot that phase init finished with"):
        branched.run()
    assert branched.tree() == before
    path.write_bytes(whole)
    branched.behave()
    assert branched.run().outputs
    assert branched.trained() == ["init", "cyc1", "last", "last"]


@pytest.mark.slow
def test_a_run_killed_while_the_first_phase_trains_still_fetches_what_a_later_one_needs(
    branched: Place,
) -> None:
    branched.behave(init="waits")
    run = branched.start()
    wait_for_log(branched, "Iteration 4, lr")
    kill(run)
    (branched.root / "release").touch()
    code, stdout, _ = branched.call()
    assert code == 0, stdout
    assert branched.trained() == ["init", "cyc1", "last"]
    assert "small_init_iter_4.caffemodel" in kept(branched)


def test_the_disk_must_hold_every_snapshot_that_fires(place: Place) -> None:
    place.edit("max_iter: 8", "max_iter: 8, snapshot: 2")
    place.run()
    more = place.output.getvalue()
    place.edit("max_iter: 8, snapshot: 2", "max_iter: 8")
    place.output.truncate(0)
    place.run(new=True, overwrite=True)
    fewer = place.output.getvalue()

    def snapshot_bytes(text: str) -> float:
        words = text.partition(" of snapshots")[0].split()
        return float(words[-2]) * {"kB": 1e3, "MB": 1e6}[words[-1]]

    # A caffemodel and a solverstate each, and three that are kept: 4 + 1 + 1 of them, and 1 + 1 + 1.
    assert snapshot_bytes(more) / snapshot_bytes(fewer) == pytest.approx((2 * 6 + 3) / (2 * 3 + 3), rel=0.02)
