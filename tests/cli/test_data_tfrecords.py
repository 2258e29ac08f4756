"""`caffe-recipes data tfrecords`, and `data check` of such files: what they print and exit with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.cli.data import data
from caffe_recipes.data.tfrecords import load_record_set
from caffe_recipes.errors import CheckFailed, DataError, InputError
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


def forget(lmdb: Path, sizes: tuple[int, ...] = (4, 4, 1)) -> Path:
    """Write TFRecords as another program would: no manifest, and an uneven last file; return the folder."""
    classes = lmdb.parent / "classes.txt"
    classes.write_text("".join(f"n{index:08d}\n" for index in range(10)))
    made = lmdb.parent / "made"
    call("tfrecords", lmdb, "--out", made, "--shards", 9, "--class-list", classes)
    theirs = lmdb.parent / "theirs"
    theirs.mkdir()
    parts = [made / f"train-{number:05d}-of-00009" for number in range(9)]
    for number, size in enumerate(sizes):
        whole, parts = parts[:size], parts[size:]
        file = theirs / f"train-{number:05d}-of-{len(sizes):05d}"
        file.write_bytes(b"".join(part.read_bytes() for part in whole))
    return theirs


def test_records_of_another_program_are_adopted_with_their_counts_classes_and_digests(lmdb: Path) -> None:
    theirs = forget(lmdb)
    assert call("tfrecords", "--adopt", theirs) == (
        f"{theirs}: 360 records in 3 files, 10 classes; wrote theirs.manifest.json beside it\n"
    )
    manifest = json.loads((lmdb.parent / "theirs.manifest.json").read_text())
    assert (manifest["records"], manifest["shards"], manifest["prefix"]) == (360, 3, "train")
    assert manifest["file_records"] == [160, 160, 40]
    assert manifest["classes"] == [f"n{index:08d}" for index in range(10)]
    assert len(set(manifest["digests"])) == 3
    assert call("check", theirs, "--classes", 10).startswith("360 TFRecords in 3 files of 40 to 160, ")
    known = load_record_set(theirs)
    assert known
    assert [*known.counts().values()] == [160, 160, 40]


def test_records_that_training_would_refuse_are_not_adopted(lmdb: Path) -> None:
    theirs = forget(lmdb)
    (theirs / "train-00001-of-00003").unlink()
    with pytest.raises(DataError, match=r"1 of 3 files are missing, e\.g\. train-00001-of-00003"):
        call("tfrecords", "--adopt", theirs)
    assert not (lmdb.parent / "theirs.manifest.json").exists()
    with pytest.raises(DataError, match="already exists; remove it to adopt the records again"):
        call("tfrecords", "--adopt", lmdb.parent / "made")


def test_adopt_is_given_alone_and_without_it_an_lmdb_and_a_folder_are_needed(lmdb: Path) -> None:
    with pytest.raises(InputError, match="--adopt: reads the folder as it is; give it without an LMDB"):
        call("tfrecords", lmdb, "--adopt", lmdb.parent)
    with pytest.raises(InputError, match="no LMDB or no --out given; give both, or --adopt DIR"):
        call("tfrecords", lmdb)
    with pytest.raises(DataError, match="nowhere: is not a folder; give the folder that holds the TFRecords"):
        call("tfrecords", "--adopt", lmdb.parent / "nowhere")
