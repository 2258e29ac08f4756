"""HDF5 files as Caffe writes them become the messages of its binary files; others are one line."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.hdf5_weights import render_state, render_weights
from caffe_recipes.caffe.weights import blob_shape, check_weights, load_solverstate, load_weights
from caffe_recipes.errors import WeightsError
from tests.caffe.test_weights import NET, tiny_state, tiny_weights


def write_caffes(path: Path) -> None:
    """Write weights with the calls that Caffe makes, in its order."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        layer = data.create_group("ip")
        layer.create_dataset("0", data=np.full((4, 3), 0.5, np.float32))
        layer.create_dataset("1", data=np.full(4, 0.5, np.float64))
        data.create_group("act").create_dataset("0", data=np.float32(0.25))
        data.create_group("y")


def blobs_of(weights: pb.NetParameter) -> dict[str, list[tuple[tuple[int, ...], list[float]]]]:
    return {
        layer.name: [(blob_shape(blob), list(blob.data)) for blob in layer.blobs]
        for layer in weights.layer
        if layer.blobs
    }


def test_weights_have_the_layers_and_shapes_of_the_groups(tmp_path: Path) -> None:
    write_caffes(tmp_path / "w.caffemodel.h5")
    found = load_weights(tmp_path / "w.caffemodel.h5")
    assert {layer.name: len(layer.blobs) for layer in found.layer} == {"act": 1, "ip": 2, "y": 0}
    assert check_weights(found, NET) == []


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    weights, state = tiny_weights(), tiny_state()
    layer = weights.layer.add(name="a/b.c")
    layer.blobs.add(shape=pb.BlobShape(dim=[2]), data=[1, 2])
    path = tmp_path / "w.h5"
    path.write_bytes(render_weights((one.name, one.blobs) for one in weights.layer if one.blobs))
    assert blobs_of(load_weights(path)) == blobs_of(weights)
    state.current_step = 2
    path.write_bytes(render_state(state))
    assert load_solverstate(path) == state


def test_a_file_of_the_other_kind_is_called_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "w.h5"
    write_caffes(path)
    with pytest.raises(
        WeightsError, match="is a caffemodel, not a solverstate; give the solverstate, or use it"
    ):
        load_solverstate(path)
    path.write_bytes(render_state(tiny_state()))
    with pytest.raises(WeightsError, match="is a solverstate, not a caffemodel; give its caffemodel"):
        load_weights(path)


def damage(path: Path, how: str) -> None:
    write_caffes(path)
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
        return
    with h5py.File(path, "r+") as file:
        if how == "no data":
            del file["data"]
        elif how == "text":
            del file["data/ip/0"]
            file["data/ip"].create_dataset("0", data=np.bytes_(b"x"))
        elif how == "huge":
            del file["data/ip/0"]
            file["data/ip"].create_dataset("0", (2**40,), np.float32, chunks=(1024,))


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("truncated", "is an HDF5 file that cannot be read: .*truncated"),
        ("no data", "is an HDF5 file that has no group 'data' of layers"),
        ("text", "dataset '/data/ip/0' does not hold the values of a blob"),
        ("huge", "dataset '/data/ip/0' does not hold the values of a blob"),
    ],
)
def test_damaged_files_are_one_line(tmp_path: Path, how: str, what: str) -> None:
    damage(tmp_path / "w.caffemodel.h5", how)
    with pytest.raises(WeightsError, match=what) as caught:
        load_weights(tmp_path / "w.caffemodel.h5")
    assert "\n" not in str(caught.value)
    with pytest.raises(WeightsError, match="is an HDF5 file that"):
        load_solverstate(tmp_path / "w.caffemodel.h5")


def test_links_to_other_files_are_not_followed(tmp_path: Path) -> None:
    write_caffes(tmp_path / "secret.h5")
    (tmp_path / "raw").write_bytes(bytes(16))
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.create_group("data")["ip"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "data/ip")
        layer = file["data"].create_group("act")
        layer.create_dataset("0", (4,), np.float32, external=[(str(tmp_path / "raw"), 0, 16)])
    with pytest.raises(WeightsError, match="has layers but no learned blobs"):
        load_weights(tmp_path / "w.h5")
