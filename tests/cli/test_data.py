"""`caffe-recipes data`: what its commands take, print and exit with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import lmdb
import pytest
from click.testing import CliRunner

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import open_datums, write_datums
from caffe_recipes.cli.data import data
from caffe_recipes.errors import InputError
from caffe_recipes.review.lint.records import find_labels
from tests.cli.command_line import call_main

cv2 = pytest.importorskip("cv2", reason="the extra 'data' is not installed")
np = pytest.importorskip("numpy", reason="the extra 'data' is not installed")

CALL = "from caffe_recipes.cli.main import main; main()"


def call(*words: object) -> tuple[int, str, str]:
    done = call_main("data", *words)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def write(folder: Path) -> Path:
    datums = (pb.Datum(channels=1, height=2, width=2, data=b"abcd", label=label) for label in (0, 3, 3))
    write_datums(folder / "lmdb", ((f"{index}", datum) for index, datum in enumerate(datums)))
    return folder / "lmdb"


def write_folder(folder: Path) -> Path:
    for index, name in enumerate(("b/1.jpg", "b/2.png", "a/1.JPEG", "c/1.png")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.full((10 + index, 20, 3), 60 * index, np.uint8)
        (folder / name).write_bytes(cv2.imencode(Path(name).suffix.lower(), pixels)[1].tobytes())
    return folder


def test_check_reports_records_labels_and_sizes(tmp_path: Path) -> None:
    code, out, err = call("check", write(tmp_path), "--classes", "4")
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == [
        "3 records, 0 of them encoded images; 3 decoded",
        "labels 0 to 3, 2 distinct",
    ]
    assert "3 images of 1 x 2 x 2\n" in out


def test_a_label_outside_the_classes_fails_the_check_in_one_line_after_the_report(tmp_path: Path) -> None:
    path = write(tmp_path)
    code, out, err = call("check", path, "--classes", "3")
    what = "record '00000001_1' has label 3, which is not one of the 3 classes 0 to 2, and 1 more like it"
    assert code == 1
    assert out.splitlines()[-1] == f"bad: {what}"
    hint = "fix the list of images and build the LMDB again"
    assert err == f"Error: {path}: has 1 problem, listed above; {hint}\n", "nothing is said twice"
    code, out, err = call("check", path, "--classes", "3", "--json")
    assert (code, err) == (1, f"Error: {path}: {what}; {hint}\n"), "JSON is for programs"


def test_check_draws_a_sheet_and_prints_json(tmp_path: Path) -> None:
    path = write(tmp_path)
    code, out, err = call("check", path, "--json", "--sheet", tmp_path / "s.png")
    assert (code, err) == (0, f"wrote {tmp_path / 's.png'}\n")
    assert json.loads(out)["labels"] == {"0": 1, "3": 2}
    assert cv2.imread(str(tmp_path / "s.png")) is not None
    assert call("check", path, "--sheet", tmp_path / "s.jpg")[0] == 2
    code, out, err = call("check", path, "--sheet", tmp_path / "nodir" / "s.png")
    assert (code, out) == (2, "")
    assert "nodir/s.png: the folder " in err


def test_an_unwritable_sheet_is_reported_before_the_lmdb_is_read(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    for name, what in (
        ("folder.png", "is a folder; name a file in it"),
        ("pipe.png", "cannot be written: it is a device, pipe or socket, not a file; give another file"),
    ):
        code, out, err = call("check", path, "--sheet", tmp_path / name)
        assert (code, out) == (2, "")
        assert err == f"Error: {tmp_path / name}: {what} with --sheet\n"


def test_a_sheet_is_drawn_of_the_undamaged_images(tmp_path: Path) -> None:
    path = write(tmp_path)
    with lmdb.open(str(path), lock=False) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"00000001_1", b"\xff\xff")
    code, out, _ = call("check", path, "--sheet", tmp_path / "s.png")
    assert code == 1
    assert "bad: record '00000001_1' is not a Datum" in out
    assert (tmp_path / "s.png").is_file()


def test_all_images_and_some_of_them_contradict_each_other(tmp_path: Path) -> None:
    code, out, err = call("check", write(tmp_path), "--all", "--sample", 3)
    assert (code, out) == (2, "")
    assert err == "Error: --sample: cannot be used with --all, which decodes every image; omit one of them\n"


def test_an_unsorted_order_can_be_demanded(tmp_path: Path) -> None:
    datums = (pb.Datum(channels=1, height=1, width=1, data=b"a", label=i // 100) for i in range(300))
    write_datums(tmp_path / "lmdb", ((f"{index}", datum) for index, datum in enumerate(datums)))
    assert call("check", tmp_path / "lmdb")[0] == 0
    code, out, _ = call("check", tmp_path / "lmdb", "--shuffled")
    assert code == 1
    assert "bad: the records are not shuffled: sorted by class" in out


def test_a_path_that_is_not_an_lmdb_is_bad_input(tmp_path: Path) -> None:
    assert call("check", tmp_path)[0] == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--shorter-side", "12"), "2 images were enlarged to a shorter side of 12; the smallest is 10 x 20"),
        (
            ("--resize-height", "9", "--resize-width", "21"),
            "4 images were enlarged to 9 x 21; the smallest is",
        ),
        (
            ("--shorter-side", "11", "--raw"),
            "1 image was enlarged to a shorter side of 11; the smallest is 10 x",
        ),
    ],
)
def test_it_is_reported_once_that_small_images_are_enlarged(
    words: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    folder, out = write_folder(tmp_path / "images"), tmp_path / "lmdb"
    argv = ("build", "--images", folder, "--out", out, "--workers", "1", *words)
    code, _, err = call(*argv)
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith(f"warning: {out}: {expected}")
    assert call(*argv)[2] == "", "it is kept, and nothing is resized"


def test_a_folder_becomes_an_lmdb_once(tmp_path: Path) -> None:
    folder, out = write_folder(tmp_path / "images"), tmp_path / "made" / "lmdb"
    words = ("build", "--images", folder, "--out", out, "--shorter-side", "8", "--workers", "1", "--shuffle")
    for kept in ("", "; already built, and kept"):
        code, stdout, err = call(*words)
        assert (code, stdout, err) == (0, f"{out}: 4 images of 3 classes{kept}\n", "")
    with open_datums(out) as datums:
        assert sorted(key[9:] for key in datums.keys) == [b"a/1.JPEG", b"b/1.jpg", b"b/2.png", b"c/1.png"]
    manifest = json.loads((tmp_path / "made" / "lmdb.manifest.json").read_text())
    assert (manifest["classes"], manifest["seed"]) == (["a", "b", "c"], 1)
    assert call("check", out, "--all")[0] == 0
    assert call(*words, "--gray")[0] == 2


def test_a_list_is_read_beneath_its_root_by_several_workers(tmp_path: Path) -> None:
    write_folder(tmp_path / "images")
    (tmp_path / "list").write_text("b/1.jpg 5\nc/1.png 0\n")
    out = tmp_path / "lmdb"
    words = (
        "build",
        "--images",
        tmp_path / "list",
        "--root",
        tmp_path / "images",
        "--out",
        out,
        "--workers",
        "2",
    )
    assert call(*words)[:2] == (0, f"{out}: 2 images of 2 classes\n")
    with open_datums(out) as datums:
        assert [datum.label for _, datum in datums] == [5, 0]


def test_one_image_of_one_class_is_in_the_singular(tmp_path: Path) -> None:
    write_folder(tmp_path / "images")
    (tmp_path / "list").write_text("b/1.jpg 0\n")
    words = ("--images", tmp_path / "list", "--root", tmp_path / "images", "--out", tmp_path / "lmdb")
    assert call("build", *words, "--workers", "1")[1] == f"{tmp_path / 'lmdb'}: 1 image of 1 class\n"
    assert call("check", tmp_path / "lmdb")[1].startswith("1 record, 1 of them encoded")


@pytest.mark.parametrize(("first", "is_noted"), [(1, True), (0, False)])
def test_labels_that_do_not_begin_at_0_are_noted(tmp_path: Path, first: int, is_noted: bool) -> None:
    write_folder(tmp_path / "images")
    (tmp_path / "list").write_text(f"b/1.jpg {first}\nc/1.png {first + 1}\n")
    out = tmp_path / "lmdb"
    words = ("build", "--images", tmp_path / "list", "--root", tmp_path / "images", "--out", out)
    code, stdout, err = call(*words)
    assert (code, stdout) == (0, f"{out}: 2 images of 2 classes\n")
    noted = "the labels begin at 1, but Caffe counts classes from 0" in err and "num_output: 3" in err
    assert noted == is_noted
    assert find_labels(str(out), None) == (first, first + 1)
    assert find_labels("lmdb", tmp_path) == (first, first + 1)
    assert find_labels("\0", None) is find_labels("", None) is find_labels("nowhere", None) is None


def test_bad_images_are_skipped_on_request(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images")
    (folder / "b/1.jpg").write_bytes((folder / "b/2.png").read_bytes()[:-20])  # libpng would warn
    words = ("build", "--images", folder, "--out", tmp_path / "lmdb", "--workers", "1")
    code, out, err = call(*words)
    what = "is not an image that OpenCV can decode, or is truncated"
    hint = "fix it and run the same command again to resume, or give --skip-bad"
    assert (code, out) == (2, "")
    assert err == f"Error: {folder}/b/1.jpg: {what}; {hint}\n"
    assert not (tmp_path / "lmdb").exists()
    assert call(*words, "--skip-bad")[1] == f"{tmp_path / 'lmdb'}: 3 images of 3 classes, 1 skipped\n"


def test_a_gif_of_a_folder_stops_the_build_and_other_files_are_counted(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images")
    (folder / "a/z.gif").write_bytes(b"GIF89a")
    words = "build", "--images", folder, "--out", tmp_path / "lmdb", "--workers", "1"
    code, _, err = call(*words)
    assert code == 2
    assert "z.gif: is a GIF, which Caffe's OpenCV cannot read" in err
    assert "skipped" not in err
    (folder / "a/.DS_Store").write_text("x")
    code, out, err = call(*words, "--skip-bad")
    assert (code, out.endswith(", 1 skipped\n")) == (0, True)
    assert f"{folder}: skipped 1 file without an image suffix: 'a/.DS_Store'\n" in err
    (folder / "a/README.txt").write_text("x")
    err = call(*words, "--skip-bad")[2]
    assert f"{folder}: skipped 2 files without an image suffix, e.g. 'a/.DS_Store'\n" in err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--resize-height", "8"], "only one of them is given"),
        (
            ["--resize-height", "8", "--resize-width", "8", "--shorter-side", "8"],
            "cannot be combined with --resize-height",
        ),
        (
            ["--raw", "--resize-height", "65500", "--resize-width", "65500"],
            "65500 x 65500 pixels are 12.9 GB raw, more than a Datum can hold (2.1 GB)",
        ),
        (["--raw", "--gray", "--shorter-side", "65500"], "65500 x 65500 pixels are 4.3 GB raw"),
        (["--shorter-side", "32769"], "32769 x 32769 pixels are more than can be decoded (100,000,000)"),
        (["--raw", "--encode-type", "jpg"], "--encode-type: cannot be combined with --raw"),
        (["--seed", "3"], "--seed: has no effect without --shuffle"),
        (["--test-share", "0.5"], "--test-share: has no effect without --test-out; add --test-out LMDB"),
        (["--test-out", "t", "--test-share", "20"], "--test-share: 20 is not between 0 and 1; give 0.2 for"),
        (["--test-out", "t", "--test-share", "nan"], "--test-share: nan is not between 0 and 1"),
        (["--test-out", "out/lmdb"], "--test-out: is the same LMDB as --out; give another path"),
        (["--test-out", "out/lmdb/t"], "out/lmdb, which is built, too; give another path"),
        (["--test-out", "out/.lmdb.partial"], "out/.lmdb.partial: is within "),
        (["--test-out", "out"], "lmdb: is within out, which is built, too"),
        (["--test-out", "images/t"], "images, whose folders are classes; give a path outside it"),
        (
            ["--test-out", "t"],
            "label 0 has only one image, 'a/1.JPEG'; add one, since training and test images",
        ),
        (["--root", "."], "--root: cannot be used with a folder of images"),
        (["--labels", "x"], "--labels: cannot be used with a folder of images"),
        (["--classes", "2"], "has 3 classes, not 2"),
        (["--out", "images/lmdb"], "images, whose folders are classes; give a path outside it"),
        (["--out", "x" * 240], "the name has 240 bytes"),
        (["--class-list", "none"], "none: cannot be read: No such file"),
        (["--resize-height", "0", "--resize-width", "8"], "Invalid value"),
        (["--backend", "leveldb"], "Invalid value"),
        (["digits"], "Give either 'digits' or --images"),
    ],
)
def test_contradictory_options_are_bad_input_and_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_folder(tmp_path / "images")
    before = sorted(tmp_path.rglob("*"))
    argv = ["build", "--images", str(folder), "--out", str(tmp_path / "out" / "lmdb"), *words]
    done = CliRunner().invoke(data, argv)
    assert isinstance(done.exception, InputError) or done.exit_code == 2
    assert what in f"{done.output}{done.exception}"
    assert sorted(tmp_path.rglob("*")) == before


def write_pngs(folder: Path, **counts: int) -> Path:
    for name in (f"{label}/{index}.png" for label, count in counts.items() for index in range(count)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes())
    return folder


def test_each_image_is_in_the_training_or_the_test_lmdb(tmp_path: Path) -> None:
    folder = write_pngs(tmp_path / "images", a=10, b=5, c=2)

    def build(name: str, *words: str) -> tuple[str, list[str], list[str]]:
        train, test = tmp_path / f"{name}_train", tmp_path / f"{name}_test"
        code, out, err = call("build", "--images", folder, "--out", train, "--test-out", test, *words)
        assert (code, err) == (0, "")
        keys = []
        for path in (train, test):
            with open_datums(path) as datums:
                keys.append([key.decode().partition("_")[2] for key, _ in datums])
        return out.replace(f"{tmp_path}/", ""), keys[0], keys[1]

    out, train, test = build("one")
    assert out == "one_train: 13 images of 3 classes\none_test: 4 images of 3 classes\n"
    assert sorted(train + test) == sorted(f"{path.parent.name}/{path.name}" for path in folder.rglob("*.png"))
    assert [name[0] for name in test] == ["a", "a", "b", "c"]
    assert build("one")[0] == "".join(f"{line}; already built, and kept\n" for line in out.splitlines())
    assert build("two", "--seed", "1")[1:] == (train, test)
    assert build("three", "--seed", "2")[2] != test
    assert [name[0] for name in build("half", "--test-share", "0.5")[2]] == [*"aaaaa", *"bb", "c"]


@pytest.mark.parametrize(
    ("test", "error"),
    [
        ("/dev/null", "/dev/null: is a pipe or a device; give another path"),
        ("other", "other: already exists; remove it, or give another path"),
        ("list/test", "list/test: cannot be written: Not a directory; check the path and its permissions"),
    ],
)
def test_a_test_lmdb_that_cannot_be_built_is_refused_before_the_images_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: str, error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other").mkdir()
    Path("list").write_text("none.png 0\n")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = call("build", "--images", "list", "--out", "train", "--test-out", test)
    assert (code, out) == (2, "")
    assert err.startswith(f"Error: {error}")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("is_unfinished", [False, True])
def test_a_test_lmdb_of_other_images_is_refused_before_the_first_is_built(
    tmp_path: Path, is_unfinished: bool
) -> None:
    folder = write_pngs(tmp_path / "images", a=2, b=2)
    train, test = tmp_path / "train", tmp_path / "test"
    words = "build", "--images", folder, "--test-out", test, "--workers", "1", "--out"
    assert call(*words, train)[0] == 0
    if is_unfinished:
        manifest = json.loads((tmp_path / "test.manifest.json").read_text())
        (tmp_path / ".test.partial").mkdir()
        test.rename(tmp_path / ".test.partial/lmdb")
        (tmp_path / ".test.partial/plan").write_text(manifest["plan"])
    code, out, err = call(*words, tmp_path / "second", "--gray", "--encode-type", "png")
    assert (code, out) == (2, "")
    assert "other images or settings; remove it" in err
    assert not (tmp_path / "second").exists()


def test_a_missing_input_or_output_is_bad_input(tmp_path: Path) -> None:
    out = tmp_path / "lmdb"
    assert call("build", "--images", tmp_path / "none", "--out", out)[0] == 2
    assert call("build", "--images", tmp_path, "--out", out)[0] == 2
    assert call("build", "--images", write_folder(tmp_path / "images"))[0] == 2
    assert call("build", "--out", out)[0] == 2
    assert not out.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--gray"],
        ["--raw"],
        ["--encoded"],
        ["--shuffle"],
        ["--classes", "3"],
        ["--root", "nosuch"],
        ["--resize-height", "5"],
        ["--backend", "lmdb"],
    ],
)
def test_the_digits_are_made_in_one_way(tmp_path: Path, words: list[str]) -> None:
    done = CliRunner().invoke(data, ["build", "digits", "--out", str(tmp_path / "digits"), *words])
    assert isinstance(done.exception, InputError)
    assert str(done.exception) == f"{words[0]}: cannot be used with digits; omit it"
    assert not list(tmp_path.iterdir())


def test_an_image_without_a_known_suffix_is_built_as_the_given_type(tmp_path: Path) -> None:
    pixels = np.zeros((9, 9, 3), np.uint8)
    (tmp_path / "image").write_bytes(cv2.imencode(".png", pixels)[1].tobytes())
    (tmp_path / "list").write_text("image 0\n")
    words = ("build", "--images", tmp_path / "list", "--out", tmp_path / "lmdb", "--shorter-side", "4")
    code, _, err = call(*words)
    assert (code, "'image' cannot be encoded in the format of its suffix; give --encode-type jpg" in err) == (
        2,
        True,
    )
    assert call(*words, "--encode-type", "png")[0] == 0


def test_an_image_that_would_not_stay_grey_is_refused_before_any_is_converted(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images")
    (folder / "a/2.webp").write_bytes(cv2.imencode(".webp", np.zeros((9, 9, 3), np.uint8))[1].tobytes())
    words = ("build", "--images", folder, "--out", tmp_path / "lmdb", "--gray", "--workers", "1")
    code, _, err = call(*words)
    assert code == 2
    assert err == (
        f"Error: {folder}: 'a/2.webp' cannot be encoded in the format of its suffix in grey; "
        "give --encode-type jpg\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["images"]
    assert call(*words, "--encode-type", "png")[0] == 0


def test_opencv_is_required_only_where_images_are_decoded(tmp_path: Path) -> None:
    path = write(tmp_path)
    code = (
        "import sys; from importlib.machinery import PathFinder; find = PathFinder.find_spec;"
        "PathFinder.find_spec = classmethod(lambda c, n, *a: None if n == 'cv2' else find(n, *a));" + CALL
    )
    for words, exit_code in ((("--sample", "0"), 0), ((), 2)):
        argv = [sys.executable, "-c", code, "data", "check", str(path), *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == exit_code, done.stderr
    assert "images cannot be read without cv2; install the extra 'data' of caffe-recipes" in done.stderr


def test_imagenets_archive_is_built_without_being_unpacked(tmp_path: Path) -> None:
    write_folder(tmp_path / "images")
    with tarfile.open(tmp_path / "train.tar", "w") as tar:
        for name in ("b", "a", "c"):
            with tarfile.open(tmp_path / f"{name}.tar", "w") as inner:
                for file in sorted((tmp_path / "images" / name).iterdir()):
                    inner.add(file, file.name)
            tar.add(tmp_path / f"{name}.tar", f"{name}.tar")
    words = ("build", "--images", tmp_path / "train.tar", "--out", tmp_path / "lmdb", "--workers", "1")
    assert call(*words, "--classes", "3")[:2] == (0, f"{tmp_path / 'lmdb'}: 4 images of 3 classes\n")
    with open_datums(tmp_path / "lmdb") as datums:
        assert [datum.label for _, datum in datums] == [0, 1, 1, 2]
