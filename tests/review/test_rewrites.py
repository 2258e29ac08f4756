"""Rewriting files: all of them or none, and never into another message."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.review.rewrites import Rewrite, find_prototxts, format_text, render_diff, save_rewrites


def test_files_are_found_sorted_and_once(tmp_path: Path) -> None:
    for name in ("b.prototxt", "a/c.prototxt", "a/d.txt", ".hidden/e.prototxt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "link.prototxt").symlink_to("../b.prototxt")
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "a" / "gone.prototxt").symlink_to("nowhere")
    found = find_prototxts([f"{tmp_path}/a/d.txt", str(tmp_path), f"{tmp_path}/b.prototxt"])
    assert found == [f"{tmp_path}/{name}" for name in ("a/d.txt", "b.prototxt", "a/c.prototxt")]


def test_a_name_that_cannot_be_one_is_left_to_the_reader() -> None:
    assert find_prototxts(["missing", "nul\0"]) == ["missing", "nul\0"]


def test_text_is_formatted_with_its_comments() -> None:
    assert format_text("max_iter:1#one\nnet:'n'", "s").after == 'net: "n"\nmax_iter: 1 # one\n'
    with pytest.raises(PrototxtError, match=r"^s: is empty: it has no fields"):
        format_text("# nothing", "s")


def test_a_diff_splits_at_line_feeds_only() -> None:
    diff = render_diff(Rewrite("n", "a\u2028b\x0cc\r\nd\n", "a\u2028b\x0cc\nd"))
    assert diff == (
        "--- a/n\n+++ b/n\n@@ -1,2 +1,2 @@\n-a\u2028b\x0cc\r\n-d\n+a\u2028b\x0cc\n"
        "+d\n\\ No newline at end of file\n"
    )
    assert render_diff(Rewrite("n", "a\n", "a\n")) == ""


def test_only_what_changes_is_written_and_a_new_file_is_made(tmp_path: Path) -> None:
    same, new = Rewrite(str(tmp_path / "same"), "a", "a"), Rewrite(str(tmp_path / "new"), "", "é\n")
    assert save_rewrites([same, new]) == [new]
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert (tmp_path / "new").read_bytes() == "é\n".encode()


def test_where_one_file_cannot_be_written_none_is(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_text("old")
    with pytest.raises(InputError, match=r"gone/second: cannot be written \(No such file or directory\)"):
        save_rewrites([Rewrite(str(first), "old", "new"), Rewrite(str(tmp_path / "gone/second"), "", "new")])
    assert first.read_text() == "old"
    assert list(tmp_path.iterdir()) == [first]


def test_a_rewritten_file_stays_where_a_link_leads_and_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "file").write_text("old")
    (tmp_path / "far" / "file").chmod(0o640)
    (tmp_path / "link").symlink_to("far/file")
    save_rewrites([Rewrite(str(tmp_path / "link"), "old", "new")])
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "file").read_text() == "new"
    assert (tmp_path / "far" / "file").stat().st_mode & 0o777 == 0o640
