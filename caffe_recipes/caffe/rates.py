"""Compute a solver's learning rate at any iteration, in Caffe's float32 arithmetic and without numpy.

Source: the solver of SURFsara's fork of Intel Caffe, in which warm-up iterations count as iterations of the
policy, so that the rate drops at the end of the warm-up.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from caffe_recipes.caffe import pb

_Policy = Callable[[pb.SolverParameter, int], float]


def float32(value: float) -> float:
    """Round to the nearest float32, the value of a C++ float.

    >>> float32(0.1)
    0.10000000149011612
    >>> float32(1e39), float32(-1e39)
    (inf, -inf)
    """
    return ctypes.c_float(value).value


def lr_at(solver: pb.SolverParameter, iteration: int) -> float:
    """Return the learning rate of the update at `iteration`, counted from 0.

    It is infinite or NaN wherever Caffe's own result is. Raises KeyError for an unknown policy, and for
    `plateau`, whose rate depends on the losses.

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
    """Return base_lr * gamma^step, the rate of `step`, `multistep` and `plateau` after `step` steps.

    >>> f"{stepped_lr(pb.SolverParameter(base_lr=0.1, gamma=0.5), 2):.6g}"
    '0.025'
    """
    return float32(solver.base_lr * _power(solver.gamma, step))


def steps_at(solver: pb.SolverParameter, iteration: int) -> int:
    """Return the number of steps that `step` or `multistep` has taken by an iteration; 0 for other policies.

    >>> steps_at(pb.SolverParameter(lr_policy="multistep", stepvalue=[10, 20]), 20)
    2
    """
    if solver.lr_policy == "step":
        return iteration // solver.stepsize
    return _steps_taken(solver.stepvalue, iteration) if solver.lr_policy == "multistep" else 0


def step_iters(solver: pb.SolverParameter, last: int) -> Sequence[int]:
    """Return the iterations at which the rate steps: all for `multistep`, those up to `last` for `step`.

    >>> list(step_iters(pb.SolverParameter(lr_policy="step", stepsize=10), 25))
    [10, 20]
    """
    if solver.lr_policy == "step" and solver.stepsize > 0:
        return range(solver.stepsize, last + 1, solver.stepsize)
    return solver.stepvalue if solver.lr_policy == "multistep" else ()


@dataclass(frozen=True)
class RateFault:
    """A mistake in a solver's schedule, and its effect where that is not obvious."""

    kind: Literal["no base_lr", "unknown policy", "no lr_iter", "incomplete policy", "not finite"]
    what: str
    outcome: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.outcome}" if self.outcome else self.what


def check_rates(solver: pb.SolverParameter) -> list[RateFault]:
    """Return the mistakes in a solver's schedule. With most of them, Caffe itself trains and returns 0.

    >>> str(*check_rates(pb.SolverParameter(lr_policy="poly_cyc", base_lr=1, max_iter=10)))
    'lr_policy poly_cyc needs lr_iter above 0: without it the rate is NaN'
    """
    policy = solver.lr_policy
    if not solver.HasField("base_lr"):
        return [RateFault("no base_lr", "base_lr is missing", "the rate would be 0")]
    if policy not in POLICY_NEEDS:
        known = ", ".join(sorted(POLICY_NEEDS))
        return [RateFault("unknown policy", f"lr_policy '{policy}' is unknown; the policies are {known}")]
    missing = [field for field in POLICY_NEEDS[policy] if not _is_given(solver, field)]
    if missing:
        return [_missing_fault(solver, field) for field in missing]
    if policy == "plateau":
        return []
    # A rate can become negative or infinite at the key iterations and at the end of `poly_cyc`.
    places = filter(None, key_iters(solver, solver.max_iter).values())
    for iteration in sorted({0, *places, solver.lr_iter, solver.lr_iter + 1}):
        if not 0 <= iteration < solver.max_iter:
            continue
        rate = lr_at(solver, iteration)
        if not math.isfinite(rate) or rate < 0:
            what = f"the rate of lr_policy {policy} is {rate:.6g} at iteration {iteration}"
            return [RateFault("not finite", what)]
    return []


@dataclass(frozen=True)
class KeyRates:
    """The key rates of a schedule: of the first and last update, and of those around the warm-up's end.

    `warmup_end` and `after_warmup` are None if no warm-up ends within the schedule.
    """

    first: float
    warmup_end: float | None
    after_warmup: float | None
    last: float


def key_iters(solver: pb.SolverParameter, iterations: int) -> dict[str, int | None]:
    """Return the iteration of each key rate, by the names of `KeyRates`; None for a rate that is None.

    >>> key_iters(pb.SolverParameter(warmup_iter=4), 8)
    {'first': 0, 'warmup_end': 3, 'after_warmup': 4, 'last': 7}
    """
    ends = 0 < solver.warmup_iter < iterations
    return {
        "first": 0 if iterations > 0 else None,
        "warmup_end": solver.warmup_iter - 1 if ends else None,
        "after_warmup": solver.warmup_iter if ends else None,
        "last": iterations - 1 if iterations > 0 else None,
    }


def key_rates(solver: pb.SolverParameter, iterations: int) -> KeyRates | None:
    """Return the key rates of a schedule; None for `plateau`, whose rate depends on the losses.

    `iterations` must be at least 1.

    >>> solver = pb.SolverParameter(lr_policy="poly", power=1, base_lr=1, max_iter=8, warmup_iter=4)
    >>> key_rates(solver, 8)
    KeyRates(first=0.0, warmup_end=0.75, after_warmup=0.5, last=0.125)
    """
    if solver.lr_policy not in POLICIES:
        return None
    at = key_iters(solver, iterations).items()
    rates: dict[str, Any] = {name: None if place is None else lr_at(solver, place) for name, place in at}
    return KeyRates(**rates)


def _power(base: float, exponent: float) -> float:
    """Return base^exponent as C's pow() does, which returns infinity or NaN instead of raising."""
    try:
        value = base**exponent
    except (ZeroDivisionError, OverflowError):
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
    """Count the step values that have been reached, up to the first one that has not.

    Equal values all count, and so do those within the warm-up: Intel's Caffe and its forks compute the rate
    once for the log and once for each learned blob, and each computation takes one step. BVLC's Caffe and
    nvcaffe take at most one step per iteration.
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

# Without these fields Caffe trains at a rate of 0 or NaN and exits 0; without `power` the rate is constant.
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


def _is_given(solver: pb.SolverParameter, field: str) -> bool:
    if field in ("stepvalue", "plateau_winsize"):
        return len(getattr(solver, field)) > 0
    if field in ("stepsize", "lr_iter"):
        return bool(getattr(solver, field) > 0)
    return solver.HasField(field)


def _missing_fault(solver: pb.SolverParameter, field: str) -> RateFault:
    if field == "lr_iter":
        what = "lr_policy poly_cyc needs lr_iter above 0"
        return RateFault("no lr_iter", what, "without it the rate is NaN")
    above = " above 0" if field == "stepsize" else ""
    return RateFault("incomplete policy", f"lr_policy {solver.lr_policy} needs {field}{above}")


MIN_JUMP = 0.02


def compare_rates(before: float, after: float) -> str:
    """Describe a change of the rate in per cent, or as a factor if it at least doubles.

    >>> compare_rates(1.59904, 1.46667), compare_rates(0.1, 0.103), compare_rates(0.001, 0.5)
    ('drops by 8.3%', 'rises by 3.0%', 'rises 500-fold')
    """
    ratio = after / before if before else math.inf
    if ratio >= 2:
        return f"rises {ratio:.3g}-fold" if before else "rises from 0"
    return f"{'rises' if ratio > 1 else 'drops'} by {abs(ratio - 1) * 100:.1f}%"


def is_jump(before: float, after: float) -> bool:
    """Return whether a rate changes by more than 2%.

    >>> is_jump(0.255136, 0.255), is_jump(0.93, 1.02), is_jump(0, 0)
    (False, True, False)
    """
    return abs(after - before) > MIN_JUMP * abs(before)
