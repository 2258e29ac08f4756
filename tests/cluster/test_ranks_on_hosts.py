"""Ranks under a real hydra, and the pulses of hosts whose links and sshds fail."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from caffe_recipes.cluster.ranks import (
    LAUNCH_VARIABLE,
    PulseMonitor,
    Straggler,
    end_ranks,
    find_ranks,
    find_straggler,
    request_snapshot,
)
from caffe_recipes.cluster.ssh import SshHost
from tests.cluster.harness.cluster import Cluster

pytestmark = pytest.mark.cluster

NODES = ("node1", "node2", "node3", "node4")
# A rank as a site's wrapper makes it: the trainer beneath a shell, a helper beside it; half of them stubborn.
WRAPPER = f"""\
#!/bin/sh
test $((PMI_RANK % 2)) = 0 || trap '' TERM INT
sleep 600 &
{sys.executable} -IS {{folder}}/trainer.py "$@" &
while wait; test $? -gt 128; do :; done
"""
TRAINER = """\
import os, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
name = f"{os.uname().nodename}-{os.environ['PMI_RANK']}"
if sys.argv[2] != "deaf":
    signal.signal(signal.SIGHUP, lambda *_: (folder / f"snapshot-{name}").touch())
(folder / f"up-{name}").touch()
while True:
    time.sleep(60)
"""


@pytest.fixture
def run() -> str:
    return secrets.token_hex(8)


@pytest.fixture
def hosts(cluster: Cluster, tmp_path: Path) -> Iterator[dict[str, SshHost]]:
    """Give the head and the nodes, over links that are found dead within three seconds."""
    folder = tmp_path / "ssh"
    folder.mkdir()
    text = (cluster.ssh / "config").read_text()
    (folder / "config").write_text(f"Host *\n  ServerAliveInterval 1\n  ConnectTimeout 2\n{text}")
    hosts = {name: SshHost(name, folder, patience_s=1.0) for name in ("head", *NODES)}
    yield hosts
    for host in hosts.values():
        host.close()


def launch(cluster: Cluster, folder: Path, name: str, word: str) -> subprocess.Popen[bytes]:
    """Start eight ranks on four hosts from the head; wait until they are up."""
    wrapper, hostfile = folder / "wrapper", cluster.write_hostfile()
    wrapper.write_text(WRAPPER.format(folder=folder))
    wrapper.chmod(0o755)
    (folder / "trainer.py").write_text(TRAINER)
    shape = ("-n", "8", "-ppn", "2", "-f", str(hostfile))
    process: subprocess.Popen[bytes] = cluster.popen(
        "head",
        ["mpiexec.hydra", *shape, str(wrapper), str(folder), word],
        env={**os.environ, LAUNCH_VARIABLE: name},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert until(lambda: len(list(folder.glob("up-*"))) == 8, 30)
    return process


def until(holds: Callable[[], object], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(held)


def test_a_launch_is_found_asked_for_a_snapshot_and_ended_on_every_host(
    cluster: Cluster, shared: Path, hosts: dict[str, SshHost], run: str
) -> None:
    nodes = [hosts[name] for name in NODES]
    word = "--solver=it's $(a)"
    process = launch(cluster, shared, f"{run}/init-1", word)
    for number, node in enumerate(nodes):
        found = find_ranks(node, run)
        assert {rank.rank for rank in found} == {2 * number, 2 * number + 1}
        assert len(found) == 6
        assert {rank.launch for rank in found} == {f"{run}/init-1"}
    assert {rank.rank for rank in find_ranks(hosts["head"], run)} == {None}

    assert [request_snapshot(host, f"{run}/init-1", word) for host in hosts.values()] == [
        "absent",  # the head's mpiexec has the word among its arguments, and SIGHUP would end it
        "asked",
        *(["absent"] * 3),
    ]
    assert until(lambda: list(shared.glob("snapshot-*")), 10)
    assert [path.name for path in shared.glob("snapshot-*")] == ["snapshot-node1-0"]

    assert end_ranks(nodes, run, grace_s=1) == {}
    assert process.wait(10) != 0  # mpiexec ends with its ranks
    assert [find_ranks(host, run) for host in hosts.values()] == [()] * 5
    for host in hosts.values():
        host.close()
    assert cluster.leftovers() == {}


def test_a_launch_is_ended_but_on_a_host_that_is_cut_off_and_there_once_it_is_back(
    cluster: Cluster, shared: Path, hosts: dict[str, SshHost], run: str
) -> None:
    process = launch(cluster, shared, f"{run}/init-1", "deaf")
    assert request_snapshot(hosts["node1"], f"{run}/init-1", "deaf") == "deaf"
    for host in hosts.values():
        host.connect()
    cluster.cut("node4")
    started = time.monotonic()
    failed = end_ranks(list(hosts.values()), run, grace_s=1)
    assert time.monotonic() - started < 20
    assert list(failed) == ["node4"]
    assert process.wait(5) != 0
    assert [find_ranks(hosts[name], run) for name in ("head", *NODES[:3])] == [()] * 4
    cluster.reconnect("node4")
    assert end_ranks(list(hosts.values()), run, grace_s=1) == {}
    for host in hosts.values():
        host.close()
    assert cluster.leftovers(within_s=10) == {}


def test_pulses_resume_after_cut_links_and_restarts_of_sshd(
    cluster: Cluster, hosts: dict[str, SshHost], run: str
) -> None:
    nodes = [hosts[name] for name in NODES]
    for number, name in enumerate(NODES):
        cluster.run(
            name,
            ["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 &"],
            env={LAUNCH_VARIABLE: f"{run}/init-1", "PMI_RANK": str(number)},
        )
    with PulseMonitor(nodes, f"{run}/init-1", every_s=0.3, retry_s=0.3) as pulses:

        def ranks() -> list[list[int]]:
            return [[rank.rank for rank in pulse.ranks] for pulse in pulses.latest().values()]

        def reasons() -> list[str]:
            return [why.reason.rpartition(": ")[2] for why in pulses.silent(2.0)]

        assert until(lambda: ranks() == [[0], [1], [2], [3]], 10)
        (rank,) = pulses.latest()["node2"].ranks
        assert nodes[1].run(["kill", "-s", "STOP", str(rank.pid)]).returncode == 0
        stopped = Straggler("node2", 1, "rank 1 is stopped (SIGSTOP)", is_certain=True)
        assert until(lambda: find_straggler(pulses.histories()) == stopped, 10)

        cluster.cut("node3")
        cluster.stop_sshd("node4")
        end_sessions(cluster, "node4")
        assert until(lambda: {"node3", "node4"} == {silence.host for silence in pulses.silent(2.0)}, 10)
        assert nodes[0].run(["hostname"]).stdout == "node1\n"  # the same connection serves others
        assert until(lambda: reasons() == ["did not respond for 3 s", "Connection refused"], 10)
        cluster.reconnect("node3")
        cluster.start_sshd("node4")
        assert until(lambda: not pulses.silent(2.0), 20)
        assert ranks() == [[0], [1], [2], [3]]
        cluster.cut("node3")
        started = time.monotonic()
    assert time.monotonic() - started < 5
    cluster.reconnect("node3")
    assert end_ranks(nodes, run, grace_s=1) == {}
    for host in hosts.values():
        host.close()
    assert cluster.leftovers(within_s=10) == {}


def end_sessions(cluster: Cluster, host: str) -> None:
    """Break all connections of a host, as a killed sshd does."""
    each = "read -r name <$at/comm; case $name in sshd*) kill -s KILL ${at#/proc/} ;; esac"
    cluster.run(host, ["sh", "-c", f"for at in /proc/[0-9]*; do {each}; done"], check=False)
