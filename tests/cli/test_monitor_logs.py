from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import call_main
from tests.run.conftest import RECIPE
from tests.run.recorded_run import finished, launched, started, write_run


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return call_main("logs", *words, cwd=folder)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    recipe = tmp_path / "small.yaml"
    recipe.write_text(RECIPE)
    write_run(tmp_path, recipe, started(), launched(), finished("init"), log="[0] größe\n[1] b\n")
    return tmp_path


def test_the_log_goes_to_stdout_and_its_name_to_stderr(root: Path) -> None:
    done = call(root, "small", "--rank", "0")
    assert (done.returncode, done.stdout) == (0, "größe\n")
    assert done.stderr == "==> runs/small-1/logs/init-1.log <==\n"


def test_a_log_that_cannot_be_read_is_one_line_and_exit_2(root: Path) -> None:
    done = call(root, "smal")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: runs: no run or recipe is named 'smal'; did you mean 'small-1'?\n"


def test_an_unknown_name_is_refused_with_the_runs_or_of_many_the_latest(root: Path) -> None:
    what, hint = "no run or recipe is named 'x'", "or give the folder that contains `runs` with --caffe-root"
    assert f"{what}; the only run is small-1; {hint}\n" in call(root, "x").stderr
    for number in (9, 10):
        shutil.copytree(root / "runs/small-1", root / f"runs/other-{number}")
    assert f"{what}; the runs are other-9, other-10 and small-1; {hint}\n" in call(root, "x").stderr
    for number in (2, 3, 11):
        shutil.copytree(root / "runs/small-1", root / f"runs/small-{number}")
    latest = "there are 6 runs, the latest of each recipe: other-10, small-11"
    assert f"{what}; {latest}; {hint}\n" in call(root, "x").stderr


@pytest.mark.parametrize("words", [(), ("-f",)])
def test_a_rank_that_the_run_lacks_is_one_line_and_exit_2(root: Path, words: tuple[str, ...]) -> None:
    done = call(root, "small", "--rank", "2", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: runs/small-1: has no rank 2; it has 2 ranks, 0 to 1\n"


def test_a_log_that_was_removed_is_one_line_and_exit_2(root: Path) -> None:
    (root / "runs/small-1/logs/init-1.log").unlink()
    done = call(root, "small")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(
        "Error: runs/small-1/logs/init-1.log: no such file; it was removed after the launch\n"
    )


def test_a_long_log_is_written_whole_and_a_line_without_end_as_it_is(root: Path) -> None:
    log = root / "runs/small-1/logs/init-1.log"
    line = "a line " * 100
    log.write_bytes(f"[0] {line}\n".encode() * 10_000 + b"[1] " + b"x" * 200_000 + b"\n[0] end")
    argv = [sys.executable, "-c", "from caffe_recipes.cli.main import main; main()", "logs", "small"]
    done = subprocess.run(argv, cwd=root, capture_output=True, check=True)
    assert done.stdout == log.read_bytes() + b"\n"
    assert call(root, "small", "--rank", "0").stdout == f"{line}\n" * 10_000 + "end\n"


def test_the_log_of_a_run_whose_process_has_died_is_followed_to_its_end(root: Path) -> None:
    done = call(root, "small", "-f")
    assert (done.returncode, done.stdout) == (3, "[0] größe\n[1] b\n")
    assert "has ended unexpectedly; `caffe-recipes run small.yaml` resumes it" in done.stderr
