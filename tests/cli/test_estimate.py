"""`caffe-recipes estimate` from the outside: what it prints and writes, how it exits."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.command_line import call_main

ROOT = Path(__file__).parents[2]
RECIPE = "stampede2-64n-72ep"


def estimate(*words: str | int, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return call_main("estimate", *words, cwd=cwd)


def test_a_recipe_s_page_is_printed() -> None:
    done = estimate(RECIPE, "--start", "2026-03-01T09:00")
    assert (done.returncode, done.stderr) == (0, "")
    assert "6,303 images/s: the recipe's reported images/s" in done.stdout
    assert "ends        2026-03-01 13:27\n" in done.stdout


def test_values_are_a_list_of_all_shapes() -> None:
    done = estimate(RECIPE, "--nodes", 64, "--nodes", 128, "--json", "--start", "2026-03-01T09:00")
    values = json.loads(done.stdout)
    assert [each["shape"]["nodes"] for each in values] == [64, 128]
    assert values[0]["duration"]["training_s"] == pytest.approx(22_610 * 4096 / 6303)
    assert values[0]["ends"] == "2026-03-01T13:27:04"


def test_a_sweep_is_a_table_and_a_picture(tmp_path: Path) -> None:
    done = estimate(RECIPE, "--sweep", "nodes=64..256:x2", "--plot", "sweep.svg", cwd=tmp_path)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[3:6]] == ["64", "128", "256"]
    assert done.stderr == "wrote sweep.svg\n"
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.svg"]


def test_the_time_to_an_accuracy_is_printed() -> None:
    done = estimate(RECIPE, "--to-accuracy", 76)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "to 76% 20,018 64.00 216.8" in lines
    assert (done.returncode, done.stderr) == (0, "")


def test_the_paper_s_tables_need_no_recipe() -> None:
    done = estimate("--paper-tables")
    assert done.returncode == 0
    assert "Table XIII: " in done.stdout
    assert len(json.loads(estimate("--paper-tables", "--json").stdout)) == 66


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no recipe given; give one, or --paper-tables"),
        (["nowhere"], "unknown recipe 'nowhere'"),
        (["digits-local"], "digits-local: its speed is unknown; give --log"),
        ([RECIPE, "--log", "none.log"], "none.log: cannot be read: No such file or directory"),
        ([RECIPE, "--log", "empty.log"], "empty.log: no lines `Iteration N, loss = ...` with a time"),
        ([RECIPE, "--images-per-s", "0"], "--images-per-s: 0 is not a plausible speed"),
        ([RECIPE, "--images-per-s", "nan"], "--images-per-s: nan is not a plausible speed"),
        ([RECIPE, "--sweep", "nods=1"], "--sweep: unknown key 'nods'; did you mean 'nodes'?"),
        ([RECIPE, "--sweep", "nodes=0"], "--sweep nodes: '0' is not an integer of 1 or more"),
        ([RECIPE, "--by", "log"], "no speed is known for --by log"),
        ([RECIPE, "--start", "soon"], "--start: 'soon' is not a time; e.g. 2026-03-01T09:00"),
        ([RECIPE, "--start", "9999-12-31T23:00"], "it would end after the year 9999"),
        (
            [RECIPE, "--images-per-s", "1e-300"],
            "--images-per-s: 1e-300 is not a plausible speed; give the images per second",
        ),
        ([RECIPE, "--images-per-s", "1e400"], "--images-per-s: inf is not a plausible speed"),
        ([RECIPE, "--images-per-s", "1e10"], "1e+10 is not a plausible speed; give the images per second"),
        ([RECIPE, "--nodes", "2000000000"], "is larger than the data set of 1,281,167 images"),
        ([RECIPE, "--paper-tables"], "--paper-tables: uses the paper's own recipes and speeds"),
        ([RECIPE, "--profile", "nowhere"], "unknown profile 'nowhere'"),
        (
            [RECIPE, "--to-accuracy", "78"],
            "--to-accuracy: the epochs to 78% top-1 are unknown; the paper gives",
        ),
        (["--paper-tables", "--to-accuracy", "76"], "--paper-tables: uses the paper's own"),
        (
            [RECIPE, "--plot", "a.txt"],
            "a.txt: is not a picture file; end it in .svg, .png or .pdf",
        ),
        ([RECIPE, "--speedup"], "--speedup: needs a sweep; give e.g. --sweep nodes=4..256:x2"),
        ([RECIPE, "--plot", "a.svg"], "--plot: needs a sweep to draw; give --sweep or --nodes"),
    ],
)
def test_bad_input_gets_one_line_and_exit_2(words: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "empty.log").touch()
    done = estimate(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["empty.log"]


def test_a_count_given_twice_is_one_estimate() -> None:
    assert estimate(RECIPE, "--nodes", 64, "--nodes", 64).stdout.startswith(f"recipe  {RECIPE}\n")


def test_no_nodes_are_refused() -> None:
    done = estimate(RECIPE, "--nodes", 0)
    assert done.returncode == 2
    assert "0 is too small; give 1 or more" in done.stderr
