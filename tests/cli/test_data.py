"""`caffe-recipes data check`: what it says of an LMDB."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.cli.data import data
from caffe_recipes.errors import DataError


def write(folder: Path) -> str:
    datums = (pb.Datum(channels=1, height=2, width=2, data=b"abcd", label=label) for label in (0, 3, 3))
    write_datums(folder / "lmdb", ((f"{index}", datum) for index, datum in enumerate(datums)))
    return str(folder / "lmdb")


def test_check_counts_records_labels_and_sizes(tmp_path: Path) -> None:
    done = CliRunner().invoke(data, ["check", write(tmp_path), "--classes", "4"])
    assert done.output.splitlines() == [
        "3 records, 0 of them encoded images",
        "labels 0 to 3, 2 different",
        "3 images of 1 x 2 x 2",
    ]


def test_check_refuses_a_label_outside_the_classes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has label 3"):
        CliRunner().invoke(data, ["check", write(tmp_path), "--classes", "3"], catch_exceptions=False)
