"""What is prepared before the first phase, and checked before every launch; with the stand-in for caffe."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from caffe_recipes.cluster.commands import Completed
from caffe_recipes.errors import RunFailed
from caffe_recipes.run import launch
from caffe_recipes.run.context import LaunchFailed, RunSetup
from caffe_recipes.run.prepare import check_hosts_read
from tests.stand_in_host import StandInHost

if TYPE_CHECKING:
    from tests.run.conftest import Place


def test_a_full_disk_while_the_digits_are_built_fails_the_run_in_its_journal(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise RunFailed(folder, "cannot be written: No space left on device", "free space on its disk")

    lmdb = place.root / "digits" / "digits_train_lmdb"
    monkeypatch.setattr(RunSetup, "built_data", property(lambda setting: (lmdb,)))
    monkeypatch.setattr("caffe_recipes.data.digits.build_digits", fail)
    with pytest.raises(RunFailed, match="digits: cannot be written: No space left on device"):
        place.run()
    assert place.events()[-1]["event"] == "failed"
    monkeypatch.undo()
    assert place.run().outputs


KEPT = "runs/small-1/snapshots/small_init_iter_8.caffemodel"
TRAINED = "tmp/small_init_iter_8.caffemodel"


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_until_trained(place: Place, phase: str) -> None:
    """Wait for the last output of the phase's trainer before it waits for the file `release`."""
    log = place.root / f"runs/small-1/logs/{phase}-1.log"
    wait_until(lambda: log.exists() and "Iteration 4, lr" in log.read_text())


def kill_ranks(place: Place) -> None:
    """Kill the trainers, but not the run."""
    for pid in place.processes():
        with suppress(OSError):
            if b"/fake_caffe.py\0train\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def restored(place: Place) -> list[object]:
    return [event["snapshot"] for event in place.events() if event["event"] == "restored"]


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, 100, 0])
def test_a_snapshot_damaged_while_the_run_lives_is_fetched_again_before_the_next_try(
    place: Place, size: int | None
) -> None:
    place.behave(cyc1="waits")
    run = place.start("--on-failure", "retry")
    wait_until_trained(place, "cyc1")
    kept = place.root / KEPT
    whole = kept.read_bytes()
    if size is None:
        spoil(kept)
    else:
        kept.write_bytes(whole[:size])
    place.behave()
    kill_ranks(place)
    stdout, stderr = run.communicate(timeout=600)
    assert (run.returncode, kept.read_bytes()) == (0, whole), stderr
    assert f"{KEPT}: was damaged; fetched again from localhost" in stdout
    assert restored(place) == [KEPT]
    assert place.trained() == ["init", "cyc1", "cyc1", "last"]


@pytest.mark.slow
def test_without_an_intact_copy_nothing_is_trained_from_a_damaged_snapshot(place: Place) -> None:
    place.behave(cyc1="waits")
    run = place.start("--on-failure", "retry")
    wait_until_trained(place, "cyc1")
    for path in (KEPT, TRAINED):
        spoil(place.root / path)
    place.behave()
    kill_ranks(place)
    _, stderr = run.communicate(timeout=600)
    last = stderr.splitlines()[-1]
    assert run.returncode == 3, stderr
    assert f"{KEPT}: is no longer the snapshot that phase init finished with; restore it" in last
    assert place.trained() == ["init", "cyc1"]


def test_a_snapshot_damaged_between_phases_is_fetched_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_and_spoil(*given: Any, **options: Any) -> None:  # noqa: ANN401
        check_hosts_read(*given, **options)
        spoil(place.root / KEPT)
        monkeypatch.setattr(launch, "check_hosts_read", check_hosts_read)
        (place.root / "release").touch()

    place.edit("{name: last,", "{name: last, weights: init,")
    place.behave(cyc1="waits")
    monkeypatch.setattr(launch, "check_hosts_read", check_and_spoil)
    place.run()
    assert restored(place) == [KEPT]
    assert place.trained() == ["init", "cyc1", "last"]


def test_a_launch_whose_weights_were_damaged_while_it_read_them_is_ended(place: Place) -> None:
    place.behave(cyc1=f"spoils first {KEPT}")
    with pytest.raises(RunFailed, match=f"cyc1: failed: {KEPT} was damaged while the ranks read it"):
        place.run()
    assert restored(place) == [KEPT]
    assert place.run().outputs
    assert place.trained() == ["init", "cyc1", "cyc1", "last"]


def test_weights_of_the_users_are_the_same_in_every_try(place: Place) -> None:
    place.begin()
    (place.root / "given.caffemodel").write_bytes((place.root / KEPT).read_bytes())
    place.edit("{name: init,", "{name: init, weights: given.caffemodel,")
    place.behave(init="spoils last given.caffemodel", cyc1="ends-early")
    place.edit("{name: cyc1,", "{name: cyc1, weights: given.caffemodel,")
    with pytest.raises(
        RunFailed, match=r"given\.caffemodel: is no longer the file that training started from; restore it"
    ):
        place.run(new=True)
    assert place.trained() == ["init", "cyc1", "last", "init"]


def test_a_model_damaged_while_it_is_evaluated_is_fetched_and_evaluated_again(place: Place) -> None:
    place.behave(evaluation="waits")
    run = place.start()
    log = place.root / "runs/small-1/logs/evaluation-1.log"
    wait_until(lambda: log.exists() and "Batch 0" in log.read_text())
    kept = place.root / "runs/small-1/snapshots/small_last_iter_4.caffemodel"
    whole = kept.read_bytes()
    spoil(kept)
    (place.root / "release").touch()
    stdout, stderr = run.communicate(timeout=600)
    assert (run.returncode, kept.read_bytes()) == (0, whole), stderr
    assert "was damaged while it was evaluated; evaluating it again" in stdout
    assert str(place.events()[-1]["log"]).endswith("evaluation-2.log")


@pytest.mark.slow
def test_a_snapshot_damaged_after_its_last_use_does_not_end_a_run_well(place: Place) -> None:
    place.behave(evaluation="waits")
    run = place.start()
    log = place.root / "runs/small-1/logs/evaluation-1.log"
    wait_until(lambda: log.exists() and "Batch 0" in log.read_text())
    for path in (KEPT, TRAINED):
        spoil(place.root / path)
    (place.root / "release").touch()
    _, stderr = run.communicate(timeout=600)
    assert run.returncode == 3
    assert f"{KEPT}: is no longer the snapshot that phase init finished with" in stderr


def test_a_host_that_reads_other_weights_is_named_before_it_trains_from_them(place: Place) -> None:
    path = place.root / "w"
    path.write_bytes(b"ours")
    ours = hashlib.sha256(b"ours").hexdigest()

    def host_with(name: str, digest: str) -> StandInHost:
        return StandInHost(name, lambda argv, _: Completed(0, f"{digest}  {argv[-1]}\n", ""))

    hosts = [host_with("n1", ours), host_with("n2", "0" * 64)]
    setting = Mock(hosts=hosts, path=lambda path: str(place.root / path))
    run = Mock(setting=setting, path=lambda path: place.root / path)
    with pytest.raises(LaunchFailed) as caught:
        check_hosts_read(run, "w", ours, Mock())
    assert caught.value.host == "n2"
    assert str(caught.value).startswith(f"n2: {path} differs from the file here; every rank reads it")


SOLVER = "prototxt/small/solver_last.prototxt"


@pytest.mark.slow
def test_a_prototxt_changed_while_the_run_lives_is_not_trained_from(place: Place) -> None:
    place.behave(cyc1="waits")
    run = place.start()
    wait_until_trained(place, "cyc1")
    solver = place.root / SOLVER
    ours = solver.read_text()
    solver.write_text(ours.replace("base_lr: 0.01", "base_lr: 0.005"))
    (place.root / "release").touch()
    _, stderr = run.communicate(timeout=600)
    what = "has changed since the run began; run again with --overwrite to continue"
    assert (run.returncode, stderr.splitlines()[-1]) == (3, f"Error: {solver}: {what}")
    assert place.trained() == ["init", "cyc1"]
    assert place.events()[-1]["event"] == "failed"
    again = place.start("--overwrite")
    assert (again.communicate(timeout=600), again.returncode)[1] == 0
    assert (solver.read_text(), place.trained()) == (ours, ["init", "cyc1", "last"])


@pytest.mark.slow
def test_a_prototxt_cleared_away_while_the_run_lives_is_placed_again(place: Place) -> None:
    place.behave(cyc1="waits")
    run = place.start()
    wait_until_trained(place, "cyc1")
    (place.root / SOLVER).unlink()
    (place.root / "release").touch()
    stdout, stderr = run.communicate(timeout=600)
    assert run.returncode == 0, stderr
    assert "wrote 1 prototxt to prototxt/small" in stdout
    assert place.trained() == ["init", "cyc1", "last"]


def test_a_run_whose_logs_were_cleared_away_continues(place: Place) -> None:
    place.begin(cyc1="dies")
    shutil.rmtree(place.root / "runs/small-1/logs")
    place.behave()
    place.run()
    assert place.trained() == ["init", "cyc1", "cyc1", "last"]
