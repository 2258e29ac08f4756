"""The phases that the authors' rules make of a schedule.

`plan_phases` is what the recipes of the paper are made with, and what makes new ones: each number that the
schedule does not state comes from `rules`, and is told as derived.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from caffe_recipes.recipe import rules
from caffe_recipes.recipe.phases import Derived
from caffe_recipes.recipe.schedule import Schedule

# Its first solver's lr_iter, 18,720 iterations of 4,096 images, is 59.9 epochs.
_PUBLISHED_ZERO_EPOCH = 60
_LARGE = f"constant from {rules.LARGE_BATCH:,} images on"


@dataclass(frozen=True)
class Planned:
    """A phase: keys of its solver, and the phase it starts from if that is not the one before."""

    name: str
    settings: Mapping[str, Any]
    is_augmented: bool = True
    weights: str | None = None


@dataclass(frozen=True)
class Plan:
    """The phases of a schedule, and what of them it does not state."""

    phases: tuple[Planned, ...]
    derived: tuple[Derived, ...]


@dataclass(frozen=True)
class _Basis:
    """What a schedule's numbers come down to at a batch."""

    per_epoch: float
    peak: float
    start: float
    warmup_epochs: float
    decays: tuple[float, float]

    def iterations(self, epochs: float) -> int:
        return round(epochs * self.per_epoch)

    def ramp(self, warmup: int) -> dict[str, Any]:
        return {"warmup_iter": warmup, "warmup_start_lr": self.start} if warmup else {}


def plan_phases(schedule: Schedule, batch: int, images: int) -> Plan:
    """Return the phases of a schedule for a global batch and a number of training images.

    Iterations are rounded to the nearest, rates to six digits. Raises ValueError for a schedule whose parts
    do not fit into its length.

    >>> plan = plan_phases(Schedule(iterations=14200), 8192, 1281167)
    >>> plan.phases[0].settings["base_lr"], plan.phases[0].settings["warmup_iter"]
    (3.2, 782)
    """
    peak = schedule.base_lr or rules.peak_lr(batch)
    warmup = rules.warmup_epochs(batch) if schedule.warmup_epochs is None else schedule.warmup_epochs
    has_collapse = schedule.collapse or (schedule.decay == "cycles" and schedule.cycles.has_collapse)
    first = schedule.weight_decay or (rules.SMALL_WEIGHT_DECAY if has_collapse else rules.WEIGHT_DECAY)
    start = min(rules.warmup_start_lr(batch), peak)
    basis = _Basis(images / batch, peak, start, warmup, (first, 2 * first))
    make = {"linear": _plan_linear, "steps": _plan_steps, "cycles": _plan_cycles}[schedule.decay]
    phases = tuple(make(schedule, basis))
    return Plan(phases, tuple(_explain(schedule, basis, phases, batch)))


def _plan_steps(schedule: Schedule, basis: _Basis) -> Iterator[Planned]:
    total = schedule.iterations or basis.iterations(schedule.epochs or 0)
    warmup = basis.iterations(basis.warmup_epochs)
    steps = [basis.iterations(epochs) for epochs in rules.STEPS_EPOCHS]
    _fit(warmup, steps[0], "the warm-up", "the first step")
    _fit(steps[-1], total, "the last step", "the run")
    settings = {
        "base_lr": basis.peak,
        "lr_policy": "multistep",
        "gamma": rules.STEP_GAMMA,
        "stepvalue": tuple(steps),
        "max_iter": total,
        **basis.ramp(warmup),
        "weight_decay": basis.decays[0],
    }
    yield Planned("main", settings)


def _plan_linear(schedule: Schedule, basis: _Basis) -> Iterator[Planned]:
    """Decay linearly to 0 at the end of the run; a collapse leaves that line, with power 2, before."""
    total = schedule.iterations or basis.iterations(schedule.epochs or 0)
    warmup = basis.iterations(basis.warmup_epochs)
    end = total - (basis.iterations(_collapse_epochs(schedule, basis)) if schedule.collapse else 0)
    _fit(warmup, end, "the warm-up", "the decay")
    # The decay's line is at the peak here: where the run begins, as Caffe counts, or where the warm-up ends.
    origin = warmup if schedule.warmup == "own-phase" else 0
    if origin:
        yield Planned("warmup", _own_warmup(basis, warmup) | {"weight_decay": basis.decays[0]})
    count = schedule.weight_decay_steps
    # The warm-up belongs to the first part, so that no part begins within it.
    bounds = [origin, *(warmup + round((end - warmup) * part / count) for part in range(1, count + 1))]
    decays = rules.ramp_decays(*basis.decays, count)
    for index, (begin, stop) in enumerate(pairwise(bounds)):
        _fit(begin, stop, "a part", "the next")
        settings = _line(basis, begin, stop, origin, total)
        if index == 0 and not origin:
            settings |= basis.ramp(warmup)
        name = "main" if count == 1 else f"main{index + 1}"
        yield Planned(name, settings | {"weight_decay": decays[index]})
    if schedule.collapse:
        rate = basis.peak * (total - end) / (total - origin)
        yield Planned("collapse", _collapse(rate, total - end, basis), is_augmented=False)


def _line(basis: _Basis, begin: int, end: int, origin: int, total: int) -> dict[str, Any]:
    """Follow the line from the peak at `origin` to 0 at `total`, from iteration `begin` to `end`."""
    rate = _six_digits(basis.peak * (total - begin) / (total - origin))
    settings = {"base_lr": rate, "power": 1, "max_iter": end - begin}
    if end == total:
        return settings | {"lr_policy": "poly"}
    return settings | {"lr_policy": "poly_cyc", "lr_iter": total - begin}


def _plan_cycles(schedule: Schedule, basis: _Basis) -> Iterator[Planned]:
    """Decay with power 1, then 2, then go up and down; the collapses branch off, and come last."""
    cycles, own = schedule.cycles, schedule.warmup == "own-phase"
    ends, decay = [], {"weight_decay": basis.decays[0]}
    at, rate = 0.0, basis.peak
    warmup = basis.iterations(basis.warmup_epochs)
    _fit(warmup, basis.iterations(cycles.linear_epochs), "the warm-up", "the linear decay")
    if own and warmup:
        yield Planned("warmup", _own_warmup(basis, warmup) | decay)
        at = basis.warmup_epochs
    parts = (("init", cycles.linear_epochs, cycles.linear_to, 1),
             ("decay", cycles.linear_epochs + cycles.square_epochs, cycles.square_to, 2))  # fmt: skip
    for name, until, share, power in parts:
        left = basis.peak * share
        settings = _poly_cyc(basis, rate, at, until, power, rate / left)
        ramp = basis.ramp(warmup) if name == "init" and not own else {}
        yield Planned(name, settings | ramp | decay)
        at, rate = until, left
    ends.append(("decay", rate))
    for number in range(1, cycles.count + 1):
        low, rate = rate, rate * cycles.rise_times
        rise_end, end = at + cycles.rise_epochs, at + cycles.rise_epochs + cycles.fall_epochs
        rise = basis.iterations(rise_end) - basis.iterations(at)
        _fit(0, rise, "nothing", "a cycle's rise")
        _fit(basis.iterations(rise_end), basis.iterations(end), "a cycle's rise", "the cycle")
        ramp = {"warmup_iter": rise, "warmup_start_lr": _six_digits(low)}
        if own:
            fixed = {"base_lr": _six_digits(rate), "lr_policy": "fixed", "max_iter": rise}
            yield Planned(f"rise{number}", fixed | ramp | decay)
            at, ramp = rise_end, {}
        settings = _poly_cyc(basis, rate, at, end, 2, cycles.fall_times)
        yield Planned(f"cyc{number}", settings | ramp | decay)
        at, rate = end, rate / cycles.fall_times
        ends.append((f"cyc{number}", rate))
    if cycles.last_collapse_epochs:
        settings = _collapse(rate, basis.iterations(cycles.last_collapse_epochs), basis)
        yield Planned("collapse", settings, is_augmented=False)
    for number, (epochs, (start, left)) in enumerate(zip(cycles.collapse_epochs, ends, strict=False), 1):
        settings = _collapse(left, basis.iterations(epochs), basis)
        yield Planned(f"c{number}", settings, is_augmented=False, weights=start)


def _poly_cyc(
    basis: _Basis, rate: float, at: float, until: float, power: int, times: float
) -> dict[str, Any]:
    """Divide the rate by `times` between two ages in epochs, with a power."""
    begin, end = basis.iterations(at), basis.iterations(until)
    _fit(begin, end, "a part", "the next")
    return {
        "base_lr": _six_digits(rate),
        "lr_policy": "poly_cyc",
        "power": power,
        "max_iter": end - begin,
        "lr_iter": round(rules.decay_horizon(end - begin, times, power)),
    }


def _own_warmup(basis: _Basis, iterations: int) -> dict[str, Any]:
    return {"base_lr": basis.peak, "lr_policy": "fixed", "max_iter": iterations} | basis.ramp(iterations)


def _collapse(rate: float, iterations: int, basis: _Basis) -> dict[str, Any]:
    """Go to 0 with power 2 from the rate that was left off, at twice the weight decay (section V-B)."""
    _fit(0, iterations, "nothing", "a collapse")
    return {
        "base_lr": _six_digits(rate),
        "lr_policy": "poly",
        "power": 2,
        "max_iter": iterations,
        "weight_decay": basis.decays[1],
    }


def _collapse_epochs(schedule: Schedule, basis: _Basis) -> float:
    epochs = schedule.epochs or (schedule.iterations or 0) / basis.per_epoch
    return schedule.collapse_epochs or rules.collapse_epochs(epochs)


def _explain(schedule: Schedule, basis: _Basis, phases: tuple[Planned, ...], batch: int) -> Iterator[Derived]:
    """Say by which rule each number came that the schedule does not state."""
    first = phases[0]
    if schedule.base_lr is None:
        is_linear = rules.scaled_lr(batch) <= basis.peak
        yield Derived(
            phase=first.name, key="base_lr", rule="0.1 for each 256 images" if is_linear else _LARGE
        )
    if schedule.warmup_epochs is None and "warmup_iter" in first.settings:
        rule = f"{round(basis.warmup_epochs, 2):g} epochs"
        yield Derived(phase=first.name, key="warmup_iter", rule=rule)
        yield Derived(phase=first.name, key="warmup_start_lr", rule="as in the published solvers")
    if schedule.weight_decay is None:
        rule = "half of the standard 0.0001" if basis.decays[0] < rules.WEIGHT_DECAY else "the standard one"
        yield Derived(phase=first.name, key="weight_decay", rule=rule)
    if schedule.decay != "cycles" and schedule.iterations is None:
        yield Derived(phase=first.name, key="max_iter", rule=f"{schedule.epochs:g} epochs in all")
    if schedule.weight_decay_steps > 1:
        rule = f"{schedule.weight_decay_steps} equal parts, each of a decay larger by the same factor"
        yield from (Derived(phase=one.name, key="weight_decay", rule=rule) for one in phases[1:-1])
    if schedule.collapse and schedule.collapse_epochs is None:
        rule = "6 % of the run, but 3 to 10 epochs"
        yield Derived(phase=phases[-1].name, key="max_iter", rule=rule)
    if schedule.decay == "cycles" and "linear_to" not in schedule.cycles.model_fields_set:
        cycles, begin = schedule.cycles, 0.0 if first.name == "init" else basis.warmup_epochs
        zero = begin + (cycles.linear_epochs - begin) / (1 - cycles.linear_to)
        as_published = ", as the published 72-epoch chain's" if zero == _PUBLISHED_ZERO_EPOCH else ""
        yield Derived(phase="init", key="lr_iter", rule=f"a line to 0 at epoch {zero:g}{as_published}")


def _fit(begin: int, end: int, before: str, after: str) -> None:
    if begin >= end:
        raise ValueError(f"{before} ends at iteration {begin}, and {after} at {end}: it does not fit")


def _six_digits(rate: float) -> float:
    """Round a rate to the digits that Caffe's log has.

    >>> _six_digits(1.6 * 0.22)
    0.352
    """
    return float(f"{rate:.6g}")
