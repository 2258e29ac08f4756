"""A Caffe root for the 64-node recipe as it ships: a stand-in Caffe, and a launcher that records calls."""

from __future__ import annotations

import array
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.caffe.prototxt import load_prototxt
from caffe_recipes.caffe.shapes import infer_shapes
from tests.cluster.harness.cluster import ROOT, Cluster
from tests.cluster.machines import cpuinfo

RECIPE = "stampede2-64n-72ep"
LMDB = "/tmp/ilsvrc12_train_lmdb"
PHASES = ("init", "cyc1", "cyc2", "cyc3", "collapse")
HYDRA = "/usr/bin/mpiexec.hydra"
# Debian's and PyPI's MPICH alike: one thread a rank, plain TCP.
MPI = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
VARIABLES = ("MLSL_NUM_SERVERS", "MLSL_SERVER_AFFINITY", "OMP_NUM_THREADS", "KMP_AFFINITY")

# The training script of the README of the 72 epochs. Mended: its line breaks lack a backslash, and a stray
# `; '` stands behind the last command.
SCRIPT = r"""
export MLSL_NUM_SERVERS=2
export MLSL_SERVER_AFFINITY="39,38,43,42"

OMP_NUM_THREADS=22 KMP_AFFINITY="granularity=fine,compact,1,0"  mpiexec.hydra -PSM2 -l -n 128 -ppn 2 -f hostfile -genv OMP_NUM_THREADS 22  \
-genv KMP_AFFINITY "granularity=fine,compact,1,0" ./build/tools/caffe train --solver=models/intel_optimized_models/multinode/resnet50_custom_lr/solver_init.prototxt
result=$(head -n 1 hostfile)
scp $result:/tmp/resnet_50_64nodes_init_iter_7800.caffemodel .

OMP_NUM_THREADS=22 KMP_AFFINITY="granularity=fine,compact,1,0"  mpiexec.hydra -PSM2 -l -n 128 -ppn 2 -f hostfile -genv OMP_NUM_THREADS 22  \
-genv KMP_AFFINITY "granularity=fine,compact,1,0" ./build/tools/caffe train --solver=models/intel_optimized_models/multinode/resnet50_custom_lr/solver_cyc1.prototxt \
--weights=resnet_50_64nodes_init_iter_7800.caffemodel
result=$(head -n 1 hostfile)
scp $result:/tmp/resnet_50_64nodes_cyc1_iter_3750.caffemodel .

OMP_NUM_THREADS=22 KMP_AFFINITY="granularity=fine,compact,1,0"  mpiexec.hydra -PSM2 -l -n 128 -ppn 2 -f hostfile -genv OMP_NUM_THREADS 22  \
-genv KMP_AFFINITY "granularity=fine,compact,1,0" ./build/tools/caffe train --solver=models/intel_optimized_models/multinode/resnet50_custom_lr/solver_cyc2.prototxt \
--weights=resnet_50_64nodes_cyc1_iter_3750.caffemodel
result=$(head -n 1 hostfile)
scp $result:/tmp/resnet_50_64nodes_cyc2_iter_4750.caffemodel .

OMP_NUM_THREADS=22 KMP_AFFINITY="granularity=fine,compact,1,0"  mpiexec.hydra -PSM2 -l -n 128 -ppn 2 -f hostfile -genv OMP_NUM_THREADS 22  \
-genv KMP_AFFINITY "granularity=fine,compact,1,0"  ./build/tools/caffe train --solver=models/intel_optimized_models/multinode/resnet50_custom_lr/solver_cyc3.prototxt \
--weights=resnet_50_64nodes_cyc2_iter_4750.caffemodel
result=$(head -n 1 hostfile)
scp $result:/tmp/resnet_50_64nodes_cyc3_iter_4750.caffemodel .

OMP_NUM_THREADS=22 KMP_AFFINITY="granularity=fine,compact,1,0"  mpiexec.hydra -PSM2 -l -n 128 -ppn 2 -f hostfile -genv OMP_NUM_THREADS 22  \
-genv KMP_AFFINITY "granularity=fine,compact,1,0"  ./build/tools/caffe train --solver=models/intel_optimized_models/multinode/resnet50_custom_lr/solver_collapse.prototxt \
--weights=resnet_50_64nodes_cyc3_iter_4750.caffemodel
result=$(head -n 1 hostfile)
scp $result:/tmp/resnet_50_64nodes_cyc_collapse_iter_1560.caffemodel .
"""  # noqa: E501

# Records when it was called, with which arguments and variables; drops -PSM2, which no hydra of today knows.
_NOTE = r"""#!/bin/sh
read -r now _ </proc/uptime
{{
    for name in {variables}; do eval "printf '%s\0' \"\${{$name-}}\""; done
    printf '%s\0' "${{0##*/}}" "$@"
}} >'{folder}'/"$now.$$"
for word; do
    shift
    [ "$word" = -PSM2 ] || set -- "$@" "$word"
done
exec {program} "$@"
"""

# All hosts are one machine: a snapshot of 100 MB that they share is hashed once, not by each of 64.
SHA256SUM = "/usr/bin/sha256sum"
_HASH_ONCE = r"""#!/bin/sh
[ "$#" = 2 ] && version=$(stat -c %d.%i.%s.%.9Y.%.9Z -- "$2" 2>/dev/null) || exec '{folder}/sha256sum' "$@"
exec 9>>'{folder}'/"$version"
flock 9
[ -s '{folder}'/"$version" ] || '{folder}/sha256sum' <"$2" >&9 || exit
read -r digest _ <'{folder}'/"$version"
printf '%s  %s\n' "$digest" "$2"
"""


@dataclass(frozen=True)
class Call:
    """A call of a program: its time, by the machine's clock, its arguments and its environment."""

    at_s: float
    argv: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Rank:
    """A rank of a phase: its host, its environment, and when it ended."""

    host: str
    environment: Mapping[str, str]
    ended_s: float


class ResNetRoot:
    """A Caffe root that all hosts of a cluster see; none of it is in their /tmp yet."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        """Fill a new folder, which must not exist."""
        self.cluster, self.folder = cluster, folder
        self.run_folder = folder / "runs" / f"{RECIPE}-1"
        self.source = folder / "source" / "ilsvrc12_train_lmdb"
        self._programs = folder / "programs"
        for name in ("build/tools", "calls", "source", "examples/imagenet", "programs", "digests"):
            (folder / name).mkdir(parents=True)
        caffe = folder / "build/tools/caffe"
        shutil.copyfile(Path(__file__).with_name("waiting_caffe.sh"), caffe)
        caffe.chmod(0o755)
        (folder / "hostfile").write_text("".join(f"{node}\n" for node in cluster.nodes))
        text = (ROOT / "caffe_recipes/recipes" / f"{RECIPE}.yaml").read_text("utf-8")
        (folder / "recipe.yaml").write_text(text.replace("nodes: 64\n", f"nodes: {len(cluster.nodes)}\n"))
        for path in (self.source, folder / "examples/imagenet/ilsvrc12_val_lmdb"):
            write_images(path, 8)
        for phase in PHASES:
            (folder / "ranks" / phase).mkdir(parents=True)
            os.mkfifo(folder / "ranks" / phase / "end")
        write_caffemodel(folder / "start.caffemodel")
        shutil.copy(SHA256SUM, folder / "digests")
        for node in cluster.nodes:
            # The recipe pins MLSL's servers to cores that this machine lacks.
            cluster.replace(node, "/proc/cpuinfo", cpuinfo(sockets=2, cores_per_socket=24))
            cluster.replace(node, SHA256SUM, _HASH_ONCE.format(folder=folder / "digests"))
        for program in (HYDRA, "/usr/bin/scp"):
            note = self._programs / Path(program).name
            note.write_text(
                _NOTE.format(variables=" ".join(VARIABLES), folder=folder / "calls", program=program)
            )
            note.chmod(0o755)

    def environment(self, **more: str) -> dict[str, str]:
        """Return what a chain here is started with: our programs first, caches of its own."""
        path = f"{self._programs}:{os.environ['PATH']}"
        return {**MPI, "PATH": path, "XDG_CACHE_HOME": str(self.folder / "cache"), **more}

    def place_prototxts(self) -> None:
        """Put the committed prototxts where the solvers name them, as the authors' script wants them."""
        to = self.folder / "models/intel_optimized_models/multinode/resnet50_custom_lr"
        shutil.copytree(ROOT / "prototxt" / RECIPE, to)

    def calls(self, program: str) -> list[Call]:
        """Return how a program was called, oldest first."""
        seen = (_read_call(path) for path in (self.folder / "calls").iterdir())
        return sorted((call for call in seen if call.argv[0] == program), key=lambda call: call.at_s)

    def launches(self) -> list[Call]:
        """Return the calls of mpiexec.hydra that start Caffe."""
        return [call for call in self.calls("mpiexec.hydra") if "./build/tools/caffe" in call.argv]

    def ranks(self, phase: str) -> list[Rank]:
        """Return what the ranks of a phase wrote, in their order."""
        folder = self.folder / "ranks" / phase
        return [_read_rank(folder, number) for number in range(len(list(folder.glob("[0-9]*"))))]

    def made_from(self, snapshot: Path) -> str:
        """Return the phases that added to a snapshot, by their names in order."""
        size = (self.folder / "start.caffemodel").stat().st_size
        with snapshot.open("rb") as file:
            file.seek(size)
            return " ".join(_names(file.read()))


def write_images(path: Path, count: int) -> None:
    """Write an LMDB of encoded flat images, 256 pixels square, of as many classes."""
    encoded = cv2.imencode(".png", np.zeros((256, 256, 3), np.uint8))[1].tobytes()
    write_datums(
        path,
        (
            (f"{number:08}", pb.Datum(channels=3, encoded=True, data=encoded, label=number))
            for number in range(count)
        ),
    )


def write_caffemodel(path: Path, value: float = 0.01) -> None:
    """Write weights of ResNet-50, all of one value, without a Python number for each of 25 million."""
    net = load_prototxt(ROOT / "prototxt" / RECIPE / "train_val.prototxt", pb.NetParameter)
    weights = pb.NetParameter(name=net.name)
    for layer in infer_shapes(net, pb.TRAIN).layers:
        if layer.learned:
            blobs = [_blob([size for size in shape if size is not None], value) for shape in layer.learned]
            weights.layer.add(name=layer.layer.name, type=layer.layer.type, blobs=blobs)
    path.write_bytes(weights.SerializeToString())


def _blob(dims: Sequence[int], value: float) -> pb.BlobProto:
    data = array.array("f", [value]).tobytes() * math.prod(dims)
    packed = pb.BlobProto.DESCRIPTOR.fields_by_name["data"].number << 3 | 2
    shape = pb.BlobProto(shape=pb.BlobShape(dim=dims)).SerializeToString()
    return pb.BlobProto.FromString(shape + bytes([packed]) + _varint(len(data)) + data)


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)


def _names(added: bytes) -> Iterator[str]:
    """Yield the fields `name` of a message that has no other."""
    while added:
        assert added[0] == 0o12, added[:80]
        yield added[2 : 2 + added[1]].decode()
        added = added[2 + added[1] :]


def _read_call(path: Path) -> Call:
    words = path.read_text().split("\0")[:-1]
    seconds, _, _ = path.name.rpartition(".")
    environment = dict(zip(VARIABLES, words, strict=False))
    return Call(float(seconds), tuple(words[len(VARIABLES) :]), environment)


def _read_rank(folder: Path, number: int) -> Rank:
    *variables, host = (folder / str(number)).read_text().splitlines()
    environment = dict(line.split("=", 1) for line in variables)
    return Rank(host, environment, float((folder / f"end.{number}").read_text()))
