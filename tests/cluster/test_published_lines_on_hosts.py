"""The authors' command lines, driven through on 64 hosts by run.sh and by `caffe-recipes run`.

128 ranks, a real hydra behind a shim that records its calls and drops -PSM2, and a stand-in for Caffe.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path

import pytest

from caffe_recipes.cluster.launchers import DEFAULT_LAUNCHER
from caffe_recipes.run.journal import load_journal
from tests.cluster.harness.cluster import ROOT, Cluster
from tests.cluster.resnet_root import LMDB, PHASES, RECIPE, SCRIPT, Call, ResNetRoot

pytestmark = pytest.mark.cluster

HOSTS = tuple(f"c401-{number:03}" for number in range(1, 65))


def published(program: str) -> list[Call]:
    """Read the authors' script as a shell does: each call of a program with the variables it gets."""
    calls: list[Call] = []
    exported: dict[str, str] = {}
    for line in SCRIPT.replace("\\\n", "").replace("$result", HOSTS[0]).splitlines():
        words = shlex.split(line)
        if words[:1] == ["export"]:
            exported |= dict(word.split("=", 1) for word in words[1:])
        elif program in words:
            at = words.index(program)
            calls.append(
                Call(0, tuple(words[at:]), exported | dict(word.split("=", 1) for word in words[:at]))
            )
    return calls


def check_ranks(root: ResNetRoot, environment: Mapping[str, str]) -> None:
    """Assert that every rank of every phase had its host and its variables."""
    for phase in PHASES:
        ranks = root.ranks(phase)
        assert [rank.host for rank in ranks] == [HOSTS[number // 2] for number in range(128)]
        assert all(rank.environment == environment for rank in ranks)


def check_snapshots(cluster: Cluster, root: ResNetRoot, kept: Path) -> None:
    """Every phase started from the one before; what was kept came from the first host, which alone had it."""
    names = [Path(call.argv[1]).name for call in published("scp")]
    assert [root.made_from(kept / name) for name in names] == list(accumulate(PHASES, "{} {}".format))
    for name in names:
        cluster.run(HOSTS[0], ["cmp", str(kept / name), f"/tmp/{name}"])
    for host in HOSTS[1:]:
        assert cluster.run(host, ["sh", "-c", "echo /tmp/*.caffemodel"]).stdout == "/tmp/*.caffemodel\n"


def test_the_published_script_is_driven_through_by_run_sh(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(HOSTS)
    root = ResNetRoot(cluster, cluster.shared / "caffe root")
    environment = root.environment(CAFFE_ROOT=str(root.folder), LMDB_SOURCE=str(root.source))
    script = ROOT / "jobs" / RECIPE / "run.sh"
    done = cluster.run("head", [str(script)], env=environment, timeout_s=900)
    launches, expected = root.launches(), published("mpiexec.hydra")
    assert [call.argv for call in launches] == [call.argv for call in expected]
    assert [call.environment for call in launches] == [call.environment for call in expected]
    strict = tuple(
        DEFAULT_LAUNCHER.environment({})["HYDRA_LAUNCHER_EXTRA_ARGS"].split()
    )  # what its wrapper puts before
    assert [call.argv for call in root.calls("scp")] == [
        ("scp", *strict, *call.argv[1:]) for call in published("scp")
    ]
    check_ranks(root, expected[0].environment)
    check_snapshots(cluster, root, root.folder)
    for host in HOSTS:
        cluster.run(host, ["cmp", str(root.source / "data.mdb"), f"{LMDB}/data.mdb"])
    assert "loss3/top-1 = 0.762781" in done.stdout
    assert cluster.leftovers() == {}


def test_the_published_lines_are_driven_through_by_run(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(HOSTS)
    root = ResNetRoot(cluster, cluster.shared / "caffe root")
    program = str(Path(sys.executable).with_name("caffe-recipes"))
    given = ["--caffe-root", str(root.folder), "--hostfile", str(root.folder / "hostfile")]
    given += ["--lmdb-source", str(root.source)]

    staged = cluster.run(
        "head", [program, "stage", RECIPE, *given, "--how", "chain"], env=root.environment(), timeout_s=900
    )
    assert "0 had it, 64 received it, 0 failed" in staged.stdout
    done = cluster.run("head", [program, "run", RECIPE, *given], env=root.environment(), timeout_s=900)
    folder = f"runs/{RECIPE}-1"
    assert (root.run_folder / "hostfile").read_text().split() == list(HOSTS)

    def ours(word: str) -> str:
        """A run keeps its hostfile and its snapshots in its own folder."""
        moved = {"hostfile": f"{folder}/hostfile"}
        return moved.get(word, word.replace("--weights=", f"--weights={folder}/snapshots/"))

    launches, expected = root.launches(), published("mpiexec.hydra")
    assert [call.argv for call in launches] == [tuple(map(ours, call.argv)) for call in expected]
    assert [call.environment for call in launches] == [call.environment for call in expected]
    check_ranks(root, expected[0].environment)
    check_snapshots(cluster, root, root.run_folder / "snapshots")
    state = load_journal(root.run_folder / "journal.jsonl")
    assert list(state.finished) == list(PHASES)
    assert state.attempts == dict.fromkeys(PHASES, 1)
    assert state.outputs == {"loss": 0.942313, "loss3/top-1": 0.762781, "loss3/top-5": 0.931862}
    assert "loss3/top-1: 76.28% (reported: 76.3%)" in done.stdout
    assert cluster.leftovers() == {}
