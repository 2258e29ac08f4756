"""`caffe-recipes data tfrecords`, and `data check` of such files: what they print and exit with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.cli.data import data
from caffe_recipes.errors import CheckFailed, InputError
from tests.data.test_tfrecords import datum


def call(*words: object) -> str:
    return CliRunner().invoke(data, [str(word) for word in words], catch_exceptions=False).output


@pytest.fixture
def lmdb(tmp_path: Path) -> Path:
    write_datums(tmp_path / "lmdb", ((f"{i}.jpg", datum(i, i * 10 // 360)) for i in range(360)))
    return tmp_path / "lmdb"


def test_an_lmdb_becomes_tfrecords_that_check_measures(lmdb: Path) -> None:
    out = lmdb.parent / "records"
    words = ("tfrecords", lmdb, "--out", out, "--shards", 4, "--prefix", "validation")
    assert call(*words) == f"{out}: 360 records in 4 files\n"
    assert (out / "validation-00003-of-00004").is_file()
    seen = call("check", out, "--classes", 10, "--shuffled")
    assert seen.startswith("360 TFRecords in 4 files of 90 to 90, ")
    assert "labels 1 to 10, 10 distinct; each file has 10 or more\norder: shuffled (" in seen
    assert json.loads(call("check", out, "--json"))["records"] == 360


def test_a_label_out_of_range_fails_the_check(lmdb: Path) -> None:
    out = lmdb.parent / "records"
    call("tfrecords", lmdb, "--out", out, "--shards", 4)
    with pytest.raises(CheckFailed, match="records: has 1 problem, listed above; fix the source images"):
        call("check", out, "--classes", 9)
    with pytest.raises(
        CheckFailed, match="has label 10, which is not one of the 9 classes 1 to 9, and 35 more"
    ):
        call("check", out, "--classes", 9, "--json")


def test_names_of_classes_are_those_of_a_list(lmdb: Path) -> None:
    classes = lmdb.parent / "classes.txt"
    classes.write_text("".join(f"n{index:08d} word {index}\n" for index in range(10)))
    call("tfrecords", lmdb, "--out", lmdb.parent / "records", "--shards", 1, "--class-list", classes)
    assert b"n00000009" in (lmdb.parent / "records" / "train-00000-of-00001").read_bytes()


def test_a_prefix_with_a_folder_is_refused(lmdb: Path) -> None:
    with pytest.raises(InputError, match=r"--prefix: '../x' cannot start a file name; e\.g\. train"):
        call("tfrecords", lmdb, "--out", lmdb.parent / "records", "--prefix", "../x")


def test_a_sheet_is_drawn_of_lmdbs_alone(lmdb: Path) -> None:
    out = lmdb.parent / "records"
    call("tfrecords", lmdb, "--out", out, "--shards", 4)
    with pytest.raises(InputError, match="--sheet: works only for LMDBs; omit it"):
        call("check", out, "--sheet", "sheet.png")
