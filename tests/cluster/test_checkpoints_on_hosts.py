"""A checkpoint of a training on one host: put on four, each with its own /tmp; resumed by ranks on others."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.cluster.commands import Running
from caffe_recipes.cluster.ssh import SshHost
from caffe_recipes.errors import ClusterError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.caffe import Caffe, require_caffe
from caffe_recipes.run.snapshots import drop_checkpoints, place_checkpoint
from caffe_recipes.run.trainer import Checkpoint, Training
from tests.cluster.harness.cluster import Cluster

pytestmark = pytest.mark.cluster

BIN = Path(sys.executable).parent
MPI = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
NET = """name: "tiny"
layer { name: "data" type: "Data" top: "data" top: "label"
  data_param { source: "lmdb" batch_size: 4 backend: LMDB } transform_param { scale: 0.01 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SOLVER = """net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 max_iter: 4 snapshot: 2
snapshot_prefix: "/tmp/it's a run" solver_mode: CPU random_seed: 1
"""
MODEL, STATE = "/tmp/it's a run_iter_2.caffemodel", "/tmp/it's a run_iter_2.solverstate"


class RecordingHost(SshHost):
    """A node that records the verbs of its commands."""

    def __init__(self, name: str, ssh_folder: Path) -> None:
        super().__init__(name, ssh_folder)
        self.asked: list[str] = []

    def start(self, argv: Sequence[str], limit_s: float | None = None) -> Running:
        self.asked.append(argv[5] if len(argv) > 6 and "caffe-recipes" in argv[2] else "sh")
        return super().start(argv, limit_s)


@dataclass
class Phase:
    """A Caffe root that all hosts see; node1 has a snapshot after two of four iterations in its /tmp."""

    cluster: Cluster
    root: Path
    hosts: list[RecordingHost]
    caffe: Caffe
    training: Training

    def call(self, host: str, *words: str) -> str:
        """Run a command in the Caffe root; return its output."""
        run = ["sh", "-c", 'cd "$0" && exec "$@"', str(self.root), *words]
        done = self.cluster.run(host, run, env={**MPI, "OMP_NUM_THREADS": "1"})
        return done.stdout + done.stderr

    def fetch(self) -> Checkpoint:
        folder, files = "runs/x-1/checkpoints", {self.caffe.recipe.net_path(self.training.net): NET}
        return self.caffe.models.fetch_checkpoint(
            self.hosts[0], self.root, files, self.training, STATE, folder
        )

    def files(self, host: str) -> str:
        """Return the files in a node's /tmp, with mode and owner."""
        script = 'cd /tmp && stat -c "%n %a %u" -- it* .caffe-recipes* 2>/dev/null'
        return self.cluster.run(host, ["sh", "-c", script], check=False).stdout


@pytest.fixture
def phase(cluster: Cluster, shared: Path) -> Iterator[Phase]:
    caffe = Caffe(require_caffe(load_recipe("digits-local"), shared))
    training = replace(caffe.steps("runs/x-1")[0], phase="init", last_iter=4)
    hosts = [RecordingHost(name, cluster.ssh) for name in cluster.nodes]
    made = Phase(cluster, shared, hosts, caffe, training)
    yield made
    for host in made.hosts:
        host.close()
        cluster.run(host.name, ["sh", "-c", "rm -f /tmp/it*"])


BOTH = "it's a run_iter_2.caffemodel 600 0\nit's a run_iter_2.solverstate 600 0\n"


def test_a_checkpoint_is_put_on_every_host_and_resumed_there(phase: Phase) -> None:
    for module in ("torch", "cv2", "mpi4py"):
        pytest.importorskip(module, reason="the extra `local` is not installed")
    datums = (
        pb.Datum(channels=1, height=4, width=4, data=bytes(range(n, n + 16)), label=n % 3) for n in range(16)
    )
    write_datums(phase.root / "lmdb", ((f"{number}", datum) for number, datum in enumerate(datums)))
    (phase.root / "net.prototxt").write_text(NET)
    (phase.root / "solver.prototxt").write_text(SOLVER)
    caffe = (str(BIN / "caffe-torch"), "train", "--solver=solver.prototxt")
    phase.call("node1", *caffe)
    checkpoint = phase.fetch()
    place_checkpoint(phase.hosts, phase.root, checkpoint)
    copied = ["file-probe", "file-probe", "file-fill", "file-fill"]
    assert [host.asked[-4:] for host in phase.hosts[1:]] == [copied] * 3
    assert [phase.files(f"node{n}") for n in (2, 3, 4)] == [BOTH] * 3

    for host in phase.hosts:
        host.asked.clear()
    place_checkpoint(phase.hosts, phase.root, checkpoint)
    assert [host.asked for host in phase.hosts] == [
        ["file-probe", "file-probe"]
    ] * 4  # nothing is copied again

    (phase.root / "hostfile").write_text("node3\nnode4\n")
    mpiexec = (str(BIN / "mpiexec.hydra"), "-l", "-n", "2", "-ppn", "1", "-f", "hostfile")
    log = phase.call("head", *mpiexec, *caffe, f"--snapshot={STATE}")
    assert f"Resuming from {STATE}" in log
    assert "Optimization Done." in log
    assert "iter_4.caffemodel" in phase.files("node3")

    drop_checkpoints(phase.hosts, phase.root, None, [checkpoint], ())
    assert not [node for node in phase.cluster.nodes if "iter_2" in phase.files(node)]
    assert list((phase.root / "runs/x-1/checkpoints").iterdir()) == []


def write_snapshot(folder: Path) -> None:
    """Write what Caffe would after two iterations, under names of the folder's own."""
    model, state = pb.NetParameter(name="tiny"), pb.SolverState(iter=2, learned_net=MODEL)
    blobs = [(3, 16), (3,)]
    layer = model.layer.add(name="ip", type="InnerProduct")
    for message in (layer.blobs, state.history):
        for shape in blobs:
            message.add(shape=pb.BlobShape(dim=shape), data=[0.5] * (3 * 16 if len(shape) > 1 else 3))
    (folder / "model").write_bytes(model.SerializeToString())
    (folder / "state").write_bytes(state.SerializeToString())


def test_a_host_that_does_not_see_what_is_kept_gets_it_put_and_a_full_one_is_named(
    phase: Phase, tmp_path: Path
) -> None:
    write_snapshot(phase.root)
    phase.call("node1", "cp", "model", MODEL)
    phase.call("node1", "cp", "state", STATE)
    checkpoint = phase.fetch()
    own = tmp_path / "runs/x-1/checkpoints"  # under a /tmp that no node sees
    own.parent.mkdir(parents=True)
    shutil.move(phase.root / "runs/x-1/checkpoints", own)
    free = phase.call("node3", "df", "--output=avail", "-B1", "/tmp").split()[-1]
    phase.call("node3", "fallocate", "-l", free, "/tmp/it is full")
    with pytest.raises(
        ClusterError, match=r"^node3:/tmp: not enough space: 0 bytes free, 8,192 needed; free"
    ):
        place_checkpoint(phase.hosts, tmp_path, checkpoint)
    assert [phase.files(node) for node in ("node2", "node4")] == [BOTH] * 2
    assert phase.hosts[1].asked == [
        "file-probe",
        "file-probe",
        "file-ready",
        "sh",
        "file-commit",
        "file-ready",
        "sh",
        "file-commit",
    ]
    assert phase.files("node3") == "it is full 644 0\n"

    phase.call("node3", "rm", "/tmp/it is full")
    phase.call("node3", "sh", "-c", 'echo >"$0" && chown 65534 "$0"', MODEL)
    with pytest.raises(ClusterError, match=rf"^node3:{MODEL}: belongs to user nobody \(65534\); remove it"):
        place_checkpoint(phase.hosts, tmp_path, checkpoint)
    assert phase.files("node3") == "it's a run_iter_2.caffemodel 644 65534\n"
