"""The job that a run is in: its hosts, its restarts, and its time limit."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from caffe_recipes.cluster.slurm.this_job import JobStart, TimeOver, requeue_job, slurm_hosts, this_job
from caffe_recipes.errors import InputError, RunFailed


@pytest.mark.parametrize(
    ("environment", "start"),
    [
        ({}, JobStart()),
        ({"SLURM_JOB_ID": "12"}, JobStart("12")),
        ({"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "3"}, JobStart("12", 3)),
        ({"SLURM_JOB_ID": "x", "SLURM_RESTART_COUNT": "3"}, JobStart()),
        ({"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": ""}, JobStart("12")),
    ],
)
def test_the_job_around_a_run_is_known_by_its_environment(
    environment: dict[str, str], start: JobStart
) -> None:
    assert this_job(environment) == start


def test_the_hosts_of_a_slurm_job_come_from_its_environment() -> None:
    assert slurm_hosts({}) is None
    assert slurm_hosts({"SLURM_JOB_NODELIST": ""}) is None
    assert slurm_hosts({"SLURM_NODELIST": "a[1-2]"}) == ("a1", "a2")
    with pytest.raises(InputError, match=r"\$SLURM_JOB_NODELIST: 'a\[' is not a node list"):
        slurm_hosts({"SLURM_JOB_NODELIST": "a["})


@pytest.mark.parametrize("nodes", ["a,b,a", "n[1-3],n2", "n1,N1"])
def test_a_slurm_job_that_names_a_host_twice_is_refused(nodes: str) -> None:
    with pytest.raises(InputError, match=r"^\$SLURM_JOB_NODELIST: host \w+ appears twice; give a --hostfile"):
        slurm_hosts({"SLURM_JOB_NODELIST": nodes})


Scontrol = Callable[[str], list[str]]
SCONTROL = """#!/bin/bash
echo "scontrol $*" >>{folder}/calls
{does}
"""
REPORT_AWAY = 'echo "scontrol: error: Unable to contact slurm controller" >&2; exit 1'


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scontrol:
    """Put a stand-in for scontrol on PATH that runs a script; return its calls so far."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def behave(does: str) -> list[str]:
        program, calls = tmp_path / "bin/scontrol", tmp_path / "calls"
        program.write_text(SCONTROL.format(folder=tmp_path, does=does))
        program.chmod(0o755)
        return calls.read_text().splitlines() if calls.exists() else []

    return behave


def over(restarts: int = 0, warned_s: float = 600.0, *, has_kept: bool = False) -> TimeOver:
    return TimeOver(JobStart("12", restarts), warned_s, has_kept)


@pytest.mark.parametrize("time", [over(2), over(2, 5.0, has_kept=True), over(2, 120.0)])
def test_a_job_at_its_time_limit_is_requeued(scontrol: Scontrol, time: TimeOver) -> None:
    messages: list[str] = []
    scontrol("exit 0")
    assert requeue_job(time, 10, messages.append, lambda seconds: False) == 138
    assert scontrol("") == ["scontrol requeue 12"]
    assert messages == ["the time limit is near; requeueing job 12 to resume (restart 3 of 10)"]


@pytest.mark.parametrize(
    ("time", "most", "why"),
    [
        (
            over(3),
            3,
            "job 12: is near its time limit, and was already requeued 3 times; submit it again to resume",
        ),
        (over(0), 0, "job 12: is near its time limit, and was already requeued 0 times"),
        (
            over(0, 4.6),
            10,
            "job 12: was warned of its time limit 5 s after its start, before any snapshot; give it",
        ),
    ],
)
def test_a_job_that_would_not_advance_is_not_requeued(
    scontrol: Scontrol, time: TimeOver, most: int, why: str
) -> None:
    scontrol("exit 0")
    with pytest.raises(RunFailed, match=re.escape(why)):
        requeue_job(time, most, print)
    assert scontrol("") == []


def test_a_busy_controller_is_asked_again(scontrol: Scontrol) -> None:
    scontrol(f"[ $(wc -l <${{0%/bin/*}}/calls) -gt 2 ] || {{ {REPORT_AWAY}; }}")
    assert requeue_job(over(), 10, lambda line: None, lambda seconds: False) == 138
    assert len(scontrol("")) == 3


def test_a_controller_that_stays_away_is_reported(scontrol: Scontrol) -> None:
    scontrol(REPORT_AWAY)
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return False

    with pytest.raises(RunFailed, match="is not requeued: Unable to contact slurm controller; submit it"):
        requeue_job(over(), 10, lambda line: None, wait)
    assert len(scontrol("")) == len(waited) > 5


def test_a_job_signalled_to_end_while_it_requeues_is_not_queued_again(scontrol: Scontrol) -> None:
    messages: list[str] = []
    scontrol(f"kill -TERM {os.getpid()}; {REPORT_AWAY}")
    assert requeue_job(over(), 10, messages.append) == 143
    assert len(scontrol("")) == 1
    assert messages[-1] == "stopped by a signal; job 12 is not requeued"


def test_an_end_brought_by_scontrol_is_not_a_cancellation(scontrol: Scontrol) -> None:
    scontrol(f"kill -TERM {os.getpid()}")
    assert requeue_job(over(), 10, lambda line: None) == 138


def test_outside_a_job_nothing_is_requeued(scontrol: Scontrol) -> None:
    messages: list[str] = []
    scontrol("exit 0")
    assert requeue_job(TimeOver(JobStart(), 600.0, has_kept=True), 10, messages.append) == 138
    assert (scontrol(""), messages) == ([], ["not in a Slurm job: nothing to requeue"])
