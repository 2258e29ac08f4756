"""An LMDB as TFRecords: every image once, in features of ImageNet's names, with classes over all files."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import write_datums
from caffe_recipes.data.tfrecords import (
    RecordSet,
    check_tfrecords,
    is_records,
    records_manifest_path,
    records_values,
    render_records_text,
    write_tfrecords,
)
from caffe_recipes.errors import DataError, InputError
from caffe_recipes.tensorflow.records import Values, build_example, parse_example, read_records, write_records

COUNT, CLASSES, SHARDS = 400, 10, 8


def jpeg(index: int, suffix: str = ".jpg", channels: int = 3) -> bytes:
    pixels = np.random.default_rng(index).integers(0, 256, (6 + index % 3, 8, channels), np.uint8)
    return bytes(cv2.imencode(suffix, pixels)[1])


def datum(index: int, label: int) -> pb.Datum:
    return pb.Datum(data=jpeg(index), label=label, encoded=True)


@pytest.fixture
def lmdb(tmp_path: Path) -> Path:
    """Sorted by class, as a folder of classes would be."""
    path = tmp_path / "lmdb"
    write_datums(path, ((f"n{i // 40}/image {i}.JPEG", datum(i, i // 40)) for i in range(COUNT)))
    return path


def examples(folder: Path) -> list[dict[str, Values]]:
    return [parse_example(data) for path in sorted(folder.iterdir()) for data in read_records(path)]


def make(lmdb: Path, name: str = "records", seed: int = 1, shards: int = SHARDS) -> tuple[Path, RecordSet]:
    out = lmdb.parent / name
    return out, write_tfrecords(lmdb, out, shards=shards, seed=seed)


def test_every_image_is_there_once_byte_by_byte(lmdb: Path) -> None:
    out, made = make(lmdb)
    assert (made.records, made.shards) == (COUNT, SHARDS)
    found = {one["image/filename"][0]: one for one in examples(out)}
    assert len(found) == COUNT
    for index in range(COUNT):
        one = found[f"image {index}.JPEG".encode()]
        assert one["image/encoded"] == (jpeg(index),)
        assert one["image/class/label"] == (index // 40 + 1,)
        assert (one["image/height"], one["image/width"]) == ((6 + index % 3,), (8,))


def test_the_features_are_those_of_imagenet_to_gcs(lmdb: Path) -> None:
    out = lmdb.parent / "records"
    write_tfrecords(lmdb, out, shards=1, classes=[f"n{index:08d}" for index in range(CLASSES)])
    for one in examples(out):
        assert set(one) == {
            *("image/height", "image/width", "image/colorspace", "image/channels", "image/format"),
            *("image/class/label", "image/class/synset", "image/class/text"),
            *("image/filename", "image/encoded"),
        }
        assert (one["image/colorspace"], one["image/channels"]) == ((b"RGB",), (3,))
        assert one["image/format"] == (b"JPEG",)
        (label,) = one["image/class/label"]
        assert one["image/class/synset"] == (f"n{int(label) - 1:08d}".encode(),)


def test_an_independent_reader_reads_images_and_labels(lmdb: Path) -> None:
    reader = pytest.importorskip("tfrecord.reader")
    out, _ = make(lmdb)
    described = {"image/encoded": "byte", "image/class/label": "int", "image/filename": "byte"}
    found = {}
    for path in sorted(out.iterdir()):
        for one in reader.tfrecord_loader(str(path), None, described):
            found[bytes(one["image/filename"])] = (
                bytes(one["image/encoded"]),
                int(one["image/class/label"][0]),
            )
    assert found == {f"image {index}.JPEG".encode(): (jpeg(index), index // 40 + 1) for index in range(COUNT)}


def test_files_are_named_and_filled_alike(lmdb: Path) -> None:
    out, _ = make(lmdb, shards=7)
    assert sorted(path.name for path in out.iterdir()) == [f"train-{n:05d}-of-00007" for n in range(7)]
    assert Counter(check_tfrecords(out).files.values()) == {57: 6, 58: 1}


def test_classes_are_shuffled_across_files_and_sorted_ones_are_distinguished_from_them(lmdb: Path) -> None:
    out, _ = make(lmdb)
    seen = check_tfrecords(out, CLASSES, must_be_shuffled=True)
    assert (seen.order.verdict, seen.problems) == ("shuffled", ())
    assert seen.fewest_classes == CLASSES
    ordered = lmdb.parent / "ordered"
    ordered.mkdir()
    found = sorted(examples(out), key=lambda one: one["image/class/label"])
    for shard in range(SHARDS):
        part = found[shard * 50 : shard * 50 + 50]
        records = [build_example({name: values[0] for name, values in one.items()}) for one in part]  # type: ignore[misc]
        write_records(ordered / f"train-{shard:05d}-of-00008", records)
    seen = check_tfrecords(ordered, must_be_shuffled=True)
    assert seen.order.verdict == "sorted by class"
    assert seen.fewest_classes < 4
    assert "bad: the records are not shuffled: sorted by class" in "\n".join(render_records_text(seen))


def test_files_of_classes_that_were_added_later_are_not_shuffled(lmdb: Path) -> None:
    out, _ = make(lmdb)
    found = sorted(examples(out), key=lambda one: one["image/class/label"] in ((9,), (10,)))
    records = [build_example({name: values[0] for name, values in one.items()}) for one in found]  # type: ignore[misc]
    for shard, path in enumerate(sorted(out.iterdir())):
        path.unlink()
        write_records(path, records[shard * 50 : shard * 50 + 50])
    seen = check_tfrecords(out, batch=32, must_be_shuffled=True)
    assert [problem.what for problem in seen.problems] == ["the records are not shuffled: partly shuffled"]


def test_a_seed_gives_the_same_bytes_and_another_other_ones(lmdb: Path) -> None:
    contents = [
        [path.read_bytes() for path in sorted(make(lmdb, name, seed)[0].iterdir())]
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert contents[0] == contents[1] != contents[2]


def test_an_interrupted_build_resumes_to_the_same_bytes(lmdb: Path) -> None:
    whole, _ = make(lmdb, "whole")
    out = lmdb.parent / "records"

    class CutOffError(Exception):
        pass

    def cut_off(done: int, total: int) -> None:
        assert total == COUNT
        if done == COUNT // 2:
            raise CutOffError

    with pytest.raises(CutOffError):
        write_tfrecords(lmdb, out, shards=SHARDS, on_progress=cut_off)
    assert not out.exists()
    partial = lmdb.parent / ".records.partial"
    kept = {path.name: path.stat().st_ino for path in (partial / "records").iterdir()}
    assert len(kept) == SHARDS // 2
    (partial / "records" / ".train-00004-of-00008").write_bytes(b"half a rec")
    with pytest.raises(DataError, match="was started with other images or settings; remove it"):
        write_tfrecords(lmdb, out, shards=SHARDS, seed=2)
    make(lmdb)
    assert {path.name: path.stat().st_ino for path in out.iterdir() if path.name in kept} == kept
    assert [path.read_bytes() for path in sorted(out.iterdir())] == [
        path.read_bytes() for path in sorted(whole.iterdir())
    ]
    assert not partial.exists()


@pytest.mark.promise("no data of others is used in a shared folder")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_records_that_another_user_has_written_to_a_shared_folder_are_not_kept(lmdb: Path) -> None:
    out, _ = make(lmdb)
    out.parent.chmod(0o1777)
    os.chown(out, 54321, 54321)
    with pytest.raises(
        DataError, match=r"already exists, and .* belongs to user 54321, .*; give another path$"
    ):
        make(lmdb)


def test_a_finished_folder_is_kept_and_another_refused(lmdb: Path) -> None:
    out, made = make(lmdb)
    assert json.loads(records_manifest_path(out).read_text())["plan"] == made.plan
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert make(lmdb)[1] == made
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    with pytest.raises(
        DataError, match="records: already exists, made from other images or settings; remove it"
    ):
        make(lmdb, seed=2)
    (out / "train-00003-of-00008").unlink()
    what = "records: is missing 1 of its 8 files, e.g. train-00003-of-00008; remove the folder"
    with pytest.raises(DataError, match=what):
        make(lmdb)
    (lmdb.parent / "taken").mkdir()
    with pytest.raises(DataError, match="taken: already exists; remove it"):
        make(lmdb, "taken")
    with pytest.raises(DataError, match="is a folder that already exists"):
        write_tfrecords(lmdb, Path(), shards=1)


def test_more_files_than_records_are_refused(lmdb: Path) -> None:
    with pytest.raises(
        InputError, match="--shards: 401 files for 400 records: some would be empty; give fewer"
    ):
        make(lmdb, shards=401)


@pytest.mark.parametrize("suffix", [".png", "raw", "grey"])
def test_images_of_other_types_become_jpegs(tmp_path: Path, suffix: str) -> None:
    pixels = np.full((16, 24, 1 if suffix == "grey" else 3), 90, np.uint8)
    pixels[:, 12:] = 200
    if suffix == ".png":
        one = pb.Datum(data=bytes(cv2.imencode(suffix, pixels)[1]), label=0, encoded=True)
    else:
        one = pb.Datum(channels=pixels.shape[2], height=16, width=24, label=0)
        one.data = pixels.transpose(2, 0, 1).tobytes()
    write_datums(tmp_path / "lmdb", [("a.png", one)])
    write_tfrecords(tmp_path / "lmdb", tmp_path / "records", shards=1)
    (found,) = examples(tmp_path / "records")
    (data,) = found["image/encoded"]
    assert isinstance(data, bytes)
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert decoded is not None
    assert np.abs(decoded.astype(int) - pixels).max() < 8
    assert (found["image/height"], found["image/width"]) == ((16,), (24,))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (pb.Datum(data=b"no image", label=0, encoded=True), "is not an image that OpenCV can decode"),
        (pb.Datum(data=jpeg(0), encoded=True), "has no label"),
        (pb.Datum(data=jpeg(0), label=-1, encoded=True), "has label -1"),
        (
            pb.Datum(channels=1, height=1, width=65_501, data=bytes(65_501), label=0),
            "is 1 x 65501 pixels and cannot be encoded as jpg",
        ),
        (pb.Datum(channels=5, height=1, width=1, data=b"12345", label=0), "is raw with 5 channels"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_record_that_cannot_be_converted_is_named_and_nothing_is_left(
    tmp_path: Path, bad: pb.Datum, message: str
) -> None:
    write_datums(tmp_path / "lmdb", [("good.jpg", datum(1, 0)), ("bad.jpg", bad)])
    with pytest.raises(DataError, match=rf"lmdb: record '00000001_bad.jpg' {message}.*; fix the LMDB"):
        write_tfrecords(tmp_path / "lmdb", tmp_path / "out", shards=2, classes=("a", "b"))
    assert [path.name for path in tmp_path.iterdir()] == ["lmdb"]


def test_decoders_print_nothing_about_a_damaged_image(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    png = bytearray(jpeg(1, ".png"))
    png[png.index(b"IDAT") + 6] ^= 0xFF
    write_datums(tmp_path / "lmdb", [("x", pb.Datum(data=bytes(png), label=1, encoded=True))])
    with pytest.raises(DataError, match="record '00000000_x' "):
        write_tfrecords(tmp_path / "lmdb", tmp_path / "records", shards=1)
    assert capfd.readouterr().err == ""


def test_names_of_classes_that_are_too_few_are_distinguished_from_a_bad_record(tmp_path: Path) -> None:
    write_datums(tmp_path / "lmdb", [("a.jpg", datum(1, 0)), ("b.jpg", datum(0, 2))])
    what = r"lmdb: record '00000001_b.jpg' has label 2, but there are only 2 class names; name all classes"
    with pytest.raises(DataError, match=what):
        write_tfrecords(tmp_path / "lmdb", tmp_path / "out", shards=2, classes=("a", "b"))
    assert [path.name for path in tmp_path.iterdir()] == ["lmdb"]


def test_a_class_is_named_by_any_bytes_as_its_folder_is(tmp_path: Path) -> None:
    write_datums(tmp_path / "lmdb", [("a.jpg", datum(1, 0))])
    write_tfrecords(tmp_path / "lmdb", tmp_path / "out", shards=1, classes=(os.fsdecode(b"caf\xe9"),))
    assert [one["image/class/synset"] for one in examples(tmp_path / "out")] == [(b"caf\xe9",)]


def test_problems_of_records_are_reported_once_and_counted(tmp_path: Path) -> None:
    good: dict[str, bytes | int] = {
        "image/encoded": jpeg(0),
        "image/class/label": 1,
        "image/height": 6,
        "image/width": 8,
    }
    records = [
        build_example(good),
        build_example({**good, "image/class/label": 0}),
        build_example({**good, "image/class/label": 7}),
        build_example({**good, "image/class/label": 9}),
        build_example({**good, "image/encoded": b"PNG"}),
        build_example({**good, "image/height": 8}),
        build_example({"image/encoded": jpeg(0)}),
        b"\xff\xff\xff",
    ]
    write_records(tmp_path / "train-00001-of-00003", records)
    write_records(tmp_path / "validation-00000-of-00001", records[:1])
    seen = check_tfrecords(tmp_path, 5)
    assert [str(problem) for problem in seen.problems] == [
        "train-00001-of-00003: record 1 has label 0, which is below 1, and 2 more like it",
        "train-00001-of-00003: record 4 is not a JPEG",
        "train-00001-of-00003: record 5 says 8 x 8, but its image is 6 x 8",
        "train-00001-of-00003: record 6 has no image/class/label",
        "train-00001-of-00003: record 7 is not a tf.train.Example",
        "the folder has files of several sets: train of 3 and validation of 1",
        "2 of 3 files are missing, e.g. train-00000-of-00003",
    ]
    assert json.loads(json.dumps(records_values(seen)))["records"] == 9


def test_records_are_known_by_their_names(lmdb: Path) -> None:
    out, _ = make(lmdb)
    assert is_records(out)
    assert is_records(out / "train-00000-of-00008")
    assert check_tfrecords(out / "train-00000-of-00008").count == 50
    assert not is_records(lmdb)
    assert not is_records(lmdb / "data.mdb")
    assert not is_records(lmdb.parent / "nowhere")
    with pytest.raises(
        DataError, match="lmdb: contains no TFRecords; file names must be like train-00000-of"
    ):
        check_tfrecords(lmdb)


@pytest.mark.parametrize("left", [5, 100, -1])
def test_a_file_that_is_truncated_is_a_problem_that_the_check_found(lmdb: Path, left: int) -> None:
    out, _ = make(lmdb)
    for path in sorted(out.iterdir()) if left == 5 else [out / "train-00002-of-00008"]:
        path.write_bytes(path.read_bytes()[:left])
    seen = check_tfrecords(out, CLASSES)
    assert len(seen.problems) == 1
    assert "is truncated" in str(seen.problems[0])
    assert "is truncated" in "\n".join(render_records_text(seen))
    assert json.loads(json.dumps(records_values(seen)))["records"] == seen.count
