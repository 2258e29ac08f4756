"""Jobs on a real Slurm, from submission to their ends.

Debian's Slurm, as the harness brings it up, has no accounting, no limits of memory and no preemption: who
cancelled, accounts, OUT_OF_MEMORY and PREEMPTED are tested on recorded answers, in ../test_slurm_*.py.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from caffe_recipes.cluster.launchers import LAUNCHERS
from caffe_recipes.cluster.launchers.launcher import RankLaunch
from caffe_recipes.cluster.slurm import sbatch as slurm_sbatch
from caffe_recipes.cluster.slurm.calls import ASK_S, SchedulerAway, check_sbatch
from caffe_recipes.cluster.slurm.jobs import Job, JobState, describe_state, failed_nodes
from caffe_recipes.cluster.slurm.queries import ask_node_groups, ask_partitions, find_jobs
from caffe_recipes.cluster.slurm.sbatch import (
    Refused,
    Submitted,
    Unsure,
    cancel_jobs,
    find_submission,
    submit_job,
)
from caffe_recipes.cluster.slurm.sbatch_options import JobRequest
from caffe_recipes.cluster.ssh import SshHost
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.slurm import Slurm

pytestmark = pytest.mark.cluster

HOSTILE = 'it\'s a "b", $(touch pwned) `touch pwned`; touch pwned é *'
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"nodes": 5}, "allocation failure: Requested node configuration is not available"),
    ({"nodes": 3, "partition": "short"}, "Requested node configuration is not available"),
    ({"partition": "nope"}, "invalid partition specified: nope"),
    ({"constraint": "gpu"}, "Invalid feature specification"),
    ({"exclude": ("node9",)}, "Invalid node name specified"),
    ({"options": ("--nosuch",)}, "unrecognized option '--nosuch'"),
]


class Site:
    """A Slurm, its head as users reach it, and a folder for scripts and what they write."""

    def __init__(self, slurm: Slurm, folder: Path) -> None:
        self.slurm, self.folder = slurm, folder
        self.head = SshHost("head", slurm.cluster.ssh)
        self.folder.mkdir()

    def request(self, script: str, name: str = "a", **settings: Any) -> JobRequest:  # noqa: ANN401
        path = self.folder / "script.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        options = (f"--chdir={self.folder}", "--output=out-%j", *settings.pop("options", ()))
        return JobRequest(str(path), name, options=options, **settings)

    def submit(self, script: str, name: str = "a", **settings: Any) -> int:  # noqa: ANN401
        answer = submit_job(self.head, self.request(script, name, **settings))
        assert isinstance(answer, Submitted), answer
        return answer.job_id

    def find(self, job_id: int) -> Job:
        (job,) = find_jobs(self.head, ids=[job_id])
        return job

    def output(self, job_id: int) -> str:
        return (self.folder / f"out-{job_id}").read_text()


@pytest.fixture
def site(slurm4: Slurm, tmp_path: Path) -> Iterator[Site]:
    site = Site(slurm4, slurm4.cluster.shared / tmp_path.name)
    yield site
    site.head.close()


def test_a_job_is_found_while_it_waits_and_runs_and_after_its_end(site: Site) -> None:
    check_sbatch(site.head)
    blocking = site.submit("exec sleep 600", nodes=4, options=["--exclusive"])
    site.slurm.wait_for(blocking, JobState.RUNNING)
    name = "chain-0123456789abcdef"
    waiting = site.submit("until test -e go; do sleep 0.1; done", name, nodes=4, time_s=90)
    found = find_submission(site.head, name)
    assert found is not None
    assert (found.job_id, found.state, found.limit_s) == (waiting, JobState.PENDING, 120)
    assert describe_state(found).startswith("waits: ")
    cancel_jobs(site.head, [blocking])
    site.slurm.wait_for(waiting, JobState.RUNNING)
    job = site.find(waiting)
    assert (job.name, job.nodes, job.node_list, job.partition) == (name, 4, "node[1-4]", "debug")
    assert job.stdout == f"{site.folder}/out-{waiting}"
    (site.folder / "go").touch()
    site.slurm.wait_for(waiting, JobState.COMPLETED)
    assert [job.job_id for job in find_jobs(site.head, ids=[waiting, 99999], names=[name])] == [waiting]
    assert find_submission(site.head, "chain") is None
    assert describe_state(site.find(blocking)) == "was cancelled"


@pytest.mark.promise("only our own jobs are ours")
def test_a_job_of_another_user_is_not_found_by_its_name(site: Site) -> None:
    nobody = ["env", "--chdir=/", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    theirs = ["sbatch", "--hold", "--parsable", "--job-name=same", "--chdir=/tmp", "--wrap=exit 0"]
    ours = site.submit("exit 0", "same", options=["--hold"])
    other = int(site.slurm.cluster.run("head", [*nobody, *theirs]).stdout)
    found = find_submission(site.head, "same")
    assert found is not None
    assert found.job_id == ours
    cancel_jobs(site.head, [ours])
    assert [job.job_id for job in find_jobs(site.head, ids=[other])] == [other]
    cancel_jobs(site.head, [other])
    found = find_submission(site.head, "same")
    assert found is not None
    assert found.job_id == ours


def test_a_failed_job_reports_its_exit_code_and_its_dependents_are_cancelled(site: Site) -> None:
    first = site.submit("exit 3", options=["--hold"])
    second = site.submit("exit 0", "b", dependency=first)
    third = site.submit("exit 0", "c", dependency=second)
    assert site.find(second).reason == "Dependency"
    site.slurm.cluster.run("head", ["scontrol", "release", str(first)])
    failed = site.slurm.wait_for(first, JobState.FAILED)
    assert describe_state(failed) == "has failed with exit code 3; see its log"
    for job_id in (second, third):
        site.slurm.wait_for(job_id, JobState.CANCELLED)
        assert "a job that it depends on failed" in describe_state(site.find(job_id))


def test_the_ranks_that_srun_starts_have_all_cores_of_their_nodes(site: Site) -> None:
    command = ["sh", "-c", 'echo "$SLURMD_NODENAME $SLURM_CPUS_ON_NODE"']
    argv = RankLaunch(LAUNCHERS["srun"], ("node2", "node1"), 2).argv(command)
    # What a recipe's script asks for; more than its threads are MLSL's servers, and those of the system.
    asked = ["--exclusive", "--ntasks-per-node=2", "--cpus-per-task=2", "--nodelist=node[1-2]"]
    job_id = site.submit(shlex.join(argv), nodes=2, options=asked)
    site.slurm.wait_for(job_id, JobState.COMPLETED)
    lines = sorted(line for line in site.output(job_id).splitlines() if not line.startswith("srun: "))
    assert lines == ["0: node2 8", "1: node2 8", "2: node1 8", "3: node1 8"]


def test_arguments_and_variables_reach_the_script_unchanged(site: Site) -> None:
    script = 'printf "%s\\n" "$@" "$CR_VALUE" "$SLURM_JOB_NAME"'
    name = HOSTILE.replace("é", "e")
    job_id = site.submit(script, name, arguments=("-q", HOSTILE), environment={"CR_VALUE": HOSTILE})
    site.slurm.wait_for(job_id, JobState.COMPLETED)
    assert site.output(job_id).splitlines() == ["-q", HOSTILE, HOSTILE, name]
    assert not (site.folder / "pwned").exists()
    found = find_submission(site.head, name)
    assert found is not None
    assert found.job_id == job_id


def test_a_requeued_job_waits_and_reports_its_restarts(site: Site) -> None:
    job_id = site.submit('test "$SLURM_RESTART_COUNT" || exec sleep 600', options=["--requeue"])
    site.slurm.wait_for(job_id, JobState.RUNNING)
    site.slurm.cluster.run("head", ["scontrol", "requeue", str(job_id)])
    waiting = site.slurm.wait_for(job_id, JobState.PENDING)
    assert describe_state(waiting).startswith("waits to start again (requeued once so far): its begin time")
    job = site.slurm.wait_for(job_id, JobState.COMPLETED)
    assert job.restarts == 1


def test_a_time_limit_ends_a_job_and_is_reported(site: Site) -> None:
    job_id = site.submit("exec sleep 600", time_s=60, options=["--no-requeue"])
    site.slurm.wait_for(job_id, JobState.RUNNING)
    site.slurm.end_soon(job_id)
    job = site.slurm.wait_for(job_id, JobState.TIMEOUT)
    assert describe_state(job).startswith("was terminated at its time limit of 1 min; submit again")


def test_a_signal_reaches_only_the_script_and_an_ended_job_is_ignored(site: Site) -> None:
    script = "trap 'echo told; exit 0' USR1; touch up; while :; do sleep 0.1; done"
    job_id = site.submit(script)
    site.slurm.wait_for(job_id, JobState.RUNNING)
    deadline = time.monotonic() + 20
    while not (site.folder / "up").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    cancel_jobs(site.head, [job_id], signal="USR1", batch=True)
    site.slurm.wait_for(job_id, JobState.COMPLETED)
    assert site.output(job_id) == "told\n"
    cancel_jobs(site.head, [job_id, 99999])
    cancel_jobs(site.head, [job_id, 99999], signal="USR1", batch=True)
    assert site.find(job_id).state is JobState.COMPLETED


def test_a_request_that_slurm_would_refuse_is_reported_and_not_submitted(site: Site) -> None:
    before = site.slurm.jobs()
    for settings, reason in REFUSED:
        refusal = slurm_sbatch.try_submission(site.head, site.request("exit 0", **settings))
        assert refusal is not None
        assert reason in refusal
    assert slurm_sbatch.try_submission(site.head, site.request("exit 0", nodes=4)) is None
    assert site.slurm.jobs() == before


def test_a_request_that_slurm_refuses_is_not_submitted(site: Site) -> None:
    answer = submit_job(site.head, site.request("exit 0", "refused", partition="nope"))
    assert isinstance(answer, Refused)
    assert "Invalid partition name specified" in answer.text
    assert isinstance(submit_job(site.head, JobRequest("/none/such.sh", "refused")), Refused)
    assert find_submission(site.head, "refused") is None


def test_partitions_and_nodes_are_reported(site: Site) -> None:
    partitions = {partition.name: partition for partition in ask_partitions(site.head)}
    assert [name for name, each in partitions.items() if each.is_default] == ["debug"]
    short = partitions["short"]
    assert (short.total_nodes, short.max_nodes, short.max_s) == (4, 2, 600)
    (group,) = ask_node_groups(site.head, "short")
    assert (group.node_list, group.nodes, group.state, group.is_broken) == ("node[1-4]", 4, "idle", False)
    assert {group.partition for group in ask_node_groups(site.head)} == {"debug", "short"}
    assert ask_node_groups(site.head, "nope") == ()


def test_an_unreachable_controller_is_reported_and_its_jobs_are_found_once_it_is_back(
    site: Site,
) -> None:
    job_id = site.submit("exec sleep 600", "before")
    site.slurm.stop_controller()
    try:
        began = time.monotonic()
        with pytest.raises(SchedulerAway, match="Unable to contact slurm controller"):
            find_jobs(site.head, ids=[job_id])
        assert time.monotonic() - began < ASK_S + 5
        answer = submit_job(site.head, site.request("exit 0", "meanwhile"))
        assert isinstance(answer, Unsure)
        with pytest.raises(SchedulerAway):
            cancel_jobs(site.head, [job_id])
    finally:
        site.slurm.start_controller()
    assert find_submission(site.head, "meanwhile") is None
    assert site.find(job_id).name == "before"


def test_a_job_may_be_accepted_although_sbatch_timed_out(site: Site) -> None:
    site.slurm.freeze_controller()
    try:
        with pytest.raises(SchedulerAway):
            find_jobs(site.head, names=["taken"])
        answer = submit_job(site.head, site.request("exit 0", "taken"))
    finally:
        site.slurm.thaw_controller()
    assert isinstance(answer, Unsure)
    deadline = time.monotonic() + 20
    while (found := find_submission(site.head, "taken")) is None:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    site.slurm.wait_for(found.job_id, JobState.COMPLETED)


def test_a_node_that_fails_is_named_and_excluded_from_the_next_try(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(2)
    with Slurm.up(cluster) as slurm:
        site = Site(slurm, cluster.shared / tmp_path.name)
        # node1 runs the script, and so reports the end
        job_id = site.submit("exec sleep 600", nodes=2, options=["--no-requeue"])
        slurm.wait_for(job_id, JobState.RUNNING)
        cluster.crash("node2")
        job = slurm.wait_for(job_id, JobState.NODE_FAIL, within_s=120)
        assert "failed; submit again without that node" in describe_state(job)
        failed = failed_nodes(job, ask_node_groups(site.head))
        assert failed == ("node2",)
        again = site.submit("hostname", exclude=failed)
        slurm.wait_for(again, JobState.COMPLETED)
        assert site.output(again) == "node1\n"
        site.head.close()
    assert cluster.leftovers() == {}
