"""`caffe-recipes rescale` from the outside: what it prints and writes, how it exits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.command_line import call_main

ROOT = Path(__file__).parents[2]
RECIPE = "stampede2-64n-72ep"


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return call_main(*words, cwd=cwd)


def test_the_recipe_is_written_and_the_differences_are_reported(tmp_path: Path) -> None:
    done = run("rescale", RECIPE, "--batch", "8192", "--smooth", "--out", "a.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "wrote a.yaml\n")
    assert done.stderr.splitlines() == [
        "batch 4,096 -> 8,192, nodes 64 -> 128, peak rate 1.6 -> 3.2",
        "5 phases -> 8: split where a warm-up ended in a drop",
    ]
    assert "# Its results (`reported`) are left out." in (tmp_path / "a.yaml").read_text().splitlines()
    assert run("lint", "a.yaml", cwd=tmp_path).returncode == 0
    assert run("generate", "a.yaml", cwd=tmp_path).returncode == 0


def test_counts_may_have_commas_between_their_thousands(tmp_path: Path) -> None:
    with_commas, without = (run("rescale", RECIPE, "--batch", b, cwd=tmp_path) for b in ("8,192", "8192"))
    assert with_commas.stdout == without.stdout != ""
    half = run("rescale", RECIPE, "--batch", "81,92", cwd=tmp_path)
    assert half.returncode == 2
    assert "'--batch': '81,92' is not an integer; write digits only\n" in half.stderr


def test_a_recipe_that_cannot_be_written_prints_only_the_error(tmp_path: Path) -> None:
    done = run("rescale", RECIPE, "--batch", "8192", "--out", "/proc/a.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("Error: /proc/a.yaml: cannot be written")


def test_without_a_file_it_is_printed(tmp_path: Path) -> None:
    done = run("rescale", RECIPE, "--batch", "32768", cwd=tmp_path)
    assert done.returncode == 0
    assert "\nname: stampede2-64n-72ep-32768\n" in done.stdout
    assert "\nwarning: batch 32,768: the paper's accuracy falls above 8K" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            [RECIPE],
            "stampede2-64n-72ep: nothing to change; give --nodes, --batch, --epochs, --ranks-per-node, "
            "--batch-per-rank or --smooth",
        ),
        ([RECIPE, "--epochs", "0"], "--epochs: 0 is not a valid number of epochs; give more than 0"),
        ([RECIPE, "--epochs", "inf"], "--epochs: inf is not a finite number; give epochs, such as 90"),
        ([RECIPE, "--epochs", "nan"], "--epochs: nan is not a finite number"),
        ([RECIPE, "--epochs", "1000000"], "--epochs: 1000000 epochs is too many"),
        ([RECIPE, "--epochs", "1e300"], "--epochs: 1e+300 epochs is too many"),
        ([RECIPE, "--nodes", "64"], "already has batch 4,096, 64 nodes and 72.29 epochs"),
        (
            [RECIPE, "--nodes", "32", "--name", "a b"],
            "--name: 'a b' is not a valid name of a recipe; use letters",
        ),
        ([RECIPE, "--nodes", "32", "--name", ""], "--name: is empty; give a name, or omit the option"),
        ([RECIPE, "--nodes", "32", "--name", "\udcff"], "' is not a valid name of a recipe; use letters"),
        ([RECIPE, "--batch", "1"], "--batch: a batch of 1 cannot be divided among 64 nodes x 2 ranks; use"),
        ([RECIPE, "--batch", "100"], "2 ranks; use --nodes 50"),
        (
            [RECIPE, "--nodes", "7"],
            "--nodes: a batch of 4,096 cannot be divided among 7 nodes x 2 ranks; use 4 or 8",
        ),
        ([RECIPE, "--batch", "2000000"], "--batch: a batch of 2,000,000 is larger than the data set"),
        ([RECIPE, "--batch", "8192", "--out", "there.yaml"], "there.yaml: already exists"),
        (["nowhere", "--batch", "8192"], "unknown recipe 'nowhere'"),
        (
            ["digits-local:train_val", "--batch", "32"],
            "is a recipe's net; give a recipe's name, or the path of its YAML",
        ),
    ],
)
def test_bad_input_gets_one_line_and_exit_2(words: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "there.yaml").touch()
    done = run("rescale", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["there.yaml"]
