"""What tests of chains rely on in the stand-in for `caffe`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.logs import LogSummary
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.caffe.weights import check_weights, load_solverstate, load_weights

PROGRAM = [sys.executable, "-I", str(Path(__file__).with_name("caffe.py"))]
HYDRA = shutil.which("mpiexec.hydra", path=f"{Path(sys.executable).parent}:{os.defpath}")
NET = """\
name: "Tiny"
layer { name: "data" type: "DummyData" top: "data" top: "label"
  dummy_data_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } shape { dim: 2 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 4 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SOLVER = """\
net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed"
max_iter: 8 display: 2 snapshot: 4 snapshot_prefix: "out/a"
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver_a.prototxt").write_text(SOLVER)
    (tmp_path / "out").mkdir()
    return tmp_path


def behave(root: Path, **behaviours: object) -> None:
    (root / "behaviour.json").write_text(json.dumps(behaviours))


def start(root: Path, *words: str, ranks: int = 1) -> subprocess.Popen[str]:
    assert HYDRA
    launcher = [HYDRA, "-l", "-n", str(ranks)] if ranks > 1 else []
    return subprocess.Popen(
        [*launcher, *PROGRAM, "train", "--solver=solver_a.prototxt", *words],
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def train(root: Path, *words: str, ranks: int = 1) -> tuple[int, str]:
    process = start(root, *words, ranks=ranks)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


def models(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "out").iterdir()}


def summary_of(log: str) -> LogSummary:
    summary = LogSummary()
    for line in log.splitlines():
        summary.feed(line)
    return summary


def test_the_log_and_the_snapshots_of_the_stand_in_are_like_those_of_caffe(root: Path) -> None:
    code, output = train(root)
    summary = summary_of(output)
    assert (code, summary.done, summary.stopped_early, summary.fatal) == (0, True, False, None)
    assert list(summary.losses) == [0, 2, 4, 6, 8]
    net = parse_prototxt(NET, pb.NetParameter)
    for iteration in (4, 8):
        assert check_weights(load_weights(root / f"out/a_iter_{iteration}.caffemodel"), net) == []
        state = load_solverstate(root / f"out/a_iter_{iteration}.solverstate")
        assert (state.iter, state.learned_net) == (iteration, f"out/a_iter_{iteration}.caffemodel")


def test_the_learned_weights_do_not_depend_on_the_ranks_or_a_resume(root: Path) -> None:
    train(root)
    alone = models(root)
    for path in (root / "out").glob("*_8.*"):
        path.unlink()
    code, output = train(root, "--snapshot=out/a_iter_4.solverstate", ranks=3)
    assert (code, summary_of(output).done) == (0, True), output
    assert models(root) == alone
    train(root, "--weights=out/a_iter_4.caffemodel")
    assert models(root)["a_iter_8.caffemodel"] != alone["a_iter_8.caffemodel"]


@pytest.mark.parametrize(
    ("number", "code", "ends"),
    [(signal.SIGHUP, 0, "done"), (signal.SIGINT, 0, "early"), (signal.SIGTERM, -15, "dies")],
)
def test_signals_affect_the_stand_in_as_they_do_caffe(
    root: Path, number: signal.Signals, code: int, ends: str
) -> None:
    behave(root, a={"does": "waits", "at": 2})
    process, output = start(root), ""
    assert process.stdout
    while "Iteration 2, lr" not in output:
        output += process.stdout.readline()
    process.send_signal(number)
    if ends != "dies":
        time.sleep(0.05)  # no event reports that a signal was noted
    (root / "release").touch()
    output += process.communicate(timeout=60)[0]
    summary = summary_of(output)
    assert process.returncode == code
    assert summary.stopped_early == (ends == "early")
    assert ((root / "out/a_iter_3.solverstate").exists()) == (ends != "dies")
    assert ("Iteration 8" in output) == (ends == "done")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_takes_the_others_with_it(root: Path, rank: int) -> None:
    behave(root, a={"does": "dies", "at": 4, "rank": rank})
    code, output = train(root, ranks=3)
    assert code != 0
    assert f"[{rank}] F" in output
    assert "Done" not in output


def test_a_rank_that_starts_from_other_files_is_not_part_of_the_training(root: Path) -> None:
    code, output = train(root, "--weights=/proc/self/stat", ranks=2)
    assert code != 0
    assert "rank 1 starts from other files" in output


@pytest.mark.parametrize(
    ("weights", "code"), [(b"", 0), (b"<!DOCTYPE html>", 0), (b"\x0a\x05ab", 134), (None, 134)]
)
def test_the_stand_in_accepts_the_same_weights_as_caffe(root: Path, weights: bytes | None, code: int) -> None:
    train(root)
    fresh = models(root)
    if weights is not None:
        (root / "w").write_bytes(weights)
    assert train(root, "--weights=w")[0] == code
    assert code == 134 or models(root) == fresh


def test_a_fault_that_comes_once_spares_the_next_training(root: Path) -> None:
    behave(root, a=[{"does": "nan", "at": 4, "once": True}, {"does": "truncated", "once": True}])
    _, output = train(root)
    assert "Iteration 4, loss = nan" in output
    spoilt = models(root)
    _, output = train(root)
    assert "nan" not in output
    assert len(models(root)["a_iter_8.caffemodel"]) > len(spoilt["a_iter_8.caffemodel"])
