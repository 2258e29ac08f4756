"""The TensorFlow run in a real Slurm's allocation: submitted, and trained on two nodes of one rank each."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from caffe_recipes.cluster.slurm.jobs import JobState
from caffe_recipes.run.submit.submissions import load_submissions, submissions_path
from tests.cluster.harness.slurm import Slurm
from tests.cluster.tensorflow_root import MPI, TensorFlowRoot, needs_tensorflow

pytestmark = [pytest.mark.cluster, needs_tensorflow]

PROGRAM = str(Path(sys.executable).parent / "caffe-recipes")
_PATIENCE_S = 1000  # more than the 15 minutes after which Slurm ends the job


def test_a_submitted_run_trains_and_is_evaluated(slurm4: Slurm, tmp_path: Path) -> None:
    made = TensorFlowRoot(slurm4.cluster, slurm4.cluster.shared / tmp_path.name, steps=40)

    def call(*words: str) -> str:
        argv = ["env", "-C", str(made.root), PROGRAM, *words]
        env = {**os.environ, **MPI, "XDG_CACHE_HOME": str(made.root / "cache")}
        return slurm4.cluster.run("head", argv, env=env).stdout

    call("generate", "recipe.yaml")
    call("submit", "recipe.yaml", "--profile", "mpich", "--time", "15")
    (submission,) = load_submissions(submissions_path(made.root, "tf")).all
    assert submission.job_id is not None
    until = time.monotonic() + _PATIENCE_S
    while not slurm4.job(submission.job_id).state.is_over:
        assert time.monotonic() < until, Path(submission.output).read_text()[-4000:]
        time.sleep(0.5)
    output = Path(submission.output).read_text()
    assert slurm4.job(submission.job_id).state is JobState.COMPLETED, output[-4000:]
    made.check_finished(40)
    assert json.loads(call("status", "recipe.yaml", "--json"))["state"] == "finished"
    trained = [node for node in slurm4.cluster.nodes if made.files_on(node)]
    assert [made.files_on(node) for node in trained] == [made.group(0), made.group(1)]
    made.clean()
