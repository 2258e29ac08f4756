"""The hosts that the other cluster tests use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from caffe_recipes.cluster.hosts import ask_all
from caffe_recipes.cluster.ssh import SshHost
from tests.cluster.harness.cluster import ROOT, Cluster
from tests.cluster.harness.files import sweep

pytestmark = pytest.mark.cluster

WORKER = """
import sys, time
from tests.cluster.harness.cluster import Cluster
with Cluster.up(2) as cluster:
    process = cluster.popen("node1", ["sleep", "600"])
    print(cluster.folder, cluster._keeper.pid, *cluster.pids.values(), flush=True)
    time.sleep(600)
"""


def ends(pids: list[int], within_s: float = 10) -> bool:
    deadline = time.monotonic() + within_s
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def start_worker() -> tuple[subprocess.Popen[str], Path, list[int]]:
    process = subprocess.Popen([sys.executable, "-c", WORKER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        folder, *pids = process.stdout.readline().split()
    return process, Path(folder), [int(pid) for pid in pids]


def test_each_host_has_its_own_name_address_and_tmp(cluster: Cluster) -> None:
    for number, name in enumerate(cluster.nodes, 2):
        script = "hostname; hostname -I; ls -A /tmp; touch /tmp/mine; df --output=fstype /tmp"
        fields = cluster.run(name, ["sh", "-c", script]).stdout.split()
        assert fields == [name, f"10.77.0.{number}", "Type", "tmpfs"]
        assert cluster.run(name, ["ls", "-A", "/tmp"]).stdout == "mine\n"
        cluster.run(name, ["rm", "/tmp/mine"])


def test_hosts_log_in_to_each_other_and_see_one_shared_folder(cluster: Cluster, shared: Path) -> None:
    (shared / "file").write_text("seen\n")
    cat = f"cat {shared / 'file'}"
    assert cluster.run("head", ["ssh", "node1", "ssh", "node4", "hostname;", cat]).stdout == "node4\nseen\n"
    assert cluster.run("node2", ["ls", str(ROOT / "setup.cfg")]).returncode == 0


def test_zombies_of_a_host_are_reaped_and_processes_left_running_are_reported(cluster: Cluster) -> None:
    cluster.run("node1", ["sh", "-c", "sleep 600 >/dev/null 2>&1 & sleep 0.01 & exit"])
    assert cluster.leftovers(within_s=0.5) == {"node1": ["sleep 600"]}
    cluster.run("node1", ["sh", "-c", "kill $(pidof sleep)"])
    assert cluster.leftovers() == {}


def test_a_cut_is_silence_and_a_crash_is_a_closed_connection(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(2)
    listen = ["sh", "-c", "exec ssh node1 'echo up; sleep 600'"]
    process = cluster.popen("head", listen, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    cluster.cut("node1")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    cluster.reconnect("node1")
    assert cluster.run("head", ["ssh", "node1", "true"]).returncode == 0
    cluster.crash("node1")
    assert process.wait(5) == 255
    process.stdout.close()
    cluster.boot("node1")
    assert cluster.run("node2", ["ssh", "node1", "hostname"]).stdout == "node1\n"


def test_a_rate_holds_in_both_directions(cluster: Cluster) -> None:
    cluster.rate("80mbit")
    there, back = (
        "head -c 5000000 /dev/zero | ssh node1 'cat >/dev/null'",
        "ssh node1 head -c 5000000 /dev/zero",
    )
    for way in (there, f"{back} >/dev/null"):
        started = time.monotonic()
        cluster.run("head", ["sh", "-c", way])
        assert time.monotonic() - started > 0.4  # 5 MB at 10 MB/s, less the burst


def test_a_file_is_replaced_on_one_host_only(cluster: Cluster) -> None:
    before = cluster.run("node2", ["nproc"]).stdout
    cluster.replace("node1", "/usr/bin/nproc", "#!/bin/sh\necho 48\n")
    assert cluster.run("node1", ["nproc"]).stdout == "48\n"
    assert cluster.run("node2", ["nproc"]).stdout == before
    cluster.restore("node1", "/usr/bin/nproc")
    assert cluster.run("node1", ["nproc"]).stdout == before


def test_clusters_side_by_side_do_not_see_each_other(make_cluster: Callable[..., Cluster]) -> None:
    one, two = make_cluster(1), make_cluster(["c401-001", "c401-002"])
    assert one.run("head", ["ssh", "node1", "hostname"]).stdout == "node1\n"
    assert two.run("head", ["ssh", "c401-002", "hostname"]).stdout == "c401-002\n"
    assert one.addresses["node1"] == two.addresses["c401-001"]
    assert one.folder != two.folder


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_cluster_ends_with_the_process_that_created_it(number: signal.Signals) -> None:
    process, folder, pids = start_worker()
    os.kill(process.pid, number)
    process.wait()
    assert ends(pids)
    deadline = time.monotonic() + 5
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not folder.exists()
    assert str(folder) not in Path("/proc/mounts").read_text()


def test_a_keeper_that_is_killed_takes_its_hosts_along_and_its_folder_is_swept() -> None:
    process, folder, pids = start_worker()
    os.kill(pids[0], signal.SIGKILL)
    assert ends(pids[1:])
    sweep()
    assert folder.exists()  # its owner may still look into it
    process.kill()
    process.wait()
    sweep()
    assert not folder.exists()


def test_64_hosts_are_reached_at_once_and_asked_again_over_the_same_connections(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(64)
    hosts = [SshHost(name, cluster.ssh, patience_s=3) for name in cluster.nodes]
    answers = ask_all(hosts, lambda host: host.connect(), 120)
    assert [answer.error for answer in answers] == [None] * 64
    cluster.crash("node7")
    cluster.stop_sshd("node9")
    names = ask_all(hosts, lambda host: host.run(["hostname"]).stdout.strip(), 60)
    assert [answer.value for answer in names if answer.error is None] == [
        name for name in cluster.nodes if name != "node7"
    ]
    assert str(names[6].error).startswith("node7: ")
    for host in hosts:
        host.close()


def test_hydra_starts_ranks_in_the_hostfiles_order(cluster: Cluster) -> None:
    hostfile = cluster.write_hostfile()
    argv = ["mpiexec.hydra", "-l", "-n", "8", "-ppn", "2", "-f", str(hostfile), "hostname"]
    output = cluster.run("head", argv).stdout
    assert sorted(output.splitlines()) == [f"[{rank}] node{rank // 2 + 1}" for rank in range(8)]
