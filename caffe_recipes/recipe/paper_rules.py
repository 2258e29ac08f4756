"""The paper's rules for schedules as formulas with their sources, and the phases that follow from them.

A `Schedule` holds what a source states about a run. `plan_phases` turns it into phases, for the paper's
recipes and for new ones: each number that the schedule does not state follows from a rule, and is listed
as derived. The source is arXiv:1711.04291, cited by section, unless another is named. Choices that the paper
leaves open are marked as ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from caffe_recipes.config import Count, Fraction, NotNegative, Positive, Value
from caffe_recipes.recipe.model import Derived

REFERENCE_LR, REFERENCE_BATCH = 0.1, 256
HIGHEST_LR = 6.4
LARGE_BATCH = 16_384
WARMUP_START_LR = 0.1
WEIGHT_DECAY, SMALL_WEIGHT_DECAY = 0.0001, 0.00005
MOMENTUM = 0.9
STEPS_EPOCHS = (30, 60, 80)
STEP_GAMMA = 0.1
WARMUP_EPOCHS = 5
COLLAPSE_SHARE = 0.06
COLLAPSE_EPOCHS = (3, 10)  # minimum and maximum

_LARGE_WARMUP_EPOCHS, _LONGEST_WARMUP_EPOCHS = 7, 10
_WARMUP_EPOCHS_PER_DOUBLING = 1.5
_LARGE_DECAY_STEPS = 3


def scaled_lr(batch: int) -> float:
    """Return the learning rate by linear scaling: 0.1 per 256 images of the global batch.

    Source: section IV-D, which cites Goyal et al., arXiv:1706.02677.

    >>> scaled_lr(4096), scaled_lr(11520)
    (1.6, 4.5)
    """
    return round(REFERENCE_LR * batch / REFERENCE_BATCH, 10)


def peak_lr(batch: int) -> float:
    """Return the rate after the warm-up for a batch: scaled linearly, up to 6.4 at 16,384 images.

    Source: section V-C.

    >>> peak_lr(12288), peak_lr(16384), peak_lr(65536)
    (4.8, 6.4, 6.4)
    """
    return min(scaled_lr(batch), HIGHEST_LR)


def warmup_start_lr(batch: int) -> float:
    """Return the rate at which a warm-up starts: 0.1, or the peak rate if that is lower.

    Source: both published recipes, and Goyal et al.

    >>> warmup_start_lr(8192), warmup_start_lr(32)
    (0.1, 0.0125)
    """
    return min(WARMUP_START_LR, peak_lr(batch))


def warmup_epochs(batch: int) -> float:
    """Return the epochs of warm-up: 5, or 7 from 16,384 images on, plus 1.5 per doubling, up to 10.

    Source: section IV-D for the 5; section V-C says "typically longer, at around 7-10 epochs" for batches
    of 16,384 to 65,536 images. Assigning 7 to the smallest and 10 to the largest of these is our choice.

    >>> [warmup_epochs(batch) for batch in (8192, 16384, 32768, 65536, 131072)]
    [5, 7.0, 8.5, 10.0, 10]
    """
    if batch < LARGE_BATCH:
        return WARMUP_EPOCHS
    longer = _LARGE_WARMUP_EPOCHS + _WARMUP_EPOCHS_PER_DOUBLING * math.log2(batch / LARGE_BATCH)
    return min(longer, _LONGEST_WARMUP_EPOCHS)


def collapse_epochs(epochs: float) -> float:
    """Return the epochs of a run's final collapse: 6% of all epochs, at least 3 and at most 10.

    Source: section V-B says "the last 5-7%", section VI "between 3-10 epochs". The 6% are our choice.

    >>> [round(collapse_epochs(epochs), 2) for epochs in (40, 90, 200)]
    [3, 5.4, 10]
    """
    least, most = COLLAPSE_EPOCHS
    return min(max(COLLAPSE_SHARE * epochs, least), most)


def ramp_decays(start: float, end: float, steps: int) -> tuple[float, ...]:
    """Return `steps` weight decays that grow by equal factors from `start`; the next one would be `end`.

    Source: sections V-C and VI increase the weight decay several times; the factor is our choice. Values are
    rounded to two digits.

    >>> ramp_decays(0.00005, 0.0001, 3)
    (5e-05, 6.3e-05, 7.9e-05)
    """
    return tuple(float(f"{start * (end / start) ** (step / steps):.2g}") for step in range(steps))


def weight_decay_steps(batch: int) -> int:
    """Return the steps in which the weight decay grows before a collapse: 3 from 16,384 images on, else 1.

    Source: sections V-C and VI advise several steps, "particularly for very large batches". That these start
    at 16,384, where the other rules for them do, and the number of steps are our choice.

    >>> weight_decay_steps(8192), weight_decay_steps(32768)
    (1, 3)
    """
    return 1 if batch < LARGE_BATCH else _LARGE_DECAY_STEPS


def decay_horizon(length: float, times: float, power: float) -> float:
    """Return when a polynomial decay that divides the rate by `times` within `length` reaches 0.

    It solves (1 - length / horizon)^power = 1 / times. The horizon has the unit of `length`.

    >>> decay_horizon(12, 4, power=2), decay_horizon(30, 2, power=1)
    (24.0, 60.0)
    """
    return length / (1 - math.pow(times, -1 / power))


# (batch, epochs to a top-1 accuracy of 75.9%): public results of MLPerf Training's ResNet-50 with LARS.
LARS_EPOCHS = ((4096, 40.0), (8192, 42.0), (32_768, 56.0), (65_536, 84.5))

# Table X: (batch, top-1 accuracy of the paper in percent).
ACCURACY = ((8192, 76.6), (16_384, 76.26), (32_768, 75.31), (49_152, 74.6), (65_536, 73.94))


def lars_epochs(batch: int) -> float | None:
    """Return the epochs that LARS needs for 75.9% at a batch; None above the largest published batch.

    Below the smallest published batch, return its epochs. Between two, interpolate over the logarithm of the
    batch, which is our choice.

    >>> lars_epochs(1024), lars_epochs(8192), lars_epochs(16_384), lars_epochs(131_072)
    (40.0, 42.0, 49.0, None)
    """
    if batch <= LARS_EPOCHS[0][0]:
        return LARS_EPOCHS[0][1]
    for (low, before), (high, after) in pairwise(LARS_EPOCHS):
        if batch <= high:
            share = math.log(batch / low) / math.log(high / low)
            return before + share * (after - before)
    return None


class Cycles(Value):
    """A decay to a share of the peak rate, with power 1 and then 2, then cycles. Source: section VI."""

    count: Count = 5
    linear_epochs: Positive = 30
    linear_to: Fraction = Field(0.5, description="share of the peak at which the linear decay ends")
    square_epochs: Positive = 15
    square_to: Fraction = Field(0.22, description="share of the peak at which the first cycle starts")
    rise_epochs: Positive = 3
    rise_times: Annotated[float, Field(gt=1)] = 3
    fall_epochs: Positive = 12
    fall_times: Annotated[float, Field(gt=1)] = 4
    collapse_epochs: tuple[Positive, ...] = Field(
        (), description="length of each branch: from the end of the decay, then from the end of each cycle"
    )
    last_collapse_epochs: Positive | None = Field(
        None, description="length of a collapse after the last cycle, as in the 72-epoch recipe"
    )

    @property
    def epochs(self) -> float:
        """Epochs of the chain, excluding its branches."""
        cycle = self.rise_epochs + self.fall_epochs
        collapse = self.last_collapse_epochs or 0
        return self.linear_epochs + self.square_epochs + self.count * cycle + collapse

    @property
    def has_collapse(self) -> bool:
        """Whether the schedule has any collapse."""
        return bool(self.collapse_epochs or self.last_collapse_epochs)

    @model_validator(mode="after")
    def _ordered(self) -> Cycles:
        if self.square_to >= self.linear_to:
            raise ValueError("square_to must be below linear_to")
        if len(self.collapse_epochs) > self.count + 1:
            raise ValueError(f"collapse_epochs must have at most {self.count + 1} values")
        return self


class Schedule(Value):
    """What a source states about a run's schedule; what is None is not stated, and follows by the rules."""

    iterations: Count | None = Field(None, description="iterations of all phases together")
    epochs: Positive | None = None
    decay: Literal["linear", "steps", "cycles"] = "linear"
    base_lr: Positive | None = None
    warmup_epochs: NotNegative | None = None
    warmup: Literal["inside", "own-phase"] = Field(
        "inside",
        description="inside the first solver, whose rate then drops at its end, or as a separate phase",
    )
    weight_decay: Positive | None = None
    weight_decay_steps: Count = Field(1, description="parts before the collapse, with growing weight decay")
    collapse: bool = Field(False, description="end without augmentation, at twice the weight decay")
    collapse_epochs: Positive | None = None
    cycles: Cycles = Cycles()

    @model_validator(mode="after")
    def _one_length(self) -> Schedule:
        lengths = (self.iterations, self.epochs)
        if self.decay == "cycles":
            if lengths != (None, None):
                raise ValueError("with cycles, remove iterations and epochs: each part has its own length")
            if self.collapse or self.collapse_epochs or self.weight_decay_steps > 1:
                raise ValueError("with cycles, give `cycles.collapse_epochs`, and only one weight decay")
        elif lengths.count(None) != 1:
            raise ValueError("give either iterations or epochs")
        if self.decay == "steps" and (self.collapse or self.weight_decay_steps > 1):
            raise ValueError("with decay: steps, remove collapse and weight_decay_steps")
        return self


# The lr_iter of the 72-epoch recipe's first solver, 18,720 iterations of 4,096 images, is 59.9 epochs.
_PUBLISHED_ZERO_EPOCH = 60
_LARGE = f"constant from {LARGE_BATCH:,} images on"


@dataclass(frozen=True)
class PlannedPhase:
    """A phase: the keys of its solver, and the phase that it starts from if not the previous one."""

    name: str
    settings: Mapping[str, Any]
    is_augmented: bool = True
    weights: str | None = None


@dataclass(frozen=True)
class SchedulePlan:
    """The phases of a schedule, and the values in them that the schedule does not state."""

    phases: tuple[PlannedPhase, ...]
    derived: tuple[Derived, ...]


@dataclass(frozen=True)
class _Basis:
    """The numbers of a schedule at a given batch; `decays` are weight decays before and in the collapse."""

    per_epoch: float
    peak: float
    start: float
    warmup_epochs: float
    decays: tuple[float, float]

    def iterations(self, epochs: float) -> int:
        return round(epochs * self.per_epoch)

    def ramp(self, warmup: int) -> dict[str, Any]:
        return {"warmup_iter": warmup, "warmup_start_lr": self.start} if warmup else {}


def plan_phases(schedule: Schedule, batch: int, images: int) -> SchedulePlan:
    """Return the phases of a schedule for a global batch and a number of training images.

    Iterations are rounded to the nearest integer, rates to six digits. Raises ValueError if the parts of the
    schedule do not fit into its length.

    >>> plan = plan_phases(Schedule(iterations=14200), 8192, 1281167)
    >>> plan.phases[0].settings["base_lr"], plan.phases[0].settings["warmup_iter"]
    (3.2, 782)
    """
    peak = schedule.base_lr or peak_lr(batch)
    warmup = warmup_epochs(batch) if schedule.warmup_epochs is None else schedule.warmup_epochs
    has_collapse = schedule.collapse or (schedule.decay == "cycles" and schedule.cycles.has_collapse)
    first = schedule.weight_decay or (SMALL_WEIGHT_DECAY if has_collapse else WEIGHT_DECAY)
    start = min(warmup_start_lr(batch), peak)
    basis = _Basis(images / batch, peak, start, warmup, (first, 2 * first))
    make = {"linear": _plan_linear, "steps": _plan_steps, "cycles": _plan_cycles}[schedule.decay]
    phases = tuple(make(schedule, basis))
    return SchedulePlan(phases, tuple(_explain(schedule, basis, phases, batch)))


def _plan_steps(schedule: Schedule, basis: _Basis) -> Iterator[PlannedPhase]:
    total = schedule.iterations or basis.iterations(schedule.epochs or 0)
    warmup = basis.iterations(basis.warmup_epochs)
    steps = [basis.iterations(epochs) for epochs in STEPS_EPOCHS]
    _check_fits(warmup, steps[0], "the warm-up", "the first step")
    _check_fits(steps[-1], total, "the last step", "the run")
    settings = {
        "base_lr": basis.peak,
        "lr_policy": "multistep",
        "gamma": STEP_GAMMA,
        "stepvalue": tuple(steps),
        "max_iter": total,
        **basis.ramp(warmup),
        "weight_decay": basis.decays[0],
    }
    yield PlannedPhase("main", settings)


def _plan_linear(schedule: Schedule, basis: _Basis) -> Iterator[PlannedPhase]:
    """Decay linearly to 0 at the end of the run; a collapse, with power 2, replaces the last part."""
    total = schedule.iterations or basis.iterations(schedule.epochs or 0)
    warmup = basis.iterations(basis.warmup_epochs)
    end = total - (basis.iterations(_collapse_epochs(schedule, basis)) if schedule.collapse else 0)
    _check_fits(warmup, end, "the warm-up", "the decay")
    # Where the line is at the peak: at the start of the run, as Caffe counts, or after a warm-up phase.
    origin = warmup if schedule.warmup == "own-phase" else 0
    if origin:
        yield PlannedPhase("warmup", _own_warmup(basis, warmup) | {"weight_decay": basis.decays[0]})
    count = schedule.weight_decay_steps
    # The first part includes the warm-up, so that no part starts within it.
    bounds = [origin, *(warmup + round((end - warmup) * part / count) for part in range(1, count + 1))]
    decays = ramp_decays(*basis.decays, count)
    for index, (begin, stop) in enumerate(pairwise(bounds)):
        _check_fits(begin, stop, "the part before", "a part")
        settings = _line(basis, begin, stop, origin, total)
        if index == 0 and not origin:
            settings |= basis.ramp(warmup)
        name = "main" if count == 1 else f"main{index + 1}"
        yield PlannedPhase(name, settings | {"weight_decay": decays[index]})
    if schedule.collapse:
        rate = basis.peak * (total - end) / (total - origin)
        yield PlannedPhase("collapse", _collapse(rate, total - end, basis), is_augmented=False)


def _line(basis: _Basis, begin: int, end: int, origin: int, total: int) -> dict[str, Any]:
    """Return the settings from `begin` to `end` on the line from the peak at `origin` to 0 at `total`."""
    rate = six_digits(basis.peak * (total - begin) / (total - origin))
    settings = {"base_lr": rate, "power": 1, "max_iter": end - begin}
    if end == total:
        return settings | {"lr_policy": "poly"}
    return settings | {"lr_policy": "poly_cyc", "lr_iter": total - begin}


def _plan_cycles(schedule: Schedule, basis: _Basis) -> Iterator[PlannedPhase]:
    """Decay with power 1, then 2, then cycle; collapses that branch off come last."""
    cycles, own = schedule.cycles, schedule.warmup == "own-phase"
    ends, decay = [], {"weight_decay": basis.decays[0]}
    at, rate = 0.0, basis.peak
    warmup = basis.iterations(basis.warmup_epochs)
    _check_fits(warmup, basis.iterations(cycles.linear_epochs), "the warm-up", "the linear decay")
    if own and warmup:
        yield PlannedPhase("warmup", _own_warmup(basis, warmup) | decay)
        at = basis.warmup_epochs
    parts = (("init", cycles.linear_epochs, cycles.linear_to, 1),
             ("decay", cycles.linear_epochs + cycles.square_epochs, cycles.square_to, 2))  # fmt: skip
    for name, until, share, power in parts:
        left = basis.peak * share
        settings = _poly_cyc(basis, rate, at, until, power, rate / left)
        ramp = basis.ramp(warmup) if name == "init" and not own else {}
        yield PlannedPhase(name, settings | ramp | decay)
        at, rate = until, left
    ends.append(("decay", rate))
    for number in range(1, cycles.count + 1):
        low, rate = rate, rate * cycles.rise_times
        rise_end, end = at + cycles.rise_epochs, at + cycles.rise_epochs + cycles.fall_epochs
        rise = basis.iterations(rise_end) - basis.iterations(at)
        _check_fits(0, rise, "", "a cycle's rise")
        _check_fits(basis.iterations(rise_end), basis.iterations(end), "a cycle's rise", "the cycle")
        ramp = {"warmup_iter": rise, "warmup_start_lr": six_digits(low)}
        if own:
            fixed = {"base_lr": six_digits(rate), "lr_policy": "fixed", "max_iter": rise}
            yield PlannedPhase(f"rise{number}", fixed | ramp | decay)
            at, ramp = rise_end, {}
        settings = _poly_cyc(basis, rate, at, end, 2, cycles.fall_times)
        yield PlannedPhase(f"cyc{number}", settings | ramp | decay)
        at, rate = end, rate / cycles.fall_times
        ends.append((f"cyc{number}", rate))
    if cycles.last_collapse_epochs:
        settings = _collapse(rate, basis.iterations(cycles.last_collapse_epochs), basis)
        yield PlannedPhase("collapse", settings, is_augmented=False)
    for number, (epochs, (start, left)) in enumerate(zip(cycles.collapse_epochs, ends, strict=False), 1):
        settings = _collapse(left, basis.iterations(epochs), basis)
        yield PlannedPhase(f"c{number}", settings, is_augmented=False, weights=start)


def _poly_cyc(
    basis: _Basis, rate: float, at: float, until: float, power: int, times: float
) -> dict[str, Any]:
    """Return settings that divide the rate by `times` between two epochs, with the given power."""
    begin, end = basis.iterations(at), basis.iterations(until)
    _check_fits(begin, end, "the part before", "a part")
    return {
        "base_lr": six_digits(rate),
        "lr_policy": "poly_cyc",
        "power": power,
        "max_iter": end - begin,
        "lr_iter": round(decay_horizon(end - begin, times, power)),
    }


def _own_warmup(basis: _Basis, iterations: int) -> dict[str, Any]:
    return {"base_lr": basis.peak, "lr_policy": "fixed", "max_iter": iterations} | basis.ramp(iterations)


def _collapse(rate: float, iterations: int, basis: _Basis) -> dict[str, Any]:
    """Return settings that decay from `rate` to 0 with power 2, at twice the weight decay (section V-B)."""
    _check_fits(0, iterations, "", "a collapse")
    return {
        "base_lr": six_digits(rate),
        "lr_policy": "poly",
        "power": 2,
        "max_iter": iterations,
        "weight_decay": basis.decays[1],
    }


def _collapse_epochs(schedule: Schedule, basis: _Basis) -> float:
    epochs = schedule.epochs or (schedule.iterations or 0) / basis.per_epoch
    return schedule.collapse_epochs or collapse_epochs(epochs)


def _explain(
    schedule: Schedule, basis: _Basis, phases: tuple[PlannedPhase, ...], batch: int
) -> Iterator[Derived]:
    """Yield the values that the schedule does not state, with the rule behind each."""
    first = phases[0]
    if schedule.base_lr is None:
        is_linear = scaled_lr(batch) <= basis.peak
        yield Derived(
            phase=first.name, key="base_lr", rule="0.1 for each 256 images" if is_linear else _LARGE
        )
    if schedule.warmup_epochs is None and "warmup_iter" in first.settings:
        rule = f"{round(basis.warmup_epochs, 2):g} epochs"
        yield Derived(phase=first.name, key="warmup_iter", rule=rule)
        yield Derived(phase=first.name, key="warmup_start_lr", rule="as in the published solvers")
    if schedule.weight_decay is None:
        rule = "half of the standard 0.0001" if basis.decays[0] < WEIGHT_DECAY else "the standard one"
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


def _check_fits(begin: int, end: int, before: str, after: str) -> None:
    """Raise ValueError for a part without iterations; `before` names the previous part, "" for none."""
    if begin < end:
        return
    if before:
        raise ValueError(f"{after} would end at iteration {end}, but {before} ends at {begin}")
    raise ValueError(f"{after} would have no iterations")


def six_digits(rate: float) -> float:
    """Round a rate to the six digits that Caffe's log prints.

    >>> six_digits(1.6 * 0.22)
    0.352
    """
    return float(f"{rate:.6g}")
