from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.errors import InputError, InUse, RunFailed
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.recipe.source import list_family_rows, load_recipe
from caffe_recipes.run.each import run_each
from tests.cli.command_line import call_main
from tests.run.conftest import Place

DIGITS = load_recipe(Path("digits-local"))
ROWS = [DIGITS.model_copy(update={"name": name}) for name in ("low", "middle", "high")]


def test_rows_are_trained_in_turn_and_the_others_too_if_one_fails() -> None:
    trained, printed = list[str](), list[str]()

    def train(recipe: AnyRecipe) -> None:
        trained.append(recipe.name)
        if recipe.name == "middle":
            raise RunFailed("runs/middle-1", "init: the loss is nan at iteration 20", "lower base_lr")

    with pytest.raises(RunFailed) as failure:
        run_each(ROWS, train, printed.append)
    assert trained == ["low", "middle", "high"]
    assert printed == [
        "low: run 1 of 3",
        "middle: run 2 of 3",
        "middle: failed: runs/middle-1: init: the loss is nan at iteration 20; lower base_lr",
        "high: run 3 of 3",
    ]
    assert str(failure.value) == (
        "of 3 runs, 1 failed: middle; run the same command again to resume; finished runs are not repeated"
    )


def test_an_interruption_ends_them_all() -> None:
    trained = []

    def train(recipe: AnyRecipe) -> None:
        trained.append(recipe.name)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_each(ROWS, train, lambda line: None)
    assert trained == ["low"]


def test_input_that_is_wrong_for_one_row_is_a_failure_of_that_row() -> None:
    def train(recipe: AnyRecipe) -> None:
        if recipe.name == "low":
            raise InputError("prototxt/low", "differs")

    with pytest.raises(RunFailed, match=r"^of 3 runs, 1 failed: low;"):
        run_each(ROWS, train, lambda line: None)


def test_a_row_that_another_process_trains_is_left_out_and_not_called_failed() -> None:
    printed = list[str]()

    def train(recipe: AnyRecipe) -> None:
        if recipe.name == "low":
            raise InUse("runs/low-1", "is in use by process 7 on a")
        if recipe.name == "high":
            raise RunFailed("runs/high-1", "failed")

    with pytest.raises(RunFailed, match=r"^of 3 runs, 1 failed: high, 1 in use by another process: low;"):
        run_each(ROWS, train, printed.append)
    assert "low: left out: runs/low-1: is in use by process 7 on a" in printed


FAMILY = """\
family: sizes
title: Two lengths of the small recipe
base:
{base}
rows:
  short: {{title: Short}}
  long: {{title: Long}}
"""


def test_a_family_is_run_whole_and_the_same_command_repeats_nothing(place: Place) -> None:
    keys = [
        line for line in place.recipe.read_text().splitlines() if not line.startswith(("name:", "title:"))
    ]
    family = place.root / "sizes.yaml"
    family.write_text(FAMILY.format(base="\n".join(f"  {line}" for line in keys)))
    for _ in range(2):
        done = call_main("run", "sizes.yaml", "--each", cwd=place.root)
        assert done.returncode == 0, done.stderr
        assert [line for line in done.stdout.splitlines() if ": run " in line] == [
            "short: run 1 of 2",
            "long: run 2 of 2",
        ]
        assert done.stdout.splitlines()[-1] == (
            "compare them: caffe-recipes runs sizes.yaml, or report sizes.yaml -o report.html"
        )
        runs = sorted(path.name for path in (place.root / "runs").iterdir() if path.is_dir())
        assert runs == ["long-1", "short-1"]
    assert "3 iterations" not in done.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["small.yaml", "--each"],
            "small.yaml: is not the file of a family; omit --each, or give FAMILY.yaml",
        ),
        (["small.yaml", "--each", "--detach"], "--detach: cannot be combined with --each"),
        (["small.yaml", "--each", "--max-requeues", "3"], "--max-requeues: cannot be combined with --each"),
        (["missing.yaml", "--each"], "missing.yaml: is not the file of a family"),
    ],
)
def test_each_takes_only_a_family_and_no_option_for_a_single_run(
    place: Place, words: list[str], text: str
) -> None:
    done = call_main("run", *words, cwd=place.root)
    assert done.returncode == 2
    assert done.stderr.startswith(f"Error: {text}")
    assert not (place.root / "runs").exists()


def test_the_family_in_the_documentation_loads(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
    family = tmp_path / "digits-rates.yaml"
    family.write_text(text.partition("```yaml\nfamily:")[2].partition("```")[0].join(("family:", "")))
    rows = list_family_rows(str(family))
    assert rows == ["digits-rate-0.01", "digits-rate-0.1", "digits-rate-1"]
    rates = [load_recipe(Path(f"{family}:{row}")).phases[0].base_lr for row in rows]
    assert rates == [0.01, 0.1, 1.0]


def test_the_family_in_the_documentation_is_linted_generated_and_plotted_whole(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
    given = text.partition("```yaml\nfamily:")[2].partition("```")[0]
    (tmp_path / "digits-rates.yaml").write_text(f"family:{given}")
    done = call_main("lint", "digits-rates.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "0 errors, 0 warnings, 2 notes")
    done = call_main("generate", "digits-rates.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list(tmp_path.glob("prototxt/digits-rate-*/solver_train.prototxt"))) == 3
    done = call_main("plot", "digits-rates.yaml", "-o", "rates.svg", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "wrote rates.svg\n")
