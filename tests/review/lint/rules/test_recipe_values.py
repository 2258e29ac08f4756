"""What a recipe states about its test images, its digits and its cores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caffe_recipes.data import digits
from caffe_recipes.review.lint.rules.recipe_values import DIGITS_CLASSES, DIGITS_SIDE_PX
from tests.review.conftest import LintSolvers, net_text
from tests.review.lint.conftest import LintRecipe


@pytest.mark.parametrize(
    ("batch", "iterations", "rule", "expected"),
    [
        (50, 1, "evaluation-partial", "tests only 50 of 359 images"),
        (50, 7, "evaluation-partial", "tests only 350 of 359 images"),
        (50, 8, "evaluation-repeats", "8 iterations of 50 test 400 images"),
        (359, 2, "evaluation-repeats", "the test set has 359"),
        (359, 1, None, ""),
    ],
)
def test_an_evaluation_counts_each_image_once(
    lint_recipe: LintRecipe, batch: int, iterations: int, rule: str | None, expected: str
) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["data"]["test"]["batch_size"] = batch
        raw["evaluation"]["iterations"] = iterations

    found = [one for one in lint_recipe("digits-local", change) if one.id.startswith("evaluation")]
    assert [one.id for one in found] == ([rule] if rule else [])
    for one in found:
        assert expected in one.what
        path, line = one.where.split(":")
        assert Path(path).read_text().splitlines()[int(line) - 1] == f"  iterations: {iterations}"


def test_the_suggested_values_cover_every_image(lint_recipe: LintRecipe) -> None:
    (found,) = [
        one
        for one in lint_recipe("stampede2-64n-72ep", lambda raw: raw["evaluation"].update(iterations=999))
        if one.id == "evaluation-partial"
    ]
    assert (found.severity, found.write) == ("warning", "iterations: 1000")


@pytest.mark.parametrize(
    ("classes", "rule", "severity"),
    [(9, "classes-below-labels", "error"), (11, "classes-above-labels", "note"), (10, None, "")],
)
def test_the_digits_are_of_ten_classes(
    lint_recipe: LintRecipe, classes: int, rule: str | None, severity: str
) -> None:
    found = lint_recipe("digits-local", lambda raw: raw["net"].update(classes=classes))
    reported = [(one.id, one.severity) for one in found if one.id.startswith("classes")]
    assert reported == ([(rule, severity)] if rule else [])


@pytest.mark.parametrize(("crop", "count"), [(32, 0), (33, 1), (280, 1)])
def test_a_crop_is_not_larger_than_a_digit(lint_recipe: LintRecipe, crop: int, count: int) -> None:
    found = lint_recipe("digits-local", lambda raw: raw["data"].update(crop_size=crop))
    assert [one.severity for one in found if one.id == "crop-above-records"] == ["error"] * count


def test_the_digits_are_as_documented() -> None:
    assert (digits.CLASSES, digits.SIDE_PX) == (DIGITS_CLASSES, DIGITS_SIDE_PX)
    assert digits.enlarge(np.zeros((8, 8), np.int64)).shape[:2] == (DIGITS_SIDE_PX, DIGITS_SIDE_PX)


def test_threads_have_cores(lint_recipe: LintRecipe) -> None:
    found = lint_recipe("stampede2-64n-72ep", lambda raw: raw["cluster"].update(omp_num_threads=25))
    (threads,) = [one for one in found if one.id == "threads-above-cores"]
    assert (threads.severity, threads.write) == ("warning", "omp_num_threads: 24 or less")
    found = lint_recipe("stampede2-64n-72ep", lambda raw: raw["cluster"].update(omp_num_threads=24))
    assert "threads-above-cores" not in [one.id for one in found]


def test_an_absurd_weight_decay_is_found_in_a_recipe_too(lint_recipe: LintRecipe) -> None:
    found = lint_recipe("digits-local", lambda raw: raw["phases"][1].update(weight_decay=5))
    assert [one.phase for one in found if one.id == "weight-decay-large"] == ["cyc1"]


@pytest.mark.parametrize(("each", "count"), [(1, 1), (2, 0)])
def test_a_batch_norm_has_several_images(lint_recipe: LintRecipe, each: int, count: int) -> None:
    def shrink(raw: dict[str, Any]) -> None:
        raw["cluster"]["batch_per_rank"] = each

    found = lint_recipe("digits-local", shrink)
    alone = [one for one in found if one.id == "batch-norm-alone" and one.phase == "init"]
    assert [one.severity for one in alone] == ["warning"] * count
    assert all("BatchNorms with one image per rank" in one.what for one in alone)


@pytest.mark.parametrize(
    ("batch", "passes", "norm", "is_found"),
    [
        (2, 16, "", True),
        (16, 2, "", True),
        (32, 2, "", False),
        (2, 1, "", False),
        (2, 16, "use_global_stats: true", False),
        (2, 16, None, False),
    ],
)
def test_iter_size_does_not_enlarge_the_batch_of_a_norm(
    lint_solvers: LintSolvers, tmp_path: Path, batch: int, passes: int, norm: str | None, is_found: bool
) -> None:
    layer = (
        f'layer {{ name: "bn" type: "BatchNorm" bottom: "data" top: "data" batch_norm_param {{ {norm} }} }}'
    )
    text = net_text("TRAIN", "TEST").replace("batch_size: 32", f"batch_size: {batch}")
    (tmp_path / "own" / "bn.prototxt").write_text(text + (layer if norm is not None else ""))
    found = lint_solvers({"a": {"net": '"own/bn.prototxt"', "iter_size": passes}})
    notes = [one for one in found if one.id == "batch-norm-iter-size"]
    assert [one.severity for one in notes] == ["note"] * is_found
    assert all(one.what.startswith(f"BatchNorm sees {batch} images at a time") for one in notes)


def test_a_flag_unknown_to_our_programs_is_a_warning(lint_recipe: LintRecipe) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["tensorflow"]["flags"] = {"save_checkpoint_steps": 100, "deterministic": True, "verbosity": 1}
        raw["tensorflow"]["evaluation"]["flags"] = {"seed": 2, "wandb": "on"}

    evaluation, main = (one for one in lint_recipe("tf-256n-90ep", change) if one.id == "unknown-flag")
    assert (main.severity, main.what) == ("warning", "resnet_main.py has no flag --save_checkpoint_steps")
    assert main.write == "did you mean 'save_checkpoints_steps'?"
    assert evaluation.values == {"flag": "wandb"}
