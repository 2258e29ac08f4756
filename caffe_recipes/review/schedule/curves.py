"""The points and the marks that a picture of a schedule is drawn from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.rates import POLICIES, lr_at
from caffe_recipes.review.schedule.schedules import Schedule, Stretch, rates_between

_SAMPLES = 600  # of a schedule's part: as many as a page has dots


@dataclass(frozen=True)
class Curve:
    """The rates of a stretch at the iterations that its line needs; NaN where there is no finite rate.

    The first `taken` points lead to the snapshot that the next stretch starts from.
    """

    xs: tuple[float, ...]
    rates: tuple[float, ...]
    taken: int


@dataclass(frozen=True)
class Mark:
    """A jump: at a warm-up's end or at a join, from one rate to another."""

    x: float
    before: float
    after: float
    is_join: bool


def curve_of(stretch: Stretch, samples: int = _SAMPLES) -> Curve:
    """Sample a stretch evenly, and on both sides of each jump; no points for `plateau`."""
    if stretch.solver.lr_policy not in POLICIES:
        return Curve((), (), 0)
    iterations = sorted(set(_iterations(stretch, samples)))
    rates = (lr_at(stretch.solver, iteration) for iteration in iterations)
    return Curve(
        xs=tuple(stretch.x_at(iteration) for iteration in iterations),
        rates=tuple(rate if math.isfinite(rate) else math.nan for rate in rates),
        taken=sum(iteration <= stretch.taken_iter for iteration in iterations),
    )


def marks_of(schedule: Schedule) -> Iterator[Mark]:
    """Yield the jumps of a schedule that are finite numbers, from left to right in each stretch."""
    for stretch in schedule.stretches:
        rates = rates_between(stretch.solver, stretch.iterations)
        if rates is None:
            continue
        warmup_x = stretch.x_at(stretch.solver.warmup_iter)
        jumps = (
            (stretch.begins, stretch.rate_before, rates.first, True),
            (warmup_x, rates.warmup_end, rates.after_warmup, False),
        )
        for x, before, after, is_join in jumps:
            if before is not None and after is not None and math.isfinite(before) and math.isfinite(after):
                yield Mark(x, before, after, is_join)


def _iterations(stretch: Stretch, samples: int) -> Iterator[int]:
    last, solver = stretch.iterations - 1, stretch.solver
    yield from range(0, last + 1, max(1, last // samples))
    edges = (solver.warmup_iter, stretch.taken_iter, *_steps(solver, last)[:samples])
    near = chain(*((edge - 1, edge) for edge in edges), (last,))
    yield from (iteration for iteration in near if 0 <= iteration <= last)


def _steps(solver: pb.SolverParameter, last: int) -> Sequence[int]:
    if solver.lr_policy == "step" and solver.stepsize > 0:
        return range(solver.stepsize, last + 1, solver.stepsize)
    return list(solver.stepvalue) if solver.lr_policy == "multistep" else []
