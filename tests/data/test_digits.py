from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import check_datums, open_datums, write_datums
from caffe_recipes.data.digits import (
    DigitsLmdbs,
    build_digit_records,
    build_digits,
    enlarge,
    split_stratified,
)
from caffe_recipes.data.tfrecords import load_record_set
from caffe_recipes.errors import DataError
from tests.data.conftest import FULL
from tests.extras import needs_local

if TYPE_CHECKING:
    from numpy import uint8
    from numpy.typing import NDArray

cv2 = pytest.importorskip("cv2", reason="the extra 'local' is not installed")
np = pytest.importorskip("numpy", reason="the extra 'local' is not installed")
pytestmark = needs_local


@pytest.fixture(scope="module")
def lmdbs(tmp_path_factory: pytest.TempPathFactory) -> DigitsLmdbs:
    return build_digits(tmp_path_factory.mktemp("digits") / "examples")


def pixels(datum: pb.Datum) -> NDArray[uint8]:
    image: NDArray[uint8] = cv2.imdecode(np.frombuffer(datum.data, np.uint8), cv2.IMREAD_UNCHANGED)
    return image


def source_index(key: bytes) -> int:
    return int(key.decode().split("_")[1].removesuffix(".png"))


def test_records_are_encoded_colour_images_of_ten_classes(lmdbs: DigitsLmdbs) -> None:
    for path, count in ((lmdbs.train, 1438), (lmdbs.val, 359)):
        summary = check_datums(path, 10)
        assert (summary.count, summary.encoded) == (count, count)
        assert summary.shapes == {(3, 32, 32): count}
        assert set(summary.labels) == set(range(10))


def test_no_held_out_image_is_in_the_training_lmdb(lmdbs: DigitsLmdbs) -> None:
    with open_datums(lmdbs.train) as train, open_datums(lmdbs.val) as val:
        trained, held = ([source_index(key) for key in datums.keys] for datums in (train, val))
        assert sorted(trained + held) == list(range(1797))
        images = {pixels(datum).tobytes() for _, datum in train}
        assert len(images) == 1438
        assert not images & {pixels(datum).tobytes() for _, datum in val}


def test_a_fifth_of_each_class_is_held_out(lmdbs: DigitsLmdbs) -> None:
    train, val = check_datums(lmdbs.train, 10).labels, check_datums(lmdbs.val, 10).labels
    for label in range(10):
        assert abs(val[label] - 0.2 * (train[label] + val[label])) <= 0.5


def test_each_record_is_the_digit_that_its_key_names(lmdbs: DigitsLmdbs) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    with open_datums(lmdbs.val) as val:
        for key, datum in val:
            index = source_index(key)
            assert datum.label == digits.target[index]
            shrunk = pixels(datum)[:, :, 0].reshape(8, 4, 8, 4).mean((1, 3))
            assert np.corrcoef(shrunk.ravel(), digits.images[index].ravel())[0, 1] > 0.97


def test_training_records_are_shuffled(lmdbs: DigitsLmdbs) -> None:
    with open_datums(lmdbs.train) as train:
        labels = [train[i].label for i in range(64)]
        assert set(Counter(labels)) == set(range(10))
        indices = [source_index(key) for key in train.keys]
    assert indices != sorted(indices)


def test_every_machine_gets_the_same_pixels_in_the_same_order(lmdbs: DigitsLmdbs) -> None:
    digest = hashlib.sha256()
    for path in (lmdbs.train, lmdbs.val):
        with open_datums(path) as datums:
            for key, datum in datums:
                digest.update(key + bytes([datum.label]) + pixels(datum).tobytes())
    assert digest.hexdigest() == "3bb1d20a1fad915d2794d32d390568fc20e93ba3d7e17459734894d9b7fe49d3"


def test_building_again_leaves_whole_lmdbs_alone(lmdbs: DigitsLmdbs) -> None:
    def stamps() -> list[tuple[int, int]]:
        files = [(path / "data.mdb").stat() for path in (lmdbs.train, lmdbs.val)]
        return [(file.st_ino, file.st_ctime_ns) for file in files]

    before = stamps()
    assert build_digits(lmdbs.train.parent) == lmdbs
    assert stamps() == before
    assert sorted(path.name for path in lmdbs.train.parent.iterdir()) == [
        "digits_train_lmdb",
        "digits_val_lmdb",
    ]


def test_only_the_missing_lmdb_is_built(lmdbs: DigitsLmdbs, tmp_path: Path) -> None:
    (tmp_path / "digits_train_lmdb").symlink_to(lmdbs.train)
    built = build_digits(tmp_path)
    assert (tmp_path / "digits_train_lmdb").is_symlink()
    with open_datums(built.val) as again, open_datums(lmdbs.val) as first:
        assert list(again) == list(first)


def test_other_records_under_the_name_are_refused_and_kept(tmp_path: Path) -> None:
    image = pb.Datum(channels=1, height=1, width=1, label=3, data=b"x")
    write_datums(tmp_path / "digits_val_lmdb", [("x", image)])
    with pytest.raises(DataError, match="holds 1 of 359 digits; remove it"):
        build_digits(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["digits_val_lmdb"]


@pytest.mark.parametrize("module", ["sklearn", "cv2"])
def test_a_missing_extra_is_one_line_with_the_command_to_install_it(tmp_path: Path, module: str) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from caffe_recipes.data.digits import build_digits\n"
        "from caffe_recipes.errors import DataError\n"
        "try: build_digits(sys.argv[1])\n"
        "except DataError as error: print(error)"
    )
    folder = tmp_path / "examples"
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    assert done.stdout == (
        f"{folder}: the digits cannot be built without {module}; "
        "install the extra 'local' of caffe-recipes (see its README)\n"
    )
    assert not folder.exists()


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="digits_train_lmdb: cannot be written"):
        build_digits(tmp_path / "file")


def test_a_full_disk_is_a_failed_run_that_leaves_nothing(tmp_path: Path) -> None:
    words = ["data", "build", "digits", "--out", str(tmp_path / "digits")]
    full = FULL.replace("2**22", "2**16")
    done = subprocess.run([sys.executable, "-c", full, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith(f"Error: {tmp_path / 'digits/digits_train_lmdb'}: cannot be written: ")
    assert done.stderr.endswith("; free space on its disk, or have it checked\n")
    assert list((tmp_path / "digits").iterdir()) == []


def test_a_split_takes_the_same_part_of_every_class_and_loses_none() -> None:
    labels = [0] * 10 + [1] * 5 + [2] * 101
    kept, held = split_stratified(labels)
    assert sorted(kept + held) == list(range(116))
    assert Counter(labels[index] for index in held) == {0: 2, 1: 1, 2: 20}
    assert (kept, held) == split_stratified(labels)


def test_enlarging_keeps_flat_images_flat_and_spreads_the_levels() -> None:
    for level, grey in ((0, 0), (8, 128), (16, 255)):
        assert (enlarge(np.full((8, 8), level)) == grey).all()


def test_enlarging_is_symmetric_and_close_to_opencvs_cubic() -> None:
    image = np.random.default_rng(0).integers(0, 17, (8, 8))
    large = enlarge(image)
    assert (enlarge(image.T) == large.T).all()
    assert (enlarge(image[::-1]) == large[::-1]).all()
    other = cv2.resize((image * 255 / 16).astype("float32"), (32, 32), interpolation=cv2.INTER_CUBIC)
    assert np.abs(large - other.clip(0, 255)).mean() < 10


def test_digits_as_records_are_made_once(tmp_path: Path) -> None:
    build_digit_records(tmp_path, (8, 4))
    made = {name: load_record_set(tmp_path / name) for name in ("train", "validation")}
    counts = {name: (one.records, one.shards) for name, one in made.items() if one}
    assert counts == {"train": (1438, 8), "validation": (359, 4)}
    first = (tmp_path / "train" / "train-00000-of-00008").stat()
    build_digit_records(tmp_path, (8, 4))
    assert (tmp_path / "train" / "train-00000-of-00008").stat().st_mtime_ns == first.st_mtime_ns
