"""TFRecord files are compared with the manifest beside them: the numbers of records and bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.cluster.staging.relay import digest_of
from caffe_recipes.data.tfrecords import (
    RecordsReport,
    check_tfrecords,
    load_record_set,
    records_manifest_path,
    write_tfrecords,
)
from caffe_recipes.errors import DataError
from caffe_recipes.tensorflow.records import frame_record, read_records
from tests.data.test_tfrecords import datum

WRONG_COUNTS: tuple[object, ...] = (None, "x", -1, 1.5, True, [])
WRONG_NAMES: tuple[object, ...] = (3, [1], "abc", {})


@pytest.fixture
def lmdb(tmp_path: Path) -> Path:
    write_datums(tmp_path / "lmdb", ((f"{i}.jpg", datum(i, i % 5)) for i in range(40)))
    return tmp_path / "lmdb"


@pytest.fixture
def records(lmdb: Path) -> Path:
    out = lmdb.parent / "records"
    write_tfrecords(lmdb, out, shards=4)
    return out


def problems(seen: RecordsReport) -> list[str]:
    return [str(problem) for problem in seen.problems]


def cut_between_records(path: Path) -> None:
    path.write_bytes(frame_record(next(iter(read_records(path)))))


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(("spoil", "left"), [(cut_between_records, 1), (empty, 0)])
def test_a_file_that_lost_records_fails_the_check_and_is_not_kept(
    lmdb: Path, records: Path, spoil: Callable[[Path], None], left: int
) -> None:
    assert check_tfrecords(records, 5).problems == ()
    file = records / "train-00002-of-00004"
    spoil(file)
    seen = check_tfrecords(records, 5)
    assert problems(seen) == [f"{file.name}: has {left} of 10 records"]
    assert seen.hint == "copy or create the records again"
    assert problems(check_tfrecords(file, 5)) == [f"{file.name}: has {left} of 10 records"]
    size = file.stat().st_size
    with pytest.raises(DataError, match=rf"{file.name}: has {size:,} of [\d,]+ bytes; remove the folder"):
        write_tfrecords(lmdb, records, shards=4)
    assert file.stat().st_size == size


def test_without_a_manifest_a_file_may_be_empty_but_not_all_of_them(records: Path) -> None:
    records_manifest_path(records).unlink()
    empty(records / "train-00002-of-00004")
    assert check_tfrecords(records, 5).problems == ()
    for file in records.iterdir():
        empty(file)
    assert problems(check_tfrecords(records, 5)) == ["the files contain no records"]


def test_the_manifest_is_found_from_within(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (records / "below").mkdir()
    monkeypatch.chdir(records / "below")
    assert records_manifest_path(Path("..")) == records_manifest_path(records)


def test_a_bad_label_is_reported_with_the_advice_to_fix_the_source(records: Path) -> None:
    assert check_tfrecords(records, 4).hint == "fix the source images, and create the records again"


def test_a_damaged_file_is_reported_once(records: Path) -> None:
    file = records / "train-00002-of-00004"
    file.write_bytes(file.read_bytes()[:-5])
    (problem,) = problems(check_tfrecords(records, 5))
    assert problem.endswith("is truncated")


def test_files_that_are_not_of_the_set_are_reported(records: Path) -> None:
    for path in sorted(records.iterdir()):
        path.rename(records / path.name.replace("train", "other"))
    assert problems(check_tfrecords(records, 5)) == [
        "other-00000-of-00004: is not listed in the manifest, and 3 more like it"
    ]


def test_the_manifest_has_the_size_and_the_digest_of_each_file(records: Path) -> None:
    made = load_record_set(records)
    assert made is not None
    files = [records / name for name in made.counts()]
    assert made.sizes_bytes == tuple(file.stat().st_size for file in files)
    assert made.digests == tuple(map(digest_of, files))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("records", value) for value in WRONG_COUNTS],
        *[("shards", value) for value in (0, 41, "4")],
        *[("classes", value) for value in WRONG_NAMES],
        ("sizes_bytes", 3),
        ("sizes_bytes", [1]),
        ("sizes_bytes", [1, 2, 3, "x"]),
        ("digests", ["x"] * 4),
        *[("prefix", value) for value in (1, "", "../evil/x", "/evil/x", "x/y", "x\0")],
        ("plan", None),
        ("strange", 1),
    ],
)
def test_a_file_that_is_not_a_manifest_is_bad_input(
    lmdb: Path, records: Path, key: str, value: object
) -> None:
    path = records_manifest_path(records)
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(DataError, match="is not a manifest of TFRecords; remove it, or create the"):
        load_record_set(records)
    with pytest.raises(DataError, match="already exists; remove it, or give another path"):
        write_tfrecords(lmdb, records, shards=4)
