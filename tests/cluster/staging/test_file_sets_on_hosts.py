"""A set of files staged on separate hosts with the command that users call; a spare replaces a host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from caffe_recipes.cluster.staging.relay import digest_of
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.tensorflow.records import deal_files
from tests.cluster.harness.cluster import ROOT, Cluster
from tests.cluster.staging.test_stage_on_hosts import BIN, Staging, empty_tmp

pytestmark = pytest.mark.cluster

FOLDER = "/tmp/a/train"
NODES, FILES = 3, 9
NAMES = [f"train-{number:05d}-of-{FILES:05d}" for number in range(FILES)]
# The training program's own check of the files of a group, on the host.
LOAD = """
import sys
sys.path.insert(0, sys.argv[1])
from record_files import BadInput, load_files
try:
    load_files(sys.argv[2], 90, 10, 3, int(sys.argv[3]))
except BadInput as error:
    print(error)
"""


class Records(Staging):
    """A recipe of three hosts, its records, and a hostfile of four, in the shared folder of a cluster."""

    def __init__(self, cluster: Cluster, folder: Path, file_bytes: int = 300_000) -> None:
        self.cluster, self.folder, self.source = cluster, folder, folder / "made" / "train"
        self.environment = {"XDG_CACHE_HOME": str(folder / "cache")}
        self.source.mkdir(parents=True)
        for name in NAMES:
            (self.source / name).write_bytes(os.urandom(file_bytes))
        made = {"records": 90, "shards": FILES, "seed": 1, "prefix": "train", "classes": None, "plan": ""}
        made["sizes_bytes"] = [file_bytes] * FILES
        made["digests"] = [digest_of(self.source / name) for name in NAMES]
        (folder / "made/train.manifest.json").write_text(json.dumps({"format": 1, **made}))
        known = yaml.safe_load(shipped_recipes()["tf-digits-local"].file.read_text("utf-8"))
        known["cluster"] |= {"nodes": NODES, "batch_per_rank": 5}
        known["tensorflow"]["flags"] = {"file_groups": NODES}
        known["tensorflow"]["data"] = {
            "train": {"folder": FOLDER, "source": str(self.source), "files": FILES, "images": 90},
            "validation": {"folder": "/tmp/validation", "files": 1, "images": 3},
        }
        (folder / "recipe.yaml").write_text(yaml.safe_dump(known))
        self.place(*cluster.nodes)

    def place(self, *hosts: str) -> None:
        """Write the hostfile."""
        (self.folder / "hostfile").write_text("".join(f"{host}\n" for host in hosts))

    def argv(self, *words: str) -> list[str]:
        program = [str(BIN / "caffe-recipes"), "stage", str(self.folder / "recipe.yaml")]
        return [
            *program,
            "--caffe-root",
            str(self.folder),
            "--hostfile",
            str(self.folder / "hostfile"),
            *words,
        ]

    def names_on(self, node: str) -> list[str]:
        """Return the files of the set on a host that are equal to the source's; there are no others."""
        same = f'for f in train-*; do cmp -s "$f" "{self.source}/$f" && echo "$f"; done'
        names = self.on(node, f"cd {FOLDER} 2>/dev/null && {same} || :").split()
        there = self.on(node, f"cd {FOLDER} 2>/dev/null && ls train-* || :").split()
        assert names == there
        return names

    def load(self, node: str, group: int) -> str:
        """Have the training program look for the files of a group on a host; return what it misses."""
        words = [sys.executable, "-c", LOAD, str(ROOT / "tensorflow_programs"), FOLDER, str(group)]
        return self.cluster.run(node, words).stdout

    def half_way(self, started: subprocess.Popen[str], node: str) -> None:
        """Wait until the first file is on a node, and the second is on its way."""
        until = time.monotonic() + 200
        while started.poll() is None and time.monotonic() < until:
            if self.on(node, f"ls {FOLDER} 2>/dev/null || :").split():
                return
            time.sleep(0.05)
        started.terminate()
        raise AssertionError(f"nothing arrives on {node}: {started.communicate()[0]}")


@pytest.fixture
def records(cluster: Cluster, shared: Path) -> Records:
    empty_tmp(cluster)
    return Records(cluster, shared)


def group(number: int) -> list[str]:
    return deal_files(NAMES, NODES, number, seed=1)


@pytest.mark.parametrize("how", ["copy", "ssh"])
def test_each_host_gets_what_its_ranks_read_and_a_spare_that_of_the_host_it_replaces(
    records: Records, how: str
) -> None:
    done = records.call("--how", how)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "0 had it, 3 received it, 0 failed"
    nodes = records.cluster.nodes
    assert [records.names_on(node) for node in nodes] == [group(0), group(1), group(2), []]
    assert [records.load(node, number) for number, node in enumerate(nodes[:3])] == [""] * 3
    assert f"missing on {nodes[0]}; group 1 of 3 reads it; copy the records again" in records.load(
        nodes[0], 1
    )
    before = [records.on(node, f"stat -c '%n %i %y' {FOLDER}/train-*") for node in nodes[:3]]
    records.place(nodes[0], nodes[3], nodes[2], nodes[1])
    again = records.call("--how", how)
    assert again.stdout.splitlines()[-1] == "2 had it, 1 received it, 0 failed"
    assert records.names_on(nodes[3]) == group(1)
    assert records.load(nodes[3], 1) == ""
    assert [records.on(node, f"stat -c '%n %i %y' {FOLDER}/train-*") for node in nodes[:3]] == before
    records.on(nodes[1], "echo mine >/tmp/mine")
    assert records.call("--clean").returncode == 0
    assert [records.on(node, "ls -A /tmp") for node in nodes] == ["", "mine\n", "", ""]


def test_whole_copies_go_to_all_hosts_and_fill_what_is_missing(records: Records) -> None:
    records.call()
    done = records.call("--whole")
    assert done.stdout.splitlines()[-1] == "0 had it, 4 received it, 0 failed"
    assert [records.names_on(node) for node in records.cluster.nodes] == [NAMES] * 4


def test_a_killed_staging_is_resumed_with_the_files_that_are_missing(records: Records) -> None:
    records.cluster.rate("4mbit")
    started = records.start("--how", "ssh")
    records.half_way(started, "node1")
    records.cluster.run("head", ["kill", "-s", "KILL", (records.folder / "pid").read_text().strip()])
    started.communicate()
    assert records.cluster.leftovers(within_s=90) == {}
    records.cluster.rate(None)
    there = records.names_on("node1")
    assert 0 < len(there) < 3
    before = records.on("node1", f"stat -c %i {FOLDER}/{there[0]}")
    assert records.call().returncode == 0
    assert [records.names_on(node) for node in records.cluster.nodes[:3]] == [group(0), group(1), group(2)]
    assert records.on("node1", f"stat -c %i {FOLDER}/{there[0]}") == before
    assert "part-" not in records.on("node1", f"ls -A {FOLDER}")


@pytest.mark.promise("snapshots and staged copies are ours alone")
def test_paths_occupied_by_another_user_are_refused_and_not_touched(records: Records) -> None:
    records.on("node2", f"mkdir -p /tmp/a; mkdir -m 755 {FOLDER}; chown nobody /tmp/a {FOLDER}")
    before = records.on("node2", "find /tmp -printf '%p %u %m %l %T@\\n' | sort")
    done = records.call()
    assert done.returncode == 3
    assert "node2: failed: " in done.stderr
    assert "belongs to user nobody (65534), who can change its contents\n" in done.stderr
    assert [records.names_on(node) for node in ("node1", "node3")] == [group(0), group(2)]
    records.call("--clean")
    assert records.on("node2", "find /tmp -printf '%p %u %m %l %T@\\n' | sort") == before


def test_a_host_that_crashes_on_the_way_is_named_and_the_rest_are_staged(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(4)
    records = Records(cluster, cluster.shared)
    cluster.rate("4mbit")
    started = records.start("--how", "ssh")
    records.half_way(started, "node2")
    cluster.crash("node2")
    cluster.rate(None)
    output, _ = started.communicate(timeout=180)
    assert started.returncode == 3, output
    assert "node2: failed: " in output
    assert [records.names_on(node) for node in ("node1", "node3")] == [group(0), group(2)]
