"""imagenet_to_gcs.py makes TFRecords from raw images, with the flags of the source."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from caffe_recipes.data.build import build_lmdb, plan_build
from caffe_recipes.data.images import ConversionSettings, load_folder
from caffe_recipes.data.tfrecords import check_tfrecords, load_record_set, write_tfrecords
from caffe_recipes.tensorflow.records import parse_example, read_records

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tensorflow_programs" / "imagenet_to_gcs.py"
CLASSES = ("n01440764", "n02084071", "n04254680")


def write_image(path: Path, shade: int, suffix: str = "jpg") -> None:
    import cv2
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(f".{suffix}", np.full((24, 32, 3), shade, np.uint8))[1].tobytes())


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """ImageNet's raw images as unpacked: of each of three classes four to train, and two to validate."""
    for label, name in enumerate(CLASSES):
        for number in range(4):
            write_image(tmp_path / "raw" / "train" / name / f"{name}_{number}.JPEG", 60 * label + number)
    for number in range(6):
        write_image(tmp_path / "raw" / "validation" / f"ILSVRC2012_val_{number:08d}.JPEG", 200 + number)
    (tmp_path / "raw" / "synset_labels.txt").write_text("".join(f"{name}\n" for name in CLASSES * 2))
    return tmp_path / "raw"


def convert(raw: Path, *more: str) -> subprocess.CompletedProcess[str]:
    records = raw.with_name("records")
    command = [sys.executable, str(PROGRAM), "--raw_data_dir", str(raw), "--local_scratch_dir", str(records)]
    return subprocess.run([*command, *more], capture_output=True, text=True, check=False, cwd=raw)


def small(raw: Path, *more: str, workers: int = 1) -> subprocess.CompletedProcess[str]:
    """Convert to few shards; each worker is a process that imports OpenCV, which takes most of the time."""
    shards = ("--train_shards=3", "--validation_shards=2")
    return convert(raw, *shards, f"--workers={workers}", *more)


def labels_in(folder: Path) -> dict[bytes, tuple[int, bytes]]:
    """Return the label and the class of each file's name."""

    def found() -> Iterator[tuple[bytes, tuple[int, bytes]]]:
        for path in sorted(folder.iterdir()):
            for record in read_records(path):
                values = parse_example(record)
                (name,), (label,), (synset,) = (
                    values[f"image/{key}"] for key in ("filename", "class/label", "class/synset")
                )
                assert isinstance(name, bytes) and isinstance(label, int) and isinstance(synset, bytes)
                yield name, (label, synset)

    return dict(found())


def test_folders_become_records_with_labels_from_1_and_a_manifest(raw: Path) -> None:
    done = small(raw, workers=2)
    assert done.returncode == 0, done.stderr
    records = raw.with_name("records")
    trained = labels_in(records / "train")
    assert len(trained) == 12
    for label, name in enumerate(CLASSES, 1):
        for number in range(4):
            assert trained[f"{name}_{number}.JPEG".encode()] == (label, name.encode())
    validated = labels_in(records / "validation")
    wanted = [(label, name.encode()) for label, name in enumerate(CLASSES, 1)] * 2
    assert [validated[f"ILSVRC2012_val_{number:08d}.JPEG".encode()] for number in range(6)] == wanted
    for name, count, shards in (("train", 12, 3), ("validation", 6, 2)):
        made = load_record_set(records / name)
        assert made is not None
        assert (made.records, made.shards, made.prefix, made.classes) == (count, shards, name, CLASSES)
        assert not check_tfrecords(records / name, 3).problems


def test_archives_give_the_records_of_the_folders(raw: Path) -> None:
    assert small(raw).returncode == 0
    packed = raw.with_name("packed") / "raw"
    packed.mkdir(parents=True)
    with tarfile.open(packed / "ILSVRC2012_img_train.tar", "w") as outer:
        for name in CLASSES:
            with tarfile.open(packed / f"{name}.tar", "w") as inner:
                for path in sorted((raw / "train" / name).iterdir()):
                    inner.add(path, path.name)
            outer.add(packed / f"{name}.tar", f"{name}.tar")
    with tarfile.open(packed / "ILSVRC2012_img_val.tar", "w") as outer:
        for path in sorted((raw / "validation").iterdir()):
            outer.add(path, path.name)
    (packed / "synset_labels.txt").write_bytes((raw / "synset_labels.txt").read_bytes())
    done = small(packed, workers=2)
    assert done.returncode == 0, done.stderr
    for path in raw.with_name("records").rglob("*-of-*"):
        other = packed.with_name("records") / path.relative_to(raw.with_name("records"))
        assert other.read_bytes() == path.read_bytes()


def test_the_records_are_those_of_an_lmdb_of_the_same_images(raw: Path, tmp_path: Path) -> None:
    assert small(raw, "--seed=3").returncode == 0
    found = load_folder(raw / "train")
    build_lmdb(plan_build(found, ConversionSettings()), tmp_path / "lmdb", workers=1)
    write_tfrecords(tmp_path / "lmdb", tmp_path / "of_lmdb", shards=3, seed=3, classes=CLASSES)
    for path in (tmp_path / "of_lmdb").iterdir():
        assert (tmp_path / "records" / "train" / path.name).read_bytes() == path.read_bytes()


def test_a_png_becomes_a_jpeg_as_one_of_imagenet_has_to(raw: Path) -> None:
    write_image(raw / "train" / CLASSES[1] / "n02084071_9.PNG", 7, "png")
    done = small(raw)
    assert done.returncode == 0, done.stderr
    kinds = set()
    for path in (raw.with_name("records") / "train").iterdir():
        for record in read_records(path):
            (image,) = parse_example(record)["image/encoded"]
            assert isinstance(image, bytes)
            kinds.add(image[:2])
    assert kinds == {b"\xff\xd8"}


def test_finished_records_are_kept_and_those_of_other_images_are_not_replaced(raw: Path) -> None:
    assert small(raw).returncode == 0
    before = {path: path.stat().st_mtime_ns for path in raw.with_name("records").rglob("*-of-*")}
    assert small(raw).returncode == 0
    write_image(raw / "train" / CLASSES[0] / "n01440764_7.JPEG", 9)
    done = small(raw)
    assert done.returncode == 2
    assert "from other images or settings" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("cut", "n01440764_0.JPEG"),
        ("label", "synset_labels.txt: has 5 labels for 6 images"),
        ("class", "synset_labels.txt"),
        ("folder", "raw/train: cannot be read"),
    ],
)
def test_raw_images_that_cannot_be_used_are_refused_in_one_line(raw: Path, damage: str, message: str) -> None:
    labels, image = raw / "synset_labels.txt", raw / "train" / CLASSES[0] / "n01440764_0.JPEG"
    if damage == "cut":
        image.write_bytes(image.read_bytes()[:200])
    elif damage == "label":
        labels.write_text(labels.read_text().partition("\n")[2])
    elif damage == "class":
        labels.write_text(labels.read_text().replace(CLASSES[0], "n99999999"))
    else:
        (raw / "train").rename(raw / "other")
    done = small(raw)
    assert done.returncode == 2
    assert done.stderr.startswith("imagenet_to_gcs.py: ") and done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not (raw.with_name("records") / "train").exists()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--shards=3", "unrecognized arguments: --shards=3"),
        ("--seed=x", "argument --seed: invalid int value: 'x'"),
    ],
)
def test_a_flag_that_is_unknown_or_of_a_bad_value_is_named_in_one_line(
    raw: Path, flag: str, message: str
) -> None:
    done = small(raw, flag)
    assert (done.returncode, done.stderr) == (2, f"imagenet_to_gcs.py: {message}\n")


def test_the_generated_script_starts_the_program_as_it_stands(raw: Path, tmp_path: Path) -> None:
    names = {"IMAGENET_TO_GCS": PROGRAM, "RAW_IMAGE_DIR": raw, "TF_RECORDS_DIR": tmp_path / "records"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {name: str(value) for name, value in names.items()} | {"PATH": path}
    script = ROOT / "jobs" / "tf-256n-90ep" / "tf_prepare.sh"
    done = subprocess.run([str(script)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    # All flags are known: these are too few images for ImageNet's 1,024 files.
    assert "1,024 files for 12 records" in done.stderr


@pytest.mark.promise("nothing is written through planted links")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_no_folder_is_created_through_a_link_that_another_user_planted(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/x").symlink_to(tmp_path / "home")
    (tmp_path / "shared").chmod(0o1777)
    os.chown(tmp_path / "shared/x", 54321, 54321, follow_symlinks=False)
    done = small(raw, "--local_scratch_dir", str(tmp_path / "shared/x/autostart"))
    assert done.returncode == 2
    assert "is a symbolic link of user 54321" in done.stderr
    assert list((tmp_path / "home").iterdir()) == []
