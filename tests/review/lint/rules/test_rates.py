"""The rate of one solver: missing, wrong, jumping where the warm-up ends, too high at the end."""

from __future__ import annotations

import pytest

from tests.review.conftest import LintSolvers


def test_a_good_solver_has_no_findings(lint_solvers: LintSolvers) -> None:
    assert lint_solvers({"a": {}}) == []


@pytest.mark.parametrize(
    ("changes", "rule", "expected"),
    [
        ({"base_lr": None}, "base-lr-missing", "base_lr is missing"),
        ({"base_lr": 0}, "base-lr-missing", "base_lr is 0"),
        ({"lr_policy": '"cosine"'}, "lr-policy-unknown", "lr_policy 'cosine' is unknown"),
        ({"lr_policy": '"poly_cyc"'}, "lr-iter-missing", "lr_policy poly_cyc needs lr_iter above 0"),
        (
            {"lr_policy": '"step"', "gamma": 0.1, "power": None},
            "lr-policy-incomplete",
            "needs stepsize above 0",
        ),
        (
            {"lr_policy": '"multistep"', "gamma": 0.1, "power": None},
            "lr-policy-incomplete",
            "needs stepvalue",
        ),
        ({"base_lr": -1}, "rate-not-finite", "is -1 at iteration 0"),
        ({"base_lr": "nan"}, "rate-not-finite", "is nan at iteration 0"),
        ({"max_iter": None}, "max-iter-missing", "max_iter is missing"),
        ({"max_iter": -3}, "max-iter-missing", "max_iter is -3"),
    ],
)
def test_a_solver_that_learns_nothing_is_an_error(
    lint_solvers: LintSolvers, changes: dict[str, object], rule: str, expected: str
) -> None:
    (found,) = lint_solvers({"a": changes})
    # A program that steps the solver itself needs no max_iter.
    assert (found.id, found.severity) == (rule, "warning" if rule == "max-iter-missing" else "error")
    assert expected in found.what
    assert found.phase == "a"


@pytest.mark.parametrize(("power", "effect"), [(2, "rises again"), (0.5, "NaN")])
def test_poly_cyc_must_not_run_past_lr_iter(lint_solvers: LintSolvers, power: float, effect: str) -> None:
    changes = {"lr_policy": '"poly_cyc"', "power": power, "lr_iter": 999}
    found = [one for one in lint_solvers({"a": changes}) if one.id == "lr-iter-passed"]
    assert len(found) == 1
    assert effect in found[0].effect
    assert found[0].where.endswith("solver_a.prototxt:9:1")
    exact = lint_solvers({"a": {"lr_policy": '"poly_cyc"', "lr_iter": 1000}})
    assert exact == []


def test_poly_without_power_is_a_constant_rate(lint_solvers: LintSolvers) -> None:
    found = {one.id: one for one in lint_solvers({"a": {"power": None}})}
    assert found.keys() == {"power-missing", "final-rate-high"}
    assert "stays at 1" in found["power-missing"].effect


def test_a_rate_that_is_0_halfway_is_found(lint_solvers: LintSolvers) -> None:
    (found,) = lint_solvers({"a": {"lr_policy": '"exp"', "gamma": 0.5, "power": None}})
    assert (found.id, found.severity) == ("rate-zero", "warning")
    assert "0 at iteration 500" in found.what


@pytest.mark.parametrize(("warmup", "count"), [(999, 0), (1000, 0), (1001, 1)])
def test_a_warmup_ends_within_the_run(lint_solvers: LintSolvers, warmup: int, count: int) -> None:
    found = lint_solvers({"a": {"warmup_iter": warmup}})
    assert [one.id for one in found].count("warmup-never-ends") == count


@pytest.mark.parametrize(("start", "count"), [(0.9, 0), (1.0, 0), (1.1, 1)])
def test_a_warmup_does_not_start_above_the_rate_that_it_leads_to(
    lint_solvers: LintSolvers, start: float, count: int
) -> None:
    found = lint_solvers({"a": {"base_lr": 1.0, "warmup_iter": 100, "warmup_start_lr": start}})
    assert [one.id for one in found].count("warmup-falls") == count


def test_a_drop_where_the_warmup_ends_has_both_values(lint_solvers: LintSolvers) -> None:
    (found,) = lint_solvers({"a": {"warmup_iter": 100, "warmup_start_lr": 0.1}})
    assert (found.id, found.severity) == ("warmup-end-jump", "warning")
    assert dict(found.values) == pytest.approx({"before": 0.991, "after": 0.81})
    assert "drops by 18.3%" in found.what
    assert "0.991 to 0.81 (iterations 99 and 100)" in found.what


def test_the_steps_of_a_short_warmup_are_not_jumps(lint_solvers: LintSolvers) -> None:
    fixed = {"lr_policy": '"multistep"', "power": None, "gamma": 1e-6, "stepvalue": 900}
    assert lint_solvers({"a": {**fixed, "warmup_iter": 5}}) == []
    assert lint_solvers({"a": {"warmup_iter": 5}}) == []
    # Rises from 0.82 to 0.96, less than the step of 0.18 before.
    assert lint_solvers({"a": {"warmup_iter": 5, "warmup_start_lr": 0.1, "power": 8}}) == []


def test_a_drop_of_less_than_2_percent_is_not_reported(lint_solvers: LintSolvers) -> None:
    assert lint_solvers({"a": {"warmup_iter": 9, "warmup_start_lr": 0.99}}) == []


def test_the_last_phase_ends_below_1e_5_of_base_lr(lint_solvers: LintSolvers) -> None:
    (found,) = lint_solvers({"a": {"lr_policy": '"poly_cyc"', "power": 1, "lr_iter": 1001}})
    assert found.id == "final-rate-high"
    assert found.values["end"] == pytest.approx(0.002, rel=1e-2)
    assert "0.002 of its base_lr" in found.what


@pytest.mark.parametrize("power", [0.5, 1, 2])
def test_a_decay_to_0_is_complete_however_few_its_iterations(lint_solvers: LintSolvers, power: float) -> None:
    assert lint_solvers({"a": {"power": power, "max_iter": 50}}) == []


@pytest.mark.parametrize(
    ("changes", "count"), [({"base_lr": 10}, 1), ({"base_lr": 5}, 0), ({"base_lr": 10, "warmup_iter": 5}, 0)]
)
def test_an_implausible_rate_is_found(
    lint_solvers: LintSolvers, changes: dict[str, object], count: int
) -> None:
    found = [one for one in lint_solvers({"a": changes}) if one.id == "base-lr-large"]
    assert len(found) == count


@pytest.mark.parametrize(("ranks", "count"), [(128, 1), (320, 0)])
def test_a_high_rate_that_suits_its_large_batch_is_accepted(
    lint_solvers: LintSolvers, ranks: int, count: int
) -> None:
    found = lint_solvers({"a": {"base_lr": 12}}, ranks=ranks)
    assert len([one for one in found if one.id == "base-lr-large"]) == count


def test_plateau_is_not_judged_by_rates_that_depend_on_losses(lint_solvers: LintSolvers) -> None:
    plateau = {"lr_policy": '"plateau"', "power": None, "gamma": 0.1, "plateau_winsize": 9}
    assert lint_solvers({"a": plateau}) == []


CLASSICAL = {"lr_policy": '"step"', "gamma": 0.1, "stepsize": 400, "power": None}


def test_a_lone_solver_that_never_goes_to_0_is_a_note(lint_solvers: LintSolvers) -> None:
    (found,) = lint_solvers({"a": CLASSICAL})
    assert (found.id, found.severity) == ("final-rate-kept", "note")
    assert found.values["end"] == pytest.approx(0.01)


def test_the_last_of_a_chain_that_never_goes_to_0_is_a_warning(lint_solvers: LintSolvers) -> None:
    (found,) = lint_solvers({"a": {"lr_policy": '"fixed"', "power": None}, "b": CLASSICAL})
    assert (found.id, found.severity, found.phase) == ("final-rate-high", "warning", "b")
