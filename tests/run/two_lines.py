"""A run whose branch trains beside its main line, as a process that may be signalled and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.run.conftest import Place
from tests.run.several_hosts import connect, place_ssh

SIDE = """\
  - {name: side, weights: init, net: train_val_noaug, base_lr: 0.01, max_iter: 6, snapshot_prefix: tmp/side}
"""
LAST = "  - {name: last, net: train_val_noaug,"
AMID = "Iteration 4, lr"
BOTH = {"cyc1": "waits", "side": "waits"}


def make_graph(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Let `side` branch off the first phase; node2 is a spare."""
    place.edit(LAST, SIDE + LAST.replace("name: last,", "name: last, weights: cyc1,"))
    place_ssh(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (place.root / "hosts").write_text("localhost\nnode2\n")
    place.connect = connect
    return place


def start(place: Place, *words: str) -> subprocess.Popen[str]:
    with (place.root / "said.txt").open("a") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.run.several_hosts", "small.yaml", *words],
            cwd=place.root,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            start_new_session=True,
        )


def read_output(place: Place) -> str:
    return (place.root / "said.txt").read_text()


def log(place: Place, phase: str, attempt: int = 1) -> str:
    folder = place.root / "runs/small-1"
    beside = folder / "branches" / phase if phase in ("side", "also") else folder
    path = beside / f"logs/{phase}-{attempt}.log"
    return path.read_text() if path.exists() else ""


def wait_until(process: subprocess.Popen[str], place: Place, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, read_output(place)
        assert time.monotonic() < deadline, read_output(place)
        time.sleep(0.02)


def start_amid_both(place: Place, *words: str) -> subprocess.Popen[str]:
    """Return once the main line and the branch both train; they continue once a file `release` exists."""
    place.behave(**BOTH)
    process = start(place, "--side-by-side", *words)
    wait_until(process, place, lambda: all(AMID in log(place, phase) for phase in BOTH))
    return process


def finish(process: subprocess.Popen[str], place: Place, code: int = 0) -> None:
    assert process.wait(600) == code, read_output(place)
    assert "Traceback" not in read_output(place)
    place.wait_for_no_process()


def check_end(place: Place) -> None:
    state = place.state()
    assert set(state.finished) == {"init", "cyc1", "side", "last"}
    assert list(state.evaluations) == ["side", "last"]
    assert state.launch is None
