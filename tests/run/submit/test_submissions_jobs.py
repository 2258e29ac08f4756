from __future__ import annotations

import time
from collections.abc import Collection

from caffe_recipes.cluster.slurm.calls import SchedulerAway
from caffe_recipes.cluster.slurm.jobs import Job, JobState
from caffe_recipes.errors import ClusterError
from caffe_recipes.run.submit.submissions import (
    Submission,
    describe_job,
    query_jobs,
    submitted_by_hand,
)

SUBMITTED = Submission("small-a", "a", "chain.sbatch", 0.0, outcome="submitted", job_id=12)


def away(ids: Collection[int], names: Collection[str]) -> tuple[Job, ...]:
    raise ClusterError("squeue", "does not respond", "wait for it")


def test_a_job_is_described_in_words() -> None:
    (seen,) = query_jobs(
        [SUBMITTED], lambda ids, names: [Job(12, "small-a", JobState.PENDING, reason="Priority")]
    )
    assert (seen.standing, seen.is_live) == ("waiting", True)
    assert f"job {seen.label} {describe_job(seen)}" == (
        "job 12 waits: jobs of higher priority start first (Priority)"
    )


def test_a_scheduler_that_is_away_makes_a_job_unknown_and_not_failed() -> None:
    now = time.time()
    (seen,) = query_jobs([SUBMITTED], away)
    assert (seen.standing, seen.is_live) == ("unknown", False)
    clock = time.strftime("%H:%M", time.localtime(now))
    assert describe_job(seen, now, "it was running") == (
        f"unknown since {clock} (it was running): squeue: does not respond; wait for it"
    )
    assert describe_job(seen).startswith("unknown since 1970-01-01 ")
    assert "(it was submitted)" in describe_job(seen)


def test_without_accounting_a_job_known_to_the_controller_is_still_known() -> None:
    def ask(ids: Collection[int], names: Collection[str]) -> tuple[Job, ...]:
        raise SchedulerAway("login1", "accounting is away", "", known=(Job(12, "small-a", JobState.RUNNING),))

    forgotten = Submission("old-b", "b", "chain.sbatch", 0.0, outcome="submitted", job_id=7)
    seen = query_jobs([SUBMITTED, forgotten], ask)
    assert [(each.standing, each.away) for each in seen] == [
        ("running", ""),
        ("unknown", "login1: accounting is away"),
    ]


def test_another_job_with_the_same_number_is_not_mistaken_for_it() -> None:
    (seen,) = query_jobs([SUBMITTED], lambda ids, names: [Job(12, "other", JobState.RUNNING)])
    assert (seen.standing, describe_job(seen)) == ("over", "has ended: Slurm no longer knows it")


def test_a_job_that_was_being_submitted_is_looked_up_by_name() -> None:
    asked: list[Collection[str]] = []

    def ask(ids: Collection[int], names: Collection[str]) -> list[Job]:
        asked.append(names)
        return [Job(13, "small-b", JobState.RUNNING)]

    (seen,) = query_jobs([Submission("small-b", "b", "chain.sbatch", 0.0)], ask)
    assert (asked, seen.job_id, seen.standing) == ([["small-b"]], 13, "running")


def test_a_refused_submission_is_not_queried() -> None:
    refused = Submission("small-c", "c", "chain.sbatch", 0.0, outcome="refused", reason="no such account")
    (seen,) = query_jobs([refused], away)
    assert (seen.standing, describe_job(seen)) == ("over", "was refused: no such account")


def test_a_job_that_was_cancelled_has_not_failed() -> None:
    cancelled = Submission("small-a", "a", "chain.sbatch", 0.0, outcome="cancelled", job_id=12)
    (seen,) = query_jobs([cancelled], lambda ids, names: [Job(12, "small-a", JobState.FAILED, exit_code=143)])
    assert describe_job(seen) == "was cancelled, and stopped cleanly"


def test_a_job_of_a_user_s_own_that_sigterm_ended_was_cancelled() -> None:
    own = submitted_by_hand("small", 50, 0.0)

    def description(**end: int) -> str:
        (seen,) = query_jobs([own], lambda ids, names: [Job(50, "mine", JobState.FAILED, **end)])  # type: ignore[arg-type]
        return describe_job(seen)

    assert description(exit_code=143) == description(signal=15) == "was cancelled, and stopped cleanly"
    assert description(exit_code=3) == "has failed with exit code 3; see its log"
