"""`caffe-recipes tf`: the log of an evaluation, and whether it is of the recipe's run."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from caffe_recipes.cli.recipes import show
from caffe_recipes.cli.tf import tf
from caffe_recipes.errors import InputError, RecipeError

LINE = (
    "Saving dict for global step {step}: Top-1 accuracy = 0.75232, Top-5 accuracy = 0.9241,"
    " global_step = {step}, loss = 1.9024274\n"
)


def write_log(folder: Path, step: int) -> str:
    path = folder / "eval.log"
    path.write_text(LINE.format(step=step))
    return str(path)


def test_the_published_log_is_reported_as_one_of_another_run(tmp_path: Path) -> None:
    done = CliRunner().invoke(tf, ["log", write_log(tmp_path, 14075)], catch_exceptions=False)
    assert done.output == (
        "step 14,075: top-1 75.232%, top-5 92.41%, loss 1.90243\n"
        "  not from this recipe: tf-256n-90ep ends at step 4,680; 14,075 steps are 90 epochs at a batch of"
        " 8,192: tf-256n-8k-90ep\n"
    )


def test_a_log_of_the_run_s_last_step_has_its_accuracy_alone(tmp_path: Path) -> None:
    done = CliRunner().invoke(tf, ["log", write_log(tmp_path, 4680)], catch_exceptions=False)
    assert done.output == "step 4,680: top-1 75.232%, top-5 92.41%, loss 1.90243\n"


def test_json_has_the_values_unrounded(tmp_path: Path) -> None:
    done = CliRunner().invoke(tf, ["log", write_log(tmp_path, 14075), "--json"], catch_exceptions=False)
    (found,) = json.loads(done.output)
    assert (found["top1"], found["top5"], found["step"], found["loss"]) == (0.75232, 0.9241, 14075, 1.9024274)
    assert "a batch of 8,192" in found["differs"]


def test_a_loss_that_is_not_a_number_is_reported(tmp_path: Path) -> None:
    log = tmp_path / "eval.log"
    log.write_text("Saving dict for global step 4680: top_1_accuracy = 0.001, loss = nan\n")
    done = CliRunner().invoke(tf, ["log", str(log)], catch_exceptions=False)
    assert done.output == (
        "step 4,680: top-1 0.1%, loss nan\n  the loss is not a number: the training has diverged\n"
    )
    done = CliRunner().invoke(tf, ["log", str(log), "--json"], catch_exceptions=False)
    (found,) = json.loads(done.output, parse_constant=pytest.fail)
    assert (found["loss"], found["has_diverged"]) == (None, True)


def test_a_recipe_without_tensorflow_is_refused(tmp_path: Path) -> None:
    words = ["log", write_log(tmp_path, 4680), "--recipe", "digits-local"]
    with pytest.raises(InputError, match="digits-local: has no TensorFlow run; give a recipe that has one"):
        CliRunner().invoke(tf, words, catch_exceptions=False)


@pytest.mark.parametrize(
    ("command", "attribute", "words", "instead"),
    [
        ("lint", "lint", ["tf-digits-local"], "use it with show"),
        ("estimate", "estimate", ["tf-digits-local"], "start it, and see its images/s"),
        ("plot", "plot", ["tf-digits-local", "--out", "plot.svg"], "use it with show"),
        ("summary", "summary", ["tf-digits-local"], "use it with show"),
        ("diff", "diff", ["tf-256n-90ep", "tf-digits-local"], "use it with show"),
        ("authoring", "rescale", ["tf-digits-local", "--nodes", "2"], "change `cluster` and tensorflow"),
    ],
)
def test_what_needs_solvers_or_nets_refuses_a_recipe_of_tensorflow(
    command: str, attribute: str, words: list[str], instead: str
) -> None:
    module = import_module(f"caffe_recipes.cli.{command}")
    what = "tf-digits-local: is trained by TensorFlow and has no phases, solvers, nets or LMDBs; "
    with pytest.raises(RecipeError, match=what + instead):
        CliRunner().invoke(getattr(module, attribute), words, catch_exceptions=False)


def test_another_dialect_of_a_tensorflow_recipe_is_refused() -> None:
    words = ["tf-digits-local", "--dialect", "intel"]
    with pytest.raises(RecipeError, match="trainer: TensorFlow trains this recipe, not a Caffe"):
        CliRunner().invoke(show, words, catch_exceptions=False)
