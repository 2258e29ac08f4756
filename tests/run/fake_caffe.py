"""A stand-in for the `caffe` program that trains nothing, for faults that a real one does not show on demand.

`behaviour.json` in the working directory says how each phase goes, by the solver's name; without a word a
phase goes well. Its log, its files and its silence are the real one's.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caffe_recipes.caffe import pb

# Hydra ends all ranks where a signal ends one, and this one may be importing when rank 0 is asked to stop.
if os.environ.get("PMI_RANK", "0") != "0":
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def say(source: str, text: str, severity: str = "I") -> None:
    now = time.time()  # read once: the second and its fraction must agree
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now))
    os.write(  # once, as glog does: hydra labels each write
        2, f"{severity}{stamp}.{int(now % 1 * 10**6):06} {os.getpid():5} {source}] {text}\n".encode()
    )


def snapshot_of(path: str) -> bytes:
    # Imported here, for it is most of a rank's time, and only rank 0 needs it.
    from caffe_recipes.caffe import pb
    from caffe_recipes.caffe.prototxt import load_prototxt
    from caffe_recipes.caffe.shapes import infer_shapes

    net = load_prototxt(path, pb.NetParameter)
    weights = pb.NetParameter(name=net.name)
    for layer in infer_shapes(net, pb.TRAIN).layers:
        if layer.learned:
            made = weights.layer.add(name=layer.layer.name, type=layer.layer.type)
            for shape in layer.learned:
                blob = made.blobs.add()
                known = [size for size in shape if size is not None]
                blob.shape.dim.extend(known)
                blob.data.extend([0.5] * math.prod(known))
    return weights.SerializeToString()


def snapshot_of_another_net() -> bytes:
    from caffe_recipes.caffe import pb

    net = pb.NetParameter(name="other")
    net.layer.add(name="ip", type="InnerProduct").blobs.add(data=[1.0], shape=pb.BlobShape(dim=[1]))
    return net.SerializeToString()


# What a snapshot is instead of whole.
SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "truncated": lambda whole: whole[: len(whole) // 2],
    "other": lambda whole: snapshot_of_another_net(),
}


def snapshot(solver: pb.SolverParameter, iteration: int, behaviour: str) -> None:
    path = Path(f"{solver.snapshot_prefix}_iter_{iteration}.caffemodel")
    whole = snapshot_of(solver.net)
    say("solver.cpp:708", "Snapshot begin")
    say("solver.cpp:770", f"Snapshotting to binary proto file {path}")
    if behaviour == "cut-short":
        path.write_bytes(whole[: len(whole) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour != "writes-nothing":
        path.write_bytes(SPOILT.get(behaviour, bytes)(whole))
    say(
        "sgd_solver.cpp:750",
        f"Snapshotting solver state to binary proto file {path.with_suffix('.solverstate')}",
    )
    if behaviour != "says-no-end":
        say("solver.cpp:735", "Snapshot end")
    if behaviour == "dies-after":
        os.kill(os.getpid(), signal.SIGKILL)


class Asked:
    """Whether SIGINT has come."""

    stop = False

    def listen(self, *_: object) -> None:
        self.stop = True


def spoil(behaviour: str, when: str) -> None:
    """Flip a bit of the file that `spoils WHEN PATH` names, once."""
    word, _, rest = behaviour.partition(" ")
    at, _, path = rest.partition(" ")
    if (word, at) == ("spoils", when) and not Path("spoilt").exists():
        Path("spoilt").touch()
        data = bytearray(Path(path).read_bytes())
        data[-1] ^= 1
        Path(path).write_bytes(data)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)


def train(flags: dict[str, str]) -> int:
    name = Path(flags["solver"]).stem.removeprefix("solver_")
    behaviours = json.loads(Path("behaviour.json").read_text()) if Path("behaviour.json").exists() else {}
    behaviour = behaviours.get(name, "well")
    leads = os.environ.get("PMI_RANK", "0") == "0"
    if behaviour == "ignores-term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Hydra kills all ranks if a signal ends one: no rank continues before all ignore it.
        wait_for(Path("rank1")) if leads else Path("rank1").touch()
    if not leads:
        if behaviour == "dies":
            say("data_reader.cpp:99", "Check failed: status == 0 (2 vs. 0) No such file", "F")
            return 134
        return 0
    from caffe_recipes.caffe import pb
    from caffe_recipes.caffe.prototxt import load_prototxt

    solver = load_prototxt(flags["solver"], pb.SolverParameter)
    with Path("trained.txt").open("a") as trained:
        trained.write(f"{name} {flags.get('weights', '-')}\n")
    if behaviour == "no-step":  # what hydra's srun prints before it ends, unnoticed by hydra
        os.write(
            2, b"srun: error: Unable to confirm allocation for job 12: Unable to contact slurm controller\n"
        )
        wait_for(Path("release"))
    spoil(behaviour, "first")
    say("solver.cpp:397", f"Solving {name}")
    asked = Asked()
    if behaviour not in ("ignores-int", "ignores-term"):
        signal.signal(signal.SIGINT, asked.listen)
    for iteration in range(0, solver.max_iter, solver.display):
        lost = {"nan": "nan", "stuck": "87.3365"}.get(behaviour) if iteration else None
        if behaviour == "nan-after" and iteration > solver.snapshot:
            lost = "nan"
        say("solver.cpp:312", f"Iteration {iteration}, loss = {lost or 2.5 / (1 + iteration)}")
        say("sgd_solver.cpp:219", f"Iteration {iteration}, lr = {solver.base_lr:.6g}")
        if behaviour == "snapshots-slowly":
            signal.signal(signal.SIGHUP, lambda *_: None)
        if behaviour in ("waits", "snapshots-slowly", "ignores-term", "nan", "stuck") and iteration == 4:
            wait_for(Path("release"))
        time.sleep(0 if behaviour == "fast" else 0.01)
        reached = iteration + solver.display
        if reached % solver.snapshot == 0 and reached < solver.max_iter and behaviour != "never-snapshots":
            snapshot(solver, reached, behaviour)
        if asked.stop:
            if behaviour == "lingers":
                wait_for(Path("release"))
            if reached % solver.snapshot:
                snapshot(solver, reached, "well")
            say("solver.cpp:427", "Optimization stopped early.")
            return 0
    if behaviour == "dies":
        time.sleep(3600)
    if behaviour == "ends-early":
        return 0
    if behaviour == "stopped":
        say("solver.cpp:440", "Optimization stopped early.")
        return 0
    snapshot(solver, solver.max_iter, behaviour)
    spoil(behaviour, "last")
    say("solver.cpp:443", "Optimization Done.")
    return 0


def test(flags: dict[str, str]) -> int:
    behaviours = json.loads(Path("behaviour.json").read_text()) if Path("behaviour.json").exists() else {}
    behaviour = behaviours.get("evaluation", "well")
    if not Path(flags["weights"]).exists() or behaviour not in ("well", "waits"):
        return 134
    say("caffe.cpp:500", "Batch 0, loss = 0.25")
    if behaviour == "waits":
        wait_for(Path("release"))
    say("caffe.cpp:517", "loss = 0.25 (* 1 = 0.25 loss)")
    say("caffe.cpp:517", "loss3/top-1 = 0.75")
    say("caffe.cpp:517", "loss3/top-5 = 0.9375")
    return 0


if __name__ == "__main__":
    if "--help" in sys.argv:
        sys.exit(1)
    given = dict(word[2:].split("=", 1) for word in sys.argv[2:])
    sys.exit({"train": train, "test": test}[sys.argv[1]](given))
