"""HDF5Data: rows of the datasets that are named like its tops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.engine.hdf5_rows import HDF5Rows
from caffe_recipes.errors import DataError

h5py = pytest.importorskip("h5py")


def write(path: Path, first: int, rows: int, **more: object) -> None:
    with h5py.File(path, "w") as file:
        file["data"] = np.arange(first, first + 6 * rows, dtype=np.float64).reshape(rows, 2, 3)
        file["label"] = np.arange(first, first + rows)
        for name, values in more.items():
            del file[name]
            file[name] = values


@pytest.fixture
def layer(tmp_path: Path) -> pb.LayerParameter:
    write(tmp_path / "a.h5", 0, 3)
    write(tmp_path / "b.h5", 100, 2)
    (tmp_path / "files.txt").write_text(f"{tmp_path}/a.h5\n{tmp_path}/b.h5\n")
    made = pb.LayerParameter(name="data", type="HDF5Data", top=["data", "label"])
    made.hdf5_data_param.source, made.hdf5_data_param.batch_size = str(tmp_path / "files.txt"), 4
    return made


def test_rows_are_read_from_all_files_in_turn(layer: pb.LayerParameter) -> None:
    rows = HDF5Rows(layer, 0, 1, 0)
    assert rows.shapes() == [(4, 2, 3), (4,)]
    batches = [rows.next() for _ in range(2)]
    assert [labels.tolist() for (_, labels), _ in batches] == [[0, 1, 2, 100], [101, 0, 1, 2]]
    assert batches[0][0][0].dtype == np.float32 and batches[0][1][3].endswith("b.h5[0]")


def test_two_ranks_read_the_rows_of_one(layer: pb.LayerParameter) -> None:
    parts = [HDF5Rows(layer, rank, 2, 0).next()[0][1].tolist() for rank in range(2)]
    assert parts == [[0, 2, 101, 1], [1, 100, 0, 2]]


def test_shuffled_rows_are_all_read_once_in_a_pass(layer: pb.LayerParameter) -> None:
    layer.hdf5_data_param.shuffle, layer.hdf5_data_param.batch_size = True, 5
    first, second = (HDF5Rows(layer, 0, 1, seed).next()[0][1].tolist() for seed in (1, 2))
    assert sorted(first) == sorted(second) == [0, 1, 2, 100, 101] and first != second


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"label": np.zeros(7)}, "has datasets of different lengths: 'data' has 3 rows, 'label' has 7 rows"),
        ({"label": np.zeros(())}, "dataset 'label' has no rows"),
        ({"label": "text"}, r"a\.h5: dataset 'label' \(one number, object\) cannot be read"),
        ({"label": h5py.ExternalLink("files.txt", "/x")}, r"a\.h5: dataset 'label' cannot be read"),
        ({"label": h5py.ExternalLink("absent.h5", "/x")}, r"a\.h5: dataset 'label' cannot be read"),
        ({"label": h5py.SoftLink("/absent")}, r"a\.h5: dataset 'label' cannot be read"),
    ],
)
def test_a_bad_dataset_is_named(
    layer: pb.LayerParameter, tmp_path: Path, more: dict[str, object], message: str
) -> None:
    write(tmp_path / "a.h5", 0, 3, **more)
    with pytest.raises(DataError, match=message):
        HDF5Rows(layer, 0, 1, 0)


def test_a_truncated_or_missing_file_is_one_line(layer: pb.LayerParameter, tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes((tmp_path / "a.h5").read_bytes()[:1000])
    with pytest.raises(DataError, match=r"a\.h5: cannot be read as HDF5: .*truncated") as caught:
        HDF5Rows(layer, 0, 1, 0)
    assert "\n" not in str(caught.value)
    (tmp_path / "a.h5").unlink()
    with pytest.raises(DataError, match=r"a\.h5: cannot be read: No such file .*path in .*files\.txt"):
        HDF5Rows(layer, 0, 1, 0)


def test_a_file_of_data_is_not_a_list(layer: pb.LayerParameter, tmp_path: Path) -> None:
    layer.hdf5_data_param.source = str(tmp_path / "a.h5")
    with pytest.raises(DataError, match=r"a\.h5: is not a text file of paths; write a text file with a path"):
        HDF5Rows(layer, 0, 1, 0)


def test_a_missing_dataset_lists_those_that_are_there(layer: pb.LayerParameter) -> None:
    layer.top[1] = "labels"
    with pytest.raises(DataError, match="has no dataset 'labels'; it has 'data', 'label'"):
        HDF5Rows(layer, 0, 1, 0)


def test_rows_of_another_shape_name_both_shapes(layer: pb.LayerParameter, tmp_path: Path) -> None:
    write(tmp_path / "b.h5", 0, 2, data=np.zeros((2, 5)))
    rows = HDF5Rows(layer, 0, 1, 0)
    with pytest.raises(DataError, match="dataset 'data' has rows of 5, but others of 2 x 3"):
        rows.next()
