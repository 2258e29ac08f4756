"""Recipes: what lint finds in what they generate and state, and what they accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from caffe_recipes.errors import RecipeError
from caffe_recipes.recipe.source import shipped_recipes
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.reader import Options
from caffe_recipes.review.lint.targets import is_at_least, lint
from tests.review.lint.conftest import LintRecipe


def grave(found: list[Finding]) -> list[str]:
    return [one.id for one in found if is_at_least(one, "warning")]


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipes_have_no_findings_but_accepted_ones(name: str) -> None:
    found = lint([name], Options())
    assert grave(found) == []
    accepted = {one.id for one in found if one.accepted}
    assert {"warmup-end-jump", "join-jump", "zero-start-partly"} <= accepted
    assert ("mlsl-on-openmp-cores" in accepted) == name.startswith("stampede2")


def test_the_64_node_recipe_accepts_the_published_findings_and_no_other() -> None:
    found = [one for one in lint(["stampede2-64n-72ep"], Options()) if one.severity != "note"]
    assert [(one.id, one.phase) for one in found] == [
        ("warmup-end-jump", "init"),
        ("join-jump", "cyc1"),
        ("warmup-end-jump", "cyc2"),
        ("warmup-end-jump", "cyc3"),
        ("join-jump", "cyc3"),
        ("join-jump", "collapse"),
        ("collapse-weight-decay", "collapse"),
    ]
    assert all(one.accepted and one.where.startswith("prototxt/stampede2-64n-72ep/solver_") for one in found)


def test_without_its_acceptances_a_recipe_fails(lint_recipe: LintRecipe) -> None:
    found = lint_recipe("digits-local", lambda raw: raw.pop("accept"))
    assert grave(found).count("join-jump") == 3
    assert not any(one.accepted for one in found)


def test_an_acceptance_of_one_phase_leaves_the_others(lint_recipe: LintRecipe) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["accept"] = [{"finding": "join-jump", "phase": "cyc3", "reason": "meant"}]

    found = [one for one in lint_recipe("digits-local", change) if one.id == "join-jump"]
    assert {one.phase: one.accepted for one in found} == {"cyc1": "", "cyc3": "meant", "collapse": ""}


def test_an_acceptance_that_nothing_needs_is_a_warning_at_its_line(
    lint_recipe: LintRecipe, tmp_path: Path
) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["accept"] += [{"finding": "join-jump", "phase": "init", "reason": "meant"}]

    (found,) = [one for one in lint_recipe("digits-local", change) if one.id == "unused-accept"]
    assert found.severity == "warning"
    assert "'join-jump' of phase 'init' is accepted, and not found" in found.what
    path, line = found.where.split(":")
    assert Path(path).read_text().splitlines()[int(line) - 1] == "- finding: join-jump"


def test_a_title_is_held_against_the_phases(lint_recipe: LintRecipe) -> None:
    found = lint_recipe("stampede2-64n-72ep", lambda raw: raw.update(title="ResNet-50 in 90 epochs"))
    (title,) = [one for one in found if one.id == "title-epochs"]
    assert title.where.endswith("changed.yaml:2")
    assert title.values["epochs"] == pytest.approx(72.286, abs=1e-3)


def test_the_way_to_the_last_model_makes_a_title_right(lint_recipe: LintRecipe) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["title"] = "ResNet-50 in 89.97 epochs"

    assert "title-epochs" not in grave(lint_recipe("stampede2-448n-90ep", change))
    whole = lint_recipe("stampede2-448n-90ep", lambda raw: raw.update(title="in 94.46 epochs"))
    assert "title-epochs" not in grave(whole)
    off = lint_recipe("stampede2-448n-90ep", lambda raw: raw.update(title="in 92 epochs"))
    assert grave(off) == ["title-epochs"]


def test_a_tmp_that_is_too_small_is_an_error(lint_recipe: LintRecipe) -> None:
    found = lint_recipe("stampede2-64n-72ep", lambda raw: raw["cluster"].update(tmp_gb=43))
    (small,) = [one for one in found if one.id == "tmp-too-small"]
    assert small.severity == "error"
    assert small.values["snapshots_gb"] == pytest.approx(5 * 2 * 0.102441076)
    larger = lint_recipe("stampede2-64n-72ep", lambda raw: raw["cluster"].update(tmp_gb=43.1))
    assert grave(larger) == []


def test_cores_that_threads_leave_free_are_right(lint_recipe: LintRecipe) -> None:
    found = lint_recipe(
        "stampede2-64n-72ep", lambda raw: raw["cluster"]["mlsl"].update(server_affinity=[44, 45, 46, 47])
    )
    assert grave(found) == ["unused-accept"]


def test_a_last_net_without_test_is_found_where_nothing_evaluates(lint_recipe: LintRecipe) -> None:
    found = lint_recipe("digits-local", lambda raw: raw.pop("evaluation"))
    assert grave(found) == ["last-net-without-test"]


def test_a_solver_that_generate_refuses_is_refused(lint_recipe: LintRecipe) -> None:
    with pytest.raises(RecipeError, match="the rate of lr_policy poly_cyc is nan"):
        lint_recipe("digits-local", lambda raw: raw["phases"][1].update(lr_iter=100, power=0.5))


def test_another_dialect_is_asked_of_a_recipe_s_files_too() -> None:
    found = lint(["digits-local"], Options(dialect="bvlc"))
    assert {"dialect-lr-policy", "dialect-field"} <= set(grave(found))
    assert {one.where.split(":")[0].split("/")[0] for one in found} == {"prototxt"}
