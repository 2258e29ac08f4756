from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.errors import InputError

if TYPE_CHECKING:
    from tests.run.conftest import Place


def wait_until_trained(place: Place, phase: str) -> None:
    """Wait for the last output of the phase's trainer before it waits for the file `release`."""
    log = place.root / f"runs/small-1/logs/{phase}-1.log"
    deadline = time.monotonic() + 600
    while not log.exists() or "Iteration 4, lr" not in log.read_text():
        assert time.monotonic() < deadline, "the phase did not begin"
        time.sleep(0.05)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_killed_run_continues_with_the_trainer_that_outlived_it(place: Place) -> None:
    place.behave(cyc1="waits")
    first = place.start()
    wait_until_trained(place, "cyc1")
    kill(first)
    assert place.processes(), "the trainer outlives the run"
    (place.root / "release").touch()
    parts = [
        place.root / "runs/small-1/checkpoints/cyc1_iter_2.solverstate.part",
        place.root / "runs/small-1/checkpoints/.cyc1_iter_2.caffemodel.part.0badf00d",
        place.root / "runs/small-1/branches/side/checkpoints/side_iter_2.solverstate.part",
    ]
    for part in parts:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    code, stdout, stderr = place.call()
    assert (code, stderr) == (0, "")
    assert not [part for part in parts if part.exists()]
    assert "init: already finished" in stdout
    assert place.trained() == ["init", "cyc1", "last"]
    assert place.state().attempts == {"init": 1, "cyc1": 1, "last": 1}


@pytest.mark.slow
def test_a_clock_that_was_set_back_makes_no_duration_negative(place: Place) -> None:
    place.behave(cyc1="waits")
    first = place.start()
    wait_until_trained(place, "cyc1")
    kill(first)
    journal = place.root / "runs/small-1/journal.jsonl"
    *before, launched = journal.read_text().splitlines()
    assert json.loads(launched)["event"] == "launched"
    later = {**json.loads(launched), "time": "2999-01-01T00:00:00.000+00:00"}
    journal.write_text("\n".join([*before, json.dumps(later)]) + "\n")
    (place.root / "release").touch()
    code, stdout, stderr = place.call()
    assert (code, stderr) == (0, "")
    assert "finished in -" not in stdout
    assert place.state().finished["cyc1"].seconds > 0


@pytest.mark.slow
def test_a_phase_counts_the_time_of_every_launch(place: Place) -> None:
    place.behave(cyc1="waits")
    first = place.start()
    wait_until_trained(place, "cyc1")
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=600)
    place.behave()
    assert place.call()[0] == 0
    stopped = [event for event in place.events() if event["event"] == "interrupted"]
    spent = [each for event in stopped if isinstance(each := event["seconds"], float) and each > 0]
    assert len(spent) == len(stopped) > 0
    assert place.state().spent == {"cyc1": sum(spent)}
    assert place.state().finished["cyc1"].seconds > sum(spent)


@pytest.mark.slow
def test_a_phase_whose_trainer_died_with_the_run_is_started_over(place: Place) -> None:
    place.behave(cyc1="waits")
    first = place.start()
    wait_until_trained(place, "cyc1")
    kill(first)
    for process in place.processes():
        with suppress(ProcessLookupError):  # hydra ends all of them when one has gone
            os.kill(process, signal.SIGKILL)
    place.behave()
    code, stdout, _ = place.call()
    assert code == 0
    assert "cyc1: failed: it ended after iteration 4 of 6" in stdout
    assert place.trained() == ["init", "cyc1", "cyc1", "last"]
    assert [event["phase"] for event in place.events() if event["event"] == "finished"] == [
        "init",
        "cyc1",
        "last",
    ]


def test_while_a_run_is_under_way_another_is_refused_with_its_process(place: Place) -> None:
    place.behave(init="waits")
    first = place.start()
    wait_until_trained(place, "init")
    for options in ({}, {"new": True}):
        with pytest.raises(InputError, match=f"small-1: is in use by process {first.pid} on "):
            place.run(**options)
    (place.root / "release").touch()
    first.communicate(timeout=600)
    assert first.returncode == 0
    assert place.trained() == ["init", "cyc1", "last"]


@pytest.mark.slow
def test_new_is_refused_while_the_trainer_of_a_killed_run_lives(place: Place) -> None:
    place.behave(init="waits")
    first = place.start()
    wait_until_trained(place, "init")
    kill(first)
    journal = place.root / "runs/small-1/journal.jsonl"
    whole = journal.read_text()
    for text in (whole, "what\n", None):
        if text is None:
            journal.unlink()
        else:
            journal.write_text(text)
        with pytest.raises(InputError, match=r"init-1\.log: process \d+ of a killed run is still training"):
            place.run(new=True)
    journal.write_text(whole)
    (place.root / "release").touch()
    assert place.run().outputs


@pytest.mark.slow
def test_new_is_refused_beside_an_active_run_even_if_its_journal_is_damaged(place: Place) -> None:
    place.behave(init="waits")
    first = place.start()
    wait_until_trained(place, "init")
    journal = place.root / "runs/small-1/journal.jsonl"
    whole = journal.read_text()
    journal.write_text("what\n")
    with pytest.raises(InputError, match="small-1: is in use by another process"):
        place.run(new=True)
    journal.write_text(whole)
    (place.root / "release").touch()
    first.communicate(timeout=600)
    assert first.returncode == 0


def test_a_trainer_started_on_another_machine_is_not_doubled(place: Place) -> None:
    place.behave(init="ends-early")
    place.call()
    journal = place.root / "runs/small-1/journal.jsonl"
    created, *lines = journal.read_text().splitlines()
    launched = next(line for line in lines if '"launched"' in line)
    moved = launched.replace(f'"host": "{os.uname().nodename}"', '"host": "login7"')
    journal.write_text(f"{created}\n{moved}\n")
    with pytest.raises(InputError, match="phase init was started on login7, and its outcome is unknown"):
        place.run()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "behaviour", "code"),
    [
        (signal.SIGINT, "waits", 130),
        (signal.SIGTERM, "ignores-term", 143),
        (signal.SIGHUP, "waits", 129),
        (signal.SIGUSR1, "waits", 138),
    ],
)
def test_a_run_stopped_by_a_signal_leaves_no_process_and_can_be_resumed(
    place: Place, number: signal.Signals, behaviour: str, code: int
) -> None:
    place.behave(cyc1=behaviour)
    first = place.start()
    wait_until_trained(place, "cyc1")
    first.send_signal(number)
    if behaviour == "ignores-term":
        time.sleep(0.5)
        first.send_signal(number)  # who asks twice does not wait for the grace period
    _, stderr = first.communicate(timeout=600)
    assert first.returncode == code
    assert stderr == f"interrupted by {number.name}; run the same command again to resume\n"
    assert place.events()[-1]["event"] == "interrupted"
    place.wait_for_no_process()
    place.behave()
    assert place.call()[0] == 0
    assert place.trained() == ["init", "cyc1", "cyc1", "last"]


def test_a_run_that_only_begins_takes_the_signal_of_a_batch_script_for_a_stop(place: Place) -> None:
    place.recipe.unlink()
    os.mkfifo(place.recipe)
    process = place.start()
    with place.recipe.open("w"):  # it reads the recipe, and waits for more of it
        process.send_signal(signal.SIGUSR1)
        _, stderr = process.communicate(timeout=600)
    assert process.returncode == 138
    assert stderr == "interrupted by SIGUSR1; run the same command again to resume\n"
    assert not (place.root / "runs").exists()


@pytest.mark.slow
def test_a_trainer_taken_over_from_a_killed_run_is_stopped_with_its_new_run(place: Place) -> None:
    place.behave(init="waits")
    first = place.start()
    wait_until_trained(place, "init")
    kill(first)
    second = place.start()
    assert second.stdout
    for line in second.stdout:
        if "the trainer of a killed run is still training" in line:
            break
    second.terminate()
    second.communicate(timeout=600)
    assert second.returncode == 143
    place.wait_for_no_process()


def test_a_journal_line_truncated_by_a_crash_is_ignored(place: Place) -> None:
    place.behave(last="ends-early")
    place.call()
    journal = Path(place.root / "runs/small-1/journal.jsonl")
    with journal.open("a") as file:
        file.write('{"time": "2026-11-20T12:00:00.000+00:00", "event": "finished", "phase": "la')
    place.behave()
    assert place.call()[0] == 0
    assert place.trained() == ["init", "cyc1", "last", "last"]
    assert [event["event"] for event in place.events()].count("finished") == 3
