from __future__ import annotations

from pathlib import Path

from caffe_recipes.data.archives import load_members
from tests.data.conftest import Link, pack


def contents(folder: Path, data: bytes) -> dict[str, bytes | None]:
    (folder / "tar").write_bytes(data)
    with (folder / "tar").open("rb") as file:
        places = load_members("tar", file, 0, len(data))
    return {name: place and data[place[0] : sum(place)] for name, place in places.items()}


def test_a_hard_link_is_the_file_that_it_names_as_it_was_then(tmp_path: Path) -> None:
    files: list[tuple[str, bytes | Link]] = [
        ("./a/1.jpg", b"one"),
        ("b/2.jpg", Link("./a/1.jpg", is_hard=True)),
        ("a/1.jpg", b"later"),
    ]
    assert contents(tmp_path, pack(files)) == {"a/1.jpg": b"later", "b/2.jpg": b"one"}


def test_a_symbolic_link_is_the_file_that_it_leads_to_in_the_end(tmp_path: Path) -> None:
    files: list[tuple[str, bytes | Link]] = [
        ("b/2.jpg", Link("../a/1.jpg")),
        ("b/3.jpg", Link("2.jpg")),
        ("a/1.jpg", b"one"),
        ("a/out", Link("/a/1.jpg")),
        ("a/round", Link("round")),
        ("c", Link("a")),
        ("b/4.jpg", Link("../c/1.jpg")),
    ]
    assert contents(tmp_path, pack(files)) == {
        "b/2.jpg": b"one",
        "b/3.jpg": b"one",
        "a/1.jpg": b"one",
        "a/out": None,
        "a/round": None,
        "c": None,
        "b/4.jpg": b"one",
    }


def test_the_last_of_a_name_counts(tmp_path: Path) -> None:
    assert contents(tmp_path, pack([("a", b"one"), ("b", b"two"), ("a", b"three")])) == {
        "a": b"three",
        "b": b"two",
    }


def test_names_are_taken_without_a_slash_before_them(tmp_path: Path) -> None:
    files: list[tuple[str, bytes | Link]] = [
        ("/c1/a.jpg", b"one"),
        ("//c2/b.jpg", Link("/c1/a.jpg", is_hard=True)),
    ]
    assert contents(tmp_path, pack(files)) == {"c1/a.jpg": b"one", "c2/b.jpg": b"one"}
