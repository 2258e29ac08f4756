"""A job at its time limit, a node that is lost, a Slurm that is silent for a while: the chain continues."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from caffe_recipes.cluster.slurm.jobs import JobState
from tests.cluster.faults.faulty_chain import PHASES
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.slurm import Slurm
from tests.cluster.slurm.submitted_chain import SubmittedChain

pytestmark = pytest.mark.cluster

AWAY_S = 30.0
HOLD = "until test -e '{root}/release'; do sleep 0.05; done"


def test_a_job_at_its_time_limit_keeps_a_snapshot_is_requeued_and_resumes_the_phase(
    chain: SubmittedChain,
) -> None:
    job_id = chain.submit_amid("cyc1", "--time", "3", stays_at=6)  # it is warned a minute before the end
    chain.slurm.end_soon(job_id, 57)
    chain.wait_until(lambda: "asked Caffe for a snapshot" in chain.job_output())
    chain.behave()
    chain.release()
    chain.slurm.wait_for(job_id, JobState.PENDING)
    chain.slurm.begin(job_id, "now+1hour")  # not while a busy machine still starts `status`
    chain.wait_until(lambda: chain.slurm.job(job_id).reason == "BeginTime")
    output = chain.call("status", "recipe.yaml")
    chain.slurm.begin(job_id, "now")
    assert re.search(r"^ *state +waiting$", output, re.MULTILINE)
    assert (
        f"{job_id} waits to start again (requeued once so far): its begin time has not been reached" in output
    )
    assert chain.finish_job(job_id).restarts == 1
    assert chain.launched() == ["init", "cyc1", "cyc1", "last"]
    log = chain.log("cyc1", 2)
    assert f"Resuming from {chain.tmp}/cyc1_iter_5.solverstate" in log
    assert re.findall(r"Iteration (\d+), loss", log)[0] == "6"
    output = chain.job_output()
    assert f"the time limit is near; requeueing job {job_id} to resume" in output
    assert "cyc1: 3 iterations from the checkpoint at 5" in output
    chain.check_files()
    assert [each.job_id for each in chain.submissions()] == [job_id]


def test_while_slurm_does_not_answer_the_run_continues_and_is_not_reported_as_failed(
    chain: SubmittedChain,
) -> None:
    job_id = chain.submit_amid("cyc1", stays_at=6)
    watching = chain.start_call("attach", "recipe.yaml")
    watching.wait_until(lambda: "cyc1" in watching.read_output())
    chain.slurm.stop_controller()
    back_s = time.monotonic() + AWAY_S
    try:
        status, summary = chain.start_call("status", "recipe.yaml"), chain.start_call("status")
        cancel = chain.start_call("cancel", "recipe.yaml")
        chain.release()
        chain.wait_until(lambda: "Iteration 6, lr" in chain.log("cyc1"))
        output = status.finish()
        assert re.search(r"^ *state +unknown", output, re.MULTILINE)
        assert f"{job_id} unknown since " in output
        assert "failed" not in output + summary.finish()
        assert "nothing was cancelled" in cancel.finish(3)
        time.sleep(max(0.0, back_s - time.monotonic()))
        submit = chain.start_call("submit", "recipe.yaml", "--profile", "site.yaml")
        submit.wait_until(lambda: "retrying" in submit.read_output())
    finally:
        chain.slurm.start_controller()
    assert f"already submitted: job {job_id}" in submit.finish(2)
    (chain.root / "doomsday").touch()
    assert "model: runs/small-1/snapshots/last_iter_6.caffemodel" in watching.finish()
    chain.finish_job(job_id)
    assert chain.launched() == list(PHASES)
    assert [each.job_id for each in chain.submissions()] == [job_id]
    chain.check_files()


def test_ranks_are_started_once_slurm_is_back(chain: SubmittedChain) -> None:
    """hydra has Slurm start them: its srun gives up after some seconds, and it would never notice."""
    caffe = chain.root / "caffe"
    shebang, rest = caffe.read_text().split("\n", 1)
    # The preflight tries the launcher, and the trainer, which takes its time: Slurm is not used meanwhile.
    caffe.write_text(f"{shebang}\n{HOLD.format(root=chain.root)}\n{rest}")
    job_id = chain.submit()
    chain.wait_until(lambda: chain.slurm.has_ended_step(job_id, 0))
    chain.slurm.stop_controller()
    try:
        chain.release()
        chain.wait_until(lambda: "waiting for Slurm, which starts the ranks" in chain.job_output())
        assert chain.has_event("staged")
        assert chain.launched() == []
    finally:
        chain.slurm.start_controller()
    chain.finish_job(job_id)
    assert chain.launched() == list(PHASES)
    chain.check_files()


def test_a_spare_of_the_job_replaces_a_node_whose_cable_is_cut_although_its_step_cannot_end(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    """Slurm gives up a silent node only after minutes; until then the old step holds its other nodes."""
    cluster = make_cluster(3)
    with Slurm.up(cluster, settings={"SlurmdTimeout": "300"}) as slurm, cluster.inside("head"):
        chain = SubmittedChain(slurm, cluster.shared / tmp_path.name, 2)
        job_id = chain.submit_amid("cyc1", "--spares", "1", "--on-failure", "replace")
        cluster.cut("node2")
        chain.wait_until(lambda: "node3 replaces node2" in chain.job_output())
        chain.behave()
        chain.release()
        chain.wait_until(lambda: slurm.job(job_id).state is not JobState.RUNNING)
        cluster.reconnect("node2")  # until then Slurm waits for it, to complete the job
        chain.finish_job(job_id)
        assert f"ended step {job_id}." in chain.job_output()
        assert chain.launched() == ["init", "cyc1", "cyc1", "last"]
        chain.check_files()
        slurm.clear()
    assert cluster.leftovers() == {}
