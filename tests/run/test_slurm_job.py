"""A run in Slurm jobs: what a job has launched is resumed by the next one, on other nodes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from caffe_recipes.cluster.slurm_jobs import Job, State
from caffe_recipes.cluster.slurm_queries import NoCommand, SchedulerAway
from caffe_recipes.cluster.slurm_steps import Step
from caffe_recipes.errors import ClusterError, InputError, RunFailed
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.events import Launch, RunStarted, RunState
from caffe_recipes.run.journal import Journal
from caffe_recipes.run.slurm_job import (
    JobStart,
    TimeOver,
    check_over,
    describe_steps,
    end_given_up,
    list_kept,
    requeue_job,
    started_before,
    this_job,
    wait_for_slurm,
)
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


def answer(state: State) -> list[Job]:
    return [Job(12, "small", state)]


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


def test_launches_of_an_earlier_start_of_the_job_are_distinguished() -> None:
    state = RunState(job="12", restarts=1)
    starts = (("12", 1), ("12", 0), ("11", 1), ("", 0))
    assert [started_before(launch(*start), state) for start in starts] == [False, True, True, False]


def test_an_earlier_start_of_the_same_job_is_over_whatever_slurm_reports() -> None:
    check_over(launch("12"), FOLDER, JobStart("12", 1), fail_if_asked)


@pytest.mark.parametrize("state", [state for state in State if state.is_over])
def test_a_job_is_over_if_slurm_reports_so_or_does_not_know_it(state: State) -> None:
    check_over(launch("11"), FOLDER, JobStart("12"), lambda number: answer(state))
    check_over(launch("11"), FOLDER, JobStart(), nothing)


@pytest.mark.parametrize("state", [state for state in State if not state.is_over])
def test_a_launch_that_may_be_alive_is_refused_with_its_job(state: State) -> None:
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

    def __init__(self, *answers: State | ClusterError) -> None:
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
        ((State.COMPLETED,), []),
        ((AWAY, AWAY, State.COMPLETED), ["c1: does not respond"]),
        ((State.COMPLETING, AWAY, State.COMPLETING, State.CANCELLED), ["job 11 is COMPLETING"]),
    ],
)
def test_a_job_waits_until_slurm_answers_and_the_earlier_one_has_ended(
    answers: tuple[State | ClusterError, ...], expected: list[str]
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
        (State.COMPLETING, JobStart("12"), True),
        (State.RUNNING, JobStart("12"), False),
        (State.PENDING, JobStart("12"), False),
        (NO_COMMAND, JobStart("12"), False),
        (AWAY, JobStart(), False),
        (State.COMPLETING, JobStart(), False),
    ],
)
def test_waiting_is_limited_to_ending_jobs_and_happens_only_within_a_job(
    last: State | ClusterError, here: JobStart, waits: bool
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


STARTED = "Slurm has just started and is waiting for its nodes"


class Slurm:
    """A Slurm that does not respond to some queries, and then answers others as if just started."""

    def __init__(self, away: float, young: int = 0) -> None:
        self.away, self.young, self.asked, self.paused_s = away, young, 0, 0.0
        self.messages: list[str] = []

    def is_ready(self, number: int) -> bool:
        self.asked += 1
        if self.asked <= self.away:
            raise SchedulerAway("c1", "does not respond", "ask again later")
        return self.asked > self.away + self.young

    def pause(self, seconds: float) -> None:
        self.paused_s += seconds

    def wait(self) -> None:
        wait_for_slurm("12", self.is_ready, self.messages.append, self.pause, lambda: self.paused_s)


@pytest.mark.parametrize(
    ("away", "young", "expected"),
    [
        (0, 0, []),
        (3, 2, ["c1: does not respond; waiting for Slurm, which starts the ranks", "Slurm answers"]),
        (
            0,
            2,
            [f"{STARTED}; waiting for Slurm, which starts the ranks", "Slurm answers"],
        ),
    ],
)
def test_ranks_that_slurm_starts_are_started_when_it_knows_its_nodes(
    away: int, young: int, expected: list[str]
) -> None:
    (slurm := Slurm(away, young)).wait()
    assert slurm.asked == away + young + 1
    assert slurm.messages == expected


def test_slurm_is_not_waited_for_forever() -> None:
    (slurm := Slurm(away=float("inf"))).wait()
    assert 600 <= slurm.paused_s < 7200
    assert slurm.messages[1:] == ["Slurm still does not answer; starting the ranks nevertheless"]


def test_on_a_node_without_slurm_commands_slurm_is_not_waited_for() -> None:
    def nobody(number: int) -> bool:
        raise NoCommand("c1", "scontrol not found on its PATH", "")

    def pause(seconds: float) -> None:
        raise AssertionError("nothing is waited for")

    wait_for_slurm("12", nobody, pytest.fail, pause)


OLD = Step("12.3", ("c1", "c2"), "0123456789abcdef/cyc1-1")


@pytest.mark.parametrize(
    ("left", "message"),
    [
        ((), f"ended {OLD}"),
        ((OLD,), f"ended {OLD}; it does not end yet, so the next launch shares its nodes"),
    ],
)
def test_the_step_of_a_launch_that_was_given_up_is_ended_and_reported(
    left: tuple[Step, ...], message: str
) -> None:
    asked, messages = list[tuple[str, str]](), list[str]()

    def end(job: str, prefix: str) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
        asked.append((job, prefix))
        return (OLD,), left

    end_given_up("12", "0123456789abcdef/cyc1", messages.append, end)
    assert asked == [("12", "0123456789abcdef/cyc1-")]
    assert messages == [message]


def test_a_slurm_that_cannot_end_a_step_stops_no_launch() -> None:
    def away(job: str, prefix: str) -> NoReturn:
        raise SchedulerAway("c1", "does not respond")

    messages: list[str] = []
    end_given_up("12", "0123456789abcdef/cyc1", messages.append, away)
    assert messages == ["the step of the launch before may still be there: c1: does not respond"]


def test_the_steps_that_hold_the_hosts_of_a_launch_are_described_with_what_ends_them() -> None:
    steps = [OLD, Step("12.4", ("c9",), "other"), Step("12.5", ("c2",), "top")]
    assert describe_steps("12", ["c2", "c3"], lambda job: steps) == (
        f"{OLD} and step 12.5 (top) on c2, which `scancel 12.3 12.5` ends"
    )
    assert describe_steps("12", ["c3"], lambda job: steps) == ""


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
