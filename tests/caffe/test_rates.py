"""Learning rates against the log of the real Caffe, and against each policy's formula."""

from __future__ import annotations

import math
from typing import Any

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.rates import check_rates, float32, lr_at, steps_at


def solver(**fields: object) -> pb.SolverParameter:
    given: dict[str, Any] = {"base_lr": 0.1, "max_iter": 100, **fields}
    return pb.SolverParameter(**given)


@pytest.mark.parametrize(
    ("iteration", "printed"),
    [(0, "0.1"), (1559, "1.59904"), (1560, "1.46667"), (7799, "0.933419")],
)
def test_the_published_first_phase_has_the_rates_that_caffe_printed(iteration: int, printed: str) -> None:
    init = solver(
        base_lr=1.6, lr_policy="poly_cyc", power=1, max_iter=7800, lr_iter=18720, warmup_iter=1560,
        warmup_start_lr=0.1,
    )  # fmt: skip
    assert f"{lr_at(init, iteration):.6g}" == printed


def test_the_collapse_ends_at_the_rate_that_caffe_printed() -> None:
    collapse = solver(base_lr=0.143, lr_policy="poly", power=2, max_iter=1560)
    assert f"{lr_at(collapse, 1559):.3g}" == "5.88e-08"


def test_arithmetic_is_float32_not_double() -> None:
    last = solver(base_lr=0.03, lr_policy="poly", power=2, max_iter=30)
    assert f"{lr_at(last, 29):.6g}" == "3.33334e-05"  # in doubles it would be 3.33333e-05


@pytest.mark.parametrize(
    ("fields", "iteration", "rate"),
    [
        ({"lr_policy": "fixed"}, 7, 0.1),
        ({"lr_policy": "step", "gamma": 0.5, "stepsize": 10}, 25, 0.1 * 0.5**2),
        ({"lr_policy": "exp", "gamma": 0.9}, 5, 0.1 * 0.9**5),
        ({"lr_policy": "inv", "gamma": 0.01, "power": 0.75}, 40, 0.1 * 1.4**-0.75),
        ({"lr_policy": "multistep", "gamma": 0.1, "stepvalue": [10, 20]}, 9, 0.1),
        ({"lr_policy": "multistep", "gamma": 0.1, "stepvalue": [10, 20]}, 10, 0.01),
        ({"lr_policy": "multistep", "gamma": 0.1, "stepvalue": [10, 20]}, 99, 0.001),
        ({"lr_policy": "poly", "power": 0.5}, 75, 0.1 * 0.25**0.5),
        ({"lr_policy": "poly_cyc", "power": 2, "lr_iter": 200}, 100, 0.1 * 0.25),
        ({"lr_policy": "sigmoid", "gamma": -0.1, "stepsize": 50}, 60, 0.1 / (1 + math.exp(1))),
    ],
)
def test_each_policy_follows_its_formula(fields: dict[str, object], iteration: int, rate: float) -> None:
    assert lr_at(solver(**fields), iteration) == pytest.approx(rate, rel=1e-6)


def test_warm_up_rises_in_a_line_and_its_iterations_count_for_the_policy() -> None:
    warm = solver(lr_policy="step", gamma=0.1, stepsize=4, warmup_iter=5, warmup_start_lr=0.05)
    rates = [lr_at(warm, i) for i in range(6)]
    assert rates == pytest.approx([0.05, 0.06, 0.07, 0.08, 0.09, 0.01], rel=1e-6)


def test_where_caffe_divides_by_zero_the_rate_is_nan() -> None:
    lost = solver(lr_policy="poly_cyc", power=2)
    assert math.isnan(lr_at(lost, 0))
    assert math.isinf(lr_at(lost, 1))


def test_a_fractional_power_past_lr_iter_is_not_a_number() -> None:
    assert math.isnan(lr_at(solver(lr_policy="poly_cyc", power=0.5, lr_iter=10), 11))


def test_a_sigmoid_far_beyond_its_step_is_finite() -> None:
    far = solver(lr_policy="sigmoid", gamma=-10, stepsize=10**6)
    assert lr_at(far, 0) == float32(0.1)
    assert lr_at(far, 10**9) == 0


def test_steps_stop_at_the_first_value_that_is_still_ahead() -> None:
    assert steps_at(solver(lr_policy="multistep", stepvalue=[30, 10]), 20) == 0


def test_equal_step_values_are_taken_in_one_iteration() -> None:
    twice = solver(lr_policy="multistep", stepvalue=[10, 10, 20])
    assert [steps_at(twice, i) for i in (9, 10, 11, 20)] == [0, 2, 2, 3]


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"lr_policy": "cosine"}, "'cosine' is unknown"),
        ({"lr_policy": ""}, "'' is unknown"),
        ({"lr_policy": "poly_cyc", "power": 1}, "needs lr_iter"),
        ({"lr_policy": "poly_cyc", "power": 1, "lr_iter": -5}, "needs lr_iter"),
        ({"lr_policy": "step", "gamma": 0.1}, "needs stepsize"),
        ({"lr_policy": "step", "stepsize": 10}, "needs gamma"),
        ({"lr_policy": "multistep", "gamma": 0.1}, "needs stepvalue"),
        ({"lr_policy": "poly_cyc", "power": 0.5, "lr_iter": 50}, "is nan at iteration 51"),
        ({"lr_policy": "poly_cyc", "power": 1, "lr_iter": 50}, "at iteration 51"),
        ({"lr_policy": "fixed", "base_lr": -0.1}, "is -0.1 at iteration 0"),
        ({"lr_policy": "fixed", "base_lr": math.nan}, "is nan at iteration 0"),
        ({"lr_policy": "exp", "gamma": 1e30}, "is inf at iteration 99"),
    ],
)
def test_a_wrong_schedule_that_caffe_would_accept_silently_is_reported(
    fields: dict[str, object], part: str
) -> None:
    (finding,) = check_rates(solver(**fields))
    assert part in str(finding)


def test_a_missing_base_lr_is_named() -> None:
    (fault,) = check_rates(pb.SolverParameter(lr_policy="fixed", max_iter=5))
    assert (fault.kind, str(fault)) == ("no base_lr", "base_lr is missing: the rate would be 0")


def test_correct_schedules_have_no_findings() -> None:
    assert check_rates(solver(lr_policy="poly_cyc", power=2, lr_iter=100)) == []
    assert check_rates(solver(lr_policy="fixed", base_lr=0)) == []
    assert check_rates(solver(lr_policy="plateau", gamma=0.1, plateau_winsize=[5])) == []


def test_a_run_of_zero_iterations_computes_no_rate() -> None:
    assert check_rates(solver(lr_policy="poly", power=1, max_iter=0)) == []
