"""The digits by `caffe-recipes run` on two hosts of two ranks each, under one real hydra.

The recipe's own batch, in three of its phases and a third of their epochs: enough to read the digits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from caffe_recipes.authoring.rescale import RescaleTarget, rescale
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.journal import load_journal
from tests.cluster.harness.cluster import Cluster
from tests.extras import needs_local

pytestmark = [pytest.mark.cluster, needs_local]

BIN = Path(sys.executable).parent
MPI = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
ON_TWO_NODES = RescaleTarget(nodes=2, epochs=24)
PHASES = ("init", "cyc1", "collapse")


class Chain:
    """The digits' recipe, in a Caffe root of its own that all hosts see, with an LMDB in each one's /tmp."""

    def __init__(self, cluster: Cluster, root: Path) -> None:
        self.cluster, self.root, self.run = cluster, root, root / "runs/digits-1"
        root.mkdir()
        recipe = yaml.safe_load(rescale(load_recipe("digits-local"), ON_TWO_NODES).text)
        recipe["name"] = "digits"
        recipe["data"]["train"]["lmdb"] = "/tmp/digits_lmdb"
        recipe["phases"] = [
            {**phase, "snapshot_prefix": f"/tmp/digits_{phase['name']}"}
            for phase in recipe["phases"]
            if phase["name"] in PHASES
        ]
        (root / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
        (root / "hostfile").write_text("node[1-2]:1\n")

    def start(self) -> subprocess.Popen[str]:
        command = [str(BIN / "caffe-recipes"), "run", "recipe.yaml"]
        return self.cluster.popen(
            "head",
            ["sh", "-c", 'cd "$0" && echo $$ >pid && exec "$@"', str(self.root), *command],
            env={**os.environ, **MPI, "XDG_CACHE_HOME": str(self.root / "cache")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self) -> str:
        process = self.start()
        output, _ = process.communicate(timeout=900)
        assert process.returncode == 0, output[-3000:]
        return str(output)

    def kill_in(self, phase: str) -> None:
        """Begin, and kill the run, and it alone, as soon as a phase trains."""
        process, log = self.start(), self.run / f"logs/{phase}-1.log"
        until = time.monotonic() + 900
        while not (log.exists() and "Iteration 0," in log.read_text()):
            assert process.poll() is None, process.communicate()[0][-3000:]
            assert time.monotonic() < until
            time.sleep(0.02)
        self.cluster.run("head", ["kill", "-s", "KILL", (self.root / "pid").read_text().strip()])
        process.communicate()

    def launches(self) -> list[str]:
        events = [json.loads(line) for line in (self.run / "journal.jsonl").read_text().splitlines()]
        return [event["phase"] for event in events if event["event"] == "launched"]

    def models(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.run / "snapshots").iterdir()}

    def hosts_with(self, pattern: str) -> list[str]:
        script = f"ls /tmp/digits_{pattern}"
        return [
            node
            for node in self.cluster.nodes
            if self.cluster.run(node, ["sh", "-c", script], check=False).returncode == 0
        ]


def test_the_digits_train_on_two_hosts_and_a_killed_run_continues_to_the_same_models(
    cluster: Cluster, shared: Path
) -> None:
    undisturbed, killed = Chain(cluster, shared / "undisturbed"), Chain(cluster, shared / "killed")
    output = undisturbed.finish()
    assert "node[1-2]: 2 x 2 ranks of 16 images" in output
    assert "staged examples/digits/digits_train_lmdb (4.22 MB) to /tmp/digits_lmdb on node1, node2" in output
    assert (undisturbed.run / "hostfile").read_text() == "node1\nnode2\n"
    assert undisturbed.hosts_with("lmdb/data.mdb") == ["node1", "node2"]
    assert undisturbed.hosts_with("*.caffemodel") == ["node1"]
    assert undisturbed.launches() == list(PHASES)
    for node in cluster.nodes:  # by these names alone: the checkout itself may lie in /tmp
        cluster.run(node, ["sh", "-c", "rm -rf /tmp/digits_*"])

    killed.kill_in("cyc1")
    assert list(load_journal(killed.run / "journal.jsonl").finished) == ["init"]
    output = killed.finish()
    assert "init: already finished" in output
    assert "cyc1: the trainer of a killed run" in output
    assert killed.launches() == list(PHASES)
    assert killed.models() == undisturbed.models()
    outputs = [load_journal(chain.run / "journal.jsonl").outputs for chain in (undisturbed, killed)]
    assert outputs[0] == outputs[1]
    assert outputs[0] is not None
    assert outputs[0]["loss3/top-1"] > 0.95
