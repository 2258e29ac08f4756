from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.errors import InputError, RunFailed
from caffe_recipes.run.monitor.cancel import CancelEnv, CancelOptions, cancel_run
from caffe_recipes.run.signals import CANCEL
from caffe_recipes.run.submit.submissions import Submission, SubmissionJournal, Submissions, submissions_path
from tests.run.recorded_run import HERE, WHOLE, launched, started, write_run
from tests.run.submit.fake_slurm import FakeJob, FakeSlurm

if TYPE_CHECKING:
    from tests.run.conftest import Place


class Canceller:
    """Cancels as the command does; what a test schedules happens at its first pause."""

    def __init__(self, root: Path) -> None:
        self.root, self.slurm = root, FakeSlurm()
        self.messages: list[str] = []
        self.now_s = 0.0
        self.ended: dict[int, str] = {}
        self.at_pause: Callable[[], object] = lambda: None

    def cancel(self, run: str = "small", **options: object) -> None:
        env = CancelEnv(self.slurm.host, self._pause, lambda: self.now_s)
        cancel_run(run, CancelOptions(str(self.root), **options), self.messages.append, env)  # type: ignore[arg-type]

    def submit(self, *jobs: FakeJob) -> None:
        journal = SubmissionJournal(submissions_path(self.root, "small"))
        for job in jobs:
            self.slurm.jobs[job.job_id] = job
            journal.begin(Submission(job.name, "a", "chain.sbatch", 0.0, phase=job.name.rpartition("-")[2]))
            journal.settle(job.name, job.job_id, self.slurm.cluster)
        journal.close()

    def journal(self) -> Submissions:
        journal = SubmissionJournal(submissions_path(self.root, "small"))
        journal.close()
        return journal.state()

    def cancels(self) -> list[tuple[str, ...]]:
        return [call[1:] for call in self.slurm.calls if call[0] == "scancel"]

    def _pause(self, seconds: float) -> None:
        self.now_s += seconds
        self.at_pause()
        for job_id, state in self.ended.items():
            self.slurm.jobs[job_id].state = state
        time.sleep(0.02)


def wait_for(path: Path, text: str) -> None:
    deadline = time.monotonic() + 600
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.promise("nothing is run or obeyed that others could change")
def test_no_process_is_stopped_that_another_user_could_have_named(place: Place) -> None:
    with subprocess.Popen(["sleep", "60"]) as victim:
        write_run(place.root, place.recipe, started(pid=victim.pid), launched())
        place.root.chmod(0o1777)
        with pytest.raises(InputError, match="can be changed by anybody; make it writable only by you"):
            Canceller(place.root).cancel()
        assert victim.poll() is None
        victim.kill()


@pytest.mark.parametrize("given", ["kept", "runs/kept"])
def test_neither_by_the_name_that_a_run_was_renamed_to(place: Place, given: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as victim:
        folder = write_run(place.root, place.recipe, started(pid=victim.pid), launched())
        (folder / "journal.jsonl").chmod(0o666)
        folder.rename(folder.with_name("kept"))
        with pytest.raises(InputError, match=r"kept/journal.jsonl, which can be changed by anybody"):
            Canceller(place.root).cancel(given)
        assert victim.poll() is None
        victim.kill()


def test_a_renamed_run_that_has_ended_cannot_be_cancelled(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(), launched())
    folder.rename(folder.with_name("kept"))
    with pytest.raises(InputError, match="kept: nothing to cancel: it is stopped"):
        Canceller(place.root).cancel("kept")


def test_a_path_that_is_no_run_cannot_be_cancelled(place: Place) -> None:
    with pytest.raises(InputError, match="no run or recipe is named '/'"):
        Canceller(place.root).cancel("/")


@pytest.mark.parametrize("now", [False, True])
def test_a_run_is_stopped_as_by_ctrl_c_and_waited_for(place: Place, now: bool) -> None:
    place.behave(init="waits")
    run = place.start()
    wait_for(place.root / "runs/small-1/logs/init-1.log", "Iteration 4, lr")
    canceller = Canceller(place.root)
    canceller.cancel(now=now)
    assert canceller.messages[-1] == "stopped"
    assert run.wait(600) == 128 + signal.SIGINT
    run.communicate()
    assert place.events()[-1]["event"] == "interrupted"


@pytest.mark.parametrize("first", [signal.SIGINT, CANCEL])
def test_a_run_that_is_already_stopping_keeps_its_snapshot(place: Place, first: signal.Signals) -> None:
    place.behave(init="snapshots-slowly")
    run = place.start()
    wait_for(place.root / "runs/small-1/logs/init-1.log", "Iteration 4, lr")
    run.send_signal(first)
    wait_for(place.root / "runs/small-1/journal.jsonl", "asked Caffe for a snapshot")
    canceller = Canceller(place.root)

    def release_after_a_second() -> None:
        if canceller.now_s > 1:
            (place.root / "release").touch()

    canceller.at_pause = release_after_a_second
    canceller.cancel()
    assert run.wait(600) == 128 + signal.SIGINT
    run.communicate()
    assert [event["event"] for event in place.events()][-2:] == ["finished", "interrupted"]


def test_pending_jobs_are_cancelled_last_first(tmp_path: Path) -> None:
    canceller = Canceller(tmp_path)
    canceller.submit(FakeJob(12, "small-a-init"), FakeJob(13, "small-a-cyc1"), FakeJob(14, "small-a-last"))
    canceller.cancel()
    assert canceller.cancels() == [("14",), ("13",), ("12",)]
    assert {each.outcome for each in canceller.journal().all} == {"cancelled"}
    assert canceller.messages == [
        "job 14 (last) was cancelled",
        "job 13 (cyc1) was cancelled",
        "job 12 (init) was cancelled",
    ]


def test_a_running_job_is_stopped_cleanly_once_no_job_depends_on_it(tmp_path: Path) -> None:
    canceller = Canceller(tmp_path)
    canceller.submit(FakeJob(12, "small-a-init", state="RUNNING"), FakeJob(13, "small-a-cyc1"))
    canceller.ended = {12: "FAILED"}
    canceller.cancel()
    assert canceller.cancels() == [("13",), ("--signal=TERM", "--batch", "12"), ("12",)]
    assert {each.outcome for each in canceller.journal().all} == {"cancelled"}


def test_a_job_that_does_not_stop_is_cancelled_by_slurm(tmp_path: Path) -> None:
    canceller = Canceller(tmp_path)
    canceller.submit(FakeJob(12, "small-a-init", state="RUNNING"))
    canceller.cancel(grace_s=10.0)
    assert canceller.now_s == 12
    assert canceller.cancels()[-1] == ("12",)
    assert canceller.slurm.jobs[12].state == "CANCELLED"


@pytest.mark.parametrize("now", [False, True])
def test_a_job_that_completed_in_the_meantime_was_not_cancelled(tmp_path: Path, now: bool) -> None:
    canceller = Canceller(tmp_path)
    canceller.submit(FakeJob(12, "small-a-init", state="RUNNING"))
    canceller.slurm.ends = {12: "COMPLETED"}
    canceller.cancel(now=now)
    assert canceller.messages[-1] == "job 12 (init) was not cancelled, because it has completed"
    assert canceller.journal().all[0].outcome == "submitted"


def test_cancel_now_does_not_wait(tmp_path: Path) -> None:
    canceller = Canceller(tmp_path)
    canceller.submit(FakeJob(12, "small-a-init", state="RUNNING"))
    canceller.cancel(now=True)
    assert (canceller.cancels(), canceller.now_s) == ([("12",)], 0)


def test_a_job_of_the_user_s_own_sbatch_is_cancelled_without_a_record(place: Place) -> None:
    write_run(place.root, place.recipe, started(host="node7", job="50"), launched())
    canceller = Canceller(place.root)
    canceller.slurm.jobs[50] = FakeJob(50, "small", state="RUNNING")
    canceller.ended = {50: "FAILED"}
    canceller.cancel()
    assert canceller.cancels() == [("--signal=TERM", "--batch", "50"), ("50",)]
    assert canceller.journal() == Submissions()


def test_a_job_of_another_cluster_is_cancelled_there(tmp_path: Path) -> None:
    canceller = Canceller(tmp_path)
    canceller.slurm.cluster = "cm4"
    canceller.submit(FakeJob(12, "small-a-init", state="RUNNING"))
    canceller.ended = {12: "FAILED"}
    canceller.cancel()
    assert canceller.cancels() == [
        ("--clusters=cm4", "--signal=TERM", "--batch", "12"),
        ("--clusters=cm4", "12"),
    ]


def test_an_ended_run_cannot_be_cancelled(place: Place) -> None:
    write_run(place.root, place.recipe, *WHOLE)
    with pytest.raises(InputError, match="small-1: nothing to cancel: it is finished"):
        Canceller(place.root).cancel()


def test_a_process_on_another_host_is_to_be_cancelled_there(place: Place) -> None:
    write_run(place.root, place.recipe, started(7, host="other"), launched())
    with pytest.raises(InputError, match="its process 7 is on another host, other; cancel it"):
        Canceller(place.root).cancel()


def test_a_process_that_has_another_s_number_is_sent_nothing(place: Place) -> None:

    write_run(place.root, place.recipe, started(os.getpid(), host=HERE), launched())
    with pytest.raises(InputError, match="nothing to cancel: it is stopped"):
        Canceller(place.root).cancel()


def test_if_slurm_does_not_answer_nothing_is_cancelled(tmp_path: Path) -> None:
    canceller = Canceller(tmp_path)
    canceller.submit(FakeJob(12, "small-a-init"))
    canceller.slurm.is_away = True
    with pytest.raises(RunFailed, match=r"cannot tell whether .*; nothing was cancelled"):
        canceller.cancel()
    assert canceller.journal().all[0].outcome == "submitted"
