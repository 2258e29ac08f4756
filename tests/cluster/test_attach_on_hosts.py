"""A run on the head, started and watched by ssh."""

from __future__ import annotations

import io
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from caffe_recipes.cluster.ssh import SshHost
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.monitor.follow import AttachOptions, FollowEnv, attach
from tests.cluster.harness.cluster import Cluster
from tests.run.conftest import RECIPE, _write_lmdb
from tests.run.fake_caffe import place_program

pytestmark = pytest.mark.cluster

BIN = Path(sys.executable).parent


def make_root(root: Path) -> Path:
    """Make a Caffe root that all hosts see, whose second phase waits for the file `release`."""
    root.mkdir()
    recipe = RECIPE.replace("nodes: 1, ranks_per_node: 2", "nodes: 2, ranks_per_node: 1")
    (root / "small.yaml").write_text(recipe)
    (root / "hostfile").write_text("node1\nnode2\n")
    (root / "behaviour.json").write_text(json.dumps({"cyc1": "waits"}))
    _write_lmdb(root / "data" / "train_lmdb", 128)
    _write_lmdb(root / "data" / "test_lmdb", 16)
    place_program(root)
    return root


def start_by_ssh(cluster: Cluster, root: Path) -> subprocess.Popen[str]:
    """Start a detached run on the head from node1, as a laptop does."""
    run = shlex.join([str(BIN / "caffe-recipes"), "run", "small.yaml", "--detach"])
    settings = f"PATH={BIN}:$PATH XDG_CACHE_HOME={shlex.quote(str(root / 'cache'))}"
    command = f"cd {shlex.quote(str(root))} && {settings} {run}"
    argv = ["ssh", "-o", "BatchMode=yes", "head", command]
    return cluster.popen("node1", argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def lose_logins(cluster: Cluster, host: str) -> None:
    """Refuse new logins on a host, and kill the processes of existing ones."""
    cluster.stop_sshd(host)
    namespace = Path(f"/proc/{cluster.pids[host]}/ns/pid").readlink()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "ns/pid").readlink() == namespace:
                command = (entry / "cmdline").read_bytes()
                if b"sshd" in command and b"root" in command and b"listener" not in command:
                    os.kill(int(entry.name), signal.SIGKILL)
        except OSError:  # has ended
            continue


def test_a_run_started_by_ssh_outlives_its_login_and_is_watched_from_elsewhere(
    cluster: Cluster, shared: Path
) -> None:
    root = make_root(shared / "a root")
    journal, until = root / "runs/small-1/journal.jsonl", time.monotonic() + 120
    starter = start_by_ssh(cluster, root)
    assert starter.stdout
    first = starter.stdout.readline()
    starter.kill()  # before it trains
    assert first.startswith("checking "), first + starter.stdout.read()
    starter.communicate()
    while not journal.exists():
        assert time.monotonic() < until
        time.sleep(0.05)

    output = io.StringIO()
    to_do: list[tuple[str, Callable[[], None]]] = [
        ("cyc1 2/3  4/6", lambda: lose_logins(cluster, "head")),
        ("; retrying", lambda: cluster.start_sshd("head")),
        ("head: connected again", (root / "release").touch),
    ]

    def pause(seconds: float) -> None:
        assert time.monotonic() < until, output.getvalue()
        if to_do and to_do[0][0] in output.getvalue():
            to_do.pop(0)[1]()
        time.sleep(0.1)

    ticks = itertools.count(0, 60)
    reporter = Reporter(Console(file=output, soft_wrap=True, highlight=False), lambda: next(ticks))
    env = FollowEnv(lambda name, copy_with: SshHost(name, cluster.ssh, patience_s=1), pause)
    attach("small", AttachOptions(str(root), on="head"), reporter, env)
    lines = output.getvalue().splitlines()
    assert lines[0].endswith(" on head")
    assert sum(line.endswith("; retrying") for line in lines) == 1
    table = lines[next(index for index, line in enumerate(lines) if line.startswith("phase ")) :]

    argv = [
        str(BIN / "caffe-recipes"),
        "attach",
        "small-1",
        "--on",
        "head",
        "--caffe-root",
        str(root),
        "--once",
    ]
    assert cluster.run("node2", argv).stdout.splitlines()[-len(table) :] == table
    (written,) = (root / "logs/small").glob("detached-*.log")
    assert written.read_text().splitlines()[-len(table) :] == table
