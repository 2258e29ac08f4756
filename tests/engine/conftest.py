"""Small data sets, nets and runs of the engine, in this process or under a real mpiexec."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.engine.main import main

BIN = Path(sys.executable).parent
Run = Callable[..., tuple[int, str]]

NET = """
name: "tiny"
layer { name: "data" type: "Data" top: "data" top: "label"
  data_param { source: "lmdb" batch_size: 4 backend: LMDB } transform_param { scale: 0.01 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""

SOLVER = """
net: "net.prototxt"
base_lr: 0.1
lr_policy: "fixed"
max_iter: 6
display: 2
snapshot_prefix: "run"
solver_mode: CPU
random_seed: 1
"""


@pytest.fixture(autouse=True)
def one_thread_and_own_signals() -> Iterator[None]:
    """Restore the signal handlers that a training replaces."""
    torch.set_num_threads(1)
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGHUP)]
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `caffe-torch` in this process; give the exit code and what it printed on stderr."""

    def run_command(*words: str) -> tuple[int, str]:
        code = main(list(words))
        return code, capfd.readouterr().err

    return run_command


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that PyTorch can use")


@pytest.fixture
def mpiexec() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `caffe-torch` under a real mpiexec.hydra."""

    def run_ranks(ranks: int, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [str(BIN / "mpiexec.hydra"), "-n", str(ranks), str(BIN / "caffe-torch"), *words]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PMI")}
        return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)

    return run_ranks


def write_raw(path: Path, labels: Sequence[int], shape: tuple[int, int, int] = (1, 4, 4)) -> None:
    """Write an LMDB of raw Datums: noise that depends on the label and the place."""
    random = np.random.default_rng(0)
    channels, height, width = shape

    def datum(label: int) -> pb.Datum:
        pixels = random.integers(0, 50, shape, np.uint8) + np.uint8(60 * (label % 4))
        return pb.Datum(channels=channels, height=height, width=width, data=pixels.tobytes(), label=label)

    write_datums(path, ((f"r{i}", datum(label)) for i, label in enumerate(labels)))


def write_images(path: Path, sizes: Sequence[tuple[int, int]], suffix: str = ".png") -> None:
    """Write an LMDB of encoded colour images of (height, width)."""
    random = np.random.default_rng(1)

    def datum(size: tuple[int, int]) -> pb.Datum:
        image = random.integers(0, 256, (*size, 3), np.uint8)
        data = cv2.imencode(suffix, image)[1].tobytes()
        return pb.Datum(encoded=True, data=data, label=0, channels=3, height=size[0], width=size[1])

    write_datums(path, ((f"i{i}", datum(size)) for i, size in enumerate(sizes)))


@pytest.fixture
def raw() -> Callable[..., None]:
    return write_raw


@pytest.fixture
def images() -> Callable[..., None]:
    return write_images


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with an LMDB of 10 records, a net and a solver, and change into it."""
    write_raw(tmp_path / "lmdb", [0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def only_line(log: str) -> str:
    """Return the one line that is not a log line; there must be exactly one, and no traceback."""
    lines = [line for line in log.splitlines() if line.startswith("caffe-torch")]
    assert len(lines) == 1, log[-2000:]
    assert "Traceback" not in log
    return lines[0]


def edit(path: Path, *changes: tuple[str, str]) -> None:
    """Replace text in a file; each text must be there."""
    text = path.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text)


@pytest.fixture
def change() -> Callable[..., None]:
    return edit
