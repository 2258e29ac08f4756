"""Staging by sbcast, which needs an allocation: inside one of a real Slurm."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lmdb
import pytest

from caffe_recipes.cluster.slurm.jobs import JobState
from tests.cluster.harness.cluster import ROOT
from tests.cluster.harness.slurm import Slurm

pytestmark = pytest.mark.cluster

COMMAND = Path(sys.executable).parent / "caffe-recipes"
LMDB = "/tmp/train lmdb"
SCRIPT = """\
#!/bin/sh
set -eu
scontrol show hostnames "$SLURM_JOB_NODELIST" >hostfile
stage() {{ '{command}' stage recipe.yaml --lmdb-source source --hostfile hostfile --how sbcast; }}
stage
echo part
srun --nodes=1 --ntasks=1 --nodelist=node2 rm '{lmdb}/data.mdb'
stage
"""


def test_sbcast_copies_an_lmdb_to_every_node_and_fills_in_a_missing_copy(
    slurm4: Slurm, tmp_path: Path
) -> None:
    cluster = slurm4.cluster
    folder = cluster.shared / tmp_path.name
    (folder / "source").mkdir(parents=True)
    with (
        lmdb.open(str(folder / "source"), map_size=1 << 26, lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key in range(1000):  # several blocks of sbcast's, the last one not whole
            transaction.put(b"%08d" % key, os.urandom(20_000))
    text = (ROOT / "caffe_recipes" / "recipes" / "digits-local.yaml").read_text()
    (folder / "recipe.yaml").write_text(text.replace("lmdb: tmp/digits_train_lmdb", f"lmdb: {LMDB}"))
    (folder / "job.sh").write_text(SCRIPT.format(command=COMMAND, lmdb=LMDB))
    argv = ["sbatch", "--parsable", "-N4", f"--chdir={folder}", "--output=out", str(folder / "job.sh")]
    submitted = cluster.run("head", argv, env={"XDG_CACHE_HOME": str(folder / "cache")})
    try:
        slurm4.wait_for(int(submitted.stdout), JobState.COMPLETED)
    finally:
        output = (folder / "out").read_text()
        print(output)
    assert [line for line in output.splitlines() if "had it, " in line] == [
        "0 had it, 4 received it, 0 failed",
        "3 had it, 1 received it, 0 failed",
    ]
    for node in cluster.nodes:
        cluster.run(node, ["cmp", f"{LMDB}/data.mdb", str(folder / "source" / "data.mdb")])
        assert cluster.run(node, ["find", LMDB, "-name", "*.part-*"]).stdout == ""
        cluster.run(node, ["rm", "-r", LMDB])
