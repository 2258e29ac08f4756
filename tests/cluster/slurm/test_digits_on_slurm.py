"""The digits by `caffe-torch` in a real Slurm's allocation: two nodes of two ranks each, staged by sbcast."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
import yaml

from caffe_recipes.cluster.slurm.jobs import JobState
from caffe_recipes.run.journal import load_journal
from caffe_recipes.run.submit.submissions import load_submissions, submissions_path
from tests.cluster.harness.cluster import ROOT
from tests.cluster.harness.slurm import Slurm
from tests.extras import needs_local

pytestmark = [pytest.mark.cluster, needs_local]

BIN = Path(sys.executable).parent
MPI = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
# Of the five phases two, cut short: enough to hand weights on, and to read most of the digits.
PHASES = {"init": 200, "collapse": 56}
_PATIENCE_S = 400


def test_the_digits_train_in_an_allocation_to_an_accurate_model(slurm4: Slurm, tmp_path: Path) -> None:
    root = slurm4.cluster.shared / tmp_path.name
    root.mkdir()
    recipe = yaml.safe_load((ROOT / "caffe_recipes/recipes/digits-local.yaml").read_text("utf-8"))
    recipe["name"] = "digits"
    recipe["data"]["train"]["lmdb"] = "/tmp/digits_lmdb"
    recipe["cluster"] |= {"nodes": 2, "batch_per_rank": 16}
    recipe["phases"] = [
        {**phase, "max_iter": PHASES[phase["name"]], "snapshot_prefix": f"/tmp/digits_{phase['name']}"}
        for phase in recipe["phases"]
        if phase["name"] in PHASES
    ]
    (root / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))

    def call(*words: str) -> str:
        argv = ["env", "-C", str(root), str(BIN / "caffe-recipes"), *words]
        env = {**os.environ, **MPI, "XDG_CACHE_HOME": str(root / "cache")}
        return slurm4.cluster.run("head", argv, env=env).stdout

    call("generate", "recipe.yaml")
    call("submit", "recipe.yaml", "--profile", "mpich", "--how", "sbcast", "--time", "15")
    (submission,) = load_submissions(submissions_path(root, "digits")).all
    assert submission.job_id is not None
    until = time.monotonic() + _PATIENCE_S
    while not slurm4.job(submission.job_id).state.is_over:
        assert time.monotonic() < until, Path(submission.output).read_text()[-4000:]
        time.sleep(0.5)
    output = Path(submission.output).read_text()
    assert slurm4.job(submission.job_id).state is JobState.COMPLETED, output[-4000:]
    state = load_journal(root / "runs/digits-1/journal.jsonl")
    assert list(state.finished) == list(PHASES)
    assert state.outputs is not None
    assert state.outputs["loss3/top-1"] > 0.8
    assert json.loads(call("status", "recipe.yaml", "--json"))["state"] == "finished"
    for node in slurm4.cluster.nodes:
        slurm4.cluster.run(node, ["sh", "-c", "rm -rf /tmp/digits_*"])
