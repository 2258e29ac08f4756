"""A model is that of a run or of loose files; what does not say which one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.model_folder import ModelDescription
from caffe_recipes.caffe.models import LooseFiles, open_model
from caffe_recipes.caffe.weights import save_message
from caffe_recipes.errors import InputError

NET, WEIGHTS = Path("n.prototxt"), Path("w.caffemodel")


def test_the_model_of_a_run_has_the_transform_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "runs/a-1/model"
    folder.mkdir(parents=True)
    described = ModelDescription(
        name="n", classes=("ant",), shape=(3, 4, 4), transform={"scale": 0.5, "mean_file": "mean.binaryproto"}
    )
    (folder / "model.json").write_text(described.render())
    model = open_model("a-1", LooseFiles(), tmp_path)
    assert (model.net, model.weights) == (folder / "deploy.prototxt", folder / "weights.caffemodel")
    assert (model.description, model.is_resized) == (described, False)
    assert model.transform.mean_file == str(folder / "mean.binaryproto")


def test_loose_files_may_have_the_transform_and_the_names_of_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "runs/a-1/model"
    folder.mkdir(parents=True)
    promised = ModelDescription(name="", classes=("ant",), shape=(), transform={"scale": 0.5})
    digests = {"recipe": "r", "recipe_sha256": "a", "weights_sha256": "b"}
    of_run = {"name": "n", "shape": (3, 4, 4), "accuracy": {"top-1": 0.9}, **digests}
    (folder / "model.json").write_text(promised.model_copy(update=of_run).render())
    model = open_model(None, LooseFiles(NET, WEIGHTS, transform_of="a-1"), tmp_path)
    assert (model.net, model.weights, model.is_resized) == (NET, WEIGHTS, False)
    assert model.transform.scale == 0.5
    assert model.description == promised


def test_loose_files_have_the_mean_of_each_channel_and_names(tmp_path: Path) -> None:
    blob = pb.BlobProto(num=1, channels=2, height=1, width=3, data=[1, 2, 3, 10, 20, 30])
    save_message(blob, tmp_path / "mean.binaryproto")
    (tmp_path / "names.txt").write_text("n01 tench, a fish\nn02 shark\n\n")
    files = LooseFiles(NET, WEIGHTS, str(tmp_path / "mean.binaryproto"), 0.5, tmp_path / "names.txt")
    model = open_model(None, files, tmp_path)
    assert list(model.transform.mean_value) == [2, 20]
    assert model.description.classes == ("n01 tench, a fish", "n02 shark")
    assert model.description.transform == {"scale": 0.5, "mean_value": [2.0, 20.0]}
    assert model.is_resized
    given = open_model(None, LooseFiles(NET, WEIGHTS, "104,117.5,-3"), tmp_path).transform
    assert list(given.mean_value) == [104, 117.5, -3]


@pytest.mark.parametrize("dtype", ["float32", "float64", ">f4", "uint8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_mean_of_pycaffe_is_that_of_each_channel(
    tmp_path: Path, dtype: str, order: Literal["C", "F"]
) -> None:
    image, means = np.arange(24, dtype=dtype).reshape(3, 2, 4), [3.5, 11.5, 19.5]
    for saved, of_channels in ((image, means), (image[None], means), (image[:, 0, 0], [0, 8, 16])):
        np.save(tmp_path / "mean.npy", saved.copy(order))
        files = LooseFiles(NET, WEIGHTS, str(tmp_path / "mean.npy"))
        assert list(open_model(None, files, tmp_path).transform.mean_value) == of_channels


@pytest.mark.parametrize(
    ("saved", "what"),
    [
        (np.zeros((4, 4, 3)), r"holds float64 values of shape \(4, 4, 3\)"),
        (np.zeros((3, 0)), r"of shape \(3, 0\)"),
        (np.array(1.0), r"of shape \(\)"),
        (np.array(["a", "b", "c"]), "holds <U1 values"),
        (np.array([{}, {}, {}]), "holds object values"),
        (np.array([1, np.nan, 2]), "not finite"),
    ],
)
def test_a_mean_of_another_shape_or_kind_is_refused(tmp_path: Path, saved: NDArray[Any], what: str) -> None:
    np.save(tmp_path / "mean.npy", saved)
    with pytest.raises(InputError, match=what):
        open_model(None, LooseFiles(NET, WEIGHTS, str(tmp_path / "mean.npy")), tmp_path)


def test_a_damaged_npy_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mean.npy"
    np.save(path, np.zeros((3, 8)))
    whole = path.read_bytes()
    for damaged in (
        b"",
        whole[:9],
        whole[:40],
        whole[:-1],
        whole + b"\0",
        whole.replace(b"(3, 8)", b"(3,8e9"),
        whole.replace(b"(3, 8), } ", b"(3,-2,-4)}"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"mean\.npy: (is not an array of numpy|holds )"):
            open_model(None, LooseFiles(NET, WEIGHTS, str(path)), tmp_path)


@pytest.mark.parametrize("data", [b"\x89PNG\r\n\x1a\n\0\0", "tench\nshark\n".encode("utf-16"), b"a\x1b[2J\n"])
def test_names_in_a_file_that_is_not_text_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "names.txt").write_bytes(data)
    with pytest.raises(
        InputError, match=r"names\.txt: is not a text file; give a text file with the name of"
    ):
        open_model(None, LooseFiles(NET, WEIGHTS, names=tmp_path / "names.txt"), tmp_path)


def test_names_may_begin_with_the_mark_of_windows_and_are_utf8(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_bytes("café\nthé\n".encode("utf-8-sig"))
    assert open_model(None, LooseFiles(NET, WEIGHTS, names=path), tmp_path).description.classes == (
        "café",
        "thé",
    )
    path.write_bytes("ant\ncafé\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"names\.txt:2: is not UTF-8; convert the file: iconv"):
        open_model(None, LooseFiles(NET, WEIGHTS, names=path), tmp_path)


def test_a_file_without_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("\n\n")
    with pytest.raises(InputError, match=r"names\.txt: has no names; give a text file"):
        open_model(None, LooseFiles(NET, WEIGHTS, names=tmp_path / "names.txt"), tmp_path)


@pytest.mark.parametrize(
    ("given", "files", "where"),
    [
        (None, LooseFiles(), ""),
        ("w.caffemodel", LooseFiles(), "w.caffemodel"),
        ("a", LooseFiles(net=NET), "--net"),
        (None, LooseFiles(weights=WEIGHTS), "--net"),
        ("a", LooseFiles(scale=2), "--mean, --scale, --names and --transform-of"),
        ("a", LooseFiles(transform_of="a"), "--mean, --scale, --names and --transform-of"),
        (None, LooseFiles(NET, WEIGHTS, transform_of="absent-1"), "absent-1"),
        (None, LooseFiles(NET, WEIGHTS, scale=2, transform_of="absent-1"), "--mean, --scale and --names"),
        ("a", LooseFiles(NET, WEIGHTS), "a"),
        (None, LooseFiles(NET, WEIGHTS, mean="1.2.3"), "--mean"),
        (None, LooseFiles(NET, WEIGHTS, mean="absent.npy"), "--mean"),
        (None, LooseFiles(NET, WEIGHTS, mean="nan,1,2"), "--mean"),
        (None, LooseFiles(NET, WEIGHTS, mean="1,inf,2"), "--mean"),
        (None, LooseFiles(NET, WEIGHTS, scale=float("nan")), "--scale"),
        (None, LooseFiles(NET, WEIGHTS, scale=0), "--scale"),
        (None, LooseFiles(NET, WEIGHTS, scale=1e300), "--scale"),
        (None, LooseFiles(NET, WEIGHTS, mean=f"{'9' * 40},1,1"), "--mean"),
        (None, LooseFiles(NET, WEIGHTS, names=Path("absent.txt")), "absent.txt"),
    ],
)
def test_what_does_not_say_which_model_is_refused(
    tmp_path: Path, given: str | None, files: LooseFiles, where: str
) -> None:
    with pytest.raises(InputError) as caught:
        open_model(given, files, tmp_path)
    assert caught.value.where == where


def test_a_truncated_npy_file_says_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "mean.npy"
    np.save(path, np.zeros((3, 8)))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"holds 191 bytes of values, and its shape \(3, 8\) needs 192"):
        open_model(None, LooseFiles(NET, WEIGHTS, str(path)), tmp_path)
