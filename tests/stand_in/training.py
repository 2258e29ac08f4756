"""Rank 0: the log, the snapshots, the signals; and `caffe test`."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TypeVar

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import load_prototxt
from caffe_recipes.caffe.rates import lr_at
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.errors import CaffeRecipesError
from tests.stand_in.behaviour import Behaviour, load_behaviour
from tests.stand_in.messages import Shapes, digest_in, render_model, render_state
from tests.stand_in.ranks import FATAL, Followers, digest_of, files_of, has_lmdb, say

M = TypeVar("M", pb.SolverParameter, pb.NetParameter)

# What a snapshot is instead of whole.
_SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "truncated": lambda whole: whole[: len(whole) // 2],
    "html": lambda whole: b"<!DOCTYPE html><html><head><title>404</title></head></html>\n",
}


class Fatal(Exception):
    """A failed check: `source`, and what is logged."""

    def __init__(self, source: str, text: str) -> None:
        """Keep where Caffe's own source checks that."""
        self.source, self.text = source, text
        super().__init__(text)


def main(command: str, flags: dict[str, str]) -> int:
    """Train or test; return the exit code."""
    try:
        return {"train": train, "test": test}[command](flags)
    except Fatal as failed:
        say(failed.source, failed.text, "F")
        return FATAL


class Asked:
    """What signals have asked for since the last iteration."""

    def __init__(self) -> None:
        """Listen: SIGINT stops, SIGHUP has a snapshot taken."""
        self.stop = self.snapshot = False
        signal.signal(signal.SIGINT, lambda *_: setattr(self, "stop", True))
        signal.signal(signal.SIGHUP, lambda *_: setattr(self, "snapshot", True))

    def takes_snapshot(self) -> bool:
        """Return whether one was requested, and reset that."""
        asked, self.snapshot = self.snapshot, False
        return asked


class Training:
    """One solver on its way: `digest` is a function of the start, the phase and the iterations done."""

    def __init__(self, solver: pb.SolverParameter, phase: str, behaviour: Behaviour) -> None:
        """Be at iteration 0 with the weights of the fillers."""
        self.solver, self.phase, self.behaviour = solver, phase, behaviour
        self.net = solver.net_param if solver.HasField("net_param") else _load(solver.net, pb.NetParameter)
        self.shapes = shapes_of(self.net)
        self.iteration = 0
        self.digest = hashlib.sha256(phase.encode()).digest()

    def lmdb(self) -> str:
        """Return the training LMDB; `-` of a net that reads none."""
        layers = (
            layer
            for layer in self.net.layer
            if layer.type == "Data" and all(rule.phase == pb.TRAIN for rule in layer.include)
        )
        return next((layer.data_param.source for layer in layers), "-")

    def start_from(self, flags: dict[str, str]) -> None:
        """Take over weights, or a solverstate with its iteration."""
        if "snapshot" in flags:
            say("caffe.cpp:316", f"Resuming from {flags['snapshot']}")
            self._resume(flags["snapshot"])
        elif "weights" in flags:
            say("caffe.cpp:218", f"Finetuning from {flags['weights']}")
            self._finetune(flags["weights"])

    def step(self) -> None:
        """Do one iteration."""
        self.digest = hashlib.sha256(self.digest + str(self.iteration).encode()).digest()
        self.iteration += 1

    def snapshot(self) -> None:
        """Write both files, straight under their final names; the last of them may be spoilt."""
        model = Path(f"{self.solver.snapshot_prefix}_iter_{self.iteration}.caffemodel")
        state = model.with_suffix(".solverstate")
        say("solver.cpp:708", "Snapshot begin")
        say("solver.cpp:770", f"Snapshotting to binary proto file {model}")
        self._write(model, self._model())
        say("sgd_solver.cpp:750", f"Snapshotting solver state to binary proto file {state}")
        _write(state, render_state(self.iteration, str(model), self.shapes, self.digest))
        say("solver.cpp:735", "Snapshot end")

    def display(self) -> None:
        """Log loss and rate."""
        loss: float | str = round(2.5 / (1 + self.iteration) + self.digest[0] / 10_000, 6)
        for fault, shown in (("nan", "nan"), ("stuck", "87.3365")):
            loss = shown if self.behaviour.has_begun(fault, self.iteration) else loss
        say("solver.cpp:312", f"Iteration {self.iteration}, loss = {loss}")
        say("solver.cpp:333", f"    Train net output #0: loss = {loss} (* 1 = {loss} loss)")
        if self.iteration < self.solver.max_iter:
            rate = lr_at(self.solver, self.iteration)
            say("sgd_solver.cpp:219", f"Iteration {self.iteration}, lr = {rate:.6g}")

    def _resume(self, path: str) -> None:
        state = pb.SolverState.FromString(Path(path).read_bytes())
        self.iteration = state.iter
        self.digest = digest_in(chain.from_iterable(blob.data for blob in state.history))
        if Path(state.learned_net).read_bytes() != self._model():
            raise Fatal("standin.cpp:2", f"Check failed: {state.learned_net} is of another solverstate")

    def _finetune(self, path: str) -> None:
        """Start from weights; if these are not a file of Caffe, silently from the fillers."""
        data = b"" if Path(path).is_dir() else Path(path).read_bytes()
        if not data or data.lstrip().startswith(b"<"):
            return
        try:
            layers = pb.NetParameter.FromString(data).layer
        except Exception:  # protobuf's own, which has no name that lasts
            raise Fatal("upgrade_proto.cpp:95", f"Check failed: Failed to parse NetParameter file: {path}")  # noqa: B904
        known = {name for name, _, _ in self.shapes}
        for layer in layers:
            if layer.blobs and layer.name not in known:
                say("net.cpp:1137", f"Ignoring source layer {layer.name}")
        if self.behaviour.has("ignored"):
            say("net.cpp:1137", f"Ignoring source layer {layers[0].name}")
        self.digest = hashlib.sha256(self.phase.encode() + hashlib.sha256(data).digest()).digest()

    def _model(self) -> bytes:
        return render_model(self.net.name, self.shapes, self.digest)

    def _write(self, path: Path, whole: bytes) -> None:
        is_last = self.iteration == self.solver.max_iter
        if is_last and self.behaviour.has("renamed"):
            (name, kind, blobs), *others = self.shapes
            whole = render_model(self.net.name, [(f"{name}_renamed", kind, blobs), *others], self.digest)
        for fault, spoil in _SPOILT.items():
            whole = spoil(whole) if is_last and self.behaviour.has(fault) else whole
        if not (is_last and self.behaviour.has("nothing")):
            _write(path, whole)


def train(flags: dict[str, str]) -> int:
    """Train by a solver, in step with the other ranks."""
    asked, solver = Asked(), _load(flags["solver"], pb.SolverParameter)
    if "weights" in flags and "snapshot" in flags:
        raise Fatal("caffe.cpp:290", "Check failed: Give a snapshot or weights to resume, not both.")
    phase = Path(flags["solver"]).stem.removeprefix("solver_")
    behaviour = load_behaviour(phase)
    training = Training(solver, phase, behaviour)
    if not Path(solver.snapshot_prefix).parent.is_dir():
        raise Fatal("solver.cpp:90", f"Check failed: no folder to write to: {solver.snapshot_prefix}")
    if not has_lmdb(training.lmdb()):
        return FATAL
    try:
        starts_from = digest_of(files_of(flags))
    except OSError as error:
        raise Fatal(
            "io.cpp:54", f"Check failed: fd != -1 (-1 vs. -1) File not found: {error.filename}"
        ) from None
    followers = Followers(starts_from, training.lmdb(), behaviour.of_ranks())
    training.start_from(flags)
    _note(phase, flags)
    say("solver.cpp:397", f"Solving {training.net.name}")
    say("solver.cpp:398", f"Learning Rate Policy: {solver.lr_policy}")
    is_written = _iterate(training, followers, asked)
    if is_written is None:
        return 0
    if not is_written:
        training.snapshot()
    if asked.stop:
        say("solver.cpp:427", "Optimization stopped early.")
    elif solver.display and solver.max_iter % solver.display == 0:
        training.display()
    say("solver.cpp:443", "Optimization Done.")
    say("caffe.cpp:345", "Optimization Done.")
    followers.leave()
    return 0


def _iterate(training: Training, followers: Followers, asked: Asked) -> bool | None:
    """Iterate to the end, or to a SIGINT; return whether a snapshot was written.

    None for what ends without a word.
    """
    solver, behaviour = training.solver, training.behaviour
    is_written = False
    while training.iteration < solver.max_iter and not asked.stop:
        at = training.iteration
        if solver.display and at % solver.display == 0:
            training.display()
        if behaviour.has("early", at):
            followers.leave()
            return None
        _misbehave(behaviour, at)
        followers.go(on=True)
        time.sleep(behaviour.iteration_s)
        followers.wait()
        training.step()
        is_due = bool(solver.snapshot) and training.iteration % solver.snapshot == 0
        is_written = asked.takes_snapshot() or is_due
        if is_written:
            training.snapshot()
    return is_written


def _misbehave(behaviour: Behaviour, at: int) -> None:
    if behaviour.has("dies", at):
        raise Fatal("blocking_queue.cpp:50", "Check failed: rank 0 is to die")
    if behaviour.has("killed", at):
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour.has("hangs", at):
        os.kill(os.getpid(), signal.SIGSTOP)
    for fault in behaviour.faults:
        while fault.does == "waits" and fault.at == at and not Path(fault.until).exists():
            time.sleep(0.02)


def test(flags: dict[str, str]) -> int:
    """Test a caffemodel: means that are a function of its bytes."""
    _load(flags["model"], pb.NetParameter)
    if not Path(flags["weights"]).is_file():
        raise _missing("io.cpp:54", flags["weights"])
    digest = hashlib.sha256(Path(flags["weights"]).read_bytes()).digest()
    loss, top1, top5 = (round(byte / 256, 6) for byte in digest[:3])
    say("caffe.cpp:517", f"loss = {loss} (* 1 = {loss} loss)")
    say("caffe.cpp:517", f"loss3/top-1 = {top1}")
    say("caffe.cpp:517", f"loss3/top-5 = {top5}")
    return 0


def shapes_of(net: pb.NetParameter) -> Shapes:
    """Return what a net learns: name, type and blobs of each layer that does; an unknown size is 1."""
    return [
        (layer.layer.name, layer.layer.type, [tuple(size or 1 for size in blob) for blob in layer.learned])
        for layer in infer_shapes(net, pb.TRAIN).layers
        if layer.learned
    ]


def _note(phase: str, flags: dict[str, str]) -> None:
    """Add a line to `trained.txt` in the working directory: what was trained, and from what."""
    with Path("trained.txt").open("a") as trained:
        trained.write(f"{phase} {flags.get('snapshot', flags.get('weights', '-'))}\n")


def _missing(source: str, path: str) -> Fatal:
    return Fatal(source, f"Check failed: fd != -1 (-1 vs. -1) File not found: {path}")


def _load(path: str, kind: type[M]) -> M:
    if not Path(path).is_file():
        raise _missing("io.cpp:36", path)
    try:
        return load_prototxt(path, kind)
    except CaffeRecipesError as error:
        raise Fatal("upgrade_proto.cpp:88", f"Check failed: ReadProtoFromTextFile: {error}") from None


def _write(path: Path, data: bytes) -> None:
    """Write as Caffe does: nothing is cleaned up where the disk is full."""
    try:
        path.write_bytes(data)
    except OSError:
        raise Fatal("io.cpp:69", "Check failed: proto.SerializeToOstream(&output)") from None
