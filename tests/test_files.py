"""Files change in one step: all of them or none, where links lead, with the mode that they have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from caffe_recipes.files import check_replaceable, name_beside, render_unified, write_whole


def test_files_are_written_or_replaced(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    write_whole({tmp_path / "old": b"new", tmp_path / "other": b"1"}, is_synced=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"old": b"new", "other": b"1"}


def test_where_one_cannot_be_written_none_is_and_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    with pytest.raises(FileNotFoundError) as caught:
        write_whole({tmp_path / "old": b"new", tmp_path / "none" / "x": b"1"})
    assert caught.value.filename == str(tmp_path / "none" / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_whole({tmp_path / "folder": b"new"})
    assert caught.value.filename == str(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        for write in (lambda path: write_whole({path: b"new"}), check_replaceable):
            with pytest.raises(OSError, match="Is a device, a pipe or a socket, and no file") as caught:
                write(tmp_path / name)
            assert caught.value.filename == str(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


def test_what_could_not_be_written_is_known_before(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    for name in ("old", "new"):
        check_replaceable(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        check_replaceable(tmp_path)
    with pytest.raises(FileNotFoundError):
        check_replaceable(tmp_path / "none" / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_a_folder_that_may_not_be_written_to_is_known_before(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        check_replaceable(tmp_path / "new")
    tmp_path.chmod(0o700)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("old")
    (tmp_path / "kept").chmod(0o444)
    with pytest.raises(PermissionError):
        write_whole({tmp_path / "kept": b"new"})
    assert (tmp_path / "kept").read_text() == "old"


def test_a_link_stays_one_and_what_it_leads_to_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "file").write_text("old")
    (tmp_path / "far" / "file").chmod(0o640)
    (tmp_path / "link").symlink_to("far/file")
    write_whole({tmp_path / "link": b"new"})
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "file").read_text() == "new"
    assert (tmp_path / "far" / "file").stat().st_mode & 0o777 == 0o640


def test_a_script_may_be_run_by_whoever_may_read_it(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("old")
    script.chmod(0o640)
    write_whole({script: b"new"}, executable={script})
    assert script.stat().st_mode & 0o777 == 0o750


def test_what_lies_beside_is_hidden_and_in_the_same_folder() -> None:
    beside = name_beside(Path("a/b"))
    assert beside.parent == Path("a")
    assert beside.name.startswith(".b.")


def test_a_diff_tells_missing_files_and_missing_line_feeds() -> None:
    assert render_unified("n", None, "a").startswith(
        "--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+a\n\\ No newline"
    )
    assert render_unified("n", "a\x0cb\n", "a\x0cb\n") == ""
