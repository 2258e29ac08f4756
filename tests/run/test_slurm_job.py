"""A run in Slurm jobs: what a job has launched is resumed by the next one, on other nodes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.cluster.slurm.calls import NoCommand, SchedulerAway
from caffe_recipes.cluster.slurm.jobs import Job, JobState
from caffe_recipes.cluster.slurm.this_job import JobStart
from caffe_recipes.errors import ClusterError, InputError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.events import Launch, RunStarted, RunState
from caffe_recipes.run.journal import Journal
from caffe_recipes.run.slurm_job import check_over, list_kept, started_before
from tests.run.recorded_run import launch_of

if TYPE_CHECKING:
    from tests.run.conftest import Place

FOLDER = Path("runs/small-1")


def launch(job: str = "", restarts: int = 0, host: str = "c9", hosts: tuple[str, ...] = ("c9",)) -> Launch:
    return launch_of(host=host, hosts=hosts, job=job, restarts=restarts)


def nothing(number: int) -> Iterable[Job]:
    return ()


def fail_if_asked(number: int) -> Iterable[Job]:
    raise AssertionError("nothing is asked")


def away(number: int) -> Iterable[Job]:
    raise SchedulerAway("login", "does not respond", "ask again later")


def answer(state: JobState) -> list[Job]:
    return [Job(12, "small", state)]


def test_launches_of_an_earlier_start_of_the_job_are_distinguished() -> None:
    state = RunState(job="12", restarts=1)
    starts = (("12", 1), ("12", 0), ("11", 1), ("", 0))
    assert [started_before(launch(*start), state) for start in starts] == [False, True, True, False]


def test_an_earlier_start_of_the_same_job_is_over_whatever_slurm_reports() -> None:
    check_over(launch("12"), FOLDER, JobStart("12", 1), fail_if_asked)


@pytest.mark.parametrize("state", [state for state in JobState if state.is_over])
def test_a_job_is_over_if_slurm_reports_so_or_does_not_know_it(state: JobState) -> None:
    check_over(launch("11"), FOLDER, JobStart("12"), lambda number: answer(state))
    check_over(launch("11"), FOLDER, JobStart(), nothing)


@pytest.mark.parametrize("state", [state for state in JobState if not state.is_over])
def test_a_launch_that_may_be_alive_is_refused_with_its_job(state: JobState) -> None:
    with pytest.raises(InputError) as caught:
        check_over(launch("11"), FOLDER, JobStart(), lambda number: answer(state))
    assert str(caught.value) == (
        f"runs/small-1: phase init was started on c9 in Slurm job 11, which is {state.value}; "
        "let that job continue, or cancel it: scancel 11, or start another run with --new"
    )


def test_without_an_answer_from_slurm_the_state_is_unknown() -> None:
    with pytest.raises(
        InputError, match="in Slurm job 11, and Slurm does not say whether that job has ended"
    ):
        check_over(launch("11"), FOLDER, JobStart(), away)


class EarlierJob:
    """Slurm's answers about an earlier job, in order, the last one repeated; pauses advance the clock."""

    def __init__(self, *answers: JobState | ClusterError) -> None:
        self.answers, self.messages, self.waited_s = list(answers), list[str](), 0.0

    def ask(self, number: int) -> Iterable[Job]:
        reply = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(reply, ClusterError):
            raise reply
        return answer(reply)

    def pause(self, seconds: float) -> None:
        self.waited_s += seconds

    def check_over(self, here: JobStart) -> None:
        check_over(
            launch("11"), FOLDER, here, self.ask, self.messages.append, self.pause, lambda: self.waited_s
        )


AWAY = SchedulerAway("c1", "does not respond", "ask again later")
NO_COMMAND = NoCommand("c1", "scontrol not found on its PATH", "")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((JobState.COMPLETED,), []),
        ((AWAY, AWAY, JobState.COMPLETED), ["c1: does not respond"]),
        ((JobState.COMPLETING, AWAY, JobState.COMPLETING, JobState.CANCELLED), ["job 11 is COMPLETING"]),
    ],
)
def test_a_job_waits_until_slurm_answers_and_the_earlier_one_has_ended(
    answers: tuple[JobState | ClusterError, ...], expected: list[str]
) -> None:
    (earlier := EarlierJob(*answers)).check_over(JobStart("12"))
    assert earlier.messages == [
        f"{each}; waiting until Slurm reports that job 11 has ended" for each in expected
    ]
    assert (earlier.waited_s > 0) is (len(answers) > 1)


@pytest.mark.parametrize(
    ("last", "here", "waits"),
    [
        (AWAY, JobStart("12"), True),
        (JobState.COMPLETING, JobStart("12"), True),
        (JobState.RUNNING, JobStart("12"), False),
        (JobState.PENDING, JobStart("12"), False),
        (NO_COMMAND, JobStart("12"), False),
        (AWAY, JobStart(), False),
        (JobState.COMPLETING, JobStart(), False),
    ],
)
def test_waiting_is_limited_to_ending_jobs_and_happens_only_within_a_job(
    last: JobState | ClusterError, here: JobStart, waits: bool
) -> None:
    earlier = EarlierJob(last)
    with pytest.raises(InputError, match="in Slurm job 11"):
        earlier.check_over(here)
    assert (600 <= earlier.waited_s < 7200) if waits else earlier.waited_s == 0


@pytest.mark.parametrize("here", [JobStart("12"), JobStart()])
def test_launches_on_other_hosts_by_this_start_or_outside_jobs_are_refused(here: JobStart) -> None:
    with pytest.raises(InputError, match=r"was started on c9.*, and its outcome is unknown; resume it"):
        check_over(launch(here.job), FOLDER, here, fail_if_asked)


def leave_launch(place: Place, left: Launch) -> None:
    """Leave a run whose phase `init` was launched elsewhere, with an unknown outcome."""
    place.behave(init="ends-early")
    place.call()
    path = place.root / "runs/small-1/journal.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    with closing(Journal(path)) as journal:
        journal.append(RunStarted(1, left.host, left.job, left.restarts))
        journal.append(left)
    place.behave()


def test_a_job_that_is_queued_again_resumes_from_other_nodes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_launch(place, launch("12", hosts=("c9", "c8")))
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    state = place.run()
    assert (state.outputs is not None, state.job, state.restarts) == (True, "12", 1)
    assert state.hosts == ("localhost",)
    assert "phase init: failed: its Slurm job, 12, has ended; log: " in place.output.getvalue()
    assert place.trained() == ["init", "init", "cyc1", "last"]
    launched = [event for event in place.events() if event["event"] == "launched"]
    assert [(event["job"], event["restarts"]) for event in launched] == [("12", 0), *[("12", 1)] * 3]


def test_on_a_node_of_rank_0_that_is_ours_again_what_it_left_is_judged(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_launch(place, launch("12", hosts=("localhost", "c8")))
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert place.run().outputs
    assert "init: the trainer of a killed run has since ended" in place.output.getvalue()


def test_outside_a_job_no_job_is_journaled(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    place.run(until="init")
    started = next(event for event in place.events() if event["event"] == "started")
    assert (started["pid"], started["job"]) == (os.getpid(), "")


def test_kept_files_of_a_run_are_listed(tmp_path: Path) -> None:
    recipe = load_recipe("digits-local")
    assert list_kept(tmp_path, recipe) == frozenset()
    for name in ("1/snapshots/old", "2/checkpoints/a", "2/branches/side/snapshots/b"):
        path = tmp_path / f"runs/digits-local-{name}.caffemodel"
        path.parent.mkdir(parents=True)
        path.touch()
    before = list_kept(tmp_path, recipe)
    assert {Path(path).name for path, _ in before} == {"a.caffemodel", "b.caffemodel"}
    os.utime(tmp_path / "runs/digits-local-2/checkpoints/a.caffemodel", (1, 1))
    assert list_kept(tmp_path, recipe) != before
