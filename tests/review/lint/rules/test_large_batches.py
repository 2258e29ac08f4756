"""Large batches without a warm-up, and running averages too slow for a short training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from caffe_recipes.review.lint.findings import Finding
from caffe_recipes.review.lint.folders import lint_targets
from caffe_recipes.review.lint.inputs import LintOptions
from tests.review.conftest import LintSolvers, net_text, solver_text
from tests.review.lint.conftest import LintRecipe

NORM = """layer { name: "bn" type: "BatchNorm" bottom: "data" top: "bn" %s }
layer { name: "sc" type: "Scale" bottom: "bn" top: "bn" scale_param { bias_term: true } }
"""


def only(found: list[Finding], *rules: str) -> list[Finding]:
    return [one for one in found if one.id in rules]


def without_warmup(raw: dict[str, Any]) -> None:
    for key in ("warmup_iter", "warmup_start_lr"):
        raw["phases"][0].pop(key)


def test_448_nodes_at_4_8_without_a_warm_up_are_warned(lint_recipe: LintRecipe) -> None:
    (found,) = only(lint_recipe("stampede2-448n-90ep", without_warmup), "warmup-missing")
    assert (found.severity, found.phase) == ("warning", "main")
    assert found.what == (
        "the training starts at a rate of 4.8 with 14,336 images per iteration, without a warm-up"
    )
    assert found.write == "warmup_iter for about 5 epochs, and warmup_start_lr: 0.1"
    assert only(lint_recipe("stampede2-448n-90ep", lambda raw: None), "warmup-missing") == []


def test_a_warm_up_that_starts_at_the_peak_is_none(lint_recipe: LintRecipe) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["phases"][0]["warmup_start_lr"] = 4.8

    assert len(only(lint_recipe("stampede2-448n-90ep", change), "warmup-missing")) == 1


@pytest.mark.parametrize(
    ("base_lr", "ranks", "more", "warns"),
    [
        (3.2, 256, {}, True),  # 8,192 images
        (6.4, 1536, {}, True),  # 49,152, at the paper's highest rate
        (3.2, 64, {"iter_size": 4}, True),
        (1.6, 128, {}, True),  # 4,096
        (0.8, 64, {}, False),  # 2,048, as Intel trains
        (0.1, 8, {}, False),  # the reference batch
        (0.8, 32, {}, False),  # 1,024
        (1.02, 128, {}, False),  # the published cyc1, which continues init
        (3.2, 256, {"type": '"Adam"'}, False),
        (3.2, 256, {"warmup_iter": 100, "warmup_start_lr": 0.1}, False),
    ],
)
def test_a_solver_alone_is_judged_by_its_rate_and_batch(
    lint_solvers: LintSolvers, base_lr: float, ranks: int, more: dict[str, object], warns: bool
) -> None:
    found = lint_solvers({"a": {"base_lr": base_lr, **more}}, ranks=ranks)
    assert bool(only(found, "warmup-missing")) == warns


def test_the_batch_in_a_comment_counts_where_no_ranks_are_given(lint_solvers: LintSolvers) -> None:
    found = lint_solvers({"a": {"base_lr": 4.8, "max_iter": "8937 # 1281167 / 14336 * 100 epochs"}})
    assert len(only(found, "warmup-missing")) == 1


def lint_norm(tmp_path: Path, fraction: str, **changes: object) -> list[Finding]:
    param = f"batch_norm_param {{ {fraction} }}"
    text = net_text("TRAIN", "TEST").replace('bottom: "data" top: "ip"', 'bottom: "bn" top: "ip"')
    (tmp_path / "own").mkdir(exist_ok=True)
    (tmp_path / "own" / "train_val.prototxt").write_text(text + NORM % param)
    (tmp_path / "solver.prototxt").write_text(solver_text({**changes}))
    found = lint_targets([str(tmp_path / "solver.prototxt")], LintOptions(caffe_root=tmp_path))
    return only(found, "moving-average-slow", "moving-average-fast")


@pytest.mark.parametrize("fraction", ["moving_average_fraction: 0.999", ""])
def test_statistics_over_1000_of_3500_iterations_are_warned(tmp_path: Path, fraction: str) -> None:
    (found,) = lint_norm(tmp_path, fraction, max_iter=3500)
    assert (found.id, found.severity) == ("moving-average-slow", "warning")
    assert found.what == (
        "1 BatchNorm layer (bn) with moving_average_fraction 0.999 average over about 1,000 iterations, 29% "
        "of the 3,500 that are trained"
    )
    assert "train_val.prototxt:" in found.where
    assert "0.95" in found.write


@pytest.mark.parametrize(
    ("fraction", "iterations", "rules"),
    [
        ("0.95", 100, []),  # ours, on digits
        ("0.9", 100, []),
        ("0.999", 600_000, []),  # Caffe's default, as Intel's and BVLC's long trainings leave it
        ("0.98", 2600, []),
        ("0.99", 1560, ["moving-average-slow"]),
        ("1", 20_000, ["moving-average-slow"]),
        ("0.9997", 62_500, []),  # Intel's googlenet_v3_aux_32nodes_2k_batch
        ("0.5", 600_000, ["moving-average-fast"]),
    ],
)
def test_a_fraction_is_judged_by_the_iterations(
    tmp_path: Path, fraction: str, iterations: int, rules: list[str]
) -> None:
    found = lint_norm(tmp_path, f"moving_average_fraction: {fraction}", max_iter=iterations)
    assert [one.id for one in found] == rules


def test_frozen_statistics_and_several_passes_count_as_they_are(tmp_path: Path) -> None:
    assert lint_norm(tmp_path, "moving_average_fraction: 0.999 use_global_stats: true", max_iter=3500) == []
    assert lint_norm(tmp_path, "moving_average_fraction: 0.999", max_iter=3500, iter_size=16) == []


def test_a_benchmark_on_dummy_data_trains_no_statistics(tmp_path: Path) -> None:
    assert len(lint_norm(tmp_path, "moving_average_fraction: 0.999", max_iter=5000)) == 1
    net = tmp_path / "own" / "train_val.prototxt"
    net.write_text(net.read_text().replace('type: "Data"', 'type: "DummyData"'))
    found = lint_targets([str(tmp_path / "solver.prototxt")], LintOptions(caffe_root=tmp_path))
    assert only(found, "moving-average-slow") == []


def test_the_iterations_of_all_phases_count_in_a_recipe(lint_recipe: LintRecipe) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["net"]["batch_norm_fraction"] = 0.999

    rules = ("moving-average-slow",)
    (found, *others) = only(lint_recipe("stampede2-64n-72ep", change), *rules)
    assert "4% of the 22,610" in found.what
    assert found.values["passes"] == 22_610
    assert len({one.where for one in (found, *others)}) == 1 + len(others)
