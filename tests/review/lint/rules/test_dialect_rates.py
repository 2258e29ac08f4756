"""Rates that another Caffe computes in its own way are not judged, and a finding says so."""

from __future__ import annotations

import pytest

from tests.review.conftest import LintSolvers

# A poly that ends at 0, whose next phase jumps; and one that ends high.
RAMP = {"rampup_interval": "5", "rampup_lr": "0.01", "solver_mode": "GPU"}
HIGH = {"lr_policy": '"fixed"', "power": None, "solver_mode": "GPU"}


def ids(lint_solvers: LintSolvers, solvers: dict[str, dict[str, str | None]], dialect: str) -> list[str]:
    return [one.id for one in lint_solvers(solvers, dialect=dialect)]


def test_a_ramp_of_nvcaffe_s_keeps_rates_and_joins_from_being_judged(lint_solvers: LintSolvers) -> None:
    judged = ids(lint_solvers, {"a": {**HIGH, "base_lr": "3"}, "b": HIGH}, "nvcaffe")
    assert {"join-jump", "final-rate-high"} <= set(judged)
    ramped = ids(lint_solvers, {"a": {**HIGH, "base_lr": "3"}, "b": {**HIGH, **RAMP}}, "nvcaffe")
    assert "rates-not-judged" in ramped
    assert not {"join-jump", "final-rate-high"} & set(ramped)
    assert set(judged) - {"join-jump", "final-rate-high"} <= set(ramped)


def test_it_is_reported_where_the_rate_is_made(lint_solvers: LintSolvers) -> None:
    solver = {**RAMP, "min_lr": "0.001"}
    (found,) = [one for one in lint_solvers({"a": solver}, dialect="nvcaffe") if one.id == "rates-not-judged"]
    assert found.severity == "note"
    assert found.what == "rampup_interval and min_lr set a rate that only nvcaffe computes"
    assert found.where.rpartition("/")[2].startswith("solver_a.prototxt:")


@pytest.mark.parametrize(
    ("solver", "dialect"),
    [
        (RAMP, "bvlc"),  # refuses it, which is reported
        ({"rampup_interval": "0", "solver_mode": "GPU"}, "nvcaffe"),
        ({"solver_mode": "GPU"}, "nvcaffe"),
    ],
)
def test_rates_that_the_dialect_does_not_change_are_judged(
    lint_solvers: LintSolvers, solver: dict[str, str | None], dialect: str
) -> None:
    assert "rates-not-judged" not in ids(lint_solvers, {"a": solver}, dialect)


def test_intels_policy_of_stages_is_its_own(lint_solvers: LintSolvers) -> None:
    solver = {"lr_policy": '"multifixed"', "power": None, "stagelr": "0.1", "stageiter": "100"}
    found = ids(lint_solvers, {"a": solver}, "intel")
    assert "rates-not-judged" in found
    assert not {"lr-policy-unknown", "final-rate-high"} & set(found)
