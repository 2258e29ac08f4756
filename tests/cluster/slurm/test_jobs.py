"""How jobs are described; accounts, memory limits and preemption from answers written from documentation."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest

from caffe_recipes.cluster.slurm.answers import parse_sacct, parse_scontrol_jobs, parse_sinfo, parse_squeue
from caffe_recipes.cluster.slurm.jobs import (
    REASONS,
    Job,
    JobState,
    describe_state,
    explain_reason,
    failed_nodes,
)

Recorded = Callable[[str], str]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nodefail", "was terminated because node c401-003 failed; submit again without that node"),
        ("timeout", "was terminated at its time limit of 1 h 00 min; submit again"),
        ("failed", "has failed with exit code 3; see its log"),
        ("oom", "was killed because it ran out of memory; give it more --mem"),
        ("phase-2", "waits: a job that it depends on has failed, so it never starts (DependencyNeverSatisf"),
        ("killed", "was cancelled by Slurm because a job that it depends on failed; fix that"),
        ("cancelled", "was cancelled"),
        ("requeued", "waits to start again (requeued once so far): its begin time has not been reached"),
    ],
)
def test_each_way_a_job_ends_has_its_own_line(recorded: Recorded, name: str, message: str) -> None:
    jobs = {job.name: job for job in parse_scontrol_jobs(recorded("scontrol_jobs"))}
    assert describe_state(jobs[name]).startswith(message)


def test_a_cancelled_job_is_reported_with_who_cancelled_it_and_whether_it_had_started(
    recorded: Recorded,
) -> None:
    jobs = {job.label: job for job in parse_sacct(recorded("sacct"))}
    assert describe_state(jobs["4719"]) == "was cancelled by user 1000"
    assert describe_state(jobs["4742"]).startswith("was cancelled before it started by root")
    assert describe_state(jobs["4740"]).startswith("was preempted by a job of higher priority")


def test_a_node_that_is_not_available_is_named(recorded: Recorded) -> None:
    line = describe_state(parse_squeue(recorded("squeue"))[2])
    assert "a node that it needs is down, drained, or reserved" in line
    assert "UnavailableNodes:c401-003" in line


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("PartitionNodeLimit", "more or fewer nodes than its partition allows"),
        ("PartitionTimeLimit", "more time than its partition allows"),
        ("JobHeldUser", "held by its user"),
        ("Licenses", "a license"),
        ("launch_failed_requeued_held", "a node could not start it"),
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved", "nodes that it needs are down"),
        ("QOSMaxNodePerUserLimit", "a limit of the QOS on nodes per user is reached"),
        ("QOSMaxWallDurationPerJobLimit", "a limit of the QOS on wall durations per job is reached"),
        ("QOSGrpCPUMinutesLimit", "the CPU minutes granted by the QOS are used up"),
        ("AssocGrpCPUMinutesLimit", "the CPU minutes granted to your account are used up"),
        ("AssocMaxJobsLimit", "a limit of your account on jobs is reached"),
        ("MaxNodePerAccount", "a limit of the site on nodes per account is reached"),
        ("SomethingNew", "Slurm reports: SomethingNew"),
        ("PriorityBoost", "Slurm reports: PriorityBoost"),
    ],
)
def test_reasons_are_given_in_plain_words(reason: str, expected: str) -> None:
    assert expected in explain_reason(reason)[0]


def test_every_state_and_reason_makes_one_line() -> None:
    for state in JobState:
        for reason in ("", "None", *REASONS, "a\nb"):
            line = describe_state(Job(1, "n", state, reason=reason, restarts=2))
            assert line and "\n" not in line


def test_a_job_cancelled_while_pending_is_reported_as_such() -> None:
    at = datetime(2026, 11, 20)
    assert (
        describe_state(Job(1, "n", JobState.CANCELLED, start=at, end=at)) == "was cancelled before it started"
    )
    # That had nodes for less than the second that Slurm counts in.
    ran = Job(1, "n", JobState.CANCELLED, start=at, end=at, node_list="n1")
    assert describe_state(ran) == "was cancelled"


def test_a_dependent_job_cancelled_by_its_user_is_not_attributed_to_slurm() -> None:
    at = datetime(2026, 11, 20)
    job = Job(1, "n", JobState.CANCELLED, reason="Dependency", start=at, end=at)
    assert describe_state(job) == "was cancelled before it started"


def test_failed_nodes_are_those_blamed_and_the_jobs_own_broken_ones(recorded: Recorded) -> None:
    jobs = {job.name: job for job in parse_scontrol_jobs(recorded("scontrol_jobs"))}
    assert failed_nodes(jobs["nodefail"]) == failed_nodes(jobs["requeued"]) == ("c401-003",)
    assert failed_nodes(jobs["timeout"]) == ()
    broken = parse_sinfo(recorded("sinfo"))
    job = Job(1, "n", JobState.NODE_FAIL, node_list="node[1-3]")
    assert failed_nodes(job, broken) == ("node3",)
    assert failed_nodes(Job(1, "n", JobState.FAILED, node_list="node[1-3]"), broken) == ()
