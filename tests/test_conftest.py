"""Tests do not depend on the folder that pytest was started in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def seen_by_a_fixture() -> list[Path]:
    return list(Path.cwd().iterdir())


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_runs_in_an_empty_folder_of_its_own(turn: int, seen_by_a_fixture: list[Path]) -> None:
    assert Path.cwd() != ROOT
    assert list(Path.cwd().iterdir()) == seen_by_a_fixture == []


TESTS = """
from pathlib import Path

def test_that_leaves_a_file_behind():
    Path("left").write_text("")

def test_that_leaves_nothing_behind():
    assert not Path("left").exists()
"""


def test_a_test_that_leaves_a_file_behind_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    (tmp_path / "test_them.py").write_text(TESTS)
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "2 passed, 1 error" in done.stdout
    assert "ERROR test_them.py::test_that_leaves_a_file_behind" in done.stdout
