"""Schedules become phases with continuous rates, which record what is derived."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from pydantic import ValidationError

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.rates import check_rates, lr_at
from caffe_recipes.recipe.paper_rules import Cycles, PlannedPhase, Schedule, SchedulePlan, plan_phases
from caffe_recipes.recipe.source import load_recipe

IMAGES = 1281167
COLLAPSES = Cycles(collapse_epochs=(3, 4, 3, 3, 3, 3))


def solver_of(planned: PlannedPhase) -> pb.SolverParameter:
    return pb.SolverParameter(**planned.settings)


def iterations_of(planned: PlannedPhase) -> int:
    return solver_of(planned).max_iter


def ends_of(planned: PlannedPhase) -> tuple[float, float]:
    """Return the rates of the first update, and of the one that would follow the last."""
    solver = solver_of(planned)
    if solver.lr_policy == "fixed":
        return lr_at(solver, 0), solver.base_lr
    return lr_at(solver, 0), lr_at(solver, solver.max_iter)


def starts_of(plan: SchedulePlan) -> list[tuple[PlannedPhase, PlannedPhase]]:
    """Return each phase after the first with the one that it starts from."""
    named = {phase.name: phase for phase in plan.phases}
    return [
        (named[after.weights] if after.weights else before, after)
        for before, after in itertools.pairwise(plan.phases)
    ]


def epochs_of(plan: SchedulePlan, batch: int, *names: str) -> float:
    phases = [phase for phase in plan.phases if not names or phase.name in names]
    return sum(map(iterations_of, phases)) * batch / IMAGES


@pytest.mark.parametrize(
    "values",
    [
        {"epochs": 90},
        {"epochs": 90, "collapse": True},
        {"iterations": 30000, "collapse": True, "weight_decay_steps": 3},
        {"decay": "cycles", "cycles": COLLAPSES},
        {"decay": "cycles", "cycles": Cycles(count=2, collapse_epochs=(3,))},
        {"decay": "cycles", "cycles": Cycles(count=2, last_collapse_epochs=5)},
    ],
)
@pytest.mark.parametrize("warmup", ["inside", "own-phase"])
def test_the_rate_continues_where_the_phase_before_left_it(values: dict[str, Any], warmup: str) -> None:
    plan = plan_phases(Schedule.model_validate({**values, "warmup": warmup}), 4096, IMAGES)
    for before, after in starts_of(plan):
        assert ends_of(after)[0] == pytest.approx(ends_of(before)[1], rel=1e-3), (before.name, after.name)


@pytest.mark.parametrize("values", [{"epochs": 90, "collapse": True}, {"decay": "cycles"}])
def test_a_warm_up_of_its_own_drops_nowhere(values: dict[str, Any]) -> None:
    plan = plan_phases(Schedule.model_validate({**values, "warmup": "own-phase"}), 4096, IMAGES)
    for phase in plan.phases:
        solver = solver_of(phase)
        assert solver.warmup_iter in (0, solver.max_iter)
        rates = [lr_at(solver, iteration) for iteration in range(solver.max_iter)]
        steps = [abs(after / before - 1) for before, after in itertools.pairwise(rates) if before > 1e-3]
        assert max(steps) < 0.02
    assert plan.phases[0].name == "warmup"


def test_the_iterations_of_a_linear_run_are_those_of_the_whole() -> None:
    for steps, warmup in itertools.product((1, 2, 5), ("inside", "own-phase")):
        values = {"iterations": 2100, "collapse": True, "weight_decay_steps": steps, "warmup": warmup}
        plan = plan_phases(Schedule.model_validate(values), 65536, IMAGES)
        assert sum(map(iterations_of, plan.phases)) == 2100


def test_figure_4_is_120_epochs_with_22_percent_at_45_and_cycles_of_three_and_a_quarter() -> None:
    plan = plan_phases(Schedule(decay="cycles"), 4096, IMAGES)
    assert epochs_of(plan, 4096) == pytest.approx(120, abs=0.01)
    assert epochs_of(plan, 4096, "init", "decay") == pytest.approx(45, abs=0.01)
    cycles = [phase for phase in plan.phases if phase.name.startswith("cyc")]
    assert ends_of(cycles[0])[0] == pytest.approx(0.22 * 1.6)
    for phase in cycles:
        low, end = ends_of(phase)
        assert phase.settings["base_lr"] == pytest.approx(3 * low, rel=1e-4)
        assert end == pytest.approx(0.75 * low, rel=1e-3)


def test_a_cycle_that_rises_in_its_own_phase_falls_four_fold_over_12_epochs() -> None:
    plan = plan_phases(Schedule(decay="cycles", warmup="own-phase"), 4096, IMAGES)
    falls = [phase for phase in plan.phases if phase.name.startswith("cyc")]
    assert len(falls) == 5
    for phase in falls:
        begin, end = ends_of(phase)
        assert begin / end == pytest.approx(4, rel=1e-3)
        assert phase.settings["max_iter"] * 4096 / IMAGES == pytest.approx(12, abs=0.01)


def test_a_collapse_starts_at_the_rate_left_off_with_twice_the_weight_decay_and_goes_to_0() -> None:
    plan = plan_phases(Schedule(epochs=90, collapse=True), 8192, IMAGES)
    main, collapse = plan.phases
    assert collapse.settings["weight_decay"] == 2 * main.settings["weight_decay"] == 0.0001
    assert (main.is_augmented, collapse.is_augmented) == (True, False)
    assert (collapse.settings["lr_policy"], collapse.settings["power"]) == ("poly", 2)


def test_a_collapse_after_the_last_cycle_is_part_of_the_chain() -> None:
    cycles = Cycles(count=2, last_collapse_epochs=5)
    plan = plan_phases(Schedule(decay="cycles", cycles=cycles), 4096, IMAGES)
    assert [phase.name for phase in plan.phases] == ["init", "decay", "cyc1", "cyc2", "collapse"]
    assert epochs_of(plan, 4096) == pytest.approx(cycles.epochs, abs=0.01)
    assert plan.phases[-1].weights is None
    assert plan.phases[-1].settings["weight_decay"] == 2 * plan.phases[0].settings["weight_decay"]


def test_stated_values_are_not_derived() -> None:
    derived = {(one.phase, one.key) for one in plan_phases(Schedule(iterations=9400), 12288, IMAGES).derived}
    assert derived == {("main", key) for key in ("base_lr", "warmup_iter", "warmup_start_lr", "weight_decay")}
    stated = Schedule(iterations=9400, base_lr=4.8, warmup_epochs=5, weight_decay=0.0001)
    assert plan_phases(stated, 12288, IMAGES).derived == ()


def test_derived_values_name_an_existing_key_of_an_existing_phase() -> None:
    for values in (
        {"iterations": 2100, "collapse": True, "weight_decay_steps": 3},
        {"epochs": 90, "decay": "steps"},
        {"decay": "cycles", "cycles": COLLAPSES},
        {"epochs": 90, "collapse": True, "warmup": "own-phase"},
    ):
        plan = plan_phases(Schedule.model_validate(values), 16384, IMAGES)
        settings = {phase.name: phase.settings for phase in plan.phases}
        assert all(one.key in settings[one.phase or ""] for one in plan.derived)


@pytest.mark.parametrize(
    ("values", "zero", "rule"),
    [
        ({}, 60, "a line to 0 at epoch 60, as the published 72-epoch chain's"),
        ({"warmup": "own-phase"}, 55, "a line to 0 at epoch 55"),
        ({"cycles": Cycles(linear_epochs=20)}, 40, "a line to 0 at epoch 40"),
    ],
)
def test_the_line_that_cycles_begin_with_reaches_0_where_its_rule_puts_it(
    values: dict[str, Any], zero: float, rule: str
) -> None:
    plan = plan_phases(Schedule(decay="cycles", **values), 4096, IMAGES)
    (init,) = (phase for phase in plan.phases if phase.name == "init")
    before = epochs_of(plan, 4096, "warmup")
    assert before + init.settings["lr_iter"] * 4096 / IMAGES == pytest.approx(zero, abs=0.01)
    assert [one.rule for one in plan.derived if (one.phase, one.key) == ("init", "lr_iter")] == [rule]


def test_the_published_chain_begins_with_a_line_to_0_at_epoch_60() -> None:
    published = load_recipe("stampede2-64n-72ep")
    init = published.phase("init")
    assert init.lr_iter == 2.4 * init.max_iter
    assert init.lr_iter * published.cluster.global_batch / IMAGES == pytest.approx(60, abs=0.2)


@pytest.mark.parametrize(
    ("schedule", "batch", "message"),
    [
        (Schedule(epochs=3), 4096, "but the warm-up ends at"),
        (Schedule(epochs=5), 4096, "but the warm-up ends at"),
        (Schedule(epochs=8, collapse=True, collapse_epochs=4), 4096, "but the warm-up ends at"),
        (Schedule(epochs=80, decay="steps"), 4096, "but the last step ends at"),
        (Schedule(epochs=90, decay="steps", warmup_epochs=40), 4096, "but the warm-up ends at"),
        (Schedule(iterations=20, collapse=True, weight_decay_steps=9), 1281167, "the part before ends at"),
        (
            Schedule(epochs=90, collapse=True, collapse_epochs=0.1),
            1281167,
            "a collapse would have no iterations",
        ),
        (Schedule(decay="cycles", warmup_epochs=30), 4096, "but the warm-up ends at"),
        (Schedule(decay="cycles", cycles=Cycles(square_epochs=0.1)), 1281167, "the part before ends at"),
        (Schedule(decay="cycles", cycles=Cycles(rise_epochs=0.1)), 1281167, "rise would have no iterations"),
        (Schedule(decay="cycles", cycles=Cycles(fall_epochs=0.1)), 1281167, "but a cycle's rise ends at"),
    ],
)
def test_parts_that_do_not_fit_are_refused(schedule: Schedule, batch: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_phases(schedule, batch, IMAGES)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "either iterations or epochs"),
        ({"epochs": 90, "iterations": 9}, "either iterations or epochs"),
        ({"epochs": 90, "decay": "cycles"}, "remove iterations and epochs"),
        ({"decay": "cycles", "collapse": True}, "only one weight decay"),
        ({"epochs": 90, "decay": "steps", "collapse": True}, "remove collapse"),
        ({"decay": "cycles", "cycles": {"count": 1, "collapse_epochs": (1, 2, 3)}}, "at most 2 values"),
        ({"decay": "cycles", "cycles": {"square_to": 0.6}}, "must be below linear_to"),
    ],
)
def test_a_schedule_that_contradicts_itself_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Schedule.model_validate(values)


def draw_schedule(draw: random.Random) -> dict[str, Any]:
    decay = draw.choice(["linear", "linear", "steps", "cycles"])
    values: dict[str, Any] = {"decay": decay, "warmup": draw.choice(["inside", "own-phase"])}
    if decay == "cycles":
        parts = ("linear_epochs", "square_epochs", "rise_epochs", "fall_epochs")
        values["cycles"] = {part: draw.choice([0.2, 3, 12, 30]) for part in parts}
        values["cycles"]["collapse_epochs"] = draw.choice([(), (3,), (3, 10)])
        return values
    values["epochs"] = draw.choice([0.1, 5, 10, 50, 90, 300])
    if decay == "linear":
        values |= {"collapse": draw.random() < 0.6, "weight_decay_steps": draw.choice([1, 2, 7])}
    return values


def test_any_schedule_is_planned_with_finite_rates_or_refused() -> None:
    planned = 0
    for index in range(2000):
        draw = random.Random(index)
        batch, images = int(2 ** draw.uniform(0, 17)), draw.choice([1438, 50000, IMAGES])
        try:
            plan = plan_phases(Schedule.model_validate(draw_schedule(draw)), batch, images)
        except ValueError as error:
            assert "would" in str(error)
            continue
        planned += 1
        for solver in map(solver_of, plan.phases):
            assert solver.max_iter > 0
            assert not check_rates(solver)
            assert solver.lr_policy != "poly_cyc" or solver.lr_iter >= solver.max_iter
            assert solver.warmup_iter <= solver.max_iter
    assert planned > 500
