"""The rate of one solver: whether it is there at all, where its warm-up ends, and how it ends."""

from __future__ import annotations

import math
from collections.abc import Iterator

from caffe_recipes.caffe.rates import check_rates, lr_at
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.chains.chain import Link, first_iter, has_rates
from caffe_recipes.review.lint.rules import finding

LEAST_JUMP = 0.02
_MOST_AT_THE_END = 1e-5
_WITH_POWER = ("poly", "poly_cyc", "inv")
_TO_ZERO = ("poly", "poly_cyc")
# What Caffe does about each; by the rule that a message of check_rates falls under.
_FAULTS = {
    "base-lr-missing": (
        "Caffe trains at rate 0, learns nothing, and exits 0",
        "base_lr: the rate to start at",
    ),
    "lr-policy-unknown": ("Caffe stops with it once the warm-up has ended", "one of the known policies"),
    "lr-iter-missing": (
        "the rate is -nan, then inf; Caffe trains on to the end and exits 0",
        "lr_iter: the iteration at which the rate would reach 0",
    ),
    "lr-policy-incomplete": ("Caffe takes 0 for it: the rate is 0 or NaN, and it exits 0", "the field"),
    "rate-not-finite": ("the weights become NaN; Caffe trains on to the end and exits 0", "other numbers"),
}


def compare_rates(before: float, after: float) -> str:
    """Say how the rate changes, in per cent up to the double and in times beyond.

    >>> compare_rates(1.59904, 1.46667), compare_rates(0.1, 0.103), compare_rates(0.001, 0.5)
    ('drops by 8.3 %', 'rises by 3.0 %', 'rises to 500 times')
    """
    ratio = after / before if before else math.inf
    if ratio >= 2:
        return f"rises to {ratio:.3g} times" if before else "rises from 0"
    return f"{'rises' if ratio > 1 else 'drops'} by {abs(ratio - 1) * 100:.1f} %"


def is_jump(before: float, after: float) -> bool:
    """Whether a rate changes by more than 2 %.

    >>> is_jump(0.255136, 0.255), is_jump(0.93, 1.02), is_jump(0, 0)
    (False, True, False)
    """
    return abs(after - before) > LEAST_JUMP * abs(before)


def check_schedule(link: Link, *, is_last: bool, is_alone: bool = False) -> Iterator[Finding]:
    """Find what is wrong with the rate of one phase: the last of its chain, or its only one."""
    solver, where = link.solver.message, link.solver.where
    if solver.max_iter <= 0:
        what = "max_iter is missing" if not solver.HasField("max_iter") else f"max_iter is {solver.max_iter}"
        yield finding(
            "max-iter-missing", where("max_iter"), what, "Caffe trains nothing", "max_iter", link.name
        )
    yield from _faults(link)
    if solver.lr_policy in _WITH_POWER and not solver.HasField("power"):
        what = f"lr_policy {solver.lr_policy} without power"
        effect = f"Caffe takes 0 for it: the rate stays at {solver.base_lr:.4g}"
        yield finding("power-missing", where("lr_policy"), what, effect, "power: 1, or another", link.name)
    if solver.warmup_iter > solver.max_iter > 0:
        what = f"warmup_iter {solver.warmup_iter} is beyond max_iter {solver.max_iter}"
        effect = f"the rate never reaches base_lr {solver.base_lr:.4g}, and lr_policy is never used"
        write = f"warmup_iter: below {solver.max_iter}"
        yield finding("warmup-never-ends", where("warmup_iter"), what, effect, write, link.name)
    if has_rates(solver):
        yield from _zero(link)
        yield from _warmup_end(link)
        if is_last:
            yield from _end(link, is_alone=is_alone)


def _faults(link: Link) -> Iterator[Finding]:
    solver, where = link.solver.message, link.solver.where
    if solver.lr_policy == "poly_cyc" and 0 < solver.lr_iter < solver.max_iter:
        if solver.power == 2:
            effect = "past it the rate rises again"
        else:
            effect = "past it the power of a negative number is taken: NaN, or a rate that turns around"
        what = f"poly_cyc runs to max_iter {solver.max_iter}, past its lr_iter {solver.lr_iter}"
        write = f"lr_iter: {solver.max_iter} or more"
        yield finding("lr-iter-passed", where("lr_iter"), what, effect, write, link.name)
        return
    is_zero = solver.HasField("base_lr") and solver.base_lr == 0
    for what in ["base_lr is 0"] if is_zero else check_rates(solver):
        rule = _rule_of(what)
        field = "base_lr" if rule == "base-lr-missing" else "lr_policy"
        yield finding(rule, where(field), what.partition(": ")[0], *_FAULTS[rule], link.name)


def _rule_of(fault: str) -> str:
    """Tell which rule a message of check_rates falls under."""
    if fault.startswith("base_lr is "):
        return "base-lr-missing"
    if "is unknown" in fault:
        return "lr-policy-unknown"
    if "needs lr_iter" in fault:
        return "lr-iter-missing"
    return "lr-policy-incomplete" if " needs " in fault else "rate-not-finite"


def _zero(link: Link) -> Iterator[Finding]:
    solver, middle = link.solver.message, link.last_iter // 2
    if solver.base_lr and middle and lr_at(solver, middle) == 0:
        what = f"the rate is 0 at iteration {middle}, halfway"
        effect = "nothing is learned from there on"
        write = "a gamma closer to 1, fewer steps, or fewer iterations"
        yield finding("rate-zero", link.solver.where("lr_policy"), what, effect, write, link.name)


def _warmup_end(link: Link) -> Iterator[Finding]:
    solver = link.solver.message
    warmup = solver.warmup_iter
    if not first_iter(link) < warmup < link.last_iter:
        return
    before, after = lr_at(solver, warmup - 1), lr_at(solver, warmup)
    # A short warm-up climbs by more than 2 % in each iteration; only what leaves its line is a jump.
    if not (is_jump(before, after) and is_jump(solver.base_lr, after)):
        return
    what = (
        f"the rate {compare_rates(before, after)} where the warm-up ends, "
        f"{before:.4g} to {after:.4g} (iterations {warmup - 1} and {warmup})"
    )
    effect = f"warm-up iterations count as iterations of {solver.lr_policy}, which has moved on meanwhile"
    write = (
        f'if it is not meant, a phase of its own for the warm-up (lr_policy: "fixed", max_iter: {warmup}), '
        f"and a next one from base_lr: {solver.base_lr:.4g} without warmup_iter"
    )
    place = link.solver.where("warmup_iter")
    yield finding("warmup-end-jump", place, what, effect, write, link.name, before=before, after=after)


def _end(link: Link, *, is_alone: bool) -> Iterator[Finding]:
    solver = link.solver.message
    end = lr_at(solver, link.last_iter - 1)
    if end <= _MOST_AT_THE_END * solver.base_lr:
        return
    what = f"the last phase ends at a rate of {end:.4g}, {end / solver.base_lr:.2g} of its base_lr"
    effect = "the last updates still carry the noise of single batches into the final model"
    place, values = link.solver.where("max_iter"), {"end": end, "base_lr": solver.base_lr}
    # Classical schedules never go to 0, and are one solver, or resumed ones.
    if solver.lr_policy not in _TO_ZERO and (is_alone or link.resumes):
        write = 'nothing, if the schedule is known to do; lr_policy: "poly" goes to 0'
        yield finding("final-rate-kept", place, what, effect, write, link.name, **values)
    else:
        write = 'a phase after it that goes to 0, as lr_policy: "poly" with power: 2 does'
        yield finding("final-rate-high", place, what, effect, write, link.name, **values)
