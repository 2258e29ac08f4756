from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Collection, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.slurm_jobs import Job, State
from caffe_recipes.errors import ClusterError, HostFailed, InputError
from caffe_recipes.run.journal import Journal
from caffe_recipes.run.monitor.follow import FollowEnv, StatusOptions
from caffe_recipes.run.monitor.status import (
    RunStatus,
    find_status,
    find_statuses,
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
    Event,
    failed,
    finished,
    launched,
    started,
    tell,
    tell_run,
)
from tests.stand_in_host import StandInHost

if TYPE_CHECKING:
    from tests.run.conftest import Place

NOW_S = 1_700_000_100.0
STARTED = datetime.fromtimestamp(1_700_000_000).astimezone().strftime("%Y-%m-%d %H:%M")
_STATES = ("state", "state_sha256", "model", "model_sha256", "state_path", "model_path")
CHECKPOINT: dict[str, object] = {"phase": "init", "iteration": 6, **dict.fromkeys(_STATES, "x")}
GO_ON = "`caffe-recipes run` with its recipe resumes it"


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


def job(state: State, job_id: int = 12, name: str = "small-a", **more: object) -> Job:
    return Job(job_id, name, state, **more)  # type: ignore[arg-type]


class Eye:
    """Looks as `status` does; `jobs` is what Slurm knows."""

    def __init__(self, place: Place, *jobs: Job) -> None:
        self.place, self.jobs = place, jobs

    def all(self, ask: object = None, on: str | None = None) -> list[RunStatus]:
        asked = ask or (lambda ids, names: self.jobs)
        env = FollowEnv(lambda name, copy_with: LocalHost(name), ask=asked)  # type: ignore[arg-type]
        return find_statuses(StatusOptions(str(self.place.root), on), env)

    def one(self, run: str = "small", ask: object = None) -> RunStatus:
        options = StatusOptions(str(self.place.root))
        env = FollowEnv(ask=ask or (lambda ids, names: self.jobs))  # type: ignore[arg-type]
        return find_status(run, options, env)


def test_without_runs_nothing_is_reported(place: Place) -> None:
    assert Eye(place).all(no_slurm) == []


@pytest.mark.parametrize("on", [None, "localhost"])
def test_a_root_that_is_not_there_is_one_line(place: Place, on: str | None) -> None:
    assert Eye(place).all(no_slurm, on) == []
    env = FollowEnv(lambda name, copy_with: LocalHost(name), ask=no_slurm)
    with pytest.raises(InputError) as caught:
        find_statuses(StatusOptions(str(place.root / "gone"), on), env)
    where = f"{on}:{place.root}" if on else str(place.root)
    assert str(caught.value) == (
        f"{where}/gone: no such folder; give the one that contains `runs` with --caffe-root"
    )


@pytest.mark.parametrize("on", [None, "localhost"])
def test_runs_are_reported_by_recipe_the_latest_first(place: Place, on: str | None) -> None:
    for number in (1, 2, 10):
        tell_run(place.root, place.recipe, *WHOLE, number=number)
    told = Eye(place).all(no_slurm, on)
    assert [each.name for each in told] == ["small-10", "small-2", "small-1"]
    assert {(each.state, summarize_status(each)) for each in told} == {
        ("finished", "loss3/top-1: 75.00 % (reported: 76.3 %)")
    }


def test_a_run_that_trains_is_reported_with_its_rate_and_what_is_left(place: Place) -> None:
    folder = tell_run(place.root, place.recipe, started(os.getpid()), launched(), log=LOG)
    with closing(Journal(folder / "journal.jsonl")):
        (status,) = Eye(place).all(no_slurm)
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


def test_until_its_speed_is_known_a_run_says_which_loss_is_awaited(place: Place) -> None:
    begun = "".join(LOG.splitlines(keepends=True)[:3])
    folder = tell_run(place.root, place.recipe, started(os.getpid()), launched(), log=begun)
    resumed: Event = "launched", {**launched(attempt=2)[1], "resumed": 5}
    with closing(Journal(folder / "journal.jsonl")):
        status = Eye(place).one(ask=no_slurm)
    assert summarize_status(status).startswith("init 0/8, next loss at iteration 2; ")
    phase = dict(status_details(status, NOW_S))["phase"]
    assert phase == "init (1 of 3): iteration 0 of 8, lr 0.1, loss 2.5; next loss at iteration 2"
    tell(folder, failed("init", "it died"), resumed)
    with closing(Journal(folder / "journal.jsonl")):
        phase = dict(status_details(Eye(place).one(ask=no_slurm), NOW_S))["phase"]
    assert phase == "init (1 of 3): no iteration yet; first loss at iteration 6"


def elapsed(place: Place) -> str:
    return dict(status_details(Eye(place).one(ask=no_slurm), NOW_S))["elapsed"]


def test_the_pause_before_a_resume_does_not_count_as_elapsed(place: Place) -> None:
    folder = tell_run(place.root, place.recipe, started(), launched())
    tell(folder, ("interrupted", {"signal": "SIGINT", "seconds": 60}), after_s=60)
    assert elapsed(place) == "1:00"
    tell(folder, started(os.getpid()), after_s=5000)
    tell(folder, launched(attempt=2), after_s=5010)
    assert elapsed(place) == "1:10"
    tell(folder, ("finished", {**finished("init")[1], "seconds": 90}), after_s=5040)
    assert elapsed(place) == "1:40"


@pytest.mark.parametrize(("seconds", "said"), [(300, "5:10"), (70, "1:20"), (9999, "10:10")])
def test_of_a_killed_run_the_time_that_its_trainer_ran_on_counts_as_elapsed(
    place: Place, seconds: float, said: str
) -> None:
    folder = tell_run(place.root, place.recipe, started())
    tell(folder, launched(), after_s=5)
    tell(folder, ("checkpointed", CHECKPOINT), after_s=65)
    tell(folder, started(), after_s=600)
    assert elapsed(place) == "1:05"
    tell(folder, ("failed", {"phase": "init", "reason": "it died", "seconds": seconds}), after_s=605)
    tell(folder, launched(attempt=2), after_s=610)
    assert elapsed(place) == said


def test_a_run_whose_process_is_gone_is_stopped_and_gives_the_command_that_resumes_it(place: Place) -> None:
    tell_run(place.root, place.recipe, started(), launched(), log=LOG)
    (status,) = Eye(place).all(no_slurm)
    assert (status.state, summarize_status(status)) == ("stopped", GO_ON)


def test_a_failed_and_an_interrupted_run_are_told_apart(place: Place) -> None:
    tell_run(place.root, place.recipe, started(), launched(), failed("init", "the loss is nan"))
    interrupted: Event = ("interrupted", {"signal": "SIGINT"})
    tell_run(place.root, place.recipe, started(), launched(), interrupted, number=2)
    second, first = Eye(place).all(no_slurm)
    assert (first.state, summarize_status(first)) == (
        "failed",
        "phase init: failed: the loss is nan; log: runs/small-1/logs/init-1.log",
    )
    assert (second.state, summarize_status(second)) == (
        "interrupted",
        f"runs/small-2: interrupted by SIGINT; {GO_ON}",
    )


def test_a_failure_that_a_run_continued_after_is_reported_among_its_details(place: Place) -> None:
    events = (started(), launched(), failed("init", "a host died"), started(os.getpid()), launched("init", 2))
    folder = tell_run(place.root, place.recipe, *events)
    with closing(Journal(folder / "journal.jsonl")):
        status = Eye(place).one(ask=no_slurm)
    assert status.state == "running"
    told = dict(status_details(status, NOW_S))
    assert told["before"].startswith("phase init: failed: a host died")
    assert "failure" not in told


@pytest.mark.parametrize("state", [State.RUNNING, State.PENDING])
def test_of_an_interruption_that_a_job_continues_after_nothing_is_advised(place: Place, state: State) -> None:
    interrupted: Event = ("interrupted", {"signal": "SIGUSR1"})
    tell_run(place.root, place.recipe, started(host="node7", job="12"), launched(), interrupted)
    submit(place, None)
    told = dict(status_details(Eye(place, job(state)).one(), NOW_S))
    assert told["before"] == "interrupted by SIGUSR1"
    assert not [word for word, text in told.items() if "resumes it" in text]


def test_an_interrupted_run_gives_the_command_that_resumes_it_once(place: Place) -> None:
    interrupted: Event = ("interrupted", {"signal": "SIGTERM"})
    tell_run(place.root, place.recipe, started(host="node7", job="12"), launched(), interrupted)
    submit(place, None)
    status = Eye(place, job(State.CANCELLED)).one()
    told = dict(status_details(status, NOW_S))
    submits = GO_ON.replace("run", "submit")
    assert (told["stopped"], told["next"]) == ("interrupted by SIGTERM", submits)
    assert "failure" not in told
    assert summarize_status(status) == (
        f"job 12 was cancelled before it started; runs/small-1: interrupted by SIGTERM; {submits}"
    )


def test_a_run_that_cannot_be_read_hides_no_other(place: Place) -> None:
    (tell_run(place.root, place.recipe, *WHOLE) / "recipe.json").write_text("{")
    tell_run(place.root, place.recipe, *WHOLE, number=2)
    second, first = Eye(place).all(no_slurm)
    assert (second.state, first.state) == ("finished", "unknown")
    assert "recipe.json: is not the recipe of a run: not JSON" in summarize_status(first)
    with pytest.raises(InputError, match="is not the recipe of a run"):
        Eye(place).one("small-1", no_slurm)


def test_a_process_on_another_host_is_asked_for_there_when_one_run_is_asked_for(place: Place) -> None:
    tell_run(place.root, place.recipe, started(host="other"), launched())
    assert Eye(place).all(no_slurm)[0].state == "unknown"
    host = StandInHost("other", fault=HostFailed("other", "cannot be reached"))
    env = FollowEnv(lambda name, copy_with: host, ask=no_slurm)
    status = find_status("small", StatusOptions(str(place.root)), env)
    assert status.state == "unknown"
    told = dict(status_details(status, NOW_S))["process"]
    assert re.search(r"on other, last seen at 2023-11-1\d \d\d:\d\d; cannot tell whether it is alive", told)


def test_a_job_that_waits_is_reported_before_it_has_a_run(place: Place) -> None:
    submit(place, None)
    eye = Eye(place, job(State.PENDING, reason="Resources"))
    for status in (*eye.all(), eye.one(), eye.one(str(place.recipe))):
        assert (status.name, status.state) == ("small", "waiting")
        assert summarize_status(status) == "job 12 waits: its nodes are still in use (Resources)"


def test_a_job_that_is_to_resume_a_run_is_reported_with_it(place: Place) -> None:
    tell_run(place.root, place.recipe, started(), launched(), failed("init", "x"))
    submit(place, None)
    (status,) = Eye(place, job(State.PENDING, reason="Resources")).all()
    assert (status.name, status.state) == ("small-1", "waiting")


def test_a_job_beside_a_finished_run_begins_another(place: Place) -> None:
    tell_run(place.root, place.recipe, *WHOLE)
    submit(place, None)
    first, second = Eye(place, job(State.PENDING, reason="Resources")).all()
    assert [(each.name, each.state) for each in (first, second)] == [
        ("small", "waiting"),
        ("small-1", "finished"),
    ]


def test_a_run_in_a_job_on_another_host_is_running(place: Place) -> None:
    tell_run(place.root, place.recipe, started(host="node7", job="12"), launched(), log=LOG)
    submit(place, None)
    (status,) = Eye(place, job(State.RUNNING)).all()
    assert status.state == "running"
    assert summarize_status(status) == (
        "init 2/8, 128 images/s, phase 0:03 left, run 0:08 left; job 12 is running"
    )


def test_a_run_whose_job_is_over_is_stopped_and_why(place: Place) -> None:
    tell_run(place.root, place.recipe, started(host="node7", job="12"), launched())
    submit(place, None)
    (status,) = Eye(place, job(State.TIMEOUT, limit_s=3600.0)).all()
    assert status.state == "stopped"
    assert summarize_status(status) == (
        "job 12 was terminated at its time limit of 1 h 00 min; submit again: it resumes from the last "
        "snapshot; " + GO_ON.replace("run", "submit")
    )


def test_no_process_is_reported_of_a_run_that_another_job_is_to_resume(place: Place) -> None:
    tell_run(place.root, place.recipe, started(host="node7", job="11"), launched(), failed("init", "x"))
    submit(place, None)
    told = dict(status_details(Eye(place, job(State.RUNNING)).one(), NOW_S))
    assert (told["job"], "process" in told) == ("12 is running", False)
    assert "process" not in dict(status_details(Eye(place, job(State.FAILED)).one(), NOW_S))


def test_without_an_answer_from_slurm_a_run_s_state_is_unknown_since_it_was_last_seen(place: Place) -> None:
    tell_run(place.root, place.recipe, started(host="node7", job="12"), launched(), log=LOG)
    submit(place, None)
    (status,) = Eye(place).all(away)
    assert status.state == "unknown"
    then = time.strftime("%Y-%m-%d %H:%M", time.localtime(1_700_000_000))
    assert summarize_status(status) == (
        f"init 2/8, 128 images/s, phase 0:03 left, run 0:08 left; job 12 unknown since {then} "
        "(the last event of the run): login1: Slurm gives squeue no answer; ask again later"
    )


def test_the_job_of_a_user_s_own_sbatch_is_reported(place: Place) -> None:
    tell_run(place.root, place.recipe, started(host="node7", job="50"), launched(), log=LOG)
    eye = Eye(place, job(State.RUNNING, 50, "mine"))
    for status in (*eye.all(), eye.one()):
        assert status.state == "running"
        assert summarize_status(status).endswith("run 0:08 left; job 50 is running")


def test_it_is_reported_beside_what_was_submitted_before_it(place: Place) -> None:
    submit(place, None)
    tell_run(place.root, place.recipe, started(host="node7", job="50"), launched())
    status = Eye(place, job(State.TIMEOUT), job(State.PENDING, 50, "small")).one()
    assert [(each.job_id, each.standing) for each in status.jobs] == [(12, "over"), (50, "waiting")]


def test_a_slurm_that_does_not_answer_changes_nothing_of_a_run_that_has_ended(place: Place) -> None:
    tell_run(place.root, place.recipe, started(host="node7", job="50"), launched(), failed("init", "x"))
    assert [each.state for each in (*Eye(place).all(away), Eye(place).one(ask=away))] == ["failed", "failed"]


def test_each_job_of_a_chain_is_reported(place: Place) -> None:
    submit(place, "init", "cyc1")
    jobs = (
        job(State.RUNNING, 12, "small-init"),
        job(State.PENDING, 13, "small-cyc1", reason="Dependency"),
    )
    status = Eye(place, *jobs).one()
    assert [said for word, said in status_details(status, NOW_S) if word == "job"] == [
        "12 (init) is running",
        "13 (cyc1) waits: a job that it depends on has not ended (Dependency)",
    ]


def test_programs_read_it_as_json(place: Place) -> None:
    tell_run(place.root, place.recipe, started(host="node7", job="12"), launched(), finished("init"))
    submit(place, None)
    told = json.loads(json.dumps(status_as_json(Eye(place, job(State.RUNNING)).one())))
    assert (told["run"], told["recipe"], told["state"], told["failure"]) == (
        "small-1",
        "small",
        "running",
        None,
    )
    assert told["process"] == {"pid": 2**22 + 1, "host": "node7", "lives": None}
    assert told["phases"][0]["phase"] == "init"
    assert told["jobs"] == [
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
    folder = tell_run(place.root, place.recipe, started(), launched(), log=LOG)
    submit(place, None)
    before = place.tree()
    with closing(Journal(folder / "journal.jsonl")):
        Eye(place).all(away)
        Eye(place).one(ask=away)
    assert place.tree() == before


def test_an_empty_journal_beside_snapshots_is_reported_as_a_run_tells_it(place: Place) -> None:
    folder = tell_run(place.root, place.recipe, *WHOLE)
    (folder / "journal.jsonl").write_text("")
    (folder / "snapshots/small_init_iter_8.caffemodel").touch()
    (status,) = Eye(place).all()
    said = "journal.jsonl: is empty, but the run has snapshots; restore it, or start over with --new"
    assert status.state == "unknown"
    assert summarize_status(status).endswith(said)
    with pytest.raises(InputError, match=said):
        Eye(place).one()


def test_a_trainer_that_outlived_its_killed_run_is_reported(place: Place) -> None:
    folder = tell_run(place.root, place.recipe, started(), launched(), log=LOG)
    with (folder / "logs/init-1.log").open("ab") as log:
        left = subprocess.Popen(["sleep", "600"], stdout=log, start_new_session=True)
    try:
        (status,) = Eye(place).all(no_slurm)
        said = f"process {left.pid} of a killed run is still training"
        assert (status.state, summarize_status(status)) == ("stopped", f"{said}; {GO_ON}")
        assert dict(status_details(status, NOW_S))["trainer"] == said
    finally:
        left.kill()
        left.wait()


def shown(statuses: Sequence[RunStatus], width: int | None = None) -> list[str]:
    """Return the lines of the table, without their colours."""
    return ["".join(text for text, _ in line) for line in status_table(statuses, NOW_S, width)]


def test_the_table_has_a_line_for_each_run_with_phase_times_and_result(place: Place) -> None:
    tell_run(place.root, place.recipe, *WHOLE)
    folder = tell_run(place.root, place.recipe, started(os.getpid()), launched(), log=LOG, number=2)
    with closing(Journal(folder / "journal.jsonl")):
        statuses = Eye(place).all(no_slurm)
        assert shown(statuses) == [
            f"run      state     phase     reached  {'started':{len(STARTED)}}  elapsed  left  result",
            f"small-2  running   1/3 init      2/8  {STARTED}     1:40  0:08  loss 1.250",
            f"small-1  finished                     {STARTED}     0:00        "
            "loss3/top-1: 75.00 % (reported: 76.3 %)",
        ]
        assert shown(statuses, 80) == [
            "run      state     phase     reached  elapsed  left  result",
            "small-2  running   1/3 init      2/8     1:40  0:08  loss 1.250",
            "small-1  finished                        0:00        loss3/top-1: 75.00 % (re...",
        ]
        assert shown(statuses, 50)[1] == "small-2  running   1/3 init  0:08  loss 1.250"
        (header, first, second) = status_table(statuses, NOW_S, 80)
    assert {style for _, style in header} == {"bold", ""}
    assert ("running ", "cyan") in first
    assert ("finished", "green") in second


def test_the_newest_run_comes_first_whatever_its_recipe_is_called(place: Place) -> None:
    tell_run(place.root, place.recipe, *WHOLE)
    submit(place, None, at_s=1_700_000_050)
    statuses = Eye(place, job(State.PENDING)).all()
    newest, _ = sorted(statuses, key=lambda each: each.run is not None)
    assert newest.run is None
    assert [line.split()[1] for line in shown([*reversed(statuses)])[1:]] == ["waiting", "finished"]


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_no_line_of_the_table_is_wider_than_its_terminal(place: Place, width: int) -> None:
    tell_run(place.root, place.recipe, *WHOLE)
    tell_run(place.root, place.recipe, started(), launched(), failed("init", "x" * 300), number=2)
    assert all(len(line) <= max(width, 19) for line in shown(Eye(place).all(no_slurm), width))


def test_a_stopped_run_shows_the_checkpoint_that_it_resumes_from(place: Place) -> None:
    tell_run(place.root, place.recipe, started(), launched(), ("checkpointed", CHECKPOINT), log=LOG)
    line = shown(Eye(place).all(no_slurm))[1]
    assert "1/3 init  checkpoint 6  " in line
    assert line.endswith("run again to resume")


def test_a_slow_run_is_compared_with_the_last_that_finished_its_phase(place: Place) -> None:
    tell_run(place.root, place.recipe, *WHOLE)
    tell_run(place.root, place.recipe, started(), launched(), number=2)
    waited = "Iteration 4, waited 71% for data, 4% for other ranks"
    log = f"{LOG}st\n[0] I1120 11:49:35.000000  6374 caffe-torch:0] {waited}\n"
    folder = tell_run(place.root, place.recipe, started(os.getpid()), launched(), log=log, number=3)
    with closing(Journal(folder / "journal.jsonl")):
        details = dict(status_details(Eye(place).one(ask=no_slurm), NOW_S))
    assert details["rate"] == "128 images/s, 0.5 s per iteration; small-1 had 1,234 images/s"
    assert details["waited"] == "71% for data, 4% for other ranks"


def test_a_run_with_a_later_one_is_not_said_to_resume(place: Place) -> None:
    for number in (1, 2, 3):
        tell_run(place.root, place.recipe, started(), launched(), log=LOG, number=number)
    lines = shown(Eye(place).all(no_slurm))
    assert [line.split("  ")[-1] for line in lines[1:]] == [
        "run again to resume", "superseded by small-3", "superseded by small-3"
    ]  # fmt: skip
    details = dict(status_details(Eye(place).one("small-1", no_slurm), NOW_S))
    assert details["next"] == "superseded by small-3; only the latest run of a recipe is resumed"


def test_a_recipe_s_file_in_this_folder_is_named_to_resume_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_run(place.root, place.recipe, started(), launched(), log=LOG)
    (tmp_path / "small.yaml").write_text("name: small\n")
    monkeypatch.chdir(tmp_path)
    details = dict(status_details(Eye(place).one(ask=no_slurm), NOW_S))
    assert details["next"] == "`caffe-recipes run small.yaml` resumes it"
