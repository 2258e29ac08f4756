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


def run_pytest(folder: Path, tests: str, *options: str) -> str:
    """Run tests that fail, beside a copy of conftest.py; return what pytest prints."""
    (folder / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    (folder / "test_them.py").write_text(tests)
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", *options]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stdout


def test_a_test_that_leaves_a_file_behind_is_an_error(tmp_path: Path) -> None:
    printed = run_pytest(tmp_path, TESTS)
    assert "2 passed, 1 error" in printed
    assert "ERROR test_them.py::test_that_leaves_a_file_behind" in printed


HANGING_TESTS = """
import pytest, signal, time

def test_that_hangs():
    time.sleep(60)

def test_that_no_signal_reaches():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(60)

@pytest.mark.slow
def test_that_is_slow():
    time.sleep(0.6)
"""


def test_a_test_that_hangs_fails_and_the_others_run(tmp_path: Path) -> None:
    limits = ("--timeout=0.5", "-o", "faulthandler_timeout=2", "-o", "faulthandler_exit_on_timeout=true")
    printed = run_pytest(tmp_path, HANGING_TESTS, "-n", "1", *limits)
    assert "2 failed, 1 passed" in printed
    assert "test_that_hangs - Failed: Timeout" in printed
    assert "crashed while running 'test_them.py::test_that_no_signal_reaches'" in printed
