"""Staging on separate hosts, with the command that users call, on the head."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cluster.harness.cluster import ROOT, Cluster
from tests.cluster.harness.lmdbs import make_data

pytestmark = pytest.mark.cluster

BIN = Path(sys.executable).parent
LMDB = "/tmp/train lmdb"
MPI = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
MB = 10**6
WAYS = ["copy", "chain", "ssh"]


class Staging:
    """A recipe, its source and its hostfile in the shared folder of a cluster."""

    def __init__(self, cluster: Cluster, folder: Path, size_bytes: int = 24 * MB) -> None:
        self.cluster, self.folder = cluster, folder
        self.content = make_data(size_bytes)
        (folder / "source").mkdir()
        (folder / "source" / "data.mdb").write_bytes(self.content)
        text = (ROOT / "caffe_recipes" / "recipes" / "digits-local.yaml").read_text()
        text = text.replace("lmdb: tmp/digits_train_lmdb", f"lmdb: {LMDB}")
        (folder / "recipe.yaml").write_text(text)
        self.hostfile = folder / "hostfile"
        self.hostfile.write_text("".join(f"{node}\n" for node in cluster.nodes))
        self.environment = {**MPI, "XDG_CACHE_HOME": str(folder / "cache")}

    def argv(self, *words: str) -> list[str]:
        source = ["--lmdb-source", str(self.folder / "source"), "--hostfile", str(self.hostfile)]
        program = [str(BIN / "caffe-recipes"), "stage", str(self.folder / "recipe.yaml")]
        return [*program, "--caffe-root", str(self.folder), *source, *words]

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.cluster.run("head", self.argv(*words), env=self.environment, check=False)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return self.cluster.popen(
            "head",
            ["sh", "-c", 'echo $$ >"$0"; exec "$@"', str(self.folder / "pid"), *self.argv(*words)],
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def kill(self, signal: str) -> None:
        """Send a signal to the process that `start` started."""
        self.cluster.run("head", ["kill", "-s", signal, (self.folder / "pid").read_text().strip()])

    def whole_on(self) -> list[str]:
        """Return the hosts whose data.mdb is the source's; nothing is half there under that name."""
        found = []
        for node in self.cluster.nodes:
            if node in self.cluster.pids:
                script = f"cat '{LMDB}/data.mdb' 2>/dev/null | cmp - '{self.folder}/source/data.mdb'"
                if self.cluster.run(node, ["sh", "-c", script], check=False).returncode == 0:
                    found.append(node)
        return found

    def on(self, node: str, script: str) -> str:
        return self.cluster.run(node, ["sh", "-c", script]).stdout

    def half_way(self, started: subprocess.Popen[str], node: str) -> None:
        """Wait until a part of some size is on a node; a busy machine may need a minute to start ranks."""
        script = f"stat -c %s '{LMDB}'/.data.mdb.part-* 2>/dev/null || true"
        until = time.monotonic() + 200
        while started.poll() is None and time.monotonic() < until:
            sizes = [int(size) for size in self.on(node, script).split()]
            if max(sizes, default=0) > len(self.content) // 4:
                return
            time.sleep(0.05)
        started.terminate()
        raise AssertionError(f"nothing arrives on {node}: {started.communicate()[0]}")


def empty_tmp(cluster: Cluster) -> None:
    # A checkout in /tmp is mounted there on every host: without these options it would be deleted for good.
    for node in cluster.nodes:
        cluster.run(node, ["sh", "-c", "rm -rf --one-file-system --preserve-root=all /tmp/* || :"])


@pytest.fixture
def staging(cluster: Cluster, shared: Path) -> Staging:
    empty_tmp(cluster)
    return Staging(cluster, shared)


SLOW = """\
name: slow
title: where every node reading for itself takes longest, and a chain is the quickest
rates: {link_gb_per_s: 0.001, shared_gb_per_s: 0.001}
launcher: {environment: {MPIR_CVAR_CH4_NETMOD: ofi, FI_PROVIDER: tcp}}
copy_with: ssh
"""


def test_a_chain_that_a_node_cannot_join_falls_back_to_the_next_best_way(staging: Staging) -> None:
    """The profile enables it, and gives its ranks the environment that they need here."""
    (staging.folder / "slow.yaml").write_text(SLOW)
    staging.environment = {"XDG_CACHE_HOME": str(staging.folder / "cache")}
    profile = ["--profile", str(staging.folder / "slow.yaml")]
    spec = find_spec("mpi4py")
    assert spec is not None
    assert spec.origin is not None
    staging.cluster.replace("node3", spec.origin, "raise ImportError('no MPI on this node')\n")
    try:
        done = staging.call(*profile)
    finally:
        staging.cluster.restore("node3", spec.origin)
    assert (done.returncode, done.stderr) == (0, "")
    assert "  <- chosen" in next(line for line in done.stdout.splitlines() if line.startswith("  chain"))
    why = "the chain did not start (node3: ImportError: no MPI on this node)"
    assert f"{why}; using copy for 4 hosts\n" in done.stdout
    assert staging.whole_on() == list(staging.cluster.nodes)
    staging.on("node2", f"rm -r '{LMDB}'")
    assert "does not start" not in staging.call(*profile).stdout
    assert staging.whole_on() == list(staging.cluster.nodes)


@pytest.mark.parametrize("how", WAYS)
def test_each_way_stages_four_hosts_fills_what_is_missing_and_cleans(staging: Staging, how: str) -> None:
    nodes = list(staging.cluster.nodes)
    done = staging.call("--how", how)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "0 had it, 4 received it, 0 failed"
    assert staging.whole_on() == nodes
    assert staging.on("node3", f"ls -A '{LMDB}'; stat -c %a '{LMDB}' '{LMDB}/data.mdb'").split() == [
        *(".caffe-recipes-staged", "data.mdb", "700", "600"),
    ]
    inodes = [staging.on(node, f"stat -c '%i %y' '{LMDB}/data.mdb'") for node in nodes]
    staging.on("node3", f"rm -r '{LMDB}'")
    again = staging.call("--how", how)
    assert again.stdout.splitlines()[-1] == "3 had it, 1 received it, 0 failed"
    assert staging.whole_on() == nodes
    for node, inode in zip(nodes, inodes, strict=True):
        if node != "node3":
            assert staging.on(node, f"stat -c '%i %y' '{LMDB}/data.mdb'") == inode
    staging.on("node2", "echo mine >/tmp/mine")
    cleaned = staging.call("--clean")
    assert cleaned.stdout.count(f"removed {len(staging.content):,} bytes") == 4
    assert [staging.on(node, "ls -A /tmp") for node in nodes] == ["", "mine\n", "", ""]


@pytest.mark.parametrize("how", WAYS)
def test_a_full_disk_is_named_before_anything_is_sent_and_the_rest_are_staged(
    make_cluster: Callable[..., Cluster], how: str
) -> None:
    cluster = make_cluster(4, tmp="40m")
    staging = Staging(cluster, cluster.shared)
    staging.on("node2", f"fallocate -l {20 * MB} /tmp/full")
    done = staging.call("--how", how)
    assert done.returncode == 3
    assert "node2: failed: not enough space: 2" in done.stderr
    assert "bytes free, 24,000,000 needed" in done.stderr
    assert "Error: stage: 1 of 4 hosts lack the training data: node2" in done.stderr
    assert staging.whole_on() == ["node1", "node3", "node4"]
    assert staging.on("node2", "ls -A /tmp") == "full\n"


@pytest.mark.parametrize("how", ["chain", "ssh"])
def test_a_disk_that_fills_on_the_way_is_named_and_the_rest_are_staged(
    make_cluster: Callable[..., Cluster], how: str
) -> None:
    cluster = make_cluster(4, tmp="40m")
    staging = Staging(cluster, cluster.shared)
    cluster.rate("20mbit")  # so that half_way sees it on a busy machine, too
    started = staging.start("--how", how)
    staging.half_way(started, "node2")
    staging.on("node2", f"fallocate -l {22 * MB} /tmp/full")
    output, _ = started.communicate(timeout=120)
    assert started.returncode == 3
    assert "node2: failed: " in output
    assert "No space left on device" in output
    assert staging.whole_on() == ["node1", "node3", "node4"]
    assert staging.on("node2", "ls -A /tmp") == "full\n"


@pytest.mark.parametrize(
    ("how", "attack"),
    [("copy", "folder"), ("copy", "link"), ("chain", "link"), ("ssh", "dangling"), ("copy", "data")],
)
def test_paths_occupied_by_another_user_are_refused_and_not_touched(
    staging: Staging, how: str, attack: str
) -> None:
    staging.on("node2", "mkdir -m 700 /tmp/victim; echo precious >/tmp/victim/data.mdb")
    staging.on(
        "node2",
        {
            "folder": f"mkdir -m 777 '{LMDB}'; chown nobody '{LMDB}'",
            "link": f"ln -s /tmp/victim '{LMDB}'; chown -h nobody '{LMDB}'",
            "dangling": f"ln -s victim/none '{LMDB}'; chown -h nobody '{LMDB}'",
            "data": f"mkdir -m 755 '{LMDB}'; cp '{staging.folder}/source/data.mdb' '{LMDB}';"
            f"chown nobody '{LMDB}/data.mdb'",
        }[attack],
    )
    before = staging.on("node2", "find /tmp -printf '%p %u %m %l %T@\\n' | sort")
    done = staging.call("--how", how)
    assert done.returncode == 3
    assert "node2: failed: " in done.stderr
    assert "belongs to user nobody (65534), who can change its contents\n" in done.stderr
    assert staging.on("node2", "find /tmp -printf '%p %u %m %l %T@\\n' | sort") == before
    assert staging.on("node2", "cat /tmp/victim/data.mdb") == "precious\n"
    assert set(staging.whole_on()) - {"node2"} == {"node1", "node3", "node4"}
    staging.call("--clean")
    assert staging.on("node2", "find /tmp -printf '%p %u %m %l %T@\\n' | sort") == before


def test_a_half_copy_that_a_killed_staging_left_is_never_an_lmdb_and_is_replaced(staging: Staging) -> None:
    staging.cluster.rate("40mbit")
    started = staging.start("--how", "chain")
    staging.half_way(started, "node4")
    staging.kill("KILL")
    started.communicate()
    for node in staging.cluster.nodes:
        assert "data.mdb" not in staging.on(node, f"ls -A '{LMDB}'").split()
    assert staging.cluster.leftovers(within_s=90) == {}
    staging.cluster.rate(None)
    assert staging.call("--how", "chain").returncode == 0
    assert staging.whole_on() == list(staging.cluster.nodes)
    assert staging.on("node4", f"ls -A '{LMDB}'").split() == [".caffe-recipes-staged", "data.mdb"]


def test_an_interrupt_leaves_no_partial_copy_and_no_process(staging: Staging) -> None:
    staging.cluster.rate("40mbit")
    started = staging.start("--how", "chain")
    staging.half_way(started, "node4")
    staging.kill("INT")
    started.communicate(timeout=60)
    assert started.returncode == 130
    assert staging.cluster.leftovers(within_s=20) == {}
    # hydra's proxies, when they are ended, leave a file of their own behind.
    left = {name for node in staging.cluster.nodes for name in staging.on(node, "ls -A /tmp").split()}
    assert {name for name in left if not name.startswith("hydra_")} == set()


@pytest.mark.parametrize("victim", ["node1", "node3", "node4"])
def test_a_host_that_crashes_on_the_way_is_named_and_the_chain_continues_without_it(
    make_cluster: Callable[..., Cluster], victim: str
) -> None:
    cluster = make_cluster(4)
    staging = Staging(cluster, cluster.shared, 60 * MB)
    cluster.rate("100mbit")
    started = staging.start("--how", "chain")
    staging.half_way(started, "node4")
    cluster.crash(victim)
    output, _ = started.communicate(timeout=120)
    assert started.returncode == 3, output
    assert f"continuing without {victim} to 3 hosts" in output
    assert f"{victim}: failed: failed during chain staging" in output
    assert staging.whole_on() == [node for node in cluster.nodes if node != victim]
    assert cluster.leftovers() == {}
    cluster.boot(victim)
    cluster.rate(None)
    done = staging.call()
    assert done.stdout.splitlines()[-1] == "3 had it, 1 received it, 0 failed"


@pytest.mark.parametrize("how", ["copy", "ssh"])
def test_a_host_that_crashes_while_it_is_sent_to_is_named_and_the_rest_are_staged(
    make_cluster: Callable[..., Cluster], how: str
) -> None:
    cluster = make_cluster(4)
    staging = Staging(cluster, cluster.shared)
    if how == "copy":  # from a shared file system that belongs to no host: it stalls half way
        stalls = '#!/bin/sh\nhead -c 9000000 "$2" >"$3"; exec sleep 600\n'
        cluster.replace("node3", "/usr/bin/cp", stalls)
    cluster.rate("40mbit")
    started = staging.start("--how", how)
    staging.half_way(started, "node3")
    cluster.crash("node3")
    output, _ = started.communicate(timeout=120)
    assert started.returncode == 3, output
    assert "node3: failed: " in output
    assert staging.whole_on() == ["node1", "node2", "node4"]


def test_a_host_that_falls_silent_is_named_within_two_minutes_and_the_rest_are_staged(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(4)
    staging = Staging(cluster, cluster.shared, 60 * MB)
    cluster.rate("100mbit")
    started = staging.start("--how", "chain")
    staging.half_way(started, "node4")
    cluster.cut("node3")
    output, _ = started.communicate(timeout=180)
    assert started.returncode == 3, output
    assert "node3: failed: failed during chain staging" in output
    assert staging.whole_on() == ["node1", "node2", "node4"]
    assert cluster.leftovers(within_s=90) == {}
