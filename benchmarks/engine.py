"""Compare caffe-torch with programs written by hand, on ResNet-50: time, memory, data, ranks and start-up.

The two sides of a row take turns, step by step or start by start, so that other work on the machine slows
both. Speeds are ratios of ours to theirs: above 1, caffe-torch is faster. All rows take about 15 minutes on
two cores, and 12 GB of memory at batch 32.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.caffe.prototxt import load_prototxt, render_prototxt
from caffe_recipes.engine.communication import Ranks
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.heap import keep_large_blocks
from caffe_recipes.engine.signal_requests import SignalRequests
from caffe_recipes.engine.solver import Solver
from caffe_recipes.engine.subcommands import StartPoint, load_test_net, prepare_solver
from caffe_recipes.engine.transform import Transform, decode_datum, match_caffe_opencv

NET = Path(__file__).resolve().parent.parent / "prototxt" / "stampede2-64n-72ep" / "train_val.prototxt"
BIN = Path(sys.executable).parent
MEAN = np.array((104, 117, 123), np.float32)
SOLVER = """net: "{net}" base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.00005 random_seed: 1
max_iter: {iterations} display: 1 snapshot_prefix: "made" snapshot_after_train: {snapshots}
solver_mode: CPU test_initialization: false
"""
LENET = """
layer { name: "data" type: "DummyData" top: "data" top: "label"
  dummy_data_param { shape { dim: 64 dim: 1 dim: 28 dim: 28 } shape { dim: 64 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 20 kernel_size: 5 weight_filler { type: "xavier" } } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "conv2" type: "Convolution" bottom: "pool1" top: "conv2"
  convolution_param { num_output: 50 kernel_size: 5 weight_filler { type: "xavier" } } }
layer { name: "pool2" type: "Pooling" bottom: "conv2" top: "pool2"
  pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "ip1" type: "InnerProduct" bottom: "pool2" top: "ip1"
  inner_product_param { num_output: 500 weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"""


class Bottleneck(nn.Module):
    """ResNet-50's block: 1x1, 3x3 with the stride, 1x1; the first of a stage projects its input."""

    def __init__(self, inputs: int, width: int, stride: int, *, is_first: bool) -> None:
        super().__init__()
        self.shortcut = conv(inputs, 4 * width, 1, stride) if is_first else nn.Identity()
        self.branch = nn.Sequential(
            conv(inputs, width, 1),
            nn.ReLU(inplace=True),
            conv(width, width, 3, stride),
            nn.ReLU(inplace=True),
            conv(width, 4 * width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self.branch(x).add_(self.shortcut(x)))


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = False) -> nn.Sequential:
    plain = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=bias)
    return nn.Sequential(plain, nn.BatchNorm2d(outputs))


def resnet_50() -> nn.Module:
    blocks, inputs = [], 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for number in range(count):
            width, stride = 64 * 2**stage, 2 if stage and not number else 1
            blocks.append(Bottleneck(inputs, width, stride, is_first=not number))
            inputs = 4 * width
    start = (conv(3, 64, 7, 2, bias=True), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, ceil_mode=True))
    return nn.Sequential(*start, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


Step = Callable[[], object]


def loop_step(batch: int) -> Step:
    """Return the training step of a loop written by hand: channels last, foreach SGD, no data."""
    net = resnet_50()
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stub knows tensors only
    optimizer = torch.optim.SGD(net.parameters(), 0.01, 0.9, weight_decay=0.00005, foreach=True)
    images = torch.randn(batch, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def write_net(folder: Path, batch: int, lmdb: str = "") -> Path:
    """Write ResNet-50 as it is published, with data from an LMDB, or made from nothing if `lmdb` is ""."""
    net = load_prototxt(str(NET), pb.NetParameter)
    for layer in net.layer:
        if layer.type == "Data" and lmdb:
            layer.data_param.source, layer.data_param.batch_size = lmdb, batch
        elif layer.type == "Data":
            layer.type = "DummyData"
            layer.ClearField("transform_param")
            layer.ClearField("data_param")
            layer.dummy_data_param.shape.add(dim=(batch, 3, 224, 224))
            layer.dummy_data_param.shape.add(dim=(batch,))
            layer.dummy_data_param.data_filler.add(type="uniform", min=-1, max=1)
            layer.dummy_data_param.data_filler.add(type="uniform", min=0, max=999)
    path = folder / f"{'lmdb' if lmdb else 'dummy'}_{batch}.prototxt"
    path.write_text(render_prototxt(net))
    return path


def write_solver(folder: Path, net: Path, iterations: int, snapshots: bool = False) -> Path:
    path = net.with_suffix(".solver")
    path.write_text(SOLVER.format(net=net, iterations=iterations, snapshots=str(snapshots).lower()))
    return path


def our_solver(folder: Path, net: Path) -> Solver:
    path = str(write_solver(folder, net, 10**6))
    param = load_prototxt(path, pb.SolverParameter)
    param.display = 0
    quiet = Log(enabled=False)
    return prepare_solver(param, path, StartPoint(), Ranks(), SignalRequests(), quiet, "cpu")


def take_turns(ours: Step, theirs: Step, rounds: int) -> tuple[float, float, float]:
    """Return the median seconds of each after one call that does not count, and their CPU time over ours.

    The CPU time is that of this process. With two threads or more it has waits in it, as a thread that waits
    for another runs on.
    """
    took: tuple[list[float], list[float]] = ([], [])
    cpu: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for step, times, cpu_times in zip((ours, theirs), took, cpu, strict=True):
            start_s, start_cpu_s = time.perf_counter(), time.process_time()
            step()
            if number:
                times.append(time.perf_counter() - start_s)
                cpu_times.append(time.process_time() - start_cpu_s)
    our_cpu_s, their_cpu_s = map(statistics.median, cpu)
    return statistics.median(took[0]), statistics.median(took[1]), their_cpu_s / our_cpu_s


def show(what: str, value: str, goal: str, detail: str) -> None:
    load = os.getloadavg()[0]
    print(f"{what:58} {value:>8}  goal {goal:8} {detail}; load {load:.1f}", flush=True)


class StepProcess:
    """A process of this program that takes training steps when it is asked to."""

    def __init__(self, side: str, args: argparse.Namespace) -> None:
        words = ["--side", side, "--batch", str(args.batch), "--threads", str(args.threads)]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.cpu_s: list[float] = []
        self.peak_gb = 0.0

    def step(self) -> None:
        assert self._process.stdin and self._process.stdout
        print("step", file=self._process.stdin, flush=True)
        cpu_s, self.peak_gb = map(float, self._process.stdout.readline().split())
        self.cpu_s.append(cpu_s)

    def end(self) -> None:
        self._process.communicate()


def take_steps(folder: Path, args: argparse.Namespace) -> None:
    """Take a step for each line of standard input, and print its CPU seconds and the peak memory in GB."""
    if args.side != "loop":
        keep_large_blocks()  # as caffe-torch does
    if args.side == "ours":
        step: Step = our_solver(folder, write_net(folder, args.batch))._step
    else:
        step = loop_step(args.batch)
    for _ in sys.stdin:
        start_s = time.process_time()
        step()
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(time.process_time() - start_s, peak_bytes / 1e9, flush=True)


def compare_steps(folder: Path, args: argparse.Namespace) -> None:
    """Compare a training step, each in a process of its own, as users start them."""
    ours = StepProcess("ours", args)
    for name, side in (("", "loop"), (" that keeps what it frees", "keeping loop")):
        loop = StepProcess(side, args)
        ours_s, loop_s, _ = take_turns(ours.step, loop.step, args.rounds)
        ours_cpu_s, loop_cpu_s = (statistics.median(one.cpu_s[-args.rounds :]) for one in (ours, loop))
        detail = f"{args.batch / ours_s:.2f} and {args.batch / loop_s:.2f} images/s, batch {args.batch}"
        detail += f"; {loop_cpu_s / ours_cpu_s:.3f} by CPU time"
        show(f"training step, over a loop by hand{name}", f"{loop_s / ours_s:.3f}", ">= 1.0", detail)
        detail = f"{ours.peak_gb:.2f} and {loop.peak_gb:.2f} GB of the whole process"
        ratio = f"{ours.peak_gb / loop.peak_gb:.3f}"
        show(f"peak memory of it, over the loop{name}", ratio, "<= 1.1", detail)
        loop.end()
    ours.end()


def jpegs(count: int) -> list[bytes]:
    """Return JPEGs of 256 px and about 30 kB, as those of photographs."""
    random = np.random.default_rng(0)
    made = []
    for _ in range(count):
        coarse = random.integers(0, 255, (16, 16, 3), np.uint8)
        pixels = cv2.resize(coarse, (256, 256), interpolation=cv2.INTER_CUBIC).astype(np.float32)
        noisy = np.clip(pixels + random.normal(0, 18, pixels.shape), 0, 255).astype(np.uint8)
        made.append(cv2.imencode(".jpg", noisy, [cv2.IMWRITE_JPEG_QUALITY, 85])[1].tobytes())
    return made


def compare_data(folder: Path, args: argparse.Namespace) -> None:
    count = args.batch * (args.rounds + 8)  # no image is read twice: decoded ones are kept
    lmdb = folder / "lmdb"
    items = [
        (f"{n:08}", pb.Datum(encoded=True, data=data, label=n % 1000)) for n, data in enumerate(jpegs(count))
    ]
    write_datums(lmdb, items)
    with_data = our_solver(folder, write_net(folder, args.batch, str(lmdb)))
    without = our_solver(folder, write_net(folder, args.batch))
    with_s, without_s, by_cpu = take_turns(with_data._step, without._step, args.rounds)
    with_data.close()
    detail = f"{args.batch / with_s:.2f} and {args.batch / without_s:.2f} images/s; {by_cpu:.3f} by CPU time"
    show("the step with LMDB data, over that without", f"{without_s / with_s:.3f}", ">= 0.95", detail)


def compare_ranks(folder: Path, args: argparse.Namespace) -> None:
    """Start two ranks, and two processes with a rank each, in turn."""
    net = write_net(folder, args.batch)
    train = [str(BIN / "caffe-torch"), "train", "-solver", str(write_solver(folder, net, 5))]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(args.starts):
        joined = [str(BIN / "mpiexec.hydra"), "-n", "2", *train]
        for argvs, found in zip(([joined], [train, train]), rates, strict=True):
            started = [
                subprocess.Popen(argv, env=one_thread, cwd=folder, stderr=subprocess.PIPE, text=True)
                for argv in argvs
            ]
            logs = [process.communicate()[1] for process in started]
            found.append(statistics.mean(seconds_of_iteration(log) for log in logs))
    joined_s, alone_s = (min(found) for found in rates)
    detail = f"{joined_s:.2f} and {alone_s:.2f} s an iteration, batch {args.batch} each, one thread each"
    show("two ranks, over two processes of one rank", f"{alone_s / joined_s:.3f}", ">= 0.9", detail)


def seconds_of_iteration(log: str) -> float:
    """Return the median time between two iterations of a log, without the first."""
    found = re.findall(r"^I\d+ (\S+) .*Iteration \d+, loss", log, re.MULTILINE)
    times = [datetime.strptime(clock, "%H:%M:%S.%f").timestamp() for clock in found]
    return float(np.median(np.diff(times)[1:]))


def compare_transform(folder: Path, args: argparse.Namespace) -> None:
    """Compare CPU seconds, so that other work on the machine does not count."""
    net = load_prototxt(str(NET), pb.NetParameter)
    param = net.layer[0].transform_param
    transform, random, encoded = Transform(param, pb.TRAIN), Random(1), jpegs(256)
    datums = [pb.Datum(encoded=True, data=data) for data in encoded]

    def ours() -> None:
        images = [transform.apply(decode_datum(datum, param), random) for datum in datums[:32]]
        transform.normalise(images)

    def plain() -> None:
        np.stack([crop_by_hand(data, random) for data in encoded[:32]])

    match_caffe_opencv()
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(60):
        for step, times in zip((ours, plain), took, strict=True):
            start_s = time.thread_time()
            step()
            times.append(time.thread_time() - start_s)
    ours_s, plain_s = (statistics.median(times) for times in took)
    detail = f"{32 / ours_s:.0f} and {32 / plain_s:.0f} images/s of CPU time"
    show("decode, random aspect, cubic resize, over OpenCV", f"{plain_s / ours_s:.3f}", ">= 0.95", detail)


def crop_by_hand(data: bytes, random: Random) -> NDArray[np.float32]:
    image: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    height, width = image.shape[:2]
    while True:
        side, ratio = (random.uniform(0.08, 1) * height * width) ** 0.5, random.uniform(0.75, 1 / 0.75)
        h, w = int(side * ratio), int(side / ratio)
        if h <= height and w <= width:
            break
    y, x = random.randint(0, height - h), random.randint(0, width - w)
    image = cv2.resize(image[y : y + h, x : x + w], (224, 224), interpolation=cv2.INTER_CUBIC)
    if random.random() < 0.5:
        image = cv2.flip(image, 1)
    made: NDArray[np.float32] = (image.astype(np.float32) - MEAN) * np.float32(1 / 128)
    return made


def call(folder: Path, *words: str) -> None:
    subprocess.run([str(BIN / words[0]), *words[1:]], cwd=folder, check=True, capture_output=True)


def write_model(folder: Path) -> None:
    """Write made_iter_1.caffemodel, deploy.prototxt and image.jpg of ResNet-50, once."""
    if not (folder / "image.jpg").exists():
        solver = write_solver(folder, write_net(folder, 2), 1, snapshots=True)
        call(folder, "caffe-torch", "train", "-solver", str(solver))
        call(folder, "caffe-recipes", "deploy", str(NET), "-o", "deploy.prototxt")
        (folder / "image.jpg").write_bytes(jpegs(1)[0])


MODEL = ("--net", "deploy.prototxt", "--weights", "made_iter_1.caffemodel")


def compare_test(folder: Path, args: argparse.Namespace) -> None:
    import onnxruntime

    keep_large_blocks()  # as caffe-torch does; onnxruntime keeps its memory by itself
    write_model(folder)
    call(folder, "caffe-recipes", "export", *MODEL, "-o", "model.onnx")
    weights = str(folder / "made_iter_1.caffemodel")
    net = load_test_net(
        str(write_net(folder, args.batch)), [weights], 0, [""], Log(enabled=False), device="cpu"
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, ["CPUExecutionProvider"])
    images = {session.get_inputs()[0].name: np.random.rand(args.batch, 3, 224, 224).astype(np.float32)}
    with torch.no_grad():
        ours_s, theirs_s, by_cpu = take_turns(
            lambda: net.forward().item(), lambda: session.run(None, images), args.rounds
        )
    detail = f"{args.batch / ours_s:.1f} and {args.batch / theirs_s:.1f} images/s, batch {args.batch}"
    detail += f"; {by_cpu:.3f} by CPU time"
    show("caffe-torch test, over onnxruntime", f"{theirs_s / ours_s:.3f}", ">= 0.7", detail)


def time_starts(folder: Path, args: argparse.Namespace) -> None:
    write_model(folder)
    (folder / "lenet.prototxt").write_text(LENET)
    solver = str(write_solver(folder, folder / "lenet.prototxt", 1))
    lenet = [str(BIN / "caffe-torch"), "train", "-solver", solver]
    classify = [str(BIN / "caffe-recipes"), "classify", *MODEL, "image.jpg"]
    bare = [sys.executable, "-c", "import torch; print('class ')"]
    cases = {
        "start of caffe-torch to the first iteration of LeNet": (lenet, "Iteration 0, loss", "< 2.5 s"),
        "classify one image with ResNet-50": (classify, "class ", "< 3 s"),
        "import torch, for comparison": (bare, "class ", "-"),
    }
    for name, (argv, sign, goal) in cases.items():
        took = [time_until(argv, sign, folder) for _ in range(args.starts + 2)]
        least_s, cpu_s = (min(column) for column in zip(*took, strict=True))
        detail = f"least of {len(took)} starts, {cpu_s:.2f} s of CPU until the end"
        show(name, f"{least_s:.2f} s", goal, detail)


def time_until(argv: Sequence[str], sign: str, folder: Path) -> tuple[float, float]:
    """Return the seconds until a program prints a line with `sign`, and its CPU until its end."""
    start_s, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    seen_s = 0.0
    with subprocess.Popen(
        argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            if sign in line and not seen_s:
                seen_s = time.perf_counter() - start_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seen_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


ROWS = {
    "step": compare_steps,
    "data": compare_data,
    "ranks": compare_ranks,
    "transform": compare_transform,
    "test": compare_test,
    "start": time_starts,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[*ROWS], help="which to measure")
    parser.add_argument("--batch", type=int, default=32, help="images in a batch")
    parser.add_argument("--threads", type=int, default=2, help="threads of each side, except of ranks")
    parser.add_argument("--rounds", type=int, default=7, help="steps of each side that count")
    parser.add_argument("--starts", type=int, default=2, help="starts of each side")
    parser.add_argument("--side", choices=("ours", "loop", "keeping loop"), help=argparse.SUPPRESS)
    args, _ = parser.parse_known_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        if args.side:
            take_steps(Path(folder), args)
            return
        for row in args.rows:
            ROWS[row](Path(folder), args)


if __name__ == "__main__":
    main()
