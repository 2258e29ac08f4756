from __future__ import annotations

import os
from pathlib import Path

import pytest

from caffe_recipes.data.images import load_list
from caffe_recipes.errors import DataError


def write(folder: Path, text: str | bytes, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"image")
    (folder / "list.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / "list.txt"


def test_paths_are_beneath_the_lists_folder_or_the_root(tmp_path: Path) -> None:
    listed = write(tmp_path, "a/x.jpg 3\nb.png 0\n", "a/x.jpg", "b.png", "c/a/x.jpg", "c/b.png")
    found = load_list(listed).pictures
    assert [(picture.name, picture.label, picture.size_bytes) for picture in found] == [
        ("a/x.jpg", 3, 5),
        ("b.png", 0, 5),
    ]
    assert found[0].path == str(tmp_path / "a/x.jpg")
    assert load_list(listed, tmp_path / "c").pictures[0].path == str(tmp_path / "c/a/x.jpg")


def test_with_a_root_even_absolute_paths_are_beneath_it_and_without_one_they_stay(tmp_path: Path) -> None:
    write(tmp_path, "", "a.jpg")
    assert load_list(write(tmp_path, "/a.jpg 1\n"), tmp_path).pictures[0].name == "/a.jpg"
    assert load_list(write(tmp_path, f"{tmp_path}/a.jpg 1\n")).pictures[0].path == f"{tmp_path}/a.jpg"
    with pytest.raises(DataError, match=r"'a\.jpg' has label 2, but 1 on line 1"):
        load_list(write(tmp_path, "a.jpg 1\n/a.jpg 2\n"), tmp_path)


def test_blanks_in_paths_empty_lines_carriage_returns_and_any_bytes_are_read(tmp_path: Path) -> None:
    strange = os.fsdecode(b"\xff\xfe.jpg")
    listed = write(tmp_path, b"my cat.jpg 1\r\n\n\xff\xfe.jpg\t2\n", "my cat.jpg", strange)
    assert [(picture.name, picture.label) for picture in load_list(listed).pictures] == [
        ("my cat.jpg", 1),
        (strange, 2),
    ]


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("a.jpg 0\na.jpg\n", ":2", "'a.jpg' is not of the form 'path label'"),
        ("a.jpg 0\n\na.jpg -1\n", ":3", "label '-1' is not an integer of 0 or more"),
        ("a.jpg cat\n", ":1", "label 'cat' is not an integer of 0 or more"),
        ("a.jpg 1.0\n", ":1", "label '1.0' is not an integer of 0 or more"),
        ("a.jpg 2147483648\n", ":1", "label '2147483648' is not an integer of 0 or more"),
        ("a.jpg \u0663\n", ":1", "is not an integer of 0 or more"),
        ("a.jpg 0\nb.jpg 1\na.jpg 2\n", ":3", "'a.jpg' has label 2, but 0 on line 1; "),
        ("a.jpg 0\n./a.jpg 2\n", ":2", "'a.jpg' has label 2, but 0 on line 1; "),
        ("a.jpg 0\nfolder/..//a.jpg 0\n.//a.jpg 1\n", ":3", "'a.jpg' has label 1, but 0 on line 1; "),
        ("", "", "lists no images"),
        ("\n \n", "", "lists no images"),
        ("a.jpg 0\nno.jpg 1\nnone.jpg 2\n", ":2", "image 'no.jpg' does not exist; 1 more cannot be read"),
        ("no.jpg 1\n", ":1", "image 'no.jpg' does not exist; "),
        ("folder 1\n", ":1", "image 'folder' is not a file; "),
        ("fifo 1\n", ":1", "image 'fifo' is not a file; "),
        ("a.jpg/b.jpg 1\n", ":1", "image 'a.jpg/b.jpg' cannot be read: Not a directory; "),
        ("a.jpg 0\na\0.jpg 1\n", ":2", "is not text; save it as UTF-8"),
        ("GIF89a\x10\x07\n", ":1", "is not text"),
        ("x" * 600 + ".jpg 1\n", ":1", "has over 502 bytes, the limit of an LMDB key"),
    ],
)
def test_a_mistake_in_a_list_is_one_line_with_its_line_number(
    tmp_path: Path, text: str, where: str, what: str
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    listed = write(tmp_path, text, "a.jpg")
    with pytest.raises(DataError) as caught:
        load_list(listed)
    assert caught.value.where == f"{listed}{where}"
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.txt: cannot be read: No such file"):
        load_list(tmp_path / "none.txt")


def test_an_image_may_be_listed_again_with_the_same_label(tmp_path: Path) -> None:
    assert len(load_list(write(tmp_path, "a.jpg 1\na.jpg 1\n", "a.jpg")).pictures) == 2


def test_a_byte_order_mark_is_not_part_of_the_first_name(tmp_path: Path) -> None:
    listed = write(tmp_path, b"\xef\xbb\xbfa.jpg 1\n", "a.jpg")
    assert [picture.name for picture in load_list(listed).pictures] == ["a.jpg"]


def test_a_missing_root_is_reported_rather_than_its_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nope: does not exist, or is not a folder; give the folder"):
        load_list(write(tmp_path, "a.jpg 1\n", "a.jpg"), tmp_path / "nope")
