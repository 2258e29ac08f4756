from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.data.images import load_folder
from caffe_recipes.errors import DataError


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"image")
    return folder


def test_sorted_subfolders_are_the_classes_and_their_images_are_sorted(tmp_path: Path) -> None:
    folder = write(tmp_path, "n02/b.jpg", "n02/a.JPEG", "n01/z.png", "n10/deep/er/c.jpg", "n10/a.jpg")
    found = load_folder(folder)
    assert found.classes == ("n01", "n02", "n10")
    assert [(picture.name, picture.label) for picture in found.pictures] == [
        ("n01/z.png", 0),
        ("n02/a.JPEG", 1),
        ("n02/b.jpg", 1),
        ("n10/a.jpg", 2),
        ("n10/deep/er/c.jpg", 2),
    ]
    assert {picture.size_bytes for picture in found.pictures} == {5}


def test_a_gif_is_an_image_of_its_class(tmp_path: Path) -> None:
    folder = write(tmp_path, "a/1.jpg", "a/2.gif", "a/3.GIF")
    assert [picture.name for picture in load_folder(folder).pictures] == ["a/1.jpg", "a/2.gif", "a/3.GIF"]


def test_files_that_are_not_images_are_skipped_and_reported_in_class_folders(tmp_path: Path) -> None:
    folder = write(tmp_path, "a/1.jpg", "a/notes.txt", "a/._1.jpg", ".git/x.jpg", "readme.md", ".loose.jpg")
    found = load_folder(folder)
    assert [picture.name for picture in found.pictures] == ["a/1.jpg"]
    assert found.ignored == ("a/._1.jpg", "a/notes.txt")


def test_a_list_of_classes_gives_the_labels_though_some_classes_are_missing(tmp_path: Path) -> None:
    folder = write(tmp_path, "c/1.jpg", "a/1.jpg")
    found = load_folder(folder, ("a", "b", "c"))
    assert [picture.label for picture in found.pictures] == [0, 2]
    assert found.classes == ("a", "b", "c")
    with pytest.raises(DataError, match="class 'c' is not one of the 2 classes in the list"):
        load_folder(folder, ("a", "b"))


def test_a_folder_without_images_or_classes_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no class subfolders"):
        load_folder(tmp_path)
    write(tmp_path, "loose.jpg")
    with pytest.raises(DataError, match="has no class subfolders"):
        load_folder(tmp_path)
    (tmp_path / "loose.jpg").unlink()
    write(tmp_path, "a/1.jpg", "b/notes.txt")
    with pytest.raises(
        DataError,
        match=r"b: contains no images; check --images: each subfolder of .* must hold the images of a class",
    ):
        load_folder(tmp_path)
    write(tmp_path, "b/data.mdb")
    with pytest.raises(DataError, match="b: is an LMDB among the class folders; move it elsewhere"):
        load_folder(tmp_path)
    with pytest.raises(DataError, match="none: cannot be read: No such file"):
        load_folder(tmp_path / "none")


def test_an_image_beside_the_class_folders_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"loose.jpg: is next to the class folders, not inside one; "):
        load_folder(write(tmp_path, "a/1.jpg", "b/1.jpg", "loose.jpg"))


@pytest.mark.parametrize(
    ("names", "nested"),
    [
        (("train/n01/a.jpg", "train/n02/a.jpg", "val/n01/a.jpg"), "train"),
        (("train/n01/a.jpg", "val/n01/a.jpg"), "train"),
        (("imgs/n01/a.jpg",), "imgs"),
        (("n01/a.jpg", "more/n02/a.jpg", "more/n03/a.jpg"), "more"),
    ],
)
def test_folders_of_class_folders_are_refused_and_the_inner_one_proposed(
    tmp_path: Path, names: tuple[str, ...], nested: str
) -> None:
    hint = f"class '{nested}' contains only folders; give --images {tmp_path}/{nested}"
    with pytest.raises(DataError, match=hint):
        load_folder(write(tmp_path, *names))


def test_one_folder_of_images_in_each_class_is_part_of_the_class(tmp_path: Path) -> None:
    found = load_folder(write(tmp_path, "n01/images/a.jpg", "n02/images/a.jpg"))
    assert found.classes == ("n01", "n02")


def test_a_broken_link_to_an_image_is_named_rather_than_skipped(tmp_path: Path) -> None:
    folder = write(tmp_path, "a/1.jpg", "b/1.jpg")
    (folder / "a/2.jpg").symlink_to("nowhere.jpg")
    with pytest.raises(
        DataError, match=r"a/2\.jpg: is a broken link or not a regular file; fix or remove it"
    ):
        load_folder(folder)


def test_links_in_a_circle_are_named_as_a_class_and_not_followed_within_one(tmp_path: Path) -> None:
    folder = write(tmp_path, "a/1.jpg", "b/1.jpg")
    (folder / "a/up").symlink_to("..")
    assert [picture.name for picture in load_folder(folder).pictures] == ["a/1.jpg", "b/1.jpg"]
    (folder / "c").symlink_to("c")
    with pytest.raises(DataError, match=r"/c: cannot be read: Too many levels of symbolic links"):
        load_folder(folder)
