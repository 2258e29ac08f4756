"""Writing generated files: only those that differ, all or none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.render.headers import MARK
from caffe_recipes.render.tree import find_differences, find_stale, write_file, write_files

SOLVER, SCRIPT = "prototxt/r/solver_a.prototxt", "jobs/r/run.sh"
FILES = {SOLVER: f"# {MARK}r`\nbase_lr: 1\n", SCRIPT: f"#!/bin/bash\n# {MARK}r`\n"}


def state_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_missing_folder_is_made_and_the_script_can_be_run(tmp_path: Path) -> None:
    assert write_files(FILES, tmp_path / "new") == [SOLVER, SCRIPT]
    assert (tmp_path / "new" / SOLVER).read_text() == FILES[SOLVER]
    assert os.access(tmp_path / "new" / SCRIPT, os.X_OK)
    assert not os.access(tmp_path / "new" / SOLVER, os.X_OK)
    assert find_differences(FILES, tmp_path / "new") == []


def test_files_that_are_as_generated_are_not_touched(tmp_path: Path) -> None:
    write_files(FILES, tmp_path)
    before = state_of(tmp_path)
    assert write_files(FILES, tmp_path) == []
    assert state_of(tmp_path) == before


def test_only_the_file_that_differs_is_written(tmp_path: Path) -> None:
    write_files(FILES, tmp_path)
    (tmp_path / SOLVER).write_bytes(b"base_lr: \xff\n")
    before = state_of(tmp_path)
    assert write_files(FILES, tmp_path) == [SOLVER]
    assert state_of(tmp_path)[SCRIPT] == before[SCRIPT]
    assert find_differences(FILES, tmp_path) == []


def test_other_files_of_the_folder_are_left_alone(tmp_path: Path) -> None:
    notes = tmp_path / "prototxt" / "r" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    write_files(FILES, tmp_path)
    assert notes.read_text() == "mine"
    assert find_differences(FILES, tmp_path) == []


def test_a_change_is_shown_as_a_unified_diff(tmp_path: Path) -> None:
    write_files(FILES, tmp_path)
    (tmp_path / SOLVER).write_text(f"# {MARK}r`\nbase_lr: 2")
    (difference,) = find_differences(FILES, tmp_path)
    assert (difference.path, difference.what) == (SOLVER, "changed")
    assert difference.diff.splitlines() == [
        f"--- a/{SOLVER}",
        f"+++ b/{SOLVER}",
        "@@ -1,2 +1,2 @@",
        f" # {MARK}r`",
        "-base_lr: 2",
        "\\ No newline at end of file",
        "+base_lr: 1",
    ]


def test_a_missing_file_is_shown_whole(tmp_path: Path) -> None:
    differences = find_differences(FILES, tmp_path)
    assert [(difference.path, difference.what) for difference in differences] == [
        (SOLVER, "missing"),
        (SCRIPT, "missing"),
    ]
    assert "--- /dev/null\n" in differences[0].diff
    assert "+base_lr: 1\n" in differences[0].diff
    assert not list(tmp_path.iterdir())


def test_a_script_that_cannot_be_run_differs_and_is_fixed(tmp_path: Path) -> None:
    write_files(FILES, tmp_path)
    (tmp_path / SCRIPT).chmod(0o644)
    assert [found.what for found in find_differences(FILES, tmp_path)] == ["not executable"]
    assert write_files(FILES, tmp_path) == [SCRIPT]
    assert find_differences(FILES, tmp_path) == []


def test_a_file_that_is_no_longer_generated_is_stale_and_kept(tmp_path: Path) -> None:
    write_files({**FILES, "prototxt/r/solver_old.prototxt": FILES[SOLVER]}, tmp_path)
    assert find_stale(FILES, tmp_path) == ["prototxt/r/solver_old.prototxt"]
    write_files(FILES, tmp_path)
    (difference,) = find_differences(FILES, tmp_path)
    assert (difference.path, difference.what) == ("prototxt/r/solver_old.prototxt", "stale")
    assert "+++ /dev/null\n" in difference.diff
    assert (tmp_path / "prototxt/r/solver_old.prototxt").is_file()


@pytest.mark.parametrize("blocker", ["prototxt", "prototxt/r", "jobs"])
def test_a_file_where_a_folder_should_be_changes_nothing(tmp_path: Path, blocker: str) -> None:
    path = tmp_path / blocker
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("in the way")
    before = state_of(tmp_path)
    with pytest.raises(InputError, match=r"cannot be (read|written): (Not a directory|File exists)"):
        write_files(FILES, tmp_path)
    assert state_of(tmp_path) == before


def test_a_folder_where_a_file_should_be_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / SCRIPT).mkdir(parents=True)
    with pytest.raises(InputError, match=r"run\.sh: cannot be read: Is a directory"):
        write_files(FILES, tmp_path)
    assert state_of(tmp_path) == {}
    assert not (tmp_path / "prototxt").exists()


@pytest.mark.parametrize("length", [255, 300])
def test_a_name_too_long_for_the_disk_changes_nothing(tmp_path: Path, length: int) -> None:
    # With 255 only the temporary name is too long, and the other files have theirs by then.
    with pytest.raises(InputError, match=r"cannot be .*: File name too long"):
        write_files({**FILES, f"jobs/r/{'x' * length}": "x"}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_truncated_by_the_disk_leaves_no_file_and_no_folder(tmp_path: Path) -> None:
    code = f"""
import resource
from pathlib import Path
from caffe_recipes.errors import InputError
from caffe_recipes.render.tree import write_files
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    write_files({{**{FILES!r}, "jobs/r/long": "x" * 9000}}, Path({str(tmp_path)!r}))
except InputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{tmp_path}/jobs/r/long: cannot be written: File too large")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_named_and_stays_as_it_was(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(InputError, match="cannot be written: Permission denied"):
            write_files(FILES, tmp_path)
    finally:
        tmp_path.chmod(0o755)
    assert not list(tmp_path.iterdir())


@pytest.mark.promise("no file is put where others could exchange it")
def test_a_folder_where_another_user_could_swap_files_gets_one_hint(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    for folder, mode in ((tmp_path, 0o1777), (tmp_path / "open", 0o777)):
        folder.chmod(mode)
    what = rf"anybody can replace .*{tmp_path}/open; choose another folder$"
    with pytest.raises(InputError, match=what):
        write_files(FILES, tmp_path / "open")
    assert not list((tmp_path / "open").iterdir())
    (tmp_path / "open").chmod(0o755)
    write_files(FILES, tmp_path / "open")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(InputError, match="anybody can replace "):  # although nothing would be written
        write_files(FILES, tmp_path / "open")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_file(tmp_path / "a.png", b"new")
    assert (tmp_path / "a.png").read_bytes() == b"new"
    (tmp_path / "folder").mkdir()
    for path, what in (
        (tmp_path / "none/a.png", "the folder .* does not exist"),
        (tmp_path / "folder", "cannot"),
    ):
        with pytest.raises(InputError, match=f"^{path}: {what}"):
            write_file(path, b"new")
    assert {path.name for path in tmp_path.iterdir()} == {"a.png", "folder"}
