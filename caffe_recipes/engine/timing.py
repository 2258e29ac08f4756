"""`caffe-torch time`: how long each layer of a net takes, forward and backward, as `caffe time` prints it.

A layer's backward pass is timed from the arrival of the gradient of its top to that of the next layer, so the
times of all layers add up to that of the pass. A BatchNorm that the engine computes together with the Scale
after it is one line.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import profile, record_function

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.weights import check_weights_files, load_weights
from caffe_recipes.engine.glog import Log, format_number
from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.engine.nodes import LayerNode
from caffe_recipes.engine.operators.data import DataContext
from caffe_recipes.engine.settings import load_net
from caffe_recipes.engine.snapshot import copy_weights
from caffe_recipes.engine.updates import flatten_params
from caffe_recipes.errors import DiskFailed, InputError
from caffe_recipes.files.atomic_writes import write_whole

_PLACE = "time"


@dataclass
class LayerTimes:
    """Seconds by layer since the start, and the layer whose backward pass is under way."""

    device: str
    forward_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    backward_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _backward: str = ""
    _since_s: float = 0.0

    def now_s(self) -> float:
        """Return the time, once the device has done all that it was given."""
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def enter_backward(self, layer: str) -> None:
        """Note that a layer's backward pass begins, and so the one before has ended; "" for the last one."""
        now_s = self.now_s()
        if self._backward:
            self.backward_s[self._backward] += now_s - self._since_s
        self._backward, self._since_s = layer, now_s


class TimedNet(RunnableNet):
    """A net that notes in `times`, if that is set, how long each of its layers takes."""

    times: LayerTimes | None = None
    keeps_blobs = True  # so that no two tensors of a pass have the same id
    _hooked: frozenset[int] = frozenset()

    def forward(self) -> Tensor:
        """Run all layers on the next batch, and return the loss."""
        self._hooked = frozenset()
        return super().forward()

    def run_layer(self, node: LayerNode, xs: list[Tensor], blobs: list[Tensor]) -> list[Tensor]:
        """Run one layer, and note how long it takes."""
        times, name = self.times, node.param.name
        if times is None:
            with record_function(name):  # named in a trace
                return super().run_layer(node, xs, blobs)
        start_s = times.now_s()
        tops = super().run_layer(node, xs, blobs)
        times.forward_s[name] += times.now_s() - start_s
        for top in tops:
            # A Split passes its bottom on; the time is that of the layer which computed it.
            if top.requires_grad and id(top) not in self._hooked:
                self._hooked |= {id(top)}
                top.register_hook(_entering(times, name))
        return tops


def _entering(times: LayerTimes, name: str) -> Callable[[Tensor], None]:
    def enter(_: Tensor) -> None:
        times.enter_backward(name)

    return enter


def load_timed_net(
    model: str,
    weights: Sequence[str],
    phase: str,
    level: int,
    stages: Sequence[str],
    log: Log,
    device: str,
) -> TimedNet:
    """Return the net of a phase, TRAIN for "", with its weights if given. Raises InputError."""
    if phase not in ("", "TRAIN", "TEST"):
        raise InputError("", f"-phase '{phase[:80]}' is unknown", "give TRAIN or TEST")
    param = load_net(model)
    param.state.phase = pb.TEST if phase == "TEST" else pb.TRAIN
    param.state.level = level
    param.state.stage.extend(stages)
    check_weights_files(weights)
    net = TimedNet(param, model, DataContext(0, 1, 0, 0, log, device), torch.Generator().manual_seed(0))
    flatten_params(net, pb.SolverParameter())
    for path in weights:
        copy_weights(net, load_weights(path), path, log)
    return net


def time_net(net: TimedNet, iterations: int, device: str, log: Log) -> None:
    """Print the average times of each layer, as `caffe time` does, and the images per second.

    A net without a loss has no backward pass. The first pass, which also sets up kernels, is not counted.
    """
    log.info(_PLACE, "Performing Forward")
    loss = net.forward()
    log.info(_PLACE, f"Initial loss: {format_number(loss.item())}")
    log.info(_PLACE, "Performing Backward")
    _go_back(loss)
    log.info(_PLACE, "*** Benchmark begins ***")
    log.info(_PLACE, f"Testing for {iterations} iterations.")
    times = net.times = LayerTimes(device)
    forward_s = backward_s = 0.0
    for iteration in range(1, iterations + 1):
        start_s = times.now_s()
        loss = net.forward()
        middle_s = times.now_s()
        _go_back(loss)
        times.enter_backward("")
        end_s = times.now_s()
        forward_s, backward_s = forward_s + middle_s - start_s, backward_s + end_s - middle_s
        log.info(_PLACE, f"Iteration: {iteration} forward-backward time: {_ms(end_s - start_s)} ms.")
    net.times = None
    log.info(_PLACE, "Average time per layer: ")
    for name in dict.fromkeys(node.param.name for node in net.nodes if node.param.name in times.forward_s):
        for way, by_layer in (("forward", times.forward_s), ("backward", times.backward_s)):
            log.info(_PLACE, f"{name:>10}\t{way}: {_ms(by_layer.get(name, 0.0) / iterations)} ms.")
    total_s = forward_s + backward_s
    log.info(_PLACE, f"Average Forward pass: {_ms(forward_s / iterations)} ms.")
    log.info(_PLACE, f"Average Backward pass: {_ms(backward_s / iterations)} ms.")
    log.info(_PLACE, f"Average Forward-Backward: {_ms(total_s / iterations)} ms.")
    log.info(_PLACE, f"Total Time: {_ms(total_s)} ms.")
    if images := _batch_size(net):
        log.info(_PLACE, f"{format_number(images * iterations / total_s)} images/s")
    log.info(_PLACE, "*** Benchmark ends ***")


def trace_net(net: TimedNet, out: str, log: Log) -> None:
    """Write a trace of one pass, which Perfetto and Chrome's tracing page read."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would report its start and end on stderr
    with profile() as trace:
        _go_back(net.forward())
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "trace.json")
        trace.export_chrome_trace(str(made))
        try:
            write_whole({Path(out): made.read_bytes()})
        except OSError as error:
            raise DiskFailed(out, error) from None
    log.info(_PLACE, f"Wrote {out}, a trace of one pass by layer")


def _go_back(loss: Tensor) -> None:
    if loss.requires_grad:
        torch.autograd.backward(loss)


def _ms(seconds: float) -> str:
    return format_number(1000 * seconds)


def _batch_size(net: RunnableNet) -> int:
    """Return the images of a batch: the first dimension of the first data layer's first top; 0 without."""
    tops = next((node.tops for node in net.nodes if node.source is not None), [])
    shape = net.shape(tops[0]) if tops else ()
    return shape[0] if shape else 0
