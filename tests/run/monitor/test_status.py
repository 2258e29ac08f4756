from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.cluster.commands import Completed, Host
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.slurm.jobs import Job, JobState
from caffe_recipes.errors import ClusterError, HostFailed, InputError
from caffe_recipes.limits import LIMITS_VARIABLE
from caffe_recipes.run.journal import Journal
from caffe_recipes.run.monitor.follow import FollowEnv, StatusOptions
from caffe_recipes.run.monitor.status import StatusEntry, find_status, find_statuses
from caffe_recipes.run.monitor.status_text import (
    status_as_json,
    status_details,
    status_table,
    summarize_status,
)
from caffe_recipes.run.submit.submissions import Submission, SubmissionJournal, submissions_path
from tests.run.recorded_run import (
    HERE,
    LOG,
    WHOLE,
    append_events,
    failed,
    finished,
    interrupted,
    launched,
    started,
    write_run,
)
from tests.stand_in_host import StandInHost, answer_call

if TYPE_CHECKING:
    from tests.run.conftest import Place

NOW_S = 1_700_000_100.0
STARTED = datetime.fromtimestamp(1_700_000_000).astimezone().strftime("%Y-%m-%d %H:%M")
_STATES = ("state", "state_sha256", "model", "model_sha256", "state_path", "model_path")
CHECKPOINT: dict[str, object] = {"phase": "init", "iteration": 6, **dict.fromkeys(_STATES, "x")}
RESUME_HINT = "`caffe-recipes run` with its recipe resumes it"


def no_slurm(ids: Collection[int], names: Collection[str]) -> Sequence[Job]:
    raise AssertionError("Slurm is asked, though nothing was submitted")


def away(ids: Collection[int], names: Collection[str]) -> Sequence[Job]:
    raise ClusterError("login1", "Slurm gives squeue no answer", "ask again later")


def submit(place: Place, *phases: str | None, job_id: int | None = 12, at_s: float = 1_600_000_000) -> None:
    journal = SubmissionJournal(submissions_path(place.root, "small"), lambda: at_s)
    for number, phase in enumerate(phases):
        name = f"small-{phase}" if phase else "small-a"
        journal.begin(Submission(name, "a", "chain.sbatch", 0.0, phase=phase))
        if job_id is not None:
            journal.settle(name, job_id + number)
    journal.close()


def job(state: JobState, job_id: int = 12, name: str = "small-a", **more: object) -> Job:
    return Job(job_id, name, state, **more)  # type: ignore[arg-type]


class StatusViewer:
    """Looks as `status` does; `jobs` is what Slurm knows."""

    def __init__(self, place: Place, *jobs: Job) -> None:
        self.place, self.jobs = place, jobs

    def all(self, ask: object = None, on: str | None = None) -> list[StatusEntry]:
        asked = ask or (lambda ids, names: self.jobs)
        env = FollowEnv(lambda name, copy_with: LocalHost(name), ask=asked)  # type: ignore[arg-type]
        return find_statuses(StatusOptions(str(self.place.root), on), env)

    def one(self, run: str = "small", ask: object = None) -> StatusEntry:
        options = StatusOptions(str(self.place.root))
        env = FollowEnv(ask=ask or (lambda ids, names: self.jobs))  # type: ignore[arg-type]
        return find_status(run, options, env)


def test_without_runs_nothing_is_reported(place: Place) -> None:
    assert StatusViewer(place).all(no_slurm) == []


@pytest.mark.parametrize("on", [None, "localhost"])
def test_a_missing_root_is_one_line(place: Place, on: str | None) -> None:
    assert StatusViewer(place).all(no_slurm, on) == []
    env = FollowEnv(lambda name, copy_with: LocalHost(name), ask=no_slurm)
    with pytest.raises(InputError) as caught:
        find_statuses(StatusOptions(str(place.root / "gone"), on), env)
    where = f"{on}:{place.root}" if on else str(place.root)
    assert str(caught.value) == (
        f"{where}/gone: no such folder; give the one that contains `runs` with --caffe-root"
    )


def test_many_links_to_a_run_are_one_run(place: Place) -> None:
    write_run(place.root, place.recipe, *WHOLE)
    runs = place.root / "runs"
    for number in range(2, 500):
        (runs / f"small-{number}").symlink_to("small-1")
    (runs / "other-1").mkdir()
    for name in ("journal.jsonl", "recipe.json"):
        (runs / "other-1" / name).symlink_to(f"../small-1/{name}")
    assert [each.name for each in StatusViewer(place).all(no_slurm)] in (["small-1"], ["other-1"])


def test_of_very_many_runs_only_the_latest_are_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2, 10):
        folder = write_run(place.root, place.recipe, *WHOLE, number=number)
    size = (folder / "journal.jsonl").stat().st_size
    monkeypatch.setenv(LIMITS_VARIABLE, f"journal-bytes={size + 1}")
    found = {each.name: each.unreadable for each in StatusViewer(place).all(no_slurm)}
    assert (found["small-10"], found["small-2"]) == (None, None)
    assert str(found["small-1"]).endswith("give it alone: caffe-recipes status small-1")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_slurm_is_not_asked_about_the_jobs_in_another_user_s_journal(place: Place) -> None:
    submit(place, *(f"p{number}" for number in range(150)))
    os.chown(submissions_path(place.root, "small"), 54321, 54321)
    (found,) = StatusViewer(place).all(no_slurm)
    assert "Slurm is not asked about jobs in another user's journal" in summarize_status(found)
    assert StatusViewer(place).one(ask=no_slurm).state == "unknown"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_slurm_is_not_asked_about_the_job_that_another_user_s_run_names(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(host="node7", job="50"), launched(), log=LOG)
    os.chown(folder / "journal.jsonl", 54321, 54321)
    (found,) = StatusViewer(place).all(no_slurm)
    assert "Slurm is not asked about jobs in another user's journal" in summarize_status(found)
    assert StatusViewer(place).one(ask=no_slurm).state == "unknown"


def test_slurm_is_asked_about_the_latest_hundred_jobs_of_a_submit(place: Place) -> None:
    submit(place, *(f"p{number}" for number in range(150)))
    asked: list[int] = []

    def ask(ids: Collection[int], names: Collection[str]) -> Sequence[Job]:
        asked.extend(ids)
        return ()

    StatusViewer(place).all(ask)
    assert asked == list(range(62, 162))


@pytest.mark.parametrize("on", [None, "localhost"])
def test_runs_are_reported_by_recipe_the_latest_first(place: Place, on: str | None) -> None:
    for number in (1, 2, 10):
        write_run(place.root, place.recipe, *WHOLE, number=number)
    statuses = StatusViewer(place).all(no_slurm, on)
    assert [each.name for each in statuses] == ["small-10", "small-2", "small-1"]
    assert {(each.state, summarize_status(each)) for each in statuses} == {
        ("finished", "loss3/top-1: 75.00% (reported: 76.3%)")
    }


def test_a_training_run_is_reported_with_its_rate_and_the_time_left(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(os.getpid()), launched(), log=LOG)
    with closing(Journal(folder / "journal.jsonl")):
        (status,) = StatusViewer(place).all(no_slurm)
    assert status.state == "running"
    assert summarize_status(status) == (
        f"init 2/8, 128 images/s, phase 0:03 left, run 0:08 left; process {os.getpid()} on {HERE}"
    )
    assert dict(status_details(status, NOW_S)) == {
        "state": "running",
        "started": STARTED,
        "elapsed": "1:40",
        "phase": "init (1 of 3): iteration 2 of 8, lr 0.1, loss 1.25",
        "rate": "128 images/s, 0.5 s per iteration",
        "left": "phase 0:03, run 0:08",
        "process": f"{os.getpid()} on {HERE}",
        "log": "runs/small-1/logs/init-1.log",
    }


def test_until_its_speed_is_known_a_run_shows_which_loss_it_waits_for(place: Place) -> None:
    begun = "".join(LOG.splitlines(keepends=True)[:3])
    folder = write_run(place.root, place.recipe, started(os.getpid()), launched(), log=begun)
    resumed = launched(attempt=2, resumed=5)
    with closing(Journal(folder / "journal.jsonl")):
        status = StatusViewer(place).one(ask=no_slurm)
    assert summarize_status(status).startswith("init 0/8, next loss at iteration 2; ")
    phase = dict(status_details(status, NOW_S))["phase"]
    assert phase == "init (1 of 3): iteration 0 of 8, lr 0.1, loss 2.5; next loss at iteration 2"
    append_events(folder, failed("init", "it died"), resumed)
    with closing(Journal(folder / "journal.jsonl")):
        phase = dict(status_details(StatusViewer(place).one(ask=no_slurm), NOW_S))["phase"]
    assert phase == "init (1 of 3): no iteration yet; first loss at iteration 6"


def elapsed(place: Place) -> str:
    return dict(status_details(StatusViewer(place).one(ask=no_slurm), NOW_S))["elapsed"]


def test_the_pause_before_a_resume_does_not_count_as_elapsed(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(), launched())
    append_events(folder, interrupted(seconds=60), after_s=60)
    assert elapsed(place) == "1:00"
    append_events(folder, started(os.getpid()), after_s=5000)
    append_events(folder, launched(attempt=2), after_s=5010)
    assert elapsed(place) == "1:10"
    append_events(folder, ("finished", {**finished("init")[1], "seconds": 90}), after_s=5040)
    assert elapsed(place) == "1:40"


@pytest.mark.parametrize(("seconds", "expected"), [(300, "5:10"), (70, "1:20"), (9999, "10:10")])
def test_the_time_that_the_trainer_of_a_killed_run_ran_on_counts_as_elapsed(
    place: Place, seconds: float, expected: str
) -> None:
    folder = write_run(place.root, place.recipe, started())
    append_events(folder, launched(), after_s=5)
    append_events(folder, ("checkpointed", CHECKPOINT), after_s=65)
    append_events(folder, started(), after_s=600)
    assert elapsed(place) == "1:05"
    append_events(folder, ("failed", {"phase": "init", "reason": "it died", "seconds": seconds}), after_s=605)
    append_events(folder, launched(attempt=2), after_s=610)
    assert elapsed(place) == expected


def test_a_run_whose_process_died_is_stopped_and_shows_the_command_to_resume_it(place: Place) -> None:
    write_run(place.root, place.recipe, started(), launched(), log=LOG)
    (status,) = StatusViewer(place).all(no_slurm)
    assert (status.state, summarize_status(status)) == ("stopped", RESUME_HINT)


def test_what_must_change_stands_before_the_command_that_resumes_a_run(place: Place) -> None:
    name, details = failed("init", "the loss is nan")
    known = {"cause": "it diverged (known from x#1)", "change": "lower base_lr"}
    folder = write_run(place.root, place.recipe, started(), launched(), (name, details | known))
    rows = dict(status_details(StatusViewer(place).one(ask=no_slurm), NOW_S))
    assert rows["cause"] == "it diverged (known from x#1)"
    assert rows["next"] == f"first, lower base_lr; then {RESUME_HINT}"
    append_events(folder, launched("init", 2), failed("init", "it died"))
    rows = dict(status_details(StatusViewer(place).one(ask=no_slurm), NOW_S))
    assert "cause" not in rows and rows["next"] == RESUME_HINT


def test_a_failed_and_an_interrupted_run_are_distinguished(place: Place) -> None:
    write_run(place.root, place.recipe, started(), launched(), failed("init", "the loss is nan"))
    write_run(place.root, place.recipe, started(), launched(), interrupted(), number=2)
    second, first = StatusViewer(place).all(no_slurm)
    assert (first.state, summarize_status(first)) == (
        "failed",
        "phase init: failed: the loss is nan; log: runs/small-1/logs/init-1.log",
    )
    assert (second.state, summarize_status(second)) == (
        "interrupted",
        f"runs/small-2: interrupted by SIGINT; {RESUME_HINT}",
    )


def test_a_failure_that_a_run_continued_after_is_reported_among_its_details(place: Place) -> None:
    events = (started(), launched(), failed("init", "a host died"), started(os.getpid()), launched("init", 2))
    folder = write_run(place.root, place.recipe, *events)
    with closing(Journal(folder / "journal.jsonl")):
        status = StatusViewer(place).one(ask=no_slurm)
    assert status.state == "running"
    details = dict(status_details(status, NOW_S))
    assert details["before"].startswith("phase init: failed: a host died")
    assert "failure" not in details


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.PENDING])
def test_after_an_interruption_that_a_job_resumes_nothing_is_advised(place: Place, state: JobState) -> None:
    write_run(place.root, place.recipe, started(host="node7", job="12"), launched(), interrupted("SIGUSR1"))
    submit(place, None)
    details = dict(status_details(StatusViewer(place, job(state)).one(), NOW_S))
    assert details["before"] == "interrupted by SIGUSR1"
    assert not [word for word, text in details.items() if "resumes it" in text]


def test_an_interrupted_run_gives_the_command_that_resumes_it_once(place: Place) -> None:
    write_run(place.root, place.recipe, started(host="node7", job="12"), launched(), interrupted("SIGTERM"))
    submit(place, None)
    status = StatusViewer(place, job(JobState.CANCELLED)).one()
    details = dict(status_details(status, NOW_S))
    submits = RESUME_HINT.replace("run", "submit")
    assert (details["stopped"], details["next"]) == ("interrupted by SIGTERM", submits)
    assert "failure" not in details
    assert summarize_status(status) == (
        f"job 12 was cancelled before it started; runs/small-1: interrupted by SIGTERM; {submits}"
    )


@pytest.mark.promise("another user's journal leads nowhere")
def test_a_run_that_cannot_be_read_hides_no_other(place: Place) -> None:
    (write_run(place.root, place.recipe, *WHOLE) / "recipe.json").write_text("{")
    write_run(place.root, place.recipe, *WHOLE, number=2)
    second, first = StatusViewer(place).all(no_slurm)
    assert (second.state, first.state) == ("finished", "unknown")
    assert "recipe.json: is not the recipe of a run: not JSON" in summarize_status(first)
    with pytest.raises(InputError, match="is not the recipe of a run"):
        StatusViewer(place).one("small-1", no_slurm)


@pytest.mark.parametrize("name", ["journal.jsonl", "recipe.json"])
def test_a_run_of_another_format_is_a_line_of_status_and_hides_no_other(place: Place, name: str) -> None:
    path = write_run(place.root, place.recipe, *WHOLE) / name
    path.write_text(path.read_text().replace('"format": 1', '"format": 2', 1))
    write_run(place.root, place.recipe, *WHOLE, number=2)
    second, first = StatusViewer(place).all(no_slurm)
    assert (second.state, first.state) == ("finished", "unknown")
    what = "written by another version of caffe-recipes (format 2; this version reads format 1)"
    assert summarize_status(first) == f"{path}: {what}; start over with --new"
    with pytest.raises(InputError, match=r"\(format 2; "):
        StatusViewer(place).one("small-1", no_slurm)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:40] + b"\n"), ":1: is not a journal line"),
        (lambda path: path.write_bytes(path.read_text().encode("utf-16")), ":1: is not a journal line"),
        (lambda path: path.write_bytes(b"x" * 10_000_000 + b"\n"), ":1: is not a journal line"),
        (lambda path: path.unlink() or path.mkdir(), ": cannot be read: Is a directory"),
        *(
            (lambda path, old=old, new=new: path.write_text(path.read_text().replace(old, new)), wrong)
            for old, new, wrong in (
                ('"name": "small-a"', '"name": 7', ":1: is not a journal line"),
                ('"name": "small-a"', '"name": "small\\u0000"', ":1: is not a journal line"),
                ('"script": "chain.sbatch"', '"script": ["chain.sbatch"]', ":1: is not a journal line"),
                ('"phase": null', '"phase": {}', ":1: is not a journal line"),
                ('"cluster": ""', '"cluster": null', ":1: is not a journal line"),
                ('"job_id": 12', '"job_id": -12', ":2: is not a journal line"),
                ('"job_id": 12', f'"job_id": {10**30}', ":2: is not a journal line"),
                ('"job_id": 12', '"job_id": 12, "reason": []', ":2: is not a journal line"),
            )
        ),
    ],
)
def test_submissions_that_cannot_be_read_hide_no_run(
    place: Place, damage: Callable[[Path], object], what: str
) -> None:
    write_run(place.root, place.recipe, *WHOLE)
    submit(place, None)
    path = submissions_path(place.root, "small")
    before = path.read_bytes() if path.is_file() else b""
    damage(path)
    assert path.is_dir() or path.read_bytes() != before
    statuses = StatusViewer(place).all()
    assert [each.name for each in statuses] == ["small-1", path.name]
    assert [each.state for each in statuses] == ["finished", "unknown"]
    assert summarize_status(statuses[1]).startswith(f"{path}{what}; ")
    assert json.dumps([status_as_json(each) for each in statuses])
    assert len(status_table(statuses, NOW_S)) == 3


@pytest.mark.promise("another user's journal leads nowhere")
@pytest.mark.parametrize(
    ("event", "field", "value"),
    [
        ("started", "pid", "1e400"),
        ("started", "pid", "9" * 300),
        ("finished", "seconds", "Infinity"),
        ("finished", "seconds", "NaN"),
        ("finished", "images_per_s", "1e400"),
        ("launched", "attempt", "-1e400"),
    ],
)
def test_an_impossible_number_in_a_journal_counts_as_damage(
    place: Place, event: str, field: str, value: str
) -> None:
    journal = write_run(place.root, place.recipe, *WHOLE) / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    bad = [re.sub(rf'"{field}": ?[^,}}]+', f'"{field}": {value}', line) for line in lines if event in line]
    assert bad and value in bad[0]
    journal.write_text(lines[0] + bad[0])
    write_run(place.root, place.recipe, *WHOLE, number=2)
    second, first = StatusViewer(place).all(no_slurm)
    assert (second.state, first.state) == ("finished", "unknown")
    assert "is not a journal line" in summarize_status(first)


@pytest.mark.promise("another user's journal leads nowhere")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_no_connection_is_made_to_a_host_that_another_user_s_journal_names(place: Place) -> None:
    folder, asked = write_run(place.root, place.recipe, started(host="other"), launched()), list[str]()

    def connect(name: str, copy_with: str) -> Host:
        asked.append(name)
        return StandInHost(name, fault=HostFailed(name, "cannot be reached"))

    env = FollowEnv(connect, ask=no_slurm)
    find_status("small", StatusOptions(str(place.root)), env)
    assert asked == ["other"]
    os.chown(folder / "journal.jsonl", 54321, 54321)
    status = find_status("small", StatusOptions(str(place.root)), env)
    assert (status.state, asked) == ("unknown", ["other"])


def test_a_process_on_an_unreachable_host_is_reported_as_unknown(place: Place) -> None:
    write_run(place.root, place.recipe, started(host="other"), launched())
    assert StatusViewer(place).all(no_slurm)[0].state == "unknown"
    host = StandInHost("other", fault=HostFailed("other", "cannot be reached"))
    env = FollowEnv(lambda name, copy_with: host, ask=no_slurm)
    status = find_status("small", StatusOptions(str(place.root)), env)
    assert status.state == "unknown"
    details = dict(status_details(status, NOW_S))["process"]
    assert re.search(
        r"on other, last seen at 2023-11-1\d \d\d:\d\d; cannot tell whether it is alive", details
    )


def test_a_job_that_waits_is_reported_before_it_has_a_run(place: Place) -> None:
    submit(place, None)
    viewer = StatusViewer(place, job(JobState.PENDING, reason="Resources"))
    for status in (*viewer.all(), viewer.one(), viewer.one(str(place.recipe))):
        assert (status.name, status.state) == ("small", "waiting")
        assert summarize_status(status) == "job 12 waits: its nodes are still in use (Resources)"


def test_a_job_that_is_to_resume_a_run_is_reported_with_it(place: Place) -> None:
    write_run(place.root, place.recipe, started(), launched(), failed("init", "x"))
    submit(place, None)
    (status,) = StatusViewer(place, job(JobState.PENDING, reason="Resources")).all()
    assert (status.name, status.state) == ("small-1", "waiting")


def test_a_job_beside_a_finished_run_begins_another(place: Place) -> None:
    write_run(place.root, place.recipe, *WHOLE)
    submit(place, None)
    first, second = StatusViewer(place, job(JobState.PENDING, reason="Resources")).all()
    assert [(each.name, each.state) for each in (first, second)] == [
        ("small", "waiting"),
        ("small-1", "finished"),
    ]


def test_a_run_in_a_job_on_another_host_is_running(place: Place) -> None:
    write_run(place.root, place.recipe, started(host="node7", job="12"), launched(), log=LOG)
    submit(place, None)
    (status,) = StatusViewer(place, job(JobState.RUNNING)).all()
    assert status.state == "running"
    assert summarize_status(status) == (
        "init 2/8, 128 images/s, phase 0:03 left, run 0:08 left; job 12 is running"
    )


def test_a_run_whose_job_ended_is_stopped_with_the_reason(place: Place) -> None:
    write_run(place.root, place.recipe, started(host="node7", job="12"), launched())
    submit(place, None)
    (status,) = StatusViewer(place, job(JobState.TIMEOUT, limit_s=3600.0)).all()
    assert status.state == "stopped"
    assert summarize_status(status) == (
        "job 12 was terminated at its time limit of 1 h 00 min; submit again: it resumes from the last "
        "snapshot; " + RESUME_HINT.replace("run", "submit")
    )


def test_no_process_is_reported_of_a_run_that_another_job_is_to_resume(place: Place) -> None:
    write_run(place.root, place.recipe, started(host="node7", job="11"), launched(), failed("init", "x"))
    submit(place, None)
    details = dict(status_details(StatusViewer(place, job(JobState.RUNNING)).one(), NOW_S))
    assert (details["job"], "process" in details) == ("12 is running", False)
    assert "process" not in dict(status_details(StatusViewer(place, job(JobState.FAILED)).one(), NOW_S))


def test_without_an_answer_from_slurm_a_run_s_state_is_unknown_since_it_was_last_seen(place: Place) -> None:
    write_run(place.root, place.recipe, started(host="node7", job="12"), launched(), log=LOG)
    submit(place, None)
    (status,) = StatusViewer(place).all(away)
    assert status.state == "unknown"
    then = time.strftime("%Y-%m-%d %H:%M", time.localtime(1_700_000_000))
    assert summarize_status(status) == (
        f"init 2/8, 128 images/s, phase 0:03 left, run 0:08 left; job 12 unknown since {then} "
        "(the last event of the run): login1: Slurm gives squeue no answer; ask again later"
    )


def test_the_job_of_a_user_s_own_sbatch_is_reported(place: Place) -> None:
    write_run(place.root, place.recipe, started(host="node7", job="50"), launched(), log=LOG)
    viewer = StatusViewer(place, job(JobState.RUNNING, 50, "mine"))
    for status in (*viewer.all(), viewer.one()):
        assert status.state == "running"
        assert summarize_status(status).endswith("run 0:08 left; job 50 is running")


def test_a_job_of_the_user_s_own_sbatch_is_reported_beside_earlier_submissions(place: Place) -> None:
    submit(place, None)
    write_run(place.root, place.recipe, started(host="node7", job="50"), launched())
    status = StatusViewer(place, job(JobState.TIMEOUT), job(JobState.PENDING, 50, "small")).one()
    assert [(each.job_id, each.standing) for each in status.jobs] == [(12, "over"), (50, "waiting")]


def test_a_slurm_that_does_not_answer_changes_nothing_of_a_run_that_has_ended(place: Place) -> None:
    write_run(place.root, place.recipe, started(host="node7", job="50"), launched(), failed("init", "x"))
    assert [each.state for each in (*StatusViewer(place).all(away), StatusViewer(place).one(ask=away))] == [
        "failed",
        "failed",
    ]


def test_each_job_of_a_chain_is_reported(place: Place) -> None:
    submit(place, "init", "cyc1")
    jobs = (
        job(JobState.RUNNING, 12, "small-init"),
        job(JobState.PENDING, 13, "small-cyc1", reason="Dependency"),
    )
    status = StatusViewer(place, *jobs).one()
    assert [value for word, value in status_details(status, NOW_S) if word == "job"] == [
        "12 (init) is running",
        "13 (cyc1) waits: a job that it depends on has not ended (Dependency)",
    ]


def test_status_can_be_read_as_json(place: Place) -> None:
    write_run(place.root, place.recipe, started(host="node7", job="12"), launched(), finished("init"))
    submit(place, None)
    status = json.loads(json.dumps(status_as_json(StatusViewer(place, job(JobState.RUNNING)).one())))
    assert (status["run"], status["recipe"], status["state"], status["failure"]) == (
        "small-1",
        "small",
        "running",
        None,
    )
    assert status["process"] == {"pid": 2**22 + 1, "host": "node7", "lives": None}
    assert status["phases"][0]["phase"] == "init"
    assert status["jobs"] == [
        {
            "job": 12,
            "name": "small-a",
            "phase": None,
            "state": "RUNNING",
            "standing": "running",
            "said": "is running",
        }
    ]


def test_nothing_is_written_and_nothing_locked(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(), launched(), log=LOG)
    submit(place, None)
    before = place.tree()
    with closing(Journal(folder / "journal.jsonl")):
        StatusViewer(place).all(away)
        StatusViewer(place).one(ask=away)
    assert place.tree() == before


def test_an_empty_journal_is_reported_as_by_run(place: Place) -> None:
    folder = write_run(place.root, place.recipe, *WHOLE)
    (folder / "journal.jsonl").write_text("")
    (status,) = StatusViewer(place).all()
    message = "journal.jsonl: is empty; restore it, or start over with --new"
    assert status.state == "unknown"
    assert summarize_status(status).endswith(message)
    with pytest.raises(InputError, match=message):
        StatusViewer(place).one()


def test_a_trainer_that_outlived_its_killed_run_is_reported(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(), launched(), log=LOG)
    with (folder / "logs/init-1.log").open("ab") as log:
        left = subprocess.Popen(["sleep", "600"], stdout=log, start_new_session=True)
    try:
        (status,) = StatusViewer(place).all(no_slurm)
        message = f"process {left.pid} of a killed run is still training"
        assert (status.state, summarize_status(status)) == ("unattended", f"{message}; {RESUME_HINT}")
        assert dict(status_details(status, NOW_S))["trainer"] == message
        assert message in shown([status])[1]
    finally:
        left.kill()
        left.wait()


def rank_of(launch: str) -> Callable[[tuple[str, ...], bytes], Completed]:
    """Give the answer of a host on which rank 1 of a launch is alive."""
    command = base64.b64encode(b"caffe\0train\0").decode()
    records = (f"process 7 70 1 1 1 {launch} {command}", f"process 8 80 1 - 1 {launch} {command}", "end")
    return lambda argv, stdin: answer_call(argv, *records)


@pytest.mark.parametrize("is_listed", [True, False])
def test_ranks_that_outlived_their_killed_run_are_found_on_all_its_hosts(
    place: Place, is_listed: bool
) -> None:
    launch = launched(hosts=["n1", "n2", "n3"])
    write_run(place.root, place.recipe, started(), launch, log=LOG)
    answer = rank_of("0123456789abcdef/init-1")
    hosts = {
        "n1": StandInHost("n1", answer),
        "n2": StandInHost("n2", answer),
        "n3": StandInHost("n3", fault=HostFailed("n3", "is down", "")),
    }
    env = FollowEnv(lambda name, copy_with: hosts[name], ask=no_slurm)
    options = StatusOptions(str(place.root))
    status = find_statuses(options, env)[0] if is_listed else find_status("small", options, env)
    message = "2 ranks on n[1-2] still train; n3 did not answer, and may have ranks of it"
    assert (status.state, summarize_status(status)) == ("unattended", f"{message}; {RESUME_HINT}")


def test_a_killed_run_without_ranks_is_stopped(place: Place) -> None:
    write_run(place.root, place.recipe, started(), launched(hosts=["n1"]), log=LOG)
    host = StandInHost("n1", lambda argv, stdin: answer_call(argv, "end"))
    env = FollowEnv(lambda name, copy_with: host, ask=no_slurm)
    (status,) = find_statuses(StatusOptions(str(place.root)), env)
    assert (status.state, summarize_status(status)) == ("stopped", RESUME_HINT)


def shown(statuses: Sequence[StatusEntry], width: int | None = None) -> list[str]:
    """Return the lines of the table, without their colours."""
    return ["".join(text for text, _ in line) for line in status_table(statuses, NOW_S, width)]


def test_the_table_has_a_line_for_each_run_with_phase_times_and_result(place: Place) -> None:
    write_run(place.root, place.recipe, *WHOLE)
    folder = write_run(place.root, place.recipe, started(os.getpid()), launched(), log=LOG, number=2)
    with closing(Journal(folder / "journal.jsonl")):
        statuses = StatusViewer(place).all(no_slurm)
        assert shown(statuses) == [
            f"run      state     phase     reached  {'started':{len(STARTED)}}  elapsed  left  result",
            f"small-2  running   1/3 init      2/8  {STARTED}     1:40  0:08  loss 1.250",
            f"small-1  finished                     {STARTED}     0:00        "
            "loss3/top-1: 75.00% (reported: 76.3%)",
        ]
        assert shown(statuses, 80) == [
            "run      state     phase     reached  elapsed  left  result",
            "small-2  running   1/3 init      2/8     1:40  0:08  loss 1.250",
            "small-1  finished                        0:00        loss3/top-1: 75.00% (rep...",
        ]
        assert shown(statuses, 50)[1] == "small-2  running   1/3 init  0:08  loss 1.250"
        (header, first, second) = status_table(statuses, NOW_S, 80)
    assert {style for _, style in header} == {"bold", ""}
    assert ("running ", "cyan") in first
    assert ("finished", "green") in second


def test_the_newest_run_comes_first_whatever_its_recipe_is_called(place: Place) -> None:
    write_run(place.root, place.recipe, *WHOLE)
    submit(place, None, at_s=1_700_000_050)
    statuses = StatusViewer(place, job(JobState.PENDING)).all()
    newest, _ = sorted(statuses, key=lambda each: each.run is not None)
    assert newest.run is None
    assert [line.split()[1] for line in shown([*reversed(statuses)])[1:]] == ["waiting", "finished"]


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_no_line_of_the_table_is_wider_than_its_terminal(place: Place, width: int) -> None:
    write_run(place.root, place.recipe, *WHOLE)
    write_run(place.root, place.recipe, started(), launched(), failed("init", "x" * 300), number=2)
    assert all(len(line) <= max(width, 19) for line in shown(StatusViewer(place).all(no_slurm), width))


def test_a_stopped_run_shows_the_checkpoint_that_it_resumes_from(place: Place) -> None:
    write_run(place.root, place.recipe, started(), launched(), ("checkpointed", CHECKPOINT), log=LOG)
    line = shown(StatusViewer(place).all(no_slurm))[1]
    assert "1/3 init  checkpoint 6  " in line
    assert line.endswith("run again to resume")


def test_a_slow_run_is_compared_with_the_last_that_finished_its_phase(place: Place) -> None:
    write_run(place.root, place.recipe, *WHOLE)
    write_run(place.root, place.recipe, started(), launched(), number=2)
    waited = "Iteration 4, waited 71% for data, 4% for other ranks"
    log = f"{LOG}st\n[0] I1120 11:49:35.000000  6374 caffe-torch:0] {waited}\n"
    folder = write_run(place.root, place.recipe, started(os.getpid()), launched(), log=log, number=3)
    with closing(Journal(folder / "journal.jsonl")):
        details = dict(status_details(StatusViewer(place).one(ask=no_slurm), NOW_S))
    assert details["rate"] == "128 images/s, 0.5 s per iteration; small-1 had 1,234 images/s"
    assert details["waited"] == "71% for data, 4% for other ranks"


def test_a_run_with_a_later_one_is_not_reported_as_resumable(place: Place) -> None:
    for number in (1, 2, 3):
        write_run(place.root, place.recipe, started(), launched(), log=LOG, number=number)
    lines = shown(StatusViewer(place).all(no_slurm))
    assert [line.split("  ")[-1] for line in lines[1:]] == [
        "run again to resume", "superseded by small-3", "superseded by small-3"
    ]  # fmt: skip
    details = dict(status_details(StatusViewer(place).one("small-1", no_slurm), NOW_S))
    assert details["next"] == "superseded by small-3; only the latest run of a recipe is resumed"


@pytest.mark.parametrize("name", ["kept", "other-7"])
def test_a_renamed_run_is_reported_and_not_as_resumable(place: Place, name: str) -> None:
    folder = write_run(place.root, place.recipe, started(), launched(), log=LOG)
    folder.rename(folder.with_name(name))
    viewer = StatusViewer(place, job(JobState.PENDING))
    for given in (name, f"runs/{name}", f"{place.root}/runs/{name}"):
        status = viewer.one(given, no_slurm)
        assert (status.name, status.recipe, status.state, status.later) == (name, "small", "stopped", "")
        assert dict(status_details(status, NOW_S))["next"] == (
            "only a folder named small-N is resumed; rename it back"
        )
    assert [line.split("  ")[-1] for line in shown(viewer.all(no_slurm))[1:]] == ["renamed; not resumed"]
    submit(place, None)
    assert [(each.name, each.state) for each in viewer.all()] == [(name, "stopped"), ("small", "waiting")]
    write_run(place.root, place.recipe, *WHOLE, number=1)
    assert viewer.one(name).later == "small-1"


def test_the_latest_run_given_by_its_whole_path_is_not_superseded_by_itself(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(), launched(), log=LOG)
    assert StatusViewer(place).one(str(folder.resolve()), no_slurm).later == ""


def test_a_recipe_s_file_in_this_folder_is_named_to_resume_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(place.root, place.recipe, started(), launched(), log=LOG)
    (tmp_path / "small.yaml").write_text("name: small\n")
    monkeypatch.chdir(tmp_path)
    details = dict(status_details(StatusViewer(place).one(ask=no_slurm), NOW_S))
    assert details["next"] == "`caffe-recipes run small.yaml` resumes it"
