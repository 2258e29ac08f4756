"""`caffe-recipes preflight` on four hosts, one fault at a time: each is found and its host named."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.prototxts import build_net
from caffe_recipes.render.tree import write_files
from caffe_recipes.run.training_plan import plan_files
from tests.cluster.harness.cluster import Cluster
from tests.cluster.machines import cpuinfo, meminfo

pytestmark = pytest.mark.cluster

BIN = Path(sys.executable).parent
MPI = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
RECIPE = """\
name: looked
title: Two short phases on four hosts
trainer: ./bin/caffe
prototxt_dir: prototxt/looked
net: {name: Looked, builder: resnet_small, classes: 10}
nets: {train_val: {test: false}}
data:
  train: {lmdb: /tmp/looked_lmdb, source: data/train_lmdb, images: 64}
  test: {lmdb: data/train_lmdb, images: 64, batch_size: 16}
  crop_size: 28
  mean_value: [104, 117, 123]
cluster: {nodes: 4, ranks_per_node: 2, batch_per_rank: 8, omp_num_threads: 1}
solver: {display: 2, solver_mode: CPU}
phases:
  - {name: init, net: train_val, weights: start/start.caffemodel, base_lr: 0.1, lr_policy: poly_cyc, power: 1,
     lr_iter: 16, max_iter: 8, snapshot_prefix: /tmp/looked_init}
  - {name: last, net: train_val, base_lr: 0.01, lr_policy: fixed, max_iter: 4,
     snapshot_prefix: /tmp/looked_last}
"""
# Only the part of Caffe that a trial needs: it knows some policies.
CAFFE = r"""#!/bin/sh
while read -r key value; do
    case $key in lr_policy:) policy=$value ;; esac
done <"${2#--solver=}"
case " \"fixed\" KNOWN " in
*" $policy "*) echo 'I1120 11:49:33.775818  6374 solver.cpp:443] Optimization Done.' >&2 ;;
*)
    echo "F1120 11:49:33.775818  6374 sgd_solver.cpp:117] Unknown learning rate policy: $policy" >&2
    exit 134
    ;;
esac
"""
LAUNCH = "0123456789abcdef/init-1"
KNOWING = CAFFE.replace("KNOWN", r"\"poly_cyc\"")
# Hands hydra another hostfile than it was given.
SHIM = """#!/bin/sh
folder=${0%/*}
for word; do
    shift
    if [ "${last-}" = -f ]; then ORDER <"$word" >"$folder/hostfile"; word=$folder/hostfile; fi
    last=$word
    set -- "$@" "$word"
done
exec /usr/bin/mpiexec.hydra "$@"
"""


@dataclass
class Ground:
    """A Caffe root that all hosts see, in which all checks pass until a test breaks something."""

    cluster: Cluster
    root: Path
    spoilt: ExitStack = field(default_factory=ExitStack)

    @property
    def programs(self) -> Path:
        """Where the launcher is: in a folder of a plain name, as hydra needs it."""
        return self.root.parent / "mpi"

    def furnish(self) -> None:
        """Write recipe, hosts, Caffe, LMDB, weights and prototxts."""
        for name in ("bin", "data", "start"):
            (self.root / name).mkdir(parents=True)
        self.write("recipe.yaml", RECIPE)
        self.write("hostfile", "node[1-4]\n")
        self.write("bin/caffe", KNOWING)
        self.launcher("cat")
        pixels = bytes(3 * 28 * 28)
        datums = [
            pb.Datum(channels=3, height=28, width=28, data=pixels, label=index % 10) for index in range(64)
        ]
        write_datums(self.root / "data/train_lmdb", ((f"{i:03}", datum) for i, datum in enumerate(datums)))
        recipe = load_recipe(self.root / "recipe.yaml")
        write_files(plan_files(recipe), self.root)
        weights = weights_of(build_net(recipe, "train_val"))
        (self.root / "start/start.caffemodel").write_bytes(weights)

    def write(self, path: str, text: str) -> None:
        (self.root / path).write_text(text)
        (self.root / path).chmod(0o755)

    def launcher(self, order: str) -> None:
        """Have the launcher place ranks by a hostfile that a command has changed."""
        self.programs.mkdir(exist_ok=True)
        self.write("../mpi/mpiexec.hydra", SHIM.replace("ORDER", order))

    def edit(self, before: str, after: str) -> None:
        text = (self.root / "recipe.yaml").read_text()
        assert before in text
        self.write("recipe.yaml", text.replace(before, after))

    def replace(self, host: str, path: str | Path, text: str) -> None:
        """Replace the text of a file on one host."""
        self.cluster.replace(host, str(path), text)
        self.spoilt.callback(self.cluster.restore, host, str(path))

    def hide(self, host: str, folder: str) -> None:
        """Have one host see an empty folder instead of a folder."""
        empty = self.root / "empty"
        empty.mkdir(exist_ok=True)
        hidden = str((self.root / folder).resolve())
        self.do(host, "mount", "--bind", str(empty), hidden)
        self.spoilt.callback(self.do, host, "umount", hidden)

    def resize_tmp(self, host: str, size: int) -> None:
        self.do(host, "mount", "-o", f"remount,size={size}", "/tmp")
        self.spoilt.callback(self.do, host, "mount", "-o", "remount,size=4g", "/tmp")

    def copy_lmdb(self, host: str, cut: int = 0, tail: str = "") -> None:
        """Put the training LMDB on a host, `cut` bytes short, and with other bytes at its end."""
        script = (
            'mkdir -p /tmp/looked_lmdb && head -c "$2" "$1" >/tmp/looked_lmdb/data.mdb && printf %s "$3" '
            ">>/tmp/looked_lmdb/data.mdb"
        )
        data = self.root / "data/train_lmdb/data.mdb"
        left = str(data.stat().st_size - cut - len(tail))
        self.do(host, "sh", "-c", script, "sh", str(data), left, tail)

    def known_hosts(self, change: Callable[[list[str]], list[str]]) -> None:
        """Change our known_hosts."""
        path = self.cluster.ssh / "known_hosts"
        before = path.read_text()
        self.spoilt.callback(path.write_text, before)
        path.write_text("".join(change(before.splitlines(keepends=True))))

    def do(self, host: str, *argv: str) -> str:
        return self.cluster.run(host, argv).stdout

    def start(self, *words: str) -> subprocess.Popen[str]:
        path = f"{self.programs}:{BIN}:/usr/bin:/bin:/usr/sbin"
        return self.cluster.popen(
            "head",
            ["sh", "-c", 'cd "$0" && echo $$ >pid && exec "$@"', str(self.root),
             str(BIN / "caffe-recipes"), "preflight", "recipe.yaml", *words],
            env={**os.environ, **MPI, "PATH": path, "XDG_CACHE_HOME": str(self.root / "cache")},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def call(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        stdout, stderr = process.communicate(timeout=120)
        return process.returncode, stdout, stderr

    def look(self) -> tuple[int, list[dict[str, Any]]]:
        code, stdout, stderr = self.call("--json")
        assert stdout, stderr
        return code, json.loads(stdout)

    def trials(self) -> str:
        """What is in the hosts' /tmp of trials."""
        return "".join(
            self.do(node, "sh", "-c", "ls -d /tmp/caffe-recipes-* || :") for node in self.cluster.nodes
        )


def weights_of(net: pb.NetParameter) -> bytes:
    weights = pb.NetParameter(name=net.name)
    for layer in infer_shapes(net, pb.TRAIN).layers:
        if layer.learned:
            made = weights.layer.add(name=layer.layer.name, type=layer.layer.type)
            for shape in layer.learned:
                sizes = [size or 1 for size in shape]
                made.blobs.add(shape={"dim": sizes}, data=[0.5] * math.prod(sizes))
    return weights.SerializeToString()


@pytest.fixture
def ground(cluster: Cluster, shared: Path) -> Iterator[Ground]:
    """Give a root whose path is full of shell metacharacters; what a test breaks is repaired after it."""
    made = Ground(cluster, shared / "caffe's $(touch hacked) root")
    made.furnish()
    with made.spoilt:
        yield made
    for node in cluster.nodes:
        cluster.run(node, ["sh", "-c", "rm -rf /tmp/looked_*"])
    assert made.trials() == ""
    assert not (made.root / "hacked").exists()


def unknown_key(lines: list[str]) -> list[str]:
    return [line for line in lines if not re.match(r"\S*10\.77\.0\.4\b|\S*node3\b", line)]


def changed_key(lines: list[str]) -> list[str]:
    keys = {line.split()[0]: line.split(" ", 1)[1] for line in lines}
    names = list(keys)
    third = next(name for name in names if re.search(r"10\.77\.0\.4\b|node3\b", name))
    other = next(name for name in names if name != third)
    return [f"{name} {keys[other if name == third else name]}" for name in names]


Spoil = Callable[[Ground], object]


def only_on_three(ground: Ground) -> None:
    ground.edit(", source: data/train_lmdb", "")
    for node in ("node1", "node2", "node4"):
        ground.copy_lmdb(node)


def short_on_one(ground: Ground) -> None:
    ground.edit(", source: data/train_lmdb", "")
    for node in ground.cluster.nodes:
        ground.copy_lmdb(node, cut=4096 if node == "node3" else 0)


def no_program(ground: Ground) -> None:
    plain = ground.root / "plain"
    plain.write_text(KNOWING)
    plain.chmod(0o644)
    ground.do("node2", "mount", "--bind", str(plain), str(ground.root / "bin/caffe"))
    ground.spoilt.callback(ground.do, "node2", "umount", str(ground.root / "bin/caffe"))


def pinned(ground: Ground) -> None:
    ground.edit("omp_num_threads: 1}", "omp_num_threads: 1, mlsl: {num_servers: 1, server_affinity: [0, 3]}}")
    fewer_cores(ground)


def fewer_cores(ground: Ground) -> None:
    for node in ground.cluster.nodes:
        ground.replace(node, "/proc/cpuinfo", cpuinfo(2, 1 if node == "node2" else 4))


def room_for_the_lmdb_alone(ground: Ground) -> None:
    size = (ground.root / "data/train_lmdb/data.mdb").stat().st_size
    # And for the files of a trial, which may exist when the free space is read.
    ground.resize_tmp("node1", -(-size // 4096) * 4096 + 65536)


def as_long_as_ours(ground: Ground) -> None:
    path = ground.root / "start/start.caffemodel"
    ground.replace("node4", path, "x" * path.stat().st_size)


def spare_without_key(ground: Ground) -> None:
    ground.edit("nodes: 4", "nodes: 3")
    ground.write("hostfile", "node[1,2,4,3]\n")
    write_files(plan_files(load_recipe(ground.root / "recipe.yaml")), ground.root)
    ground.known_hosts(unknown_key)


def one_host_twice(ground: Ground) -> None:
    ground.write("hostfile", "node[1-3]\n10.77.0.4\n")


def other_launch(ground: Ground) -> None:
    for rank in (4, 5):
        environment = {"CAFFE_RECIPES_LAUNCH": LAUNCH, "PMI_RANK": f"{rank}"}
        process = ground.cluster.popen(
            "node3", ["sh", "-c", "read -r _"], env=environment, stdin=subprocess.PIPE
        )
        ground.spoilt.callback(process.communicate)  # which ends its input


# What is wrong; the subject of its finding, its mark, hosts and message.
CASES: dict[str, tuple[Spoil, str, str, list[str], str]] = {
    "an unknown host key": (
        lambda on: on.known_hosts(unknown_key), "hosts", "failed", ["node3"],
        r"node3: its host key is not in known_hosts",
    ),
    "a changed host key": (
        lambda on: on.known_hosts(changed_key), "hosts", "failed", ["node3"],
        r"node3: its host key has CHANGED",
    ),
    "a host under two names": (
        one_host_twice, "hosts", "failed", ["10.77.0.4"],
        r"10\.77\.0\.4: is the same machine as node3: node3",
    ),
    "ranks of another launch": (
        other_launch, "launches", "failed", ["node3"],
        rf"node3: 2 ranks of another launch, {LAUNCH}, are running here",
    ),
    "a spare that cannot be reached": (
        spare_without_key, "spares", "warn", ["node3"], "node3: its host key is not in known_hosts"
    ),
    "fewer cores": (
        fewer_cores, "cores", "warn", ["node2"], r"node2: has 2 x 1 cores, but the others have 2 x 4 cores"
    ),
    "a core of MLSL's that is not there": (
        pinned, "cores", "failed", ["node2"],
        r"node2: has no core 3, where MLSL's servers are pinned; its last is 1",
    ),
    "less memory": (
        lambda on: on.replace("node3", "/proc/meminfo", meminfo(1, 0.5)), "memory", "warn", ["node3"],
        r"node3: has 1 GB of memory, but the others have",
    ),
    "a wrong clock": (
        lambda on: on.replace("node2", "/usr/bin/date", "#!/bin/sh\necho 1000000000.5\n"),
        "clock", "warn", ["node2"], r"node2: its clock is \d+\.\d s behind this machine's",
    ),
    "a /tmp too small for the LMDB": (
        lambda on: on.resize_tmp("node4", 65536), "training data", "failed", ["node4"],
        r"node4:/tmp/looked_lmdb: not enough space: [\d,]+ bytes free, [\d,]+ needed",
    ),
    "a /tmp too small for the snapshots": (
        room_for_the_lmdb_alone, "disk", "failed", ["node1"], r"node1:/tmp: has .* free, but .* is needed",
    ),
    "a Caffe root that one host does not see": (
        lambda on: on.hide("node3", ".."), "hosts", "failed", ["node3"], r"no such folder there",
    ),
    "no Caffe on one host": (
        lambda on: on.hide("node3", "bin"), "trainer", "failed", ["node3"],
        r"node3:\./bin/caffe: no such program there",
    ),
    "a Caffe that may not be run": (
        no_program, "trainer", "failed", ["node2"],
        r"node2:\./bin/caffe: is not an executable program there",
    ),
    "a Caffe that lacks a library": (
        lambda on: on.replace("node4", on.root / "bin/caffe",
                              "#!/bin/sh\necho 'libmlsl.so.1: cannot open shared object' >&2\nexit 127\n"),
        "trainer", "failed", ["node4"], r"node4:\./bin/caffe: does not start: libmlsl\.so\.1: cannot open",
    ),
    "a Caffe that ends well and trains nothing": (
        lambda on: on.replace("node4", on.root / "bin/caffe", "#!/bin/sh\necho hello\n"),
        "trainer", "failed", ["node4"], r"it exits with 0, but prints no `Optimization Done\.`.*hello",
    ),
    "a Caffe that does not know the policy": (
        lambda on: on.replace("node2", on.root / "bin/caffe", CAFFE), "trainer", "failed", ["node2"],
        r'node2:\./bin/caffe: with lr_policy poly_cyc it fails: Unknown learning rate policy: "poly_cyc"',
    ),
    "a launcher that starts rank 0 elsewhere": (
        lambda on: on.launcher("tac"), "launcher", "failed", [],
        r"rank 0 is on node4, not on node1, the first host",
    ),
    "a launcher that starts none on a host": (
        lambda on: on.launcher("head -n 3"),
        "launcher", "failed", ["node1"], r"node1: gets 4 ranks from the launcher instead of 2",
    ),
    "an LMDB cut short on one host": (
        lambda on: on.copy_lmdb("node3", cut=4096), "training data", "failed", ["node3"],
        r"node3:/tmp/looked_lmdb: has a different LMDB \([\d,]+ bytes",
    ),
    "an LMDB of other content on one host": (
        lambda on: on.copy_lmdb("node2", tail="other"), "training data", "failed", ["node2"],
        r"node2:/tmp/looked_lmdb: has a different LMDB \(same size as the source",
    ),
    "an LMDB that a host lacks, and none to stage": (
        only_on_three, "training data", "failed", ["node3"], r"node3:/tmp/looked_lmdb: no LMDB there",
    ),
    "an LMDB unlike the others, and none to stage": (
        short_on_one, "training data", "failed", ["node3"],
        r"node3:/tmp/looked_lmdb: has [\d,]+ bytes, but the others have",
    ),
    "a prototxt that differs on one host": (
        lambda on: on.replace("node4", on.root / "prototxt/looked/solver_last.prototxt", "base_lr: 1\n"),
        "prototxts", "failed", ["node4"], r"node4:.*/solver_last\.prototxt: differs from the file here",
    ),
    "weights that one host does not see": (
        lambda on: on.hide("node2", "start"), "starts from", "failed", ["node2"],
        r"node2:.*/start\.caffemodel: no such file there",
    ),
    "other weights on one host": (
        as_long_as_ours, "starts from", "failed", ["node4"],
        r"node4:.*/start\.caffemodel: differs from the file here",
    ),
    "a link under a snapshot's name": (
        lambda on: on.do("node1", "ln", "-s", "/tmp/looked_theirs", "/tmp/looked_init_iter_8.caffemodel"),
        "snapshots", "failed", ["node1"], r"node1:/tmp/looked_init_iter_8\.caffemodel: is a symbolic link"
    ),
    "another user's file under a snapshot's name": (
        lambda on: on.do("node1", "install", "-onobody", "/dev/null", "/tmp/looked_last_iter_4.solverstate"),
        "snapshots", "failed", ["node1"], r"iter_4\.solverstate: belongs to user nobody",
    ),
}  # fmt: skip
# Checks that cannot pass then.
WITH_IT = {"a Caffe root that one host does not see": {"launcher", "trainer", "prototxts", "starts from"}}


@pytest.mark.parametrize("case", CASES)
def test_a_single_fault_is_found_and_its_host_named(ground: Ground, case: str) -> None:
    spoil, subject, mark, hosts, message = CASES[case]
    spoil(ground)
    code, found = ground.look()
    of_it = [one for one in found if one["subject"] == subject and re.search(message, one["said"])]
    assert [(one["mark"], one["hosts"]) for one in of_it] == [(mark, hosts)], found
    failed = {one["subject"]: one["said"] for one in found if one["mark"] == "failed"}
    assert failed.keys() - WITH_IT.get(case, set()) == ({subject} if mark == "failed" else set()), failed
    assert code == (1 if mark == "failed" else 0)


def test_all_checks_pass_and_nothing_is_changed_anywhere(ground: Ground) -> None:
    def everything() -> list[tuple[str, int]]:
        seen = (path for path in ground.root.rglob("*") if path.name != "pid" and "cache" not in path.parts)
        return sorted((str(path), path.stat().st_mtime_ns) for path in seen)

    before = everything()
    code, stdout, stderr = ground.call()
    assert code == 0, stdout + stderr
    assert [line[8:23].strip() for line in stdout.splitlines() if line.startswith(("warn", "failed"))] == []
    assert re.search(r"^ok +hosts +node\[1-4\]: 4 x 2 ranks of 8 images$", stdout, re.MULTILINE)
    assert re.search(
        r"^ok +trainer +\./bin/caffe trains, and supports lr_policy poly_cyc, fixed$", stdout, re.MULTILINE
    )
    assert "to be staged on 4 of 4 hosts by" in stdout
    assert stdout.splitlines()[-1] == "all checks passed; start the training with `run`"
    assert everything() == before
    for node in ground.cluster.nodes:
        assert ground.do(node, "sh", "-c", "ls -A /tmp") == ""


def test_a_host_without_sshd_is_named_and_the_others_are_checked(ground: Ground) -> None:
    ground.cluster.stop_sshd("node2")
    ground.spoilt.callback(ground.cluster.start_sshd, "node2")
    ground.replace("node3", ground.root / "bin/caffe", CAFFE)
    code, found = ground.look()
    assert code == 1
    failed = {(one["subject"], *one["hosts"]) for one in found if one["mark"] == "failed"}
    assert failed == {("hosts", "node2"), ("trainer", "node3")}
    message = next(one["said"] for one in found if one["subject"] == "hosts")
    assert message.startswith("node2: cannot be reached by ssh")
    launcher = next(one for one in found if one["subject"] == "launcher")
    assert (launcher["mark"], launcher["said"]) == ("warn", "not checked: no answer from node2")


def test_a_preflight_that_is_killed_leaves_nothing_on_any_host(ground: Ground) -> None:
    ground.write("bin/caffe", "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n")
    process = ground.start()
    until = time.monotonic() + 60
    while ground.trials().count("caffe-recipes-trial") < 4:
        assert process.poll() is None
        assert time.monotonic() < until
    ground.do("head", "kill", "-s", "KILL", (ground.root / "pid").read_text().strip())
    process.communicate()
    while ground.trials() or ground.cluster.processes():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_caffe_torch_is_tried_like_any_caffe(ground: Ground) -> None:
    pytest.importorskip("torch", reason="the extra `local` is not installed")
    ground.edit("trainer: ./bin/caffe", "trainer: caffe-torch")
    ground.edit("lr_policy: fixed", "lr_policy: poly_cyc, power: 1, lr_iter: 9")
    write_files(plan_files(load_recipe(ground.root / "recipe.yaml")), ground.root)
    code, found = ground.look()
    assert code == 0, found
    assert f"{BIN}/caffe-torch trains, and supports lr_policy poly_cyc" in [one["said"] for one in found]
