"""A solver's learning rate at any iteration, in Caffe's float32 arithmetic and without numpy.

Source: the solver of SURFsara's Intel Caffe; warm-up iterations count as iterations of the policy, so the
rate drops where warm-up ends.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from caffe_recipes.caffe import pb

_Policy = Callable[[pb.SolverParameter, int], float]


def float32(value: float) -> float:
    """Round to the nearest float32, as a C++ float holds it.

    >>> float32(0.1)
    0.10000000149011612
    >>> float32(1e39), float32(-1e39)
    (inf, -inf)
    """
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def lr_at(solver: pb.SolverParameter, iteration: int) -> float:
    """Give the rate of the update that iteration `iteration` (from 0) makes.

    Where Caffe's own arithmetic ends in infinity or NaN, so does this; an unknown policy, and `plateau`,
    which needs the losses, raise KeyError.

    >>> init = pb.SolverParameter(lr_policy="poly_cyc", base_lr=1.6, power=1, max_iter=7800, lr_iter=18720,
    ...                           warmup_iter=1560, warmup_start_lr=0.1)
    >>> [f"{lr_at(init, i):.6g}" for i in (0, 1559, 1560, 7799)]
    ['0.1', '1.59904', '1.46667', '0.933419']
    >>> step = pb.SolverParameter(lr_policy="step", base_lr=0.1, gamma=0.1, stepsize=30)
    >>> [f"{lr_at(step, i):.6g}" for i in (29, 30, 60)]
    ['0.1', '0.01', '0.001']
    """
    if iteration < solver.warmup_iter:
        left = solver.warmup_iter - iteration
        ramp = float32(iteration * solver.base_lr) + float32(left * solver.warmup_start_lr)
        return float32(float32(ramp) / solver.warmup_iter)
    return float32(POLICIES[solver.lr_policy](solver, iteration))


def stepped_lr(solver: pb.SolverParameter, step: int) -> float:
    """Give base_lr * gamma ^ step: the rate of `step`, `multistep` and `plateau` after `step` steps.

    >>> f"{stepped_lr(pb.SolverParameter(base_lr=0.1, gamma=0.5), 2):.6g}"
    '0.025'
    """
    return float32(solver.base_lr * _power(solver.gamma, step))


def steps_at(solver: pb.SolverParameter, iteration: int) -> int:
    """Count the steps that `step` or `multistep` has taken by an iteration; other policies take none.

    >>> steps_at(pb.SolverParameter(lr_policy="multistep", stepvalue=[10, 20]), 20)
    2
    """
    if solver.lr_policy == "step":
        return iteration // solver.stepsize
    return _steps_taken(solver.stepvalue, iteration) if solver.lr_policy == "multistep" else 0


def step_iters(solver: pb.SolverParameter, last: int) -> Sequence[int]:
    """Give the iterations at which `step` or `multistep` steps, those of `step` up to an iteration.

    >>> list(step_iters(pb.SolverParameter(lr_policy="step", stepsize=10), 25))
    [10, 20]
    """
    if solver.lr_policy == "step" and solver.stepsize > 0:
        return range(solver.stepsize, last + 1, solver.stepsize)
    return solver.stepvalue if solver.lr_policy == "multistep" else ()


@dataclass(frozen=True)
class RateFault:
    """What is wrong with a solver's schedule, and its outcome where that is not obvious."""

    kind: Literal["no base_lr", "unknown policy", "no lr_iter", "incomplete policy", "not finite"]
    what: str
    outcome: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.outcome}" if self.outcome else self.what


def check_rates(solver: pb.SolverParameter) -> list[RateFault]:
    """Find what is wrong with a solver's schedule; Caffe itself trains on, and returns 0, in most cases.

    >>> str(*check_rates(pb.SolverParameter(lr_policy="poly_cyc", base_lr=1, max_iter=10)))
    'lr_policy poly_cyc needs lr_iter above 0: without it the rate is NaN'
    """
    policy = solver.lr_policy
    if not solver.HasField("base_lr"):
        return [RateFault("no base_lr", "base_lr is missing", "the rate would be 0")]
    if policy not in POLICY_NEEDS:
        known = ", ".join(sorted(POLICY_NEEDS))
        return [RateFault("unknown policy", f"lr_policy '{policy}' is unknown; known are {known}")]
    missing = [_missing(solver, field) for field in POLICY_NEEDS[policy] if not _given(solver, field)]
    if missing:
        return missing
    if policy == "plateau":
        return []
    # Beside the telling iterations, a rate can leave the finite and positive numbers where `poly_cyc` ends.
    places = filter(None, telling_iters(solver, solver.max_iter).values())
    for iteration in sorted({0, *places, solver.lr_iter, solver.lr_iter + 1}):
        if not 0 <= iteration < solver.max_iter:
            continue
        rate = lr_at(solver, iteration)
        if not math.isfinite(rate) or rate < 0:
            what = f"the rate of lr_policy {policy} is {rate:.6g} at iteration {iteration}"
            return [RateFault("not finite", what)]
    return []


@dataclass(frozen=True)
class TellingRates:
    """The rates that tell a schedule: the first, both sides of the warm-up's end, and the last update's.

    `warmup_end` and `after_warmup` are None where no warm-up ends.
    """

    first: float
    warmup_end: float | None
    after_warmup: float | None
    last: float


def telling_iters(solver: pb.SolverParameter, iterations: int) -> dict[str, int | None]:
    """Give the iterations of the telling rates, by the names of `TellingRates`; None where there is none.

    >>> telling_iters(pb.SolverParameter(warmup_iter=4), 8)
    {'first': 0, 'warmup_end': 3, 'after_warmup': 4, 'last': 7}
    """
    ends = 0 < solver.warmup_iter < iterations
    return {
        "first": 0 if iterations > 0 else None,
        "warmup_end": solver.warmup_iter - 1 if ends else None,
        "after_warmup": solver.warmup_iter if ends else None,
        "last": iterations - 1 if iterations > 0 else None,
    }


def telling_rates(solver: pb.SolverParameter, iterations: int) -> TellingRates | None:
    """Return the telling rates of one iteration or more; None for `plateau`, which depends on the losses.

    >>> solver = pb.SolverParameter(lr_policy="poly", power=1, base_lr=1, max_iter=8, warmup_iter=4)
    >>> telling_rates(solver, 8)
    TellingRates(first=0.0, warmup_end=0.75, after_warmup=0.5, last=0.125)
    """
    if solver.lr_policy not in POLICIES:
        return None
    at = telling_iters(solver, iterations).items()
    rates: dict[str, Any] = {name: None if place is None else lr_at(solver, place) for name, place in at}
    return TellingRates(**rates)


def _power(base: float, exponent: float) -> float:
    """pow() of C, which has no exceptions."""
    try:
        value = base**exponent
    except ZeroDivisionError:
        return math.inf
    except OverflowError:
        return math.inf
    return math.nan if isinstance(value, complex) else value


def _powf(base: float, exponent: float) -> float:
    return float32(_power(base, exponent))


def _ratio(part: int, whole: int) -> float:
    if not whole:
        return math.inf if part else math.nan
    return float32(float32(part) / float32(whole))


def _polynomial(solver: pb.SolverParameter, iteration: int, whole: int) -> float:
    return solver.base_lr * _powf(float32(1 - _ratio(iteration, whole)), solver.power)


def _inverse(solver: pb.SolverParameter, iteration: int) -> float:
    base = float32(1 + float32(solver.gamma * iteration))
    return solver.base_lr * _powf(base, -solver.power)


def _sigmoid(solver: pb.SolverParameter, iteration: int) -> float:
    exponent = float32(-solver.gamma * (iteration - solver.stepsize))
    growth = float32(math.exp(exponent)) if exponent < 100 else math.inf
    return solver.base_lr * float32(1 / float32(1 + growth))


def _steps_taken(stepvalues: Iterable[int], iteration: int) -> int:
    """Count the step values reached, in their order: Caffe never looks past one that is still ahead.

    Of equal ones, and those that a warm-up passed, all are counted: Intel's line computes the rate once for
    the log, one step on, and again for each learned blob, one more step each. BVLC's and nvcaffe take one in
    an iteration.
    """
    taken = 0
    for value in stepvalues:
        if iteration < value:
            break
        taken += 1
    return taken


POLICIES: dict[str, _Policy] = {
    "fixed": lambda s, i: s.base_lr,
    "step": lambda s, i: stepped_lr(s, steps_at(s, i)),
    "exp": lambda s, i: s.base_lr * _power(s.gamma, i),
    "inv": _inverse,
    "multistep": lambda s, i: stepped_lr(s, steps_at(s, i)),
    "poly": lambda s, i: _polynomial(s, i, s.max_iter),
    "poly_cyc": lambda s, i: _polynomial(s, i, s.lr_iter),
    "sigmoid": _sigmoid,
}

# Without these Caffe trains at a zero or NaN rate and exits 0; without `power` it trains at a constant one.
POLICY_NEEDS: dict[str, tuple[str, ...]] = {
    "fixed": (),
    "step": ("gamma", "stepsize"),
    "exp": ("gamma",),
    "inv": ("gamma",),
    "multistep": ("gamma", "stepvalue"),
    "plateau": ("gamma", "plateau_winsize"),
    "poly": (),
    "poly_cyc": ("lr_iter",),
    "sigmoid": ("gamma", "stepsize"),
}


def _given(solver: pb.SolverParameter, field: str) -> bool:
    if field in ("stepvalue", "plateau_winsize"):
        return len(getattr(solver, field)) > 0
    if field in ("stepsize", "lr_iter"):
        return bool(getattr(solver, field) > 0)
    return solver.HasField(field)


def _missing(solver: pb.SolverParameter, field: str) -> RateFault:
    if field == "lr_iter":
        what = "lr_policy poly_cyc needs lr_iter above 0"
        return RateFault("no lr_iter", what, "without it the rate is NaN")
    above = " above 0" if field == "stepsize" else ""
    return RateFault("incomplete policy", f"lr_policy {solver.lr_policy} needs {field}{above}")
