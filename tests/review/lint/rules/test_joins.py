"""Where phases meet: the rate from snapshot to first update, and the weight decay of a collapse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.review.conftest import LintSolvers, net_text
from tests.review.lint.conftest import LintRecipe

HALF = {"lr_policy": '"poly_cyc"', "power": 1, "max_iter": 500, "lr_iter": 1000, "snapshot": 500}


def test_a_rate_that_continues_is_not_a_jump(lint_solvers: LintSolvers) -> None:
    assert lint_solvers({"a": HALF, "b": {"base_lr": 0.5}}) == []
    assert lint_solvers({"a": HALF, "b": {"base_lr": 0.51}}) == []


@pytest.mark.parametrize(("rate", "expected"), [(0.6, "rises by 19.8%"), (0.25, "drops by 50.1%")])
def test_a_rate_that_jumps_has_both_values(lint_solvers: LintSolvers, rate: float, expected: str) -> None:
    (found,) = lint_solvers({"a": HALF, "b": {"base_lr": rate}})
    assert (found.id, found.severity, found.phase) == ("join-jump", "warning", "b")
    assert f"{expected} from a to b, 0.501 to {rate}" in found.what
    assert found.values["before"] == pytest.approx(0.501)  # of the last update, i = 499
    assert found.values["after"] == pytest.approx(rate)
    assert found.write.startswith("base_lr: 0.501")
    assert found.where.endswith("solver_b.prototxt:2:1")


def test_a_jump_into_a_warmup_is_fixed_at_its_start(lint_solvers: LintSolvers) -> None:
    found = lint_solvers({"a": HALF, "b": {"warmup_iter": 5, "warmup_start_lr": 0.4}})
    assert [one.id for one in found] == ["join-jump"]
    assert found[0].write.startswith("warmup_start_lr: 0.501")


def test_the_snapshot_with_the_nearest_rate_is_used_and_named(
    lint_solvers: LintSolvers,
) -> None:
    many = {"power": 1, "snapshot": 100}
    (found,) = lint_solvers({"a": many, "b": {"base_lr": 0.21}})
    assert found.values["iteration"] == 800
    assert "0.2 (at iteration 800) to 0.21" in found.what
    assert "(the nearest of 10 snapshots)" in found.what
    assert lint_solvers({"a": many, "b": {"base_lr": 0.3}}) == []


def test_a_billion_snapshots_are_checked_quickly(lint_solvers: LintSolvers) -> None:
    first = {"power": 1, "max_iter": 2**31 - 1, "snapshot": 1}
    assert lint_solvers({"a": first, "b": {"base_lr": 0.5}}) == []
    assert lint_solvers({"a": first, "b": {"base_lr": 1e-5}}) == []


def test_a_first_phase_that_writes_nothing_joins_nothing(lint_solvers: LintSolvers) -> None:
    found = lint_solvers({"a": {**HALF, "snapshot": 0, "snapshot_after_train": "false"}, "b": {}})
    assert [one.id for one in found] == ["no-final-snapshot"]


@pytest.mark.parametrize(
    ("decay", "expected"),
    [(0.0002, None), (0.000201, None), (0.0001, "1 times"), (0.0004, "4 times"), (0, "0 times")],
)
def test_a_collapse_doubles_the_weight_decay(lint_solvers: LintSolvers, decay: float, expected: str) -> None:
    found = lint_solvers({"a": HALF, "collapse": {"base_lr": 0.5, "weight_decay": decay}})
    assert [one.id for one in found] == (["collapse-weight-decay"] if expected else [])
    if expected:
        assert f"has {expected} the weight decay of a" in found[0].what
        assert found[0].write == "weight_decay: 0.0002"


def test_a_last_phase_without_the_augmentation_is_a_collapse_by_any_name(
    lint_solvers: LintSolvers, tmp_path: Path
) -> None:
    ratio = "random_aspect_ratio_param { min_area_ratio: 0.08 max_area_ratio: 1 aspect_ratio_change: 0.75 }"
    (tmp_path / "own" / "train_val.prototxt").write_text(net_text("TRAIN", "TEST", more=ratio))
    (tmp_path / "own" / "plain.prototxt").write_text(net_text("TRAIN", "TEST"))
    plain = {"base_lr": 0.5, "net": '"own/plain.prototxt"'}
    assert [one.id for one in lint_solvers({"a": HALF, "b": plain})] == ["collapse-weight-decay"]
    assert lint_solvers({"a": HALF, "b": {"base_lr": 0.5}}) == []


@pytest.mark.parametrize(("rate", "count"), [(0.501, 0), (0.9, 1), (0.05, 1)])
def test_a_rate_that_jumps_at_a_resumed_solverstate_is_a_note(
    lint_solvers: LintSolvers, tmp_path: Path, rate: float, count: int
) -> None:
    script = tmp_path / "run.sh"
    command = "caffe train --solver=own/solver_{}.prototxt {}\n"
    script.write_text(command.format("a", "") + command.format("b", "--snapshot=own_a_iter_500.solverstate"))
    later = {"lr_policy": '"fixed"', "power": None, "base_lr": rate, "max_iter": 900}
    found = [one for one in lint_solvers({"a": HALF, "b": later}, script=script) if "jump" in one.id]
    assert [(one.id, one.severity) for one in found] == [("resume-jump", "note")] * count
    assert all("starts at 0" not in one.effect for one in found)


def test_a_resumed_phase_continues_at_its_own_iteration(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    command = "caffe train --solver=own/solver_{}.prototxt {}\n"
    script.write_text(command.format("a", "") + command.format("b", "--snapshot=own_a_iter_500.solverstate"))
    whole = {**HALF, "max_iter": 1000, "warmup_iter": 100, "warmup_start_lr": 0.9}
    assert "resume-jump" not in [one.id for one in lint_solvers({"a": HALF, "b": whole}, script=script)]
    assert "warmup-end-jump" not in [one.id for one in lint_solvers({"a": HALF, "b": whole}, script=script)]


def test_each_collapse_is_compared_with_the_phase_it_branches_off(
    lint_recipe: LintRecipe,
) -> None:
    def change(raw: dict[str, Any], decay: float = 0.004) -> None:
        *cycles, last = raw["phases"]
        branch = {**last, "name": "branch", "weights": "cyc1", "snapshot_prefix": "tmp/b", "base_lr": 0.016}
        raw["phases"] = [*cycles, {**branch, "weight_decay": decay}, {**last, "weights": "cyc3"}]

    rule = "collapse-weight-decay"
    found = [one for one in lint_recipe("digits-local", change) if one.id == rule]
    assert [one.phase for one in found] == ["collapse"]
    assert found[0].values["before"] == pytest.approx(0.002)
    found = [one for one in lint_recipe("digits-local", lambda raw: change(raw, 0.002)) if one.id == rule]
    assert [one.phase for one in found] == ["branch", "collapse"]
