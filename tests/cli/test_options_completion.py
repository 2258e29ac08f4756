"""Shell completion: names of shipped recipes, and the files that a command reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from caffe_recipes.cli.options import Name
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.run_names import SUBMISSIONS
from tests.cli.command_line import call_main

TAKE_RECIPES = [
    "show",
    "generate",
    "run",
    "submit",
    "attach",
    "status",
    "runs",
    "logs",
    "cancel",
    "plot",
    "diff",
    "lint",
    "summary",
]
TAKE_PROTOTXTS = ["plot", "lr", "lint", "diff", "fmt", "upgrade", "summary"]


def complete(line: str, cwd: Path) -> list[str]:
    """Return what bash gets as completions of the last word of a line."""
    words = line.split(" ")
    environment = {
        "_CAFFE_RECIPES_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = call_main(cwd=cwd, env=environment)
    assert done.returncode == 0
    return done.stdout.splitlines()


@pytest.mark.parametrize("command", TAKE_RECIPES)
def test_a_recipe_s_name_is_completed(command: str, tmp_path: Path) -> None:
    found = complete(f"caffe-recipes {command} stam", tmp_path)
    assert found == ["plain,stampede2-448n-90ep", "plain,stampede2-64n-72ep"]


@pytest.mark.parametrize("command", TAKE_PROTOTXTS)
def test_a_prototxt_is_completed(command: str, tmp_path: Path) -> None:
    for name in ("net.prototxt", "net.caffemodel"):
        (tmp_path / name).touch()
    assert complete(f"caffe-recipes {command} ne", tmp_path) == ["plain,net.prototxt"]


def test_commands_that_read_only_prototxts_complete_no_recipes(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").touch()
    assert complete("caffe-recipes lr ", tmp_path) == ["plain,net.prototxt"]
    assert complete("caffe-recipes lr dig", tmp_path) == ["file,dig"]


def test_runs_are_completed_by_their_names(tmp_path: Path) -> None:
    for name in ("small-1", "small-2", "other-1"):
        (tmp_path / "root" / "runs" / name).mkdir(parents=True)
        (tmp_path / "root" / "runs" / name / "journal.jsonl").touch()
    assert complete("caffe-recipes attach --caffe-root root sm", tmp_path) == [
        "plain,small-1",
        "plain,small-2",
    ]
    assert complete("caffe-recipes attach sm", tmp_path / "root") == ["plain,small-1", "plain,small-2"]


def test_a_submitted_recipe_without_a_run_is_completed(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / f"small{SUBMISSIONS}").touch()
    assert complete("caffe-recipes status sm", tmp_path) == ["plain,small"]


def test_shipped_recipes_and_those_in_the_folder_are_completed(tmp_path: Path) -> None:
    for name in ("mine.yaml", "notes.txt", "net.prototxt"):
        (tmp_path / name).touch()
    (tmp_path / "folder.yaml").mkdir()
    found = complete("caffe-recipes show ", tmp_path)
    assert found == [f"plain,{name}" for name in sorted(shipped_recipes())] + ["plain,mine.yaml"]
    assert "plain,net.prototxt" in complete("caffe-recipes plot ", tmp_path)


def test_files_are_completed_in_the_folder_that_was_typed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.yaml").touch()
    assert complete("caffe-recipes show mine/", tmp_path) == ["plain,mine/a.yaml"]
    assert complete("caffe-recipes show mi", tmp_path) == ["file,mi"]
    assert complete("caffe-recipes show none/a", tmp_path) == ["file,none/a"]


def test_arguments_already_given_are_not_completed_again(tmp_path: Path) -> None:
    found = complete("caffe-recipes show digits-local ", tmp_path)
    assert "plain,digits-local" not in found
    assert "plain,stampede2-64n-72ep" in found


def test_commands_and_options_are_completed_too(tmp_path: Path) -> None:
    assert complete("caffe-recipes sho", tmp_path) == ["plain,show"]
    assert "plain,--dialect" in complete("caffe-recipes generate --d", tmp_path)


def test_completing_neither_reads_recipes_nor_imports_what_draws_them(tmp_path: Path) -> None:
    code = (
        "import click, sys; from caffe_recipes.cli.options import RECIPE;"
        "RECIPE.shell_complete(click.Context(click.Command('x')), click.Argument(['a']), '');"
        "print(sorted({'yaml', 'pydantic', 'matplotlib', 'google.protobuf'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_folder_without_read_permission_completes_no_files(tmp_path: Path) -> None:
    assert Name("x")._files(str(tmp_path / "none" / "x")) == []


def test_phases_are_completed_of_the_recipe_or_run_that_is_named(tmp_path: Path) -> None:
    assert complete("caffe-recipes run digits-local --until cyc", tmp_path) == [
        f"plain,cyc{n}" for n in (1, 2, 3)
    ]
    assert complete("caffe-recipes logs digits-local-7 --phase col", tmp_path) == ["plain,collapse"]
    assert complete("caffe-recipes logs nowhere-7 --phase col", tmp_path) == [""]


def test_nets_are_completed_behind_their_recipe(tmp_path: Path) -> None:
    found = complete("caffe-recipes summary stampede2-64n-72ep:train_val_", tmp_path)
    assert found == ["plain,stampede2-64n-72ep:train_val_noaug"]
    assert complete("caffe-recipes summary nowhere:t", tmp_path) == [""]


def test_rules_and_profiles_are_completed(tmp_path: Path) -> None:
    assert complete("caffe-recipes lint --explain join", tmp_path) == ["plain,join-jump"]
    assert complete("caffe-recipes profiles slu", tmp_path) == ["plain,slurm"]


@pytest.mark.promise("nothing read runs")
def test_no_name_is_completed_that_a_shell_would_interpret(tmp_path: Path) -> None:
    bad = ["x$(id).yaml", "x`id`.yaml", "x;id.yaml", "x y.yaml", "x*.yaml", "x'.yaml", "x\\n.yaml", "x~.yaml"]
    for name in bad:
        (tmp_path / name).touch()
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "journal.jsonl").touch()
    for command in ("run", "attach"):
        assert complete(f"caffe-recipes {command} x", tmp_path) == ["file,x"]
    (tmp_path / "x-1.yaml").touch()
    assert complete("caffe-recipes run x", tmp_path) == ["plain,x-1.yaml"]
