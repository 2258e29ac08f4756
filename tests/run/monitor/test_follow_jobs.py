"""Watching a run that a Slurm job carries out, or will."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.slurm.jobs import Job, JobState
from caffe_recipes.errors import ClusterError, InputError, RunFailed
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.monitor.follow import AttachOptions, FollowEnv, attach
from caffe_recipes.run.monitor.logs import LogOptions, show_log
from caffe_recipes.run.submit.submissions import Submission, SubmissionJournal, submissions_path
from tests.run.recorded_run import (
    EVALUATED,
    append_events,
    finished,
    interrupted,
    launched,
    started,
    write_run,
)

if TYPE_CHECKING:
    from tests.run.conftest import Place

WAITS = Job(12, "small-a", JobState.PENDING, reason="Resources")
RUNS = Job(12, "small-a", JobState.RUNNING)
ENDED = Job(12, "small-a", JobState.TIMEOUT)


class Watcher:
    """Watches as attach does; its clock advances when it pauses, and the next `meanwhile` is called then."""

    def __init__(self, place: Place, job: Job | None = WAITS) -> None:
        self.place, self.job = place, job
        self.output, self.now_s = io.StringIO(), 0.0
        self.meanwhile: list[Callable[[], object]] = []
        journal = SubmissionJournal(submissions_path(place.root, "small"), lambda: 1_700_000_000.0)
        journal.begin(Submission("small-a", "a", "chain.sbatch", 0.0))
        journal.settle("small-a", 12)
        journal.close()
        self.until = time.monotonic() + 600

    def watch(self, run: str = "small", *, once: bool = False) -> list[str]:
        reporter = Reporter(Console(file=self.output, soft_wrap=True, highlight=False), lambda: self.now_s)
        env = FollowEnv(lambda name, copy_with: LocalHost(name), self._pause, lambda: self.now_s, self._ask)
        attach(run, AttachOptions(str(self.place.root), once=once), reporter, env)
        return self.lines()

    def lines(self) -> list[str]:
        return self.output.getvalue().splitlines()

    def see(self, job: Job | None) -> Callable[[], None]:
        return lambda: setattr(self, "job", job)

    def _ask(self, ids: Collection[int], names: Collection[str]) -> Sequence[Job]:
        if self.job is None:
            raise ClusterError("login1", "Slurm does not respond", "ask again later")
        return [self.job]

    def _pause(self, seconds: float) -> None:
        assert time.monotonic() < self.until, self.lines()
        self.now_s += 11  # so that Slurm is asked each time
        if self.meanwhile:
            self.meanwhile.pop(0)()


def begin(place: Place, log: str = "") -> Path:
    return write_run(place.root, place.recipe, started(host="node7", job="12"), launched(), log=log)


def end(place: Place) -> None:
    append_events(
        place.root / "runs/small-1", finished("init"), finished("cyc1"), finished("last"), EVALUATED
    )


def test_while_the_job_waits_its_state_is_reported_until_the_run_is_there(place: Place) -> None:
    watcher = Watcher(place)
    watcher.meanwhile = [watcher.see(RUNS), lambda: begin(place), lambda: None, lambda: end(place)]
    lines = watcher.watch()
    assert lines[:2] == ["job 12 waits: its nodes are still in use (Resources)", "job 12 is running"]
    assert lines[2].startswith("runs/small-1: log and state of this run; process ")
    assert lines[-1].startswith("runs/small-1/snapshots") or "model" in lines[-1]


def test_once_prints_the_state_of_the_job(place: Place) -> None:
    assert Watcher(place).watch(once=True) == ["job 12 waits: its nodes are still in use (Resources)"]


def test_a_job_that_ends_without_a_run_is_a_failure(place: Place) -> None:
    watcher = Watcher(place)
    watcher.meanwhile = [watcher.see(ENDED)]
    with pytest.raises(RunFailed, match="small: has no run: job 12 was terminated at its time limit"):
        watcher.watch()


def test_a_run_whose_job_is_queued_again_is_waited_for(place: Place) -> None:
    watcher = Watcher(place)
    folder = begin(place)
    append_events(folder, interrupted("SIGUSR1"))
    watcher.meanwhile = [
        lambda: None,
        lambda: None,
        watcher.see(RUNS),
        lambda: append_events(folder, started(host="node8", job="12"), launched("init", 2)),
        lambda: end(place),
    ]
    lines = watcher.watch()
    assert "job 12 waits: its nodes are still in use (Resources)" in lines
    assert any(line.startswith("runs/small-1: interrupted by SIGUSR1") for line in lines)


def test_a_run_whose_job_ended_silently_is_reported_as_ended(place: Place) -> None:
    begin(place)
    with pytest.raises(RunFailed, match="on node7 has ended unexpectedly"):
        Watcher(place, ENDED).watch()


def test_an_unreachable_scheduler_is_reported_with_the_last_known_state(place: Place) -> None:
    watcher = Watcher(place)
    watcher.meanwhile = [watcher.see(None), watcher.see(RUNS), lambda: begin(place), lambda: end(place)]
    lines = watcher.watch()
    now = time.strftime("%H:")
    assert lines[1].startswith(f"job 12 unknown since {now}")
    assert lines[1].endswith(
        "(it waits: its nodes are still in use (Resources)): login1: Slurm does not respond; ask again later"
    )


def test_a_log_is_followed_from_before_its_job_begins(place: Place) -> None:
    watcher = Watcher(place)
    messages: list[str] = []
    log: list[bytes] = []
    watcher.meanwhile = [watcher.see(RUNS), lambda: begin(place, "a\n"), lambda: None, lambda: end(place)]
    env = FollowEnv(
        lambda name, copy_with: LocalHost(name), watcher._pause, lambda: watcher.now_s, watcher._ask
    )
    options = LogOptions(str(place.root), follow=True)
    show_log("small", options, log.append, messages.append, env)
    assert b"".join(log) == b"a\n"
    assert messages == [
        "job 12 waits: its nodes are still in use (Resources)",
        "job 12 is running",
        "==> runs/small-1/logs/init-1.log <==",
    ]


def test_without_a_run_or_job_attach_is_bad_input(place: Place) -> None:
    with pytest.raises(InputError, match="no run or recipe is named 'large'"):
        Watcher(place).watch("large")
