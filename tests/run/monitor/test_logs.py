from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.slurm.jobs import Job, JobState
from caffe_recipes.errors import InputError, RunFailed
from caffe_recipes.run.journal import Journal
from caffe_recipes.run.monitor.follow import FollowEnv
from caffe_recipes.run.monitor.logs import LogOptions, show_job_log, show_log
from caffe_recipes.run.submit.submissions import Submission, SubmissionJournal, submissions_path
from tests.run.recorded_run import LOG, WHOLE, append_events, failed, finished, launched, started, write_run

if TYPE_CHECKING:
    from tests.run.conftest import Place


class Reader:
    """Reads as `logs` does; its clock advances when it pauses, and the next `meanwhile` is called then."""

    def __init__(self, place: Place) -> None:
        self.place, self.now_s = place, 0.0
        self.log = b""
        self.messages: list[str] = []
        self.meanwhile: list[Callable[[], object]] = []
        self.until = time.monotonic() + 600

    def read(self, run: str = "small", **options: object) -> str:
        given = LogOptions(str(self.place.root), **options)  # type: ignore[arg-type]
        env = FollowEnv(lambda name, copy_with: LocalHost(name), self._pause, lambda: self.now_s)
        show_log(run, given, self._write, self.messages.append, env)
        return self.log.decode()

    def _write(self, data: bytes) -> None:
        self.log += data

    def _pause(self, seconds: float) -> None:
        assert time.monotonic() < self.until, self.log
        self.now_s += seconds
        if self.meanwhile:
            self.meanwhile.pop(0)()


def two_logs(place: Place) -> None:
    folder = write_run(
        place.root, place.recipe, started(), launched(), finished("init"), launched("cyc1"), log=LOG
    )
    (folder / "logs" / "cyc1-1.log").write_text("[0] of cyc1\n")


@pytest.mark.parametrize("on", [None, "localhost"])
def test_the_log_of_the_phase_that_trains_is_written(place: Place, on: str | None) -> None:
    two_logs(place)
    reader = Reader(place)
    assert reader.read(on=on) == "[0] of cyc1\n"
    assert reader.messages == ["==> runs/small-1/logs/cyc1-1.log <=="]


def test_the_log_of_another_phase_is_written_as_far_as_it_goes(place: Place) -> None:
    two_logs(place)
    assert Reader(place).read(phase="init") == f"{LOG}\n"


def test_the_lines_of_a_rank_are_printed_without_its_label(place: Place) -> None:
    two_logs(place)
    text = Reader(place).read(phase="init", rank=1)
    assert text == "I1120 11:49:33.000000  6375 solver.cpp:312] Iteration 6, loss = 9\n"


def test_what_a_failure_means_is_said_once_and_not_written_to_the_log(place: Place) -> None:
    log = f"{LOG}\n[1] Host key verification failed.\n[0] Host key verification failed.\n[0] end\n"
    write_run(place.root, place.recipe, started(), launched(), log=log)
    reader = Reader(place)
    written: list[int] = []
    reader.messages = _Noting(written, lambda: len(reader.log))
    assert reader.read() == log
    _, cause, remedy, source = reader.messages
    assert cause == "  cause: ssh does not know the host's key, or knows another one, and cannot ask"
    assert remedy.startswith("  do:    log in to each host once by hand")
    assert source == "  from:  horovod/horovod#110; ssh(1)"
    assert written == [0, *[log.index("[0] Host")] * 3]  # beneath the line that is explained


class _Noting(list[str]):
    """Messages, of which `notes` gets how much of the log was written before each."""

    def __init__(self, notes: list[int], written: Callable[[], int]) -> None:
        super().__init__()
        self._notes, self._written = notes, written

    def append(self, message: str) -> None:
        self._notes.append(self._written())
        super().append(message)


def test_for_a_relaunched_phase_the_last_log_is_written(place: Place) -> None:
    folder = write_run(
        place.root, place.recipe, started(), launched(), failed("init", "x"), launched("init", 2)
    )
    (folder / "logs" / "init-2.log").write_text("[0] again\n")
    assert Reader(place).read() == "[0] again\n"


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        (
            "cyc9",
            "runs/small-1: has no phase 'cyc9'; the phases are init, cyc1, last; evaluations are in "
            "runs/small-1/logs/evaluation-*.log",
        ),
        ("cyc1", "runs/small-1: phase cyc1 has not been launched; wait for it with -f"),
        (None, "runs/small-1: no phase has been launched; wait for it with -f"),
    ],
)
def test_a_missing_log_is_one_line(place: Place, phase: str | None, message: str) -> None:
    write_run(place.root, place.recipe, started())
    with pytest.raises(InputError) as caught:
        Reader(place).read(phase=phase)
    assert str(caught.value) == message


def test_a_log_is_followed_over_the_phases_until_the_run_is_finished(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(host="elsewhere"))
    logs = folder / "logs"
    reader = Reader(place)

    def begin() -> None:
        append_events(folder, launched())
        (logs / "init-1.log").write_text("a\nb")

    def train_on() -> None:
        with (logs / "init-1.log").open("a") as file:
            file.write("b\nthe last")
        append_events(folder, finished("init"), launched("cyc1"))
        (logs / "cyc1-1.log").write_text("c\n")

    def end() -> None:
        (logs / "last-1.log").write_text("d\n")
        append_events(folder, finished("cyc1"), launched("last"), finished("last"), WHOLE[-1])

    reader.meanwhile = [begin, lambda: None, train_on, lambda: None, end]
    assert reader.read(follow=True) == "a\nbb\nthe last\nc\nd\n"
    assert reader.messages == [
        f"==> runs/small-1/logs/{phase}-1.log <==" for phase in ("init", "cyc1", "last")
    ]


def test_one_phase_is_followed_to_its_end(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(host="elsewhere"), launched(), log="a\n")
    reader = Reader(place)
    reader.meanwhile = [lambda: append_events(folder, finished("init"), launched("cyc1"))]
    assert reader.read(follow=True, phase="init") == "a\n"


def test_a_follower_of_a_run_that_fails_sees_what_attach_shows(place: Place) -> None:
    write_run(place.root, place.recipe, started(), launched(), failed("init", "the loss is nan"), log="a\nb")
    reader = Reader(place)
    with pytest.raises(RunFailed, match="phase init: failed: the loss is nan"):
        reader.read(follow=True)
    assert reader.log == b"a\nb\n"


def test_nothing_is_written_and_nothing_locked(place: Place) -> None:
    two_logs(place)
    before = place.tree()
    with closing(Journal(place.root / "runs/small-1/journal.jsonl")):
        Reader(place).read()
    assert place.tree() == before


def submit(place: Place, job_id: int | None = 12) -> Path:
    output = place.root / "runs" / "small-a.out"
    journal = SubmissionJournal(submissions_path(place.root, "small"))
    journal.begin(Submission("small-a", "a", "chain.sbatch", 0.0, output=str(output)))
    if job_id is not None:
        journal.settle("small-a", job_id)
    journal.close()
    return output


@pytest.mark.parametrize("run", ["small", "small-1", "YAML"])
def test_the_output_file_of_a_job_is_the_one_its_script_names(place: Place, run: str) -> None:
    output = submit(place)
    reader = Reader(place)
    options = LogOptions(str(place.root))
    given = str(place.recipe) if run == "YAML" else run
    with pytest.raises(InputError, match="no such file: job 12 has not started; see caffe-recipes status"):
        show_job_log(given, options, reader._write, reader.messages.append)
    output.write_text("module: not found\n")
    show_job_log(given, options, reader._write, reader.messages.append)
    assert reader.log == b"module: not found\n"


@pytest.mark.promise("another user's journal leads nowhere")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
@pytest.mark.parametrize("on", [None, "localhost"])
def test_a_journal_of_another_user_names_no_file_of_ours_as_output(place: Place, on: str | None) -> None:
    output, key = submit(place), place.root.parent / "key"
    key.write_text("secret\n")
    output.symlink_to(key)
    options, env = LogOptions(str(place.root), on), FollowEnv(lambda name, copy_with: LocalHost(name))
    reader = Reader(place)
    show_job_log("small", options, reader._write, reader.messages.append, env)
    assert reader.log == b"secret\n"  # our own journal
    os.chown(submissions_path(place.root, "small"), 54321, 54321)
    with pytest.raises(InputError, match="is not shown: another user's journal names it") as caught:
        show_job_log("small", options, reader._write, reader.messages.append, env)
    assert caught.value.where == str(output)
    output.unlink()
    output.write_text("loss\n")
    show_job_log("small", options, reader._write, reader.messages.append, env)
    assert reader.log == b"secret\nloss\n"


@pytest.mark.promise("no other file of yours is quoted")
@pytest.mark.parametrize("on", [None, "localhost"])
@pytest.mark.parametrize("link", ["logs/cyc1-1.log", "logs"])
def test_a_link_in_a_run_shows_no_file_of_ours(place: Place, on: str | None, link: str) -> None:
    two_logs(place)
    folder, elsewhere = place.root / "runs/small-1", place.root.parent / "elsewhere"
    (elsewhere / "logs").mkdir(parents=True)
    (elsewhere / "logs/cyc1-1.log").write_text("secret\n")
    (folder / link).rename(place.root / "kept")
    (folder / link).symlink_to(elsewhere / link)
    reader = Reader(place)
    with pytest.raises(InputError, match="is not shown: a link leads to it, and it is not in the Caffe root"):
        reader.read(on=on)
    assert reader.log == b""
    (folder / link).unlink()
    (folder / link).symlink_to(place.root / "kept")
    assert reader.read(on=on) == "[0] of cyc1\n"


def test_runs_may_be_a_link_to_another_disk(place: Place) -> None:
    two_logs(place)
    (place.root / "runs").rename(place.root.parent / "scratch")
    (place.root / "runs").symlink_to(place.root.parent / "scratch")
    assert Reader(place).read() == "[0] of cyc1\n"


def test_without_a_job_there_is_no_output_to_show(place: Place) -> None:
    submit(place, job_id=None)
    with pytest.raises(InputError, match="small: no job was submitted; submit one with caffe-recipes submit"):
        show_job_log("small", LogOptions(str(place.root)), print, print)


def submit_phases(place: Place, *phases: str) -> dict[str, Path]:
    """Submit one job per phase, numbered from 12 on; return the output file of each."""
    journal = SubmissionJournal(submissions_path(place.root, "small"))
    outputs = {phase: place.root / "runs" / f"{phase}.out" for phase in phases}
    for number, (phase, output) in enumerate(outputs.items(), 12):
        name = f"small-{phase}"
        journal.begin(Submission(name, "a", "phase.sbatch", 0.0, phase=phase, output=str(output)))
        journal.settle(name, number)
    journal.close()
    return outputs


def read_job(place: Place, *jobs: Job) -> str:
    def ask(ids: Collection[int], names: Collection[str]) -> Sequence[Job]:
        return jobs

    reader = Reader(place)
    show_job_log(
        "small", LogOptions(str(place.root)), reader._write, reader.messages.append, FollowEnv(ask=ask)
    )
    return reader.log.decode()


def test_with_a_job_per_phase_the_output_of_the_running_one_is_written(place: Place) -> None:
    outputs = submit_phases(place, "init", "cyc1", "last")
    for phase in ("init", "cyc1", "last"):
        outputs[phase].write_text(phase)
    jobs = (Job(12, "small-init", JobState.COMPLETED), Job(13, "small-cyc1", JobState.RUNNING))
    assert read_job(place, *jobs, Job(14, "small-last", JobState.REQUEUED)) == "cyc1"


def test_if_no_job_runs_the_output_of_the_last_started_one_is_written(place: Place) -> None:
    outputs = submit_phases(place, "init", "cyc1", "last")
    outputs["init"].write_text("init")
    outputs["cyc1"].write_text("cyc1")
    assert read_job(place) == "cyc1"


def test_the_first_pending_job_is_named(place: Place) -> None:
    submit_phases(place, "init", "cyc1")
    with pytest.raises(InputError, match=r"init.out: no such file: job 12 has not started"):
        read_job(place, Job(12, "small-init", JobState.PENDING), Job(13, "small-cyc1", JobState.PENDING))


def test_the_output_file_of_a_user_s_own_job_is_the_one_slurm_reports(place: Place) -> None:
    write_run(place.root, place.recipe, started(host="node7", job="50"), launched())
    output = place.root / "slurm-50.out"
    output.write_text("mine")
    assert read_job(place, Job(50, "mine", JobState.RUNNING, stdout=str(output))) == "mine"
    submit(place).write_text("an earlier one")
    assert read_job(place, Job(50, "mine", JobState.RUNNING, stdout=str(output))) == "mine"


def test_an_output_file_unknown_to_slurm_is_one_line(place: Place) -> None:
    write_run(place.root, place.recipe, started(host="node7", job="50"), launched())
    with pytest.raises(InputError, match="small: the output file of job 50 is not known to Slurm; it"):
        read_job(place, Job(50, "mine", JobState.RUNNING))


def test_logs_reports_why_a_run_waiting_for_its_job_has_no_log(place: Place) -> None:
    submit(place)
    reader = Reader(place)

    def ask(ids: Collection[int], names: Collection[str]) -> Sequence[Job]:
        return (Job(12, "small-a", JobState.PENDING, reason="Resources"),)

    with pytest.raises(InputError) as caught:
        show_log(
            "small", LogOptions(str(place.root)), reader._write, reader.messages.append, FollowEnv(ask=ask)
        )
    assert str(caught.value) == (
        "small: job 12 waits: its nodes are still in use (Resources); wait for its log with -f"
    )
    assert reader.messages == []
