"""How a launcher has ended: by itself, by a signal, or by the run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from caffe_recipes.cluster.rank_exits import ENDED_BY_US
from caffe_recipes.run.process import TrainerProcess, launch_trainer

Start = Callable[..., TrainerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return lambda *argv: launch_trainer(argv, tmp_path, {}, tmp_path / "log")


def wait(trainer: TrainerProcess) -> None:
    while trainer.is_running():
        trainer.wait()


def test_the_signal_that_has_killed_a_launcher_is_known(start: Start) -> None:
    trainer = start("sleep", "60")
    assert trainer.killed_by is None
    pid = trainer.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait(trainer)
    assert trainer.killed_by == signal.SIGKILL
    trainer.stop()
    assert trainer.killed_by == signal.SIGKILL
    assert trainer.log.read_bytes() == b""


def test_a_launcher_that_exits_was_not_killed(start: Start) -> None:
    trainer = start("sh", "-c", "exit 137")
    wait(trainer)
    assert trainer.killed_by is None


def test_a_launcher_that_the_run_stops_was_not_killed_and_its_log_says_so(start: Start) -> None:
    trainer = start("sleep", "60")
    trainer.stop()
    assert trainer.killed_by is None
    assert trainer.log.read_text().split("\n") == ["", ENDED_BY_US, ""]
