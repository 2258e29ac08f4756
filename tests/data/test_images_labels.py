from __future__ import annotations

import json
from pathlib import Path

import pytest

from caffe_recipes.data.images import load_classes, load_labels
from caffe_recipes.errors import DataError

IMAGES = ["val_1.JPEG", "val_2.JPEG", "val_3.JPEG"]


def write(folder: Path, text: str, name: str = "labels.txt") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_labels_are_numbers_or_classes_behind_each_image_in_any_order(tmp_path: Path) -> None:
    numbers = write(tmp_path, "val_3.JPEG 7\nval_1.JPEG 5\nval_2.JPEG 0\n")
    assert load_labels(numbers, IMAGES) == (dict(zip(IMAGES, (5, 0, 7), strict=True)), None)
    synsets = write(tmp_path, "val_3.JPEG n02\nval_1.JPEG n07\nval_2.JPEG n02\n")
    known = ("n07", "n01", "n02")
    assert load_labels(synsets, IMAGES, known) == (dict(zip(IMAGES, (0, 2, 2), strict=True)), known)


def test_folders_before_an_images_name_do_not_matter(tmp_path: Path) -> None:
    listed = write(tmp_path, "".join(f"some/{name} 1\n" for name in IMAGES))
    assert load_labels(listed, [f"val/{name}" for name in IMAGES])[0]["val/val_1.JPEG"] == 1


def test_classes_alone_are_those_of_the_images_in_their_order(tmp_path: Path) -> None:
    listed = write(tmp_path, "n02\nn07\nn02\n")
    assert load_labels(listed, IMAGES, ("n02", "n05", "n07"))[0] == dict(zip(IMAGES, (0, 2, 0), strict=True))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "lists no labels"),
        ("490\n361\n171\n", "has only numbers, without image names"),
        ("n02\nn07\n", "has 2 labels for 3 images"),
        ("val_1.JPEG 1\nval_2.JPEG\nval_3.JPEG 2\n", ":2: 'val_2.JPEG' is not of the form 'image label'"),
        ("val_1.JPEG 1\nval_2.JPEG 2\n", "has no label for 'val_3.JPEG'"),
        (
            "val_1.JPEG 1\nval_2.JPEG 2\nval_3.JPEG 2\na/val_1.JPEG 3\n",
            ":4: 'val_1.JPEG' has label 3, but 1 on line 1; give each image one label",
        ),
        (
            "val_1.JPEG 1\nval_2.JPEG 2\nval_3.JPEG 2\nval_9.JPEG 3\n",
            ":4: labels 'val_9.JPEG', which is not among the images; ",
        ),
        ("val_1.JPEG 1\nval_2.JPEG -2\nval_3.JPEG 2\n", ":2: label '-2' is not an integer of 0 or more"),
        (
            "n02\nn07\nn02\n",
            "has class names but no labels; give their order with --class-list, e.g. the manif",
        ),
        ("val_1.JPEG 1\nval_2.JPEG n02\nval_3.JPEG 2\n", ":2: label 'n02' is not an integer of 0 or more"),
    ],
)
def test_labels_that_do_not_fit_are_one_line(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(DataError) as caught:
        load_labels(write(tmp_path, text), IMAGES)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_class_that_is_not_among_the_known_ones_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="class 'n09' is not one of the 2 classes in the list"):
        load_labels(write(tmp_path, "n01\nn09\nn02\n"), IMAGES, ("n01", "n02"))


def test_classes_are_read_from_lines_synset_words_or_a_manifest(tmp_path: Path) -> None:
    assert load_classes(write(tmp_path, "my cat\nmy dog\n")) == ("my cat", "my dog")
    words = write(tmp_path, "n01440764 tench, Tinca tinca\nn01443537 goldfish\n")
    assert load_classes(words) == ("n01440764", "n01443537")
    manifest = write(tmp_path, json.dumps({"format": 1, "classes": ["b", "a"]}), "x.json")
    assert load_classes(manifest) == ("b", "a")


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("x", "", "contains no class names"),
        ("x", "a\nb\x01\n", "x:2: is not text"),
        ("x", "a\nb\na\n", "lists class 'a' twice"),
        ("x.json", "{", "contains no class names"),
        ("x.json", '{"format": 1, "classes": null}', "contains no class names"),
        ("x.json", '{"classes": ["a"]}', "written by another version"),
        ("x.json", "[]", "contains no class names"),
    ],
)
def test_an_invalid_list_of_classes_is_refused(tmp_path: Path, name: str, text: str, what: str) -> None:
    with pytest.raises(DataError, match=what):
        load_classes(write(tmp_path, text, name))


def test_a_list_of_images_is_not_a_list_of_classes(tmp_path: Path) -> None:
    (tmp_path / "val.txt").write_text("a/x.jpg 0\na/y.jpg 0\nb/z.jpg 1\n")
    with pytest.raises(DataError, match=r"' has the form 'image label', but a class name is expected; write"):
        load_classes(tmp_path / "val.txt")


def test_a_class_may_have_a_number_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("Boeing 707\nBoeing 747\n")
    assert load_classes(tmp_path / "classes.txt") == ("Boeing 707", "Boeing 747")
