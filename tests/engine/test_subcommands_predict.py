"""`caffe-torch predict`: each image once, with the scores that `test` ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from caffe_recipes.caffe import pb
from tests.engine.conftest import only_line

Run = Callable[..., tuple[int, str]]
Change = Callable[..., None]

ACCURACY = """
layer { name: "top-1" type: "Accuracy" bottom: "ip" bottom: "label" top: "top-1" }
layer { name: "top-2" type: "Accuracy" bottom: "ip" bottom: "label" top: "top-2" accuracy_param { top_k: 2 } }
"""
PREDICT = ("predict", "-model", "net.prototxt", "-weights", "run_iter_6.caffemodel", "-out", "out.npz")


@pytest.fixture
def trained(case: Path, run: Run) -> Path:
    """Make a snapshot of a net that has accuracies."""
    with (case / "net.prototxt").open("a") as net:
        net.write(ACCURACY)
    assert run("train", "-solver", "solver.prototxt")[0] == 0
    return case


def test_each_image_is_predicted_once_in_the_order_of_its_keys(trained: Path, run: Run) -> None:
    code, log = run(*PREDICT)
    assert code == 0
    assert "10 of 10 images" in log
    assert log.endswith("Wrote out.npz: scores (10x3, float32) and labels (10, int32)\n")
    with np.load(trained / "out.npz") as held:
        assert held["scores"].shape == (10, 3)
        assert held["scores"].dtype == np.float32
        assert held["labels"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert [path.name for path in trained.iterdir() if path.name.startswith(".")] == []


def test_the_scores_give_the_same_accuracies_as_test(trained: Path, run: Run, change: Change) -> None:
    change(trained / "net.prototxt", ("batch_size: 4", "batch_size: 5"))
    _, log = run("test", "-model", "net.prototxt", "-weights", "run_iter_6.caffemodel", "-iterations", "2")
    assert run(*PREDICT)[0] == 0
    with np.load(trained / "out.npz") as held:
        scores, labels = held["scores"], held["labels"]
    ahead = (scores > np.take_along_axis(scores, labels[:, None], 1)).sum(1)
    for k in (1, 2):
        printed = re.findall(rf"\] top-{k} = ([0-9.]+)", log)[-1]
        assert float(printed) == pytest.approx((ahead < k).mean(), abs=1e-6)


def test_weights_that_are_not_finite_have_no_accuracy(trained: Path, run: Run) -> None:
    net = pb.NetParameter.FromString((trained / "run_iter_6.caffemodel").read_bytes())
    layer = next(layer for layer in net.layer if layer.blobs)
    layer.blobs[0].data[0] = float("nan")
    (trained / "nan.caffemodel").write_bytes(net.SerializeToString())
    code, log = run("test", "-model", "net.prototxt", "-weights", "nan.caffemodel", "-iterations", "1")
    assert code == 3
    assert "the loss of batch 0 is nan" in log
    assert "top-1" not in log.splitlines()[-1]


def test_another_lmdb_may_be_named(trained: Path, run: Run, raw: Callable[..., None]) -> None:
    raw(trained / "other", [2, 2, 1])
    assert run(*PREDICT, "-source", "other")[0] == 0
    with np.load(trained / "out.npz") as held:
        assert held["labels"].tolist() == [2, 2, 1]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("predict", "-model", "net.prototxt", "-weights", "x"), "no output"),
        ((*PREDICT[:-1], "none/out.npz"), "the folder none does not exist"),
        ((*PREDICT[:-1], "lmdb/data.mdb"), "-out lmdb/data.mdb does not end in .npz; write -out FILE.npz"),
        (("time", "-model", "net.prototxt", "-trace", "a.png"), "-trace a.png does not end in .json"),
        ((*PREDICT, "-source", "none"), "caffe-torch: none: no such LMDB"),
        (("test", *PREDICT[1:]), "-out works only with predict"),
    ],
)
def test_bad_arguments_exit_2_with_one_line(
    trained: Path, run: Run, words: tuple[str, ...], part: str
) -> None:
    code, log = run(*words)
    assert code == 2
    assert part in only_line(log)
    assert not (trained / "out.npz").exists()


def test_a_pipe_is_not_replaced(trained: Path, run: Run) -> None:
    os.mkfifo(trained / "pipe.npz")
    code, log = run(*PREDICT[:-1], "pipe.npz")
    assert code == 2
    assert "pipe.npz: cannot be written: it is a device, pipe or socket, not a file; give" in only_line(log)
    assert (trained / "pipe.npz").is_fifo()


def test_a_label_that_is_not_a_class_names_its_record(
    trained: Path, run: Run, raw: Callable[..., None]
) -> None:
    raw(trained / "other", [0, 1, 3])
    code, log = run(*PREDICT, "-source", "other")
    assert code == 2
    assert "record '00000002_r2' has label 3" in only_line(log)


def test_images_of_another_size_are_refused(trained: Path, run: Run, raw: Callable[..., None]) -> None:
    raw(trained / "other", [0, 1, 2], (1, 5, 5))
    code, log = run(*PREDICT, "-source", "other")
    assert code == 2
    assert "25" in only_line(log)


def test_a_net_without_a_softmax_is_refused(trained: Path, run: Run, change: Change) -> None:
    change(trained / "net.prototxt", ('"SoftmaxWithLoss"', '"HingeLoss"'))
    code, log = run(*PREDICT)
    assert code == 2
    assert "has no softmax layer in phase TEST" in only_line(log)
