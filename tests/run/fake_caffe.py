"""A stand-in for the `caffe` program that trains nothing, for faults that a real one does not show on demand.

`behaviour.json` in the Caffe root says how each phase goes, by the solver's name; without a word a phase goes
well. Its log, its files and its silence are the real one's. It runs as a program, which `place_program` puts
into the Caffe root, or in threads of the test, which `threaded_trainer` starts in the launcher's place.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caffe_recipes.caffe import pb

# Hydra ends all ranks where a signal ends one, and this one may be importing when rank 0 is asked to stop.
if __name__ == "__main__" and os.environ.get("PMI_RANK", "0") != "0":
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@cache
def whole_snapshot(net_text: str) -> bytes:
    """Return weights of 0.5 for a net."""
    # Imported here, for it is most of a rank's time, and only rank 0 needs it.
    from caffe_recipes.caffe import pb
    from caffe_recipes.caffe.prototxt import parse_prototxt
    from caffe_recipes.caffe.shapes import infer_shapes

    net = parse_prototxt(net_text, pb.NetParameter)
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


class Rank:
    """A rank of caffe in the Caffe root `root`, which writes its output by `write`."""

    def __init__(self, root: Path, rank: int, write: Callable[[bytes], object]) -> None:
        self.root, self.rank, self.write = root, rank, write
        self.is_asked = False

    def run(self, words: Sequence[str]) -> int:
        """Run the command in the words after the program; return its exit code."""
        flags = dict(word[2:].split("=", 1) for word in words[1:])
        return {"train": self.train, "test": self.test}[words[0]](flags)

    def listen(self) -> None:
        """From now on stop after an iteration when asked to."""
        signal.signal(signal.SIGINT, self.ask)

    def ask(self, *_: object) -> None:
        self.is_asked = True

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def ignore(self, *numbers: signal.Signals) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    def catch(self, number: signal.Signals) -> None:
        """From now on take a signal, and do nothing about it."""
        signal.signal(number, lambda *_: None)

    def say(self, source: str, text: str, severity: str = "I") -> None:
        now = time.time()  # read once: the second and its fraction must agree
        stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now))
        micros = int(now % 1 * 10**6)
        # In one write, as glog does: hydra labels each.
        self.write(f"{severity}{stamp}.{micros:06} {os.getpid():5} {source}] {text}\n".encode())

    def behaviour(self, name: str) -> str:
        path = self.root / "behaviour.json"
        behaviours: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        return behaviours.get(name, "well")

    def wait_for(self, name: str) -> None:
        while not (self.root / name).exists():
            self.pause(0.05)

    def snapshot(self, solver: pb.SolverParameter, iteration: int, behaviour: str) -> None:
        path = Path(f"{solver.snapshot_prefix}_iter_{iteration}.caffemodel")
        whole = whole_snapshot((self.root / solver.net).read_text())
        self.say("solver.cpp:708", "Snapshot begin")
        self.say("solver.cpp:770", f"Snapshotting to binary proto file {path}")
        if behaviour == "cut-short":
            (self.root / path).write_bytes(whole[: len(whole) // 2])
            self.die()
        if behaviour != "writes-nothing":
            (self.root / path).write_bytes(SPOILT.get(behaviour, bytes)(whole))
        state = path.with_suffix(".solverstate")
        self.say("sgd_solver.cpp:750", f"Snapshotting solver state to binary proto file {state}")
        if behaviour != "says-no-end":
            self.say("solver.cpp:735", "Snapshot end")
        if behaviour == "dies-after":
            self.die()

    def spoil(self, behaviour: str, when: str) -> None:
        """Flip a bit of the file that `spoils WHEN PATH` names, once."""
        word, _, rest = behaviour.partition(" ")
        at, _, name = rest.partition(" ")
        if (word, at) == ("spoils", when) and not (self.root / "spoilt").exists():
            (self.root / "spoilt").touch()
            data = bytearray((self.root / name).read_bytes())
            data[-1] ^= 1
            (self.root / name).write_bytes(data)

    def train(self, flags: Mapping[str, str]) -> int:
        name = Path(flags["solver"]).stem.removeprefix("solver_")
        behaviour = self.behaviour(name)
        if behaviour == "ignores-term":
            self.ignore(signal.SIGTERM, signal.SIGINT)
            # Hydra kills all ranks if a signal ends one: no rank continues before all ignore it.
            self.wait_for("rank1") if self.rank == 0 else (self.root / "rank1").touch()
        if self.rank != 0:
            if behaviour == "dies":
                self.say("data_reader.cpp:99", "Check failed: status == 0 (2 vs. 0) No such file", "F")
                return 134
            return 0
        from caffe_recipes.caffe import pb
        from caffe_recipes.caffe.prototxt import parse_prototxt

        solver = parse_prototxt((self.root / flags["solver"]).read_text(), pb.SolverParameter)
        with (self.root / "trained.txt").open("a") as trained:
            trained.write(f"{name} {flags.get('weights', '-')}\n")
        if behaviour == "no-step":  # what hydra's srun prints before it ends, unnoticed by hydra
            self.write(
                b"srun: error: Unable to confirm allocation for job 12: Unable to contact slurm controller\n"
            )
            self.wait_for("release")
        self.spoil(behaviour, "first")
        self.say("solver.cpp:397", f"Solving {name}")
        if behaviour not in ("ignores-int", "ignores-term"):
            self.listen()
        for iteration in range(0, solver.max_iter, solver.display):
            self.iterate(solver, iteration, behaviour)
            if self.is_asked:
                if behaviour == "lingers":
                    self.wait_for("release")
                if (iteration + solver.display) % solver.snapshot:
                    self.snapshot(solver, iteration + solver.display, "well")
                self.say("solver.cpp:427", "Optimization stopped early.")
                return 0
        if behaviour == "dies":
            self.pause(3600)
        if behaviour == "ends-early":
            return 0
        if behaviour == "stopped":
            self.say("solver.cpp:440", "Optimization stopped early.")
            return 0
        self.snapshot(solver, solver.max_iter, behaviour)
        self.spoil(behaviour, "last")
        self.say("solver.cpp:443", "Optimization Done.")
        return 0

    def iterate(self, solver: pb.SolverParameter, iteration: int, behaviour: str) -> None:
        """Train up to the next line of the log, with a snapshot there if the solver asks for one."""
        lost = {"nan": "nan", "stuck": "87.3365", "bvlc-nan": "nan"}.get(behaviour) if iteration else None
        shown = {
            "bvlc-nan": f"Iteration {iteration} (2 iter/s, 1s/2 iters), loss",
            "unknown-lines": f"Step {iteration}: loss",
        }.get(behaviour, f"Iteration {iteration}, loss")
        if behaviour == "nan-after" and iteration > solver.snapshot:
            lost = "nan"
        self.say("solver.cpp:312", f"{shown} = {lost or 2.5 / (1 + iteration)}")
        self.say("sgd_solver.cpp:219", f"Iteration {iteration}, lr = {solver.base_lr:.6g}")
        if behaviour == "snapshots-slowly":
            self.catch(signal.SIGHUP)
        if (
            behaviour in ("waits", "snapshots-slowly", "ignores-term", "nan", "stuck", "bvlc-nan")
            and iteration == 4
        ):
            self.wait_for("release")
        self.pause(0 if behaviour == "fast" else 0.01)
        reached = iteration + solver.display
        if reached % solver.snapshot == 0 and reached < solver.max_iter and behaviour != "never-snapshots":
            self.snapshot(solver, reached, behaviour)

    def test(self, flags: Mapping[str, str]) -> int:
        behaviour = self.behaviour("evaluation")
        if not (self.root / flags["weights"]).exists() or behaviour not in ("well", "waits"):
            return 134
        self.say("caffe.cpp:500", "Batch 0, loss = 0.25")
        if behaviour == "waits":
            self.wait_for("release")
        self.say("caffe.cpp:517", "loss = 0.25 (* 1 = 0.25 loss)")
        self.say("caffe.cpp:517", "loss3/top-1 = 0.75")
        self.say("caffe.cpp:517", "loss3/top-5 = 0.9375")
        return 0


# Answers preflight's trial without Python, whose start takes most of the time of a short run.
_PROGRAM = """\
#!/bin/sh
case "$*" in
"train --solver=solver_"[0-9]*)
    echo 'I0101 00:00:00.000000     1 solver.cpp:443] Optimization Done.' >&2
    exit
    ;;
esac
exec "{python}" "{path}" "$@"
"""


def place_program(root: Path) -> None:
    """Put the program into a Caffe root."""
    program = root / "caffe"
    program.write_text(_PROGRAM.format(python=sys.executable, path=__file__))
    program.chmod(0o755)


def main(words: Sequence[str]) -> int:
    if "--help" in words:
        return 1  # as gflags ends
    return Rank(Path(), int(os.environ.get("PMI_RANK", "0")), lambda line: os.write(2, line)).run(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
