"""A Caffe root with a short TensorFlow run: the digits as TFRecords, one rank on each of two hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.tensorflow.records import deal_files
from tests.cluster.harness.cluster import ROOT, Cluster

MPI = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
NODES, FILES = 2, 8
needs_tensorflow = pytest.mark.skipif(
    not (ROOT / ".venv-tf/bin/python").exists(), reason="`make install-tensorflow` has not been run"
)


class TensorFlowRoot:
    """The root, its recipe, and the files that each host is to have."""

    def __init__(self, cluster: Cluster, root: Path, steps: int, every: int = 20) -> None:
        """Write the recipe of a run of so many steps, with a checkpoint `every` so many."""
        self.cluster, self.root, self.run = cluster, root, root / "runs/tf-1"
        self.records = f"/tmp/{root.name}-records/train"
        root.mkdir()
        recipe: dict[str, Any] = yaml.safe_load(shipped_recipes()["tf-digits-local"].file.read_text("utf-8"))
        recipe["name"] = "tf"
        recipe["cluster"] |= {"nodes": NODES, "ranks_per_node": 1}
        run = recipe["tensorflow"]
        run["data"]["train"]["folder"] = self.records
        run["schedule"] |= {"warmup_steps": 6, "steps": steps}
        run["flags"] = {"save_checkpoints_steps": every}
        (root / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind in the run's journal."""
        journal = self.run / "journal.jsonl"
        lines = journal.read_text().splitlines() if journal.exists() else []
        return [event for line in lines if (event := json.loads(line))["event"] == kind]

    def files_on(self, node: str) -> list[str]:
        """Return the names of the training records on a host."""
        script = f"ls {self.records} 2>/dev/null || :"
        return self.cluster.run(node, ["sh", "-c", script]).stdout.split()

    def group(self, number: int) -> list[str]:
        """Return the names of the records that the ranks of a node read."""
        made = json.loads((self.root / "examples/digits/train.manifest.json").read_text())
        names = [f"{made['prefix']}-{index:05d}-of-{FILES:05d}" for index in range(FILES)]
        return sorted(deal_files(names, NODES, number, made["seed"]))

    def check_finished(self, steps: int) -> None:
        """Make sure that the run has trained to its end, and that the evaluation is of that end."""
        (finished,) = self.events("finished")
        assert finished["snapshot"] == f"runs/tf-1/snapshots/model.ckpt-{steps}.index"
        (evaluated,) = self.events("evaluated")
        assert evaluated["outputs"].keys() == {"top-1", "top-5", "loss"}

    def clean(self) -> None:
        """Remove the records from the hosts."""
        for node in self.cluster.nodes:
            self.cluster.run(node, ["rm", "-rf", str(Path(self.records).parent)], check=False)
