"""Time what `caffe-recipes run` adds to its launches, between two phases and in all.

Needs root: every host is a network namespace with its own /tmp and sshd. The recipe is the 64-node one, its
launcher a real hydra; a stand-in for Caffe leaves a snapshot of ResNet-50's 102 MB after every phase.

    python benchmarks/chain.py [joins [HOSTS] | whole [HOSTS [SECONDS A PHASE]] | hosts [HOSTS]]

joins: on 8 hosts, from the exit of a phase's last rank to the start of the next mpiexec, less one scp of the
same snapshot. whole: on 64 hosts, the whole command against the authors' own script, which is the same five
launches and an scp after each. A phase of the stand-in takes 45 s, where the real ones take 17 to 85 min.
hosts: on 64 and 128 hosts, `preflight` and `stage`, whose LMDB is tiny, against `mpiexec.hydra true` there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.cluster.harness.cluster import Cluster, why_not  # noqa: E402
from tests.cluster.resnet_root import LMDB, PHASES, SCRIPT, ResNetRoot  # noqa: E402

GOAL_S, GOAL = 2.0, 0.10
JOINS_S = 2.0
CALLS = 5


def hosts_of(number: int) -> list[str]:
    return [f"c401-{index:03}" for index in range(1, number + 1)]


def seconds_of(root: ResNetRoot, argv: Sequence[str], *, phase_s: float = 0) -> float:
    start = time.perf_counter()
    environment = root.environment(STAND_IN_S=str(phase_s))
    root.cluster.run(
        "head", ["sh", "-c", 'cd "$0" && exec "$@"', str(root.folder), *argv], env=environment, timeout_s=3600
    )
    return time.perf_counter() - start


def ours(root: ResNetRoot, command: str) -> list[str]:
    program = str(Path(sys.executable).with_name("caffe-recipes"))
    return [program, command, "recipe.yaml", "--lmdb-source", str(root.source), "--hostfile", "hostfile"]


def pauses_of(root: ResNetRoot) -> list[float]:
    """From the exit of each phase's last rank to the start of the next mpiexec."""
    ended = [max(rank.ended_s for rank in root.ranks(phase)) for phase in PHASES]
    return [later.at_s - before for before, (_, later) in zip(ended, pairwise(root.launches()), strict=False)]


def time_joins(number: int) -> None:
    with Cluster.up(hosts_of(number)) as cluster:
        root = ResNetRoot(cluster, cluster.shared / "root")
        seconds_of(root, ours(root, "run"), phase_s=JOINS_S)
        snapshot = f"{cluster.nodes[0]}:/tmp/resnet_50_64nodes_init_iter_7800.caffemodel"
        copy_s = statistics.median(seconds_of(root, ["scp", "-q", snapshot, "copy"]) for _ in range(CALLS))
        launch = ["mpiexec.hydra", "-n", str(2 * number), "-ppn", "2", "-f", "hostfile", "true"]
        launch_s = statistics.median(seconds_of(root, launch) for _ in range(CALLS))
        pauses = pauses_of(root)
    dead = [pause - copy_s for pause in pauses]
    for (before, after), pause, dead_s in zip(pairwise(PHASES), pauses, dead, strict=True):
        print(f"{before:5} -> {after:9} {pause:5.2f} s, {dead_s:5.2f} s less one scp of the snapshot")
    median, most = statistics.median(dead), max(dead)
    print(
        f"{number} hosts: dead time {median:.2f} s median, {most:.2f} s at most (goal {GOAL_S:g} s); one scp "
        f"{copy_s:.2f} s; `mpiexec.hydra true` {launch_s:.2f} s, the dead time {median / launch_s:.2f} of it",
        flush=True,
    )


def time_script(number: int, phase_s: float) -> float:
    """Time the authors' script, with its LMDB in place; it looks at nothing."""
    with Cluster.up(hosts_of(number)) as cluster:
        root = ResNetRoot(cluster, cluster.shared / "root")
        root.place_prototxts()
        script = SCRIPT.replace("-n 128", f"-n {2 * number}")
        took_s = seconds_of(root, ["sh", "-e", "-c", script], phase_s=phase_s)
        launch_s, pause_s = launch_of(root) - phase_s, statistics.median(pauses_of(root))
    print(f"the authors' script: {took_s:.1f} s; a launch {launch_s:.1f} s, {pause_s:.2f} s between phases")
    return took_s


def time_run(number: int, phase_s: float) -> float:
    """Time a run that starts with bare hosts, and, by itself, the staging that it does."""
    with Cluster.up(hosts_of(number)) as cluster:
        root = ResNetRoot(cluster, cluster.shared / "root")
        stage_s = seconds_of(root, ours(root, "stage"))
        for node in cluster.nodes:
            cluster.run(node, ["rm", "-r", LMDB])
        begun = float(Path("/proc/uptime").read_text().split()[0])
        took_s = seconds_of(root, ours(root, "run"), phase_s=phase_s)
        first_s = root.launches()[0].at_s - begun
        last_s = begun + took_s - max(rank.ended_s for rank in root.ranks(PHASES[-1]))
        launch_s, pause_s = launch_of(root) - phase_s, statistics.median(pauses_of(root))
    print(f"caffe-recipes run: {took_s:.1f} s; a launch {launch_s:.1f} s, {pause_s:.2f} s between phases,")
    print(f"  {first_s:.1f} s before the first, {last_s:.1f} s after the last; `stage` alone {stage_s:.1f} s")
    return took_s


def launch_of(root: ResNetRoot) -> float:
    """From the start of mpiexec to the exit of its last rank."""
    ended = [max(rank.ended_s for rank in root.ranks(phase)) for phase in PHASES]
    return statistics.median(end - call.at_s for end, call in zip(ended, root.launches(), strict=True))


def time_whole(number: int, phase_s: float) -> None:
    script_s, run_s = time_script(number, phase_s), time_run(number, phase_s)
    more_s = run_s - script_s
    print(
        f"{number} hosts, {2 * number} ranks, {phase_s:g} s a phase: {more_s:.1f} s beyond the script, "
        f"{100 * more_s / script_s:.1f} % (goal {100 * GOAL:.0f} %); of four hours {more_s / 144:.2f} %",
        flush=True,
    )


def time_hosts(number: int) -> None:
    with Cluster.up(hosts_of(number)) as cluster:
        root = ResNetRoot(cluster, cluster.shared / "root")
        launch = ["mpiexec.hydra", "-n", str(2 * number), "-ppn", "2", "-f", "hostfile", "true"]
        launch_s = statistics.median(seconds_of(root, launch) for _ in range(CALLS))
        stage_s = seconds_of(root, ours(root, "stage"))
        checks_s = statistics.median(seconds_of(root, ours(root, "preflight")) for _ in range(3))
    print(
        f"{number} hosts: preflight {checks_s:.1f} s, {checks_s / launch_s:.1f} times `mpiexec.hydra true` "
        f"({launch_s:.2f} s); stage {stage_s:.1f} s, {stage_s / launch_s:.1f} times it",
        flush=True,
    )


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_known_args()
    lacking = why_not()
    if lacking:
        print(f"not measured: {lacking}")
        return
    what, hosts, seconds = (*sys.argv[1:], "", "", "")[:3]
    if what in ("", "joins"):
        time_joins(int(hosts or 8))
    if what in ("", "whole"):
        time_whole(int(hosts or 64), float(seconds or 45))
    if what in ("", "hosts"):
        for number in (int(hosts),) if hosts else (64, 128):
            time_hosts(number)


if __name__ == "__main__":
    main()
