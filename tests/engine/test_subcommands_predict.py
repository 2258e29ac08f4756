"""`caffe-torch predict`: each image once, with the scores that `test` ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from google.protobuf import text_format

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.weights import save_message
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.engine.operators.data import DataContext
from caffe_recipes.engine.subcommands import check_not_read
from caffe_recipes.errors import InputError
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


@pytest.mark.parametrize(
    "words", [("predict", "-out"), ("time", "-phase", "TEST", "-iterations", "1", "-trace")]
)
def test_an_lmdb_that_is_read_is_not_written_over(trained: Path, run: Run, words: tuple[str, ...]) -> None:
    before = Path("lmdb/data.mdb").read_bytes()
    model = ("-model", "net.prototxt", "-weights", "run_iter_6.caffemodel")
    code, log = run(*words, "lmdb/data.mdb", *model)
    assert (code, Path("lmdb/data.mdb").read_bytes()) == (2, before)
    assert f"lmdb/data.mdb: is an input of this command; give another file with {words[-1]}" in log


LISTED = """
layer { name: "data" type: "ImageData" top: "data" top: "label"
  image_data_param { source: "list.txt" batch_size: 1 } transform_param { mean_file: "mean.binaryproto" } }
layer { name: "more" type: "HDF5Data" top: "more" hdf5_data_param { source: "h5.txt" batch_size: 1 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
layer { name: "silence" type: "Silence" bottom: "more" }
"""


@pytest.mark.parametrize("out", ["list.txt", "a.png", "h5.txt", "b.h5", "mean.binaryproto"])
def test_what_a_list_names_and_a_mean_file_are_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, out: str
) -> None:
    h5py = pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    cv2.imwrite("a.png", np.zeros((2, 2, 3), np.uint8))
    Path("list.txt").write_text("a.png 0\n")
    Path("h5.txt").write_text("a.h5 b.h5\n")
    for name in ("a.h5", "b.h5"):
        with h5py.File(name, "w") as file:
            file["more"] = np.zeros((1, 2))
    save_message(pb.BlobProto(num=1, channels=3, height=2, width=2, data=[0] * 12), "mean.binaryproto")
    Path("net.prototxt").write_text(LISTED)
    before = Path(out).read_bytes()
    code, log = run("time", "-model", "net.prototxt", "-iterations", "1", "-trace", out)
    assert (code, Path(out).read_bytes()) == (2, before), log
    assert only_line(log).endswith(f"{out}: is an input of this command; give another file with -trace")


@pytest.mark.parametrize(("data", "looks"), [(None, 0), (b"", 0), (b"\n{", 0), (b"PK\3\4", 0), (b"BM", 1)])
def test_each_image_of_a_list_is_looked_at_only_for_what_may_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes | None, looks: int
) -> None:
    monkeypatch.chdir(tmp_path)
    cv2.imwrite("a.png", np.zeros((2, 2, 3), np.uint8))
    Path("list.txt").write_text("a.png 0\n")
    layer, _, _ = LISTED.partition("transform_param")
    param = text_format.Parse(layer + "}", pb.NetParameter())
    net = RunnableNet(param, "net", DataContext(0, 1, 0, 0, Log(enabled=False)), torch.Generator())
    (source,) = (node.source for node in net.nodes)
    assert source is not None
    listed = source.files
    asked: list[str] = []

    def look() -> Iterable[str]:
        asked.extend(listed())
        return asked

    source.files = look
    if data is not None:
        Path("out").write_bytes(data)
    with closing(net):
        check_not_read("trace", "out", net)
        assert len(asked) == looks
        with pytest.raises(InputError, match=r"a\.png: is an input of this command"):
            check_not_read("trace", "a.png", net)


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
        ((*PREDICT[:-1], "lmdb"), "is a folder"),
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
    os.mkfifo(trained / "pipe")
    code, log = run(*PREDICT[:-1], "pipe")
    assert code == 2
    assert "pipe: cannot be written: it is a device, pipe or socket, not a file; give" in only_line(log)
    assert (trained / "pipe").is_fifo()


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
