"""The TensorFlow run by `caffe-recipes run` on two hosts; a spare takes the place of one that dies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.harness.cluster import Cluster
from tests.cluster.tensorflow_root import MPI, TensorFlowRoot, needs_tensorflow

pytestmark = [pytest.mark.cluster, needs_tensorflow]

PROGRAM = str(Path(sys.executable).parent / "caffe-recipes")


def start(made: TensorFlowRoot, *words: str) -> subprocess.Popen[str]:
    return made.cluster.popen(
        "head",
        ["env", "-C", str(made.root), PROGRAM, "run", "recipe.yaml", "--caffe-root", ".", *words],
        env={**os.environ, **MPI, "XDG_CACHE_HOME": str(made.root / "cache")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output[-4000:]
    return str(output)


def test_two_hosts_each_train_on_their_own_files(cluster: Cluster, shared: Path) -> None:
    made = TensorFlowRoot(cluster, shared / f"tf-{shared.name}", steps=40)
    (made.root / "hostfile").write_text("node1\nnode2\n")
    output = finish(start(made))
    assert "node[1-2]: 2 x 1 rank of 32 images" in output
    assert [made.files_on(node) for node in cluster.nodes] == [made.group(0), made.group(1), [], []]
    made.check_finished(40)
    made.clean()


def test_a_spare_gets_the_files_of_the_host_that_it_replaces_and_the_run_resumes(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(3)
    made = TensorFlowRoot(cluster, cluster.shared / "tf", steps=100)
    (made.root / "hostfile").write_text("node1\nnode2\nnode3\n")
    process = start(made, "--on-failure", "replace")
    until = time.monotonic() + 300
    while not made.events("checkpointed"):
        assert process.poll() is None, process.communicate()[0][-4000:]
        assert time.monotonic() < until
        time.sleep(0.05)
    cluster.crash("node2")
    output = finish(process)
    assert "node3 replaces node2" in output
    assert "iterations from the checkpoint at" in output
    assert [made.files_on(node) for node in ("node1", "node3")] == [made.group(0), made.group(1)]
    assert len(made.events("launched")) == 2
    made.check_finished(100)
