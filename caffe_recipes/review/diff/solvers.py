"""Two solvers: their fields, and what the change does to the rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.rates import check_rates, lr_at
from caffe_recipes.review.diff.changes import Change, RateChange
from caffe_recipes.review.diff.messages import diff_messages
from caffe_recipes.review.diff.nets import diff_nets

# Iterations at which two long schedules are compared before the nearest ones are looked at closely.
_GRID = 2_000

_NETS = ("net_param", "train_net_param")


@dataclass(frozen=True)
class Scale:
    """What one iteration trains on, of how many: images in all ranks' batches, images of an epoch."""

    images: int | None = None
    batch: int | None = None

    def epochs(self, iterations: int) -> float | None:
        """Give the epochs of so many iterations, where both numbers are known."""
        return iterations * self.batch / self.images if self.batch and self.images else None


def diff_solvers(old: pb.SolverParameter, new: pb.SolverParameter, *, defaults: bool = False) -> list[Change]:
    """Give the fields in which two solvers differ; nets that they hold are compared layer by layer."""
    both = [name for name in _NETS if old.HasField(name) and new.HasField(name)]
    found = diff_messages(old, new, defaults=defaults, skip=both)
    for name in both:
        for change in diff_nets(getattr(old, name), getattr(new, name), defaults=defaults):
            layer = f"{name}: {change.layer}" if change.layer else name
            found.append(Change(change.kind, change.field, change.old, change.new, layer, change.note))
    return found


def find_rate_problem(solver: pb.SolverParameter) -> str:
    """Say why a solver has no rate to compare, or nothing if it has one."""
    if solver.lr_policy == "plateau":
        return "the rate of lr_policy plateau depends on the losses"
    return next(iter(check_rates(solver)), "")


def diff_rates(
    old: pb.SolverParameter, new: pb.SolverParameter, scales: tuple[Scale, Scale] = (Scale(), Scale())
) -> list[RateChange]:
    """Give what two schedules come to, or nothing where they are the same.

    Start, both sides of the warm-up's end, end; iterations; epochs, where the scale is known; and the
    iteration at which one rate is the most times the other. A side without a rate (see `find_rate_problem`)
    gives None.

    >>> def solver(policy):
    ...     return pb.SolverParameter(lr_policy=policy, power=1, base_lr=1, max_iter=100)
    >>> [(rate.name, rate.old, round(rate.new, 2)) for rate in diff_rates(solver("fixed"), solver("poly"))]
    [('start', 1.0, 1.0), ('end', 1.0, 0.01), ('iterations', 100, 100), ('greatest ratio', 1.0, 0.01)]
    """
    rates = _rate_of(old), _rate_of(new)
    at_places = (_rate_change(name, rates, (place(old), place(new))) for name, place in _PLACES.items())
    found = [change for change in at_places if change.old is not None or change.new is not None]
    iterations = RateChange("iterations", old.max_iter, new.max_iter)
    epochs = scales[0].epochs(old.max_iter), scales[1].epochs(new.max_iter)
    ratio = _greatest_ratio(old, new) if rates[0] and rates[1] else None
    changed = any(change.old != change.new for change in (*found, iterations)) or epochs[0] != epochs[1]
    if not changed and ratio is None:
        return []
    found.append(iterations)
    if any(epochs):
        found.append(RateChange("epochs", *epochs))
    return [*found, *([ratio] if ratio else [])]


def _warmup_end(solver: pb.SolverParameter) -> int | None:
    return solver.warmup_iter if 0 < solver.warmup_iter < solver.max_iter else None


def _before_warmup_end(solver: pb.SolverParameter) -> int | None:
    end = _warmup_end(solver)
    return None if end is None else end - 1


_PLACES: dict[str, Callable[[pb.SolverParameter], int | None]] = {
    "start": lambda solver: 0 if solver.max_iter > 0 else None,
    "end of warm-up": _before_warmup_end,
    "after warm-up": _warmup_end,
    "end": lambda solver: solver.max_iter - 1 if solver.max_iter > 0 else None,
}


def _rate_of(solver: pb.SolverParameter) -> Callable[[int], float] | None:
    return None if find_rate_problem(solver) else lambda iteration: lr_at(solver, iteration)


def _rate_change(
    name: str,
    rates: tuple[Callable[[int], float] | None, Callable[[int], float] | None],
    places: tuple[int | None, int | None],
) -> RateChange:
    old, new = (
        rate(place) if rate and place is not None else None for rate, place in zip(rates, places, strict=True)
    )
    return RateChange(name, old, new, places)


def _greatest_ratio(old: pb.SolverParameter, new: pb.SolverParameter) -> RateChange | None:
    """Find where the two rates differ by the greatest factor, among the iterations that both train.

    Up to 2,000 iterations all are looked at; beyond, an even grid, the ends of every step and warm-up, and
    then all around the best of them, ever closer: exact for rates that bend slowly in between.
    """
    last = min(old.max_iter, new.max_iter) - 1

    def factor(iteration: int) -> float:
        a, b = lr_at(old, iteration), lr_at(new, iteration)
        return abs(math.log(b / a)) if a > 0 and b > 0 else 0.0

    step = max(1, last // _GRID)
    places = {*range(0, last + 1, step), *_bends(old, last), *_bends(new, last), last}
    best = max(sorted(place for place in places if 0 <= place <= last), key=factor, default=0)
    while step > 1:
        low, high = max(0, best - step), min(last, best + step)
        step = max(1, (high - low) // _GRID)
        best = max(best, *range(low, high + 1, step), key=factor)
    if last < 0 or factor(best) == 0:
        return None
    return RateChange("greatest ratio", lr_at(old, best), lr_at(new, best), (best, best))


def _bends(solver: pb.SolverParameter, last: int) -> Iterator[int]:
    """Yield the iterations on both sides of each jump of a rate."""
    jumps = [solver.warmup_iter, *solver.stepvalue]
    if solver.lr_policy == "step":
        jumps += range(solver.stepsize, min(last, solver.stepsize * _GRID) + 1, solver.stepsize)
    for jump in jumps:
        yield from (jump - 1, jump)
