"""Answers written from documentation (see recorded/README.txt), also where Debian's Slurm lacks a feature."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime

import pytest

from caffe_recipes.cluster.slurm.answers import parse_sacct, parse_scontrol_jobs, parse_sinfo, parse_squeue
from caffe_recipes.cluster.slurm.jobs import JobState
from caffe_recipes.cluster.slurm.partitions import parse_partitions
from caffe_recipes.errors import ClusterError

Recorded = Callable[[str], str]
MANY_DIGITS = "9" * 5000


def test_squeue_lists_pending_and_running_jobs(recorded: Recorded) -> None:
    running, dependent, unavailable, array, het = parse_squeue(recorded("squeue"))
    assert (running.job_id, running.name, running.state) == (4711, "chain-0123456789abcdef", JobState.RUNNING)
    assert (running.nodes, running.node_list, running.limit_s) == (4, "c401-[001-004]", 172_800)
    assert running.start == datetime(2026, 11, 20, 9, 1)
    assert (dependent.state, dependent.reason, dependent.start) == (JobState.PENDING, "Dependency", None)
    assert unavailable.reason == "ReqNodeNotAvail, UnavailableNodes:c401-003"
    assert (unavailable.name, unavailable.limit_s) == ("a name | with a bar", math.inf)
    assert (array.job_id, array.label) == (4720, "4700_[3-9%2]")
    assert (het.label, het.state, het.state.is_over) == ("4730+0", JobState.COMPLETING, False)


def test_scontrol_output_is_parsed_with_restarts_and_names_with_spaces(recorded: Recorded) -> None:
    (job,) = parse_scontrol_jobs(recorded("scontrol_running"))
    assert (job.label, job.restarts, job.nodes) == ("4711", 2, 4)
    assert (job.node_list, job.partition, job.reason) == ("c401-[001-004]", "normal", "None")
    assert job.stdout == "/home/anna/logs/4711.out"
    array, het = parse_scontrol_jobs(recorded("scontrol_array_het"))
    assert (array.label, array.name, array.nodes, array.node_list) == ("4700_3-9", "array of mine", 1, "")
    assert (het.label, het.name, het.limit_s, het.end) == ("4730+1", "het", math.inf, None)


@pytest.mark.parametrize(
    "read",
    [
        lambda: parse_sinfo(f"normal|up|infinite|{MANY_DIGITS}|idle|n[1-2]\n"),
        lambda: parse_scontrol_jobs(
            f"JobId=1 JobName=a UserId=b(1) JobState=FAILED ExitCode={MANY_DIGITS}:0"
        ),
        lambda: parse_scontrol_jobs(
            f"JobId={MANY_DIGITS} JobName=a UserId=b(1) JobState=FAILED ExitCode=0:0"
        ),
    ],
)
def test_an_answer_with_too_many_digits_cannot_be_parsed(read: Callable[[], object]) -> None:
    with pytest.raises(ClusterError, match="its output cannot be parsed: "):
        read()


def test_a_path_with_spaces_is_not_abbreviated() -> None:
    line = "JobId=1 JobName=a UserId=b(1) JobState=RUNNING ExitCode=0:0 StdOut=/home/a b/x.out Power= "
    (job,) = parse_scontrol_jobs(line)
    assert job.stdout == "/home/a b/x.out"


def test_the_ways_in_which_jobs_end_are_distinguished(recorded: Recorded) -> None:
    jobs = {job.name: job for job in parse_scontrol_jobs(recorded("scontrol_jobs"))}
    assert {name: job.state.value for name, job in jobs.items() if job.state.is_over} == {
        "nodefail": "NODE_FAIL",
        "timeout": "TIMEOUT",
        "failed": "FAILED",
        "oom": "OUT_OF_MEMORY",
        "killed": "CANCELLED",
        "cancelled": "CANCELLED",
    }
    assert (jobs["failed"].exit_code, jobs["timeout"].signal) == (3, 15)
    assert (jobs["nodefail"].failed_node, jobs["requeued"].failed_node) == ("c401-003", "c401-003")
    assert jobs["phase-2"].dependency == "afterok:4715(failed)"
    assert (jobs["phase-2"].limit_s, jobs["phase-2"].start) == (None, None)


def test_sacct_reports_who_cancelled_a_job(recorded: Recorded) -> None:
    jobs = {job.label: job for job in parse_sacct(recorded("sacct"))}
    assert jobs["4719"].cancelled_by == 1000
    assert (jobs["4742"].cancelled_by, jobs["4742"].start, jobs["4742"].node_list) == (0, None, "")
    assert jobs["4740"].state is JobState.PREEMPTED
    assert jobs["4741"].name == "oom | with a bar"
    assert (jobs["4700_2"].job_id, jobs["4700_2"].state) == (4744, JobState.NODE_FAIL)


def test_job_steps_in_the_output_of_sacct_are_skipped(recorded: Recorded) -> None:
    answer = recorded("sacct_steps")
    assert [job.label for job in parse_sacct(answer)] == ["4741"]


def test_partitions_are_parsed_with_their_limits(recorded: Recorded) -> None:
    debug, normal, old = parse_partitions(recorded("partitions"))
    assert (debug.is_default, debug.max_nodes, debug.max_s, debug.default_s) == (True, None, math.inf, None)
    assert (normal.total_nodes, normal.max_nodes, normal.min_nodes) == (256, 128, 2)
    assert (normal.max_s, normal.default_s) == (172_800, 3600)
    assert normal.allow_accounts == frozenset(("physics", "chem"))
    assert (old.allow_accounts, old.deny_accounts, old.state) == (None, frozenset(("physics",)), "DRAIN")


def test_sinfo_reports_broken_nodes(recorded: Recorded) -> None:
    groups = parse_sinfo(recorded("sinfo"))
    assert [group.node_list for group in groups if group.is_broken] == ["node3", "node4"]
    assert [group.state for group in groups[3:]] == ["allocated", "idle", "mixed", "reserved"]


@pytest.mark.parametrize(
    ("parse", "answer"),
    [
        (parse_squeue, "4711|4711|RUNNING"),
        (parse_squeue, "x|x|RUNNING|4|p|1:00|N/A|N/A|N/A||None|n"),
        (parse_squeue, "1|1|DANCING|4|p|1:00|N/A|N/A|N/A||None|n"),
        (parse_squeue, "1|1|RUNNING|4|p|soon|N/A|N/A|N/A||None|n"),
        (parse_squeue, "1|1|RUNNING|4|p|1:00|Nov 20|N/A|N/A||None|n"),
        (parse_scontrol_jobs, "Job data as of now"),
        (parse_scontrol_jobs, "JobId=1 JobName=a UserId=b(1) Reason=None"),
        (parse_sacct, "Invalid field requested"),
        (parse_partitions, "PartitionName=debug State=UP"),
        (parse_sinfo, "debug up"),
    ],
)
def test_unparsable_output_is_reported_in_one_line_with_the_text(
    parse: Callable[[str], object], answer: str
) -> None:
    with pytest.raises(ClusterError) as caught:
        parse(answer)
    assert "\n" not in str(caught.value)
    assert any(part in str(caught.value) for part in answer.split("|"))


def test_empty_output_is_an_empty_list_of_jobs() -> None:
    assert parse_squeue("\n") == parse_sacct("") == parse_scontrol_jobs("No jobs in the system\n") == ()
