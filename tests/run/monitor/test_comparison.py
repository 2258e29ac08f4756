from __future__ import annotations

import csv
import json
import shutil
from importlib import resources
from pathlib import Path

import pytest

from tests.cli.command_line import call_main
from tests.run.conftest import RECIPE
from tests.run.recorded_run import WHOLE, started, write_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with runs whose first phases have other rates; the third is not finished."""
    for number, rate in enumerate(("0.1", "0.3", "0.2"), 1):
        recipe = tmp_path / "small.yaml"
        recipe.write_text(RECIPE.replace("base_lr: 0.1,", f"base_lr: {rate},"))
        write_run(tmp_path, recipe, *(WHOLE if number < 3 else [started()]), number=number)
    return tmp_path


def _column(root: Path, *words: str) -> list[str]:
    return [row["run"] for row in json.loads(call_main("runs", *words, "--json", cwd=root).stdout)]


def test_only_the_keys_that_differ_are_columns(root: Path) -> None:
    done = call_main("runs", "small-1", "small-2", cwd=root)
    assert (done.returncode, done.stderr) == (0, "")
    header, first, second = map(str.split, done.stdout.splitlines())
    known = ["run", "recipe", "state", "epochs", "hours", "images/s", "loss", "top-1"]
    assert header == [*known, "phases.init.base_lr"]
    assert first == ["small-1", "small", "finished", "9", "0.00", "1,234", "0.25", "75.00%", "0.1"]
    assert second[-1] == "0.3"


def test_runs_of_one_name_are_told_apart_by_their_paths(root: Path) -> None:
    (root / "other").mkdir()
    shutil.copytree(root / "runs", root / "other/runs")
    (root / "other/runs/small-1/recipe.json").write_text("{")
    words = ("small-1", "other/runs/small-1", "small-1")
    rows = json.loads(call_main("runs", *words, "--json", cwd=root).stdout)
    assert [row["run"] for row in rows] == ["runs/small-1", "other/runs/small-1", "runs/small-1"]
    table = call_main("diff", "small-2", "other/runs/small-2", cwd=root).stdout
    assert table.splitlines()[1].split() == ["runs/small-2", "other/runs/small-2"]


def test_runs_without_a_value_are_sorted_last_in_both_orders(root: Path) -> None:
    assert _column(root, "--sort", "phases.init.base_lr") == ["small-1", "small-3", "small-2"]
    for words in ((), ("--reverse",)):
        assert _column(root, "--sort", "top-1", *words)[-1] == "small-3"


def test_an_unknown_column_is_one_line(root: Path) -> None:
    done = call_main("runs", "--sort", "top9", cwd=root)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("Error: --sort: no column 'top9'; did you mean 'top")


def test_csv_has_the_values_as_numbers(root: Path) -> None:
    rows = list(
        csv.DictReader(call_main("runs", "small-2", "small-3", "--csv", cwd=root).stdout.splitlines())
    )
    assert [(row["top1"], row["phases.init.base_lr"]) for row in rows] == [("0.75", "0.3"), ("", "0.2")]


def test_a_damaged_run_is_a_line_with_its_error_below(root: Path) -> None:
    (root / "runs/small-2/recipe.json").write_text("{")
    done = call_main("runs", cwd=root)
    assert (done.returncode, done.stderr) == (0, "")
    *table, error = done.stdout.splitlines()
    assert [line.split()[0] for line in table] == ["run", "small-3", "small-2", "small-1"]
    assert "unreadable" in table[2]
    assert "recipe.json" in error


def test_a_family_stands_for_the_latest_run_of_each_row(root: Path) -> None:
    (root / "ours.yaml").write_text("family: ours\ntitle: Ours\nbase: {}\nrows:\n  small: {}\n  large: {}\n")
    found = json.loads(call_main("runs", "ours.yaml", "--json", cwd=root).stdout)
    assert [(row["run"], row["recipe"]) for row in found] == [("small-3", "small"), ("", "large")]
    assert found[1]["state"] == "not run"


def test_many_keys_are_counted_but_the_one_sorted_by_is_a_column(root: Path) -> None:
    recipe = root / "other.yaml"
    recipe.write_text((resources.files("caffe_recipes.recipes") / "digits-local.yaml").read_text())
    write_run(root, recipe, started(), number=4)
    table = call_main("runs", "--sort", "solver.weight_decay", cwd=root).stdout.splitlines()
    assert table[0].split()[-1] == "solver.weight_decay"
    whole = json.loads(call_main("runs", "--json", cwd=root).stdout)[0]["recipe_values"]
    assert len(whole) > 20
    assert table[-1] == (
        f"the recipes differ in {len(whole) - 1} other keys, too many for a table: use --csv, or diff two"
    )


def test_two_runs_differ_in_their_recipes_and_results(root: Path) -> None:
    done = call_main("diff", "small-1", "runs/small-3", cwd=root)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        "recipe: phases.init.base_lr 0.1 -> 0.2",
        "          small-1   small-3",
        "state     finished  stopped",
        "epochs    9         0",
        "hours     0.00      0.00",
        "images/s  1,234     -",
        "loss      0.25      -",
        "top-1     75.00%    -",
    ]
    found = json.loads(call_main("diff", "small-1", "small-1", "--json", cwd=root).stdout)
    assert (found["equal"], [run["top1"] for run in found["results"]]) == (True, [0.75, 0.75])


def test_a_run_is_not_compared_with_what_is_none(root: Path) -> None:
    done = call_main("diff", "small-1", "small", cwd=root)
    line = "Error: small: is not a run, but small-1 is; compare two runs\n"
    assert (done.returncode, done.stderr) == (2, line)
