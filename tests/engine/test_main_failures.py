"""The command line: what a failure in the midst of a run prints: of torch, a GPU, or a full memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf import text_format

from caffe_recipes.caffe import pb
from caffe_recipes.engine import memory
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.main import COMMANDS, main
from caffe_recipes.engine.operators import OPERATORS
from caffe_recipes.engine.subcommands import find_device
from caffe_recipes.errors import escaped_error
from tests.engine.conftest import only_line

Run = Callable[..., tuple[int, str]]
Change = Callable[..., None]


class _Stumbling(torch.autograd.Function):
    """Pass on a blob, and fail in the second backward pass."""

    passes = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        _Stumbling.passes += 1
        if _Stumbling.passes > 1:
            raise RuntimeError("sizes must match\nat line 1")
        return grads[0]


TANH = 'layer { name: "act" type: "TanH" bottom: "ip" top: "act" }\n'


def _raise(*_: object) -> list[torch.Tensor]:
    raise IndexError("dimension out of range\nand more")


@pytest.mark.parametrize(
    ("setup", "where"),
    [
        (_raise, "net.prototxt: layer 'act' (TanH): IndexError: dimension out of range and more; "),
        (
            lambda *_: _raise,
            "net.prototxt: layer 'act' (TanH): iteration 0: IndexError: dimension out of range and more; ",
        ),
        (
            lambda *_: lambda xs, _: [_Stumbling.apply(xs[0])],  # type: ignore[no-untyped-call]
            "net.prototxt: layer 'act' (TanH): iteration 1: RuntimeError: sizes must match at line 1; ",
        ),
    ],
)
def test_an_exception_of_torch_or_python_becomes_a_line_with_layer_and_iteration(
    case: Path,
    run: Run,
    change: Change,
    monkeypatch: pytest.MonkeyPatch,
    setup: Callable[..., Any],
    where: str,
) -> None:
    monkeypatch.setattr(_Stumbling, "passes", 0)
    monkeypatch.setitem(OPERATORS, "TanH", setup)
    change(case / "net.prototxt", ('layer { name: "loss"', TANH + 'layer { name: "loss"'))
    change(case / "net.prototxt", ('bottom: "ip" bottom: "label"', 'bottom: "act" bottom: "label"'))
    code, log = run("train", "-solver", "solver.prototxt")
    assert code == 3
    assert log.splitlines()[-1].startswith(f"caffe-torch: {where}please report it")
    assert "Traceback" not in log


def test_an_exception_of_a_command_becomes_a_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "version", _raise)
    code, log = run("version")
    assert code == 3
    assert log.startswith("caffe-torch: version: IndexError: dimension out of range and more; please report")


@pytest.mark.parametrize(
    ("count", "words", "message"),
    [
        (0, ("-gpu", "0"), "-gpu 0, but PyTorch finds no GPU; leave -gpu out to use the CPU"),
        (1, ("-gpu", "7"), "-gpu 7, but there is no GPU 7; this host has only GPU 0"),
        (4, ("-gpu", "7"), "-gpu 7, but there is no GPU 7; this host has GPUs 0 to 3"),
        (4, (), "missing, but there is no GPU 5; this host has GPUs 0 to 3"),
        (1, ("-gpu", "0"), "-gpu 0, but PyTorch cannot use it: the driver is too old; leave -gpu out"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_one_line(
    case: Path,
    run: Run,
    change: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    words: tuple[str, ...],
    message: str,
) -> None:
    def fail(_: int) -> str:
        raise RuntimeError("the driver is too old\nand more")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_name", fail)
    change(case / "solver.prototxt", ("solver_mode: CPU", "device_id: 5"))
    code, log = run("train", "-solver", "solver.prototxt", *words)
    assert (code, message in only_line(log)) == (2, True), log


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ((), "GPU 0: 0-th\nGPU 1: 1-th\n"),
        (("-gpu", "all"), "GPU 0: 0-th\nGPU 1: 1-th\n"),
        (("-gpu", "1,0"), "GPU 1: 1-th\nGPU 0: 0-th\n"),
        (("-gpu", "1"), "GPU 1: 1-th\n"),
        (("-gpu", "3"), "caffe-torch: -gpu 3, but there is no GPU 3; this host has GPUs 0 to 1\n"),
    ],
)
def test_device_query_names_the_gpus_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], shown: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda gpu: f"{gpu}-th")
    code, printed = main(["device_query", *words]), capfd.readouterr()
    assert (code, printed.out + printed.err) == (2 if "3" in words else 0, shown)


@pytest.mark.parametrize(
    ("flag", "device_id", "gpus"),
    [
        ("2", "", [2, 2]),
        ("1,3", "", [1, 3]),
        ("all", "", [0, 1]),
        ("", "", [0, 1]),
        ("", "device_id: 3", [3, 3]),
    ],
)
def test_the_ranks_of_a_host_take_one_gpu_each(
    monkeypatch: pytest.MonkeyPatch, flag: str, device_id: str, gpus: list[int]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2 if flag == "all" else 4)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda gpu: f"GPU {gpu}")
    monkeypatch.setenv("PMI_SIZE", "2")
    solver = text_format.Parse(device_id, pb.SolverParameter())
    for rank, gpu in enumerate(gpus):
        monkeypatch.setenv("PMI_RANK", str(rank))
        monkeypatch.setenv("MPI_LOCALRANKID", str(rank))
        assert find_device(flag, "train", Log(enabled=False), solver) == f"cuda:{gpu}"


class _Full(torch.autograd.Function):
    """Runs out of memory in the forward or the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, is_forward: bool) -> torch.Tensor:  # noqa: ANN401
        if is_forward:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


@pytest.mark.parametrize(
    ("is_forward", "there", "part"),
    [
        (
            True,
            2**34,
            "(TanH): iteration 0: the memory of this host is full: a batch of 4 images",
        ),
        (
            False,
            2**34,
            "net.prototxt: iteration 0: the memory of this host is full: a batch of 4 images",
        ),
        (True, 2**34, "there are 16 GiB; a batch_size of 3 may fit, with a larger iter_size"),
        (True, 2**7, "there are 1.19e-07 GiB; use one with more memory; or use -checkpoint-activations"),
    ],
)
def test_a_full_memory_says_what_was_needed_and_what_fits(
    case: Path,
    run: Run,
    change: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    is_forward: bool,
    there: int,
    part: str,
) -> None:
    def forward(xs: list[torch.Tensor], _: object) -> list[torch.Tensor]:
        monkeypatch.setattr(memory, "memory_of", lambda device: there)  # not before: this is checked first
        return [_Full.apply(xs[0], is_forward)]  # type: ignore[no-untyped-call]

    monkeypatch.setitem(OPERATORS, "TanH", lambda *_: forward)
    change(case / "net.prototxt", ('layer { name: "loss"', TANH + 'layer { name: "loss"'))
    change(case / "net.prototxt", ('bottom: "ip" bottom: "label"', 'bottom: "act" bottom: "label"'))
    code, log = run("train", "-solver", "solver.prototxt")
    assert code == 3
    assert part in only_line(log)
    assert not list(case.glob("run_*"))


def test_a_full_gpu_is_not_reported_as_a_bug() -> None:
    error = escaped_error("layer 'conv1'", torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"))
    assert str(error).startswith("layer 'conv1': the GPU's memory is full; lower batch_size")


def test_a_full_host_says_what_torch_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(flags: object) -> int:
        torch.empty(2**58)
        return 0

    monkeypatch.setitem(COMMANDS, "version", ask)
    code, log = run("version")
    asked = "version: the memory of this host is full: PyTorch needs 1.07e+09 GiB more; use smaller images"
    assert code == 3 and only_line(log).startswith(f"caffe-torch: {asked}")
    assert escaped_error("x", MemoryError()).what == "the memory of this host is full"
