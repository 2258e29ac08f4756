from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import open_datums
from caffe_recipes.data.build import build_lmdb, check_lmdb_path, load_pictures, shuffle, split_pictures
from caffe_recipes.data.images import ConversionSettings, Picture, Pictures
from caffe_recipes.data.manifest import manifest_path
from caffe_recipes.engine.operators.data import first_image_shape
from caffe_recipes.engine.transform import decode_datum
from caffe_recipes.errors import DataError, InputError
from tests.data.conftest import encode, names, plan_of, records, write_images

SQUARE = ConversionSettings(resize_height_px=16, resize_width_px=24)


def convert_imageset(listed: Path, settings: ConversionSettings) -> list[tuple[bytes, bytes]]:
    """Return the records of convert_imageset, reimplemented plainly from its source."""
    made = []
    for index, line in enumerate(listed.read_text().splitlines()):
        name, label = line.split()
        file = listed.parent / name
        image = cv2.imread(str(file), cv2.IMREAD_GRAYSCALE if settings.is_gray else cv2.IMREAD_COLOR)
        assert image is not None
        if settings.resizes:
            image = cv2.resize(image, (settings.resize_width_px, settings.resize_height_px))
        suffix = settings.encode_type or file.suffix[1:].lower()
        if not settings.is_encoded:
            planes = image.transpose(2, 0, 1) if image.ndim == 3 else image[None]
            datum = pb.Datum(channels=planes.shape[0], height=planes.shape[1], width=planes.shape[2])
            datum.data, datum.encoded = planes.tobytes(), False
        elif not settings.resizes and settings.encode_type is None:
            datum = pb.Datum(data=file.read_bytes(), encoded=True)
        else:
            datum = pb.Datum(data=cv2.imencode(f".{suffix}", image)[1].tobytes(), encoded=True)
        datum.label = int(label)
        made.append((f"{index:08d}_{name}".encode(), datum.SerializeToString(deterministic=True)))
    return made


@pytest.mark.parametrize(
    "settings",
    [
        ConversionSettings(),
        SQUARE,
        ConversionSettings(is_encoded=False),
        ConversionSettings(16, 24, is_encoded=False),
        ConversionSettings(16, 24, is_gray=True),
        ConversionSettings(is_gray=True, is_encoded=False),
        ConversionSettings(16, 24, encode_type="png"),
        ConversionSettings(16, 24, encode_type="jpg"),
    ],
    ids=lambda settings: ",".join(str(value) for value in vars(settings).values()),
)
def test_records_are_convert_imagesets(listed: Path, tmp_path: Path, settings: ConversionSettings) -> None:
    build_lmdb(plan_of(listed, settings), tmp_path / "lmdb")
    assert records(tmp_path / "lmdb") == convert_imageset(listed, settings)


@pytest.mark.skipif(not shutil.which("convert_imageset"), reason="Caffe's convert_imageset is not installed")
@pytest.mark.parametrize("settings", [ConversionSettings(), ConversionSettings(16, 24, is_encoded=False)])
def test_records_are_those_of_caffes_own_tool(
    listed: Path, tmp_path: Path, settings: ConversionSettings
) -> None:
    sizes = ["--resize_height=16", "--resize_width=24"] if settings.resizes else []
    flags = [*sizes, f"--encoded={str(settings.is_encoded).lower()}"]
    argv = ["convert_imageset", *flags, f"{listed.parent}/", str(listed), str(tmp_path / "caffe")]
    subprocess.run(argv, check=True, capture_output=True)
    build_lmdb(plan_of(listed, settings), tmp_path / "lmdb")
    assert records(tmp_path / "lmdb") == records(tmp_path / "caffe")


def test_progress_is_reported_from_where_a_build_continues(listed: Path, tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    (listed.parent / "b/7.JPEG").write_bytes(b"bad")
    for skip_bad in (False, True):
        with suppress(DataError):
            build_lmdb(
                plan_of(listed),
                tmp_path / "lmdb",
                skip_bad=skip_bad,
                on_progress=lambda done, total: reported.append((done, total)),
            )
    assert reported == [(0, 10), (7, 10)]


def test_a_shuffled_build_has_the_records_in_another_order(listed: Path, tmp_path: Path) -> None:
    build_lmdb(plan_of(listed, SQUARE, seed=5), tmp_path / "lmdb")
    made, plain = records(tmp_path / "lmdb"), convert_imageset(listed, SQUARE)
    assert (
        [key[9:] for key, _ in made] == [key[9:] for key, _ in shuffle(plain, 5)] != [k[9:] for k, _ in plain]
    )
    assert [key[:8] for key, _ in made] == [key[:8] for key, _ in plain]
    assert {(key[9:], value) for key, value in made} == {(key[9:], value) for key, value in plain}


def test_the_engine_reads_what_was_built_under_any_name(listed: Path, tmp_path: Path) -> None:
    raw, png = tmp_path / "raw", tmp_path / os.fsdecode(b"png\xff")
    for path, settings in (
        (raw, ConversionSettings(16, 24, is_encoded=False)),
        (png, ConversionSettings(16, 24, encode_type="png")),
    ):
        build_lmdb(plan_of(listed, settings), path)
        assert first_image_shape(str(path)) == (3, 16, 24)
    with open_datums(raw) as lefts, open_datums(png) as rights:
        for (_, left), (_, right) in zip(lefts, rights, strict=True):
            one, other = (decode_datum(datum, pb.TransformationParameter()) for datum in (left, right))
            assert (one == other).all()


@pytest.mark.parametrize("seed", [None, 0, 7])
def test_any_number_of_workers_builds_the_same_bytes(tmp_path: Path, seed: int | None) -> None:
    listed = write_images(tmp_path / "images", 70)
    plan = plan_of(listed, SQUARE, seed)
    files = []
    for workers in (1, 2):
        out = tmp_path / str(workers) / "lmdb"
        build_lmdb(plan, out, workers=workers)
        assert names(out.parent) == ["lmdb", "lmdb.manifest.json"]
        assert names(out) == ["data.mdb"]
        files.append((manifest_path(out).read_bytes(), (out / "data.mdb").read_bytes()))
    assert files[0] == files[1]


def test_the_manifest_describes_what_was_built(listed: Path, tmp_path: Path) -> None:
    build_lmdb(plan_of(listed, SQUARE, seed=3), tmp_path / "lmdb")
    found = json.loads(manifest_path(tmp_path / "lmdb").read_text())
    assert (found["images"], found["seed"], found["skipped"], found["classes"]) == (10, 3, [], None)
    assert found["labels"] == {"0": 4, "1": 3, "2": 3}
    assert found["settings"]["resize_width_px"] == 24
    digest = hashlib.sha256()
    for parts in records(tmp_path / "lmdb"):
        for part in parts:
            digest.update(len(part).to_bytes(4, "little") + part)
    assert found["sha256"] == digest.hexdigest()
    assert str(tmp_path) not in manifest_path(tmp_path / "lmdb").read_text()


@pytest.mark.promise("no data of others is used in a shared folder")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_an_lmdb_that_another_user_has_built_in_a_shared_folder_is_not_kept(
    listed: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    build_lmdb(plan_of(listed), shared / "lmdb")
    shared.chmod(0o1777)
    os.chown(shared / "lmdb", 54321, 54321)
    what = r"lmdb: already exists, and .*/lmdb belongs to user 54321, .*; give another path$"
    with pytest.raises(DataError, match=what):
        build_lmdb(plan_of(listed), shared / "lmdb")


def test_a_finished_build_is_kept_and_another_refused(listed: Path, tmp_path: Path) -> None:
    out = tmp_path / "lmdb"
    first = build_lmdb(plan_of(listed), out)
    before = (out / "data.mdb").stat()
    assert build_lmdb(plan_of(listed), out) == first
    after = (out / "data.mdb").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    for plan in (plan_of(listed, SQUARE), plan_of(listed, seed=1)):
        with pytest.raises(DataError, match="already exists, built from other images or settings"):
            build_lmdb(plan, out)
    (listed.parent / "a/0.jpg").write_bytes(encode(".jpg", 99, 99))
    with pytest.raises(DataError, match="already exists, built from other images or settings"):
        build_lmdb(plan_of(listed), out)
    manifest_path(out).unlink()
    with pytest.raises(DataError, match="already exists; remove it"):
        build_lmdb(plan_of(listed), out)
    assert (out / "data.mdb").stat().st_mtime_ns == before.st_mtime_ns
    assert names(tmp_path) == ["images", "lmdb"]


def test_an_image_that_does_not_decode_is_named_and_no_lmdb_is_left(listed: Path, tmp_path: Path) -> None:
    bad = listed.parent / "a/4.JPEG"
    whole = bad.read_bytes()
    bad.write_bytes(whole[:500])
    with pytest.raises(
        DataError, match=r"a/4.JPEG: is not an image that OpenCV can decode, or is truncated; .*--skip-bad"
    ):
        build_lmdb(plan_of(listed), tmp_path / "out" / "lmdb")
    assert names(tmp_path / "out") == [".lmdb.partial"]
    bad.write_bytes(whole)
    build_lmdb(plan_of(listed), tmp_path / "out" / "lmdb")
    assert names(tmp_path / "out") == ["lmdb", "lmdb.manifest.json"]
    assert records(tmp_path / "out" / "lmdb") == convert_imageset(listed, ConversionSettings())


def test_a_build_that_fails_at_its_first_image_leaves_nothing(listed: Path, tmp_path: Path) -> None:
    (listed.parent / "a/0.jpg").write_bytes(b"")
    with pytest.raises(DataError, match=r"a/0.jpg: is empty"):
        build_lmdb(plan_of(listed), tmp_path / "out" / "lmdb")
    assert names(tmp_path / "out") == []


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_images_can_be_skipped_together_with_their_numbers(
    listed: Path, tmp_path: Path, workers: int
) -> None:
    for name in ("a/0.jpg", "b/5.png", "b/9.jpg"):
        (listed.parent / name).write_bytes(b"no image")
    built = build_lmdb(plan_of(listed), tmp_path / "lmdb", workers=workers, skip_bad=True)
    assert built.skipped == ["a/0.jpg", "b/5.png", "b/9.jpg"]
    assert [int(key[:8]) for key, _ in records(tmp_path / "lmdb")] == [1, 2, 3, 4, 6, 7, 8]
    for path in listed.parent.glob("*/*"):
        path.write_bytes(b"no image")
    with pytest.raises(DataError, match="cannot be decoded, and neither can any other"):
        build_lmdb(plan_of(listed), tmp_path / "none", skip_bad=True)
    assert names(tmp_path) == ["images", "lmdb", "lmdb.manifest.json"]


def test_images_of_different_sizes_are_refused_on_request(listed: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"b/1.JPEG: is 31 x 49 x 3, but the first image is 30 x 50 x 3"):
        build_lmdb(plan_of(listed, ConversionSettings(check_size=True)), tmp_path / "lmdb")
    # What its hint proposes is possible: the records of sizes that differ are of no use.
    assert names(tmp_path) == ["images"]
    build_lmdb(plan_of(listed), tmp_path / "lmdb")
    build_lmdb(plan_of(listed, ConversionSettings(8, 8, check_size=True)), tmp_path / "square")


def test_the_shorter_side_is_resized_and_the_ratio_kept(listed: Path, tmp_path: Path) -> None:
    build_lmdb(plan_of(listed, ConversionSettings(shorter_side_px=20, encode_type="png")), tmp_path / "lmdb")
    with open_datums(tmp_path / "lmdb") as datums:
        sizes = [decode_datum(datum, pb.TransformationParameter()).shape for _, datum in datums]
    assert sizes == [(20, int(20 * np.float32(50 - i) / np.float32(30 + i)), 3) for i in range(10)]


def test_only_one_process_builds_at_a_time(listed: Path, tmp_path: Path) -> None:
    partial = tmp_path / ".lmdb.partial"
    partial.mkdir()
    with (partial / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another build is running in it"):
            build_lmdb(plan_of(listed), tmp_path / "lmdb")
    build_lmdb(plan_of(listed), tmp_path / "lmdb")


def test_an_unwritable_output_path_is_one_line(listed: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file/lmdb: cannot be written: Not a directory"):
        build_lmdb(plan_of(listed), tmp_path / "file" / "lmdb")


@pytest.mark.parametrize("out", ["images/lmdb", "images/a/lmdb", "images", "link/lmdb", "images/../images/x"])
def test_no_lmdb_may_stand_within_the_folder_of_its_classes(tmp_path: Path, out: str) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "link").symlink_to("images")
    with pytest.raises(
        DataError, match=r"is inside .*images, whose folders are classes; give a path outside"
    ):
        check_lmdb_path(tmp_path / out, tmp_path / "images")


def test_it_may_stand_beside_the_folder_and_beside_a_list(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "list").touch()
    check_lmdb_path(tmp_path / "images_lmdb", tmp_path / "images")
    check_lmdb_path(tmp_path / "lmdb", tmp_path / "list")
    check_lmdb_path(tmp_path / "images" / "lmdb", tmp_path / "list")


def test_a_name_too_long_for_what_is_made_of_it_is_refused_and_the_longest_is_built(listed: Path) -> None:
    folder = listed.parent.parent
    with pytest.raises(DataError, match="the name has 232 bytes; at most 231 fit with its manifest"):
        check_lmdb_path(folder / ("é" * 115 + "xx"), listed)
    check_lmdb_path(folder / ("é" * 115 + "x"), listed)
    assert build_lmdb(plan_of(listed), folder / ("é" * 115 + "x")).images == 10


def test_a_pipe_is_refused_before_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "list")
    with pytest.raises(DataError, match="list: is a pipe or a device; write the list to a regular file"):
        load_pictures(tmp_path / "list")


def test_a_list_has_no_class_names(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("a.jpg 0\n")
    (tmp_path / "classes").write_text("a\n")
    with pytest.raises(InputError, match="leave it out: a list has no class names; those of a folder are"):
        load_pictures(tmp_path / "list", class_list=tmp_path / "classes")


def test_an_image_that_is_listed_twice_is_not_in_both_sets() -> None:
    pictures = [Picture(f"{index % 5}", 0, 1, f"/{index % 5}") for index in range(10)]
    train, test = split_pictures(Pictures(Path("list"), pictures), 0.4, 1)
    assert (len(train.pictures), len(test.pictures)) == (6, 4)
    assert {one.path for one in train.pictures}.isdisjoint(one.path for one in test.pictures)
