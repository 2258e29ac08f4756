"""Phases that are stopped short of max_iter: what generate writes for a Caffe without poly_cyc is sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.dialect import translate_whole
from caffe_recipes.render.recipe_files import generate
from caffe_recipes.review.lint.folders import lint_targets
from caffe_recipes.review.lint.inputs import LintOptions
from tests.review.conftest import LintSolvers

BASIS = {"images": 32_000, "ranks": 2}  # 500 iterations of 64 an epoch
STOPPED = {"snapshot": 250, "power": 1}


@pytest.mark.parametrize(
    ("comment", "claimed"),
    [
        ("stopped at 500, 1.00 epochs", []),
        ("stopped at 500, 2 epochs", [2]),
        ("2 epochs, stopped at 1,500", [2]),
        ("2 epochs", []),
    ],
)
def test_the_epochs_beside_a_stop_are_those_up_to_it(
    lint_solvers: LintSolvers, comment: str, claimed: list[float]
) -> None:
    found = lint_solvers({"a": {**STOPPED, "max_iter": f"1000 # {comment}"}}, **BASIS)
    assert [one.values["claimed"] for one in found if one.id == "epochs-claim"] == claimed


def test_the_rates_at_the_ends_are_those_of_the_stop(lint_solvers: LintSolvers) -> None:
    stopped = {**STOPPED, "max_iter": "1000 # stopped at 500"}
    found = {one.id: one for one in lint_solvers({"a": stopped, "b": {"base_lr": 0.6}})}
    assert found["join-jump"].values["before"] == pytest.approx(0.501)
    found = {one.id: one for one in lint_solvers({"a": stopped})}
    assert found["final-rate-high"].values["end"] == pytest.approx(0.501)


@pytest.mark.parametrize("stop", [0, 1000, 2000])
def test_a_comment_about_an_ineffective_stop_gives_no_finding(lint_solvers: LintSolvers, stop: int) -> None:
    assert lint_solvers({"a": {"max_iter": f"1000 # stopped at {stop}"}}) == []


def test_our_own_files_for_intel_s_caffe_hold_what_our_recipe_accepts(tmp_path: Path) -> None:
    files = generate(translate_whole(load_recipe("stampede2-64n-72ep"), "intel"))
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = lint_targets(
        [str(tmp_path / "prototxt" / "stampede2-64n-72ep-intel")], LintOptions(dialect="intel")
    )
    grave = [(one.id, one.phase) for one in found if one.severity != "note"]
    assert grave == [
        ("warmup-end-jump", "init"),
        ("join-jump", "cyc1"),
        ("warmup-end-jump", "cyc2"),
        ("warmup-end-jump", "cyc3"),
        ("join-jump", "cyc3"),
        ("last-net-without-test", "collapse"),
        ("join-jump", "collapse"),
        ("collapse-weight-decay", "collapse"),
    ]
    (first,) = [one for one in found if (one.id, one.phase) == ("join-jump", "cyc1")]
    assert first.values["before"] == pytest.approx(0.933419, rel=1e-6)
