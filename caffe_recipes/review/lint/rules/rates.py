"""Rules for the rate of one solver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from caffe_recipes.caffe.chain import first_iter, has_known_rates
from caffe_recipes.caffe.rates import RateFault, check_rates, compare_rates, is_jump, lr_at
from caffe_recipes.review.lint.registry import Explanation, finding
from caffe_recipes.review.lint.subjects import SolverView, rate_rule

if TYPE_CHECKING:
    from caffe_recipes.review.lint.findings import Finding


_MAX_FINAL_SHARE = 1e-5
_MAX_RATE = 5
_POWER_POLICIES = ("poly", "poly_cyc", "inv")
_POLICIES_TO_ZERO = ("poly", "poly_cyc")
# For each kind of RateFault: the rule that reports it, and the field.
_FAULTS = {
    "no base_lr": ("base-lr-missing", "base_lr"),
    "unknown policy": ("lr-policy-unknown", "lr_policy"),
    "no lr_iter": ("lr-iter-missing", "lr_policy"),
    "incomplete policy": ("lr-policy-incomplete", "lr_policy"),
    "not finite": ("rate-not-finite", "lr_policy"),
}


@rate_rule(
    "max-iter-missing",
    "warning",
    "no max_iter, or max_iter 0: nothing is trained",
    effect="`caffe train` trains nothing; only a program that calls Solver::Step trains",
    write="set max_iter",
)
@rate_rule(
    "base-lr-large",
    "warning",
    "a base_lr too large for any batch of this size",
    what="base_lr is {base_lr:.4g}; training rarely works above {limit:.4g}",
    effect="the loss becomes NaN or saturates, but Caffe trains to the end",
    write="base_lr: for example 0.1 per 256 images of the global batch",
)
def _check_schedule(view: SolverView) -> Iterator[Finding]:
    solver = view.message
    if solver.max_iter <= 0:
        what = "max_iter is missing" if not solver.HasField("max_iter") else f"max_iter is {solver.max_iter}"
        yield finding("max-iter-missing", "max_iter", what)
    limit = _max_rate(view.batch, is_warmed_up=solver.warmup_iter > 0)
    # NVIDIA's larc scales the rate of each layer down.
    if solver.base_lr > limit and not getattr(view.link.solver.given, "larc", False):
        yield finding("base-lr-large", "base_lr", base_lr=solver.base_lr, limit=limit)


@rate_rule(
    "lr-iter-passed",
    "error",
    "a poly_cyc policy that runs past its lr_iter",
    what="poly_cyc runs to max_iter {max_iter}, past its lr_iter {lr_iter}",
    write="lr_iter: {max_iter} or more",
)
@rate_rule(
    "base-lr-missing",
    "error",
    "no base_lr, or base_lr 0: nothing is learned",
    effect="Caffe trains at rate 0, learns nothing, and exits 0",
    write="base_lr: the initial rate",
)
@rate_rule(
    "lr-policy-unknown",
    "error",
    "an lr_policy that Caffe does not have",
    effect="Caffe aborts at the first iteration after the warm-up",
    write="use one of the known policies",
)
@rate_rule(
    "lr-iter-missing",
    "error",
    "poly_cyc without lr_iter: the rate is NaN",
    effect="the rate is -nan, then inf, but Caffe trains to the end and exits 0",
    write="lr_iter: the iteration at which the rate would reach 0",
)
@rate_rule(
    "lr-policy-incomplete",
    "error",
    "an lr_policy that lacks a field that it needs",
    effect="the default is 0, so the rate is 0 or NaN, but Caffe exits 0",
    write="set the field",
)
@rate_rule(
    "rate-not-finite",
    "error",
    "a rate that becomes negative, infinite or NaN",
    effect="the weights become NaN, but Caffe trains to the end and exits 0",
    write="correct the numbers of the schedule",
)
def _check_rate_faults(view: SolverView) -> Iterator[Finding]:
    solver = view.message
    if solver.lr_policy == "poly_cyc" and 0 < solver.lr_iter < solver.max_iter:
        effect = "past it Caffe takes the power of a negative number: NaN, or a negative rate"
        if solver.power == 2:
            effect = "past it the rate rises again"
        yield finding(
            "lr-iter-passed", "lr_iter", effect=effect, max_iter=solver.max_iter, lr_iter=solver.lr_iter
        )
        return
    is_zero = solver.HasField("base_lr") and solver.base_lr == 0
    for fault in [RateFault("no base_lr", "base_lr is 0")] if is_zero else check_rates(solver):
        name, field = _FAULTS[fault.kind]
        if fault.kind == "no base_lr" and getattr(view.link.solver.given, "stagelr", None):
            continue  # Intel's multifixed takes its rates from there
        yield finding(name, field, fault.what)


@rate_rule(
    "power-missing",
    "warning",
    "poly, poly_cyc or inv without power: a constant rate",
    what="lr_policy {policy} without power",
    effect="the default is 0, so the rate stays at {base_lr:.4g}",
    write="power: 1, or another value",
)
def _check_power(view: SolverView) -> Iterator[Finding]:
    solver = view.message
    if solver.lr_policy in _POWER_POLICIES and not solver.HasField("power"):
        yield finding("power-missing", "lr_policy", policy=solver.lr_policy, base_lr=solver.base_lr)


@rate_rule(
    "warmup-never-ends",
    "warning",
    "a warmup_iter beyond max_iter",
    what="warmup_iter {warmup_iter} is beyond max_iter {max_iter}",
    effect="the rate never reaches base_lr {base_lr:.4g}, and lr_policy is never used",
    write="warmup_iter: below {max_iter}",
)
@rate_rule(
    "warmup-falls",
    "warning",
    "a warm-up that starts above base_lr",
    what="the warm-up starts at {warmup_start_lr:.4g}, above base_lr {base_lr:.4g}",
    effect="the rate falls during the warm-up, and is highest at the first iteration",
    write="warmup_start_lr: below {base_lr:.4g}",
)
def _check_warmup(view: SolverView) -> Iterator[Finding]:
    solver = view.message
    if solver.warmup_iter > solver.max_iter > 0:
        yield finding(
            "warmup-never-ends",
            "warmup_iter",
            warmup_iter=solver.warmup_iter,
            max_iter=solver.max_iter,
            base_lr=solver.base_lr,
        )
    if solver.warmup_iter and solver.warmup_start_lr > solver.base_lr:
        yield finding(
            "warmup-falls", "warmup_start_lr", warmup_start_lr=solver.warmup_start_lr, base_lr=solver.base_lr
        )


def _max_rate(batch: int, *, is_warmed_up: bool) -> float:
    """Return the rate above which a base_lr is probably a mistake. `batch` is the global batch, 0 if unknown.

    Large batches can train at four times the rate of the linear scaling rule (0.1 for 256 images), and a
    warm-up allows rates that would be too high at the start.
    """
    return max(_MAX_RATE * (10 if is_warmed_up else 1), 0.4 * batch / 256)


@rate_rule(
    "rate-zero",
    "warning",
    "a rate that is already 0 halfway through",
    what="the rate is 0 at iteration {middle}, halfway through",
    effect="nothing is learned after that",
    write="use a gamma closer to 1, fewer steps, or fewer iterations",
)
def _check_rate_zero(view: SolverView) -> Iterator[Finding]:
    solver, middle = view.message, view.link.last_iter // 2
    if has_known_rates(solver) and solver.base_lr and middle and lr_at(solver, middle) == 0:
        yield finding("rate-zero", "lr_policy", middle=middle)


@rate_rule(
    "warmup-end-jump",
    "warning",
    "a rate that jumps by more than 2% where the warm-up ends",
    what="the rate {change} where the warm-up ends, {before:.4g} to {after:.4g} (iterations "
    "{last} and {warmup})",
    effect="warm-up iterations count as iterations of {policy}, which decays in the meantime",
    write='if this is not intended, write a separate phase for the warm-up (lr_policy: "fixed", '
    "max_iter: {warmup}), then one that starts at base_lr: {base_lr:.4g} without warmup_iter",
    values=("before", "after"),
    explanation=Explanation(
        "Iterations of the warm-up count as iterations of the lr_policy. When the warm-up reaches "
        "base_lr, a decaying policy has already progressed, and the rate drops to it in one iteration.",
        'Write a separate phase for the warm-up, with lr_policy "fixed" and max_iter: warmup_iter, followed '
        "by a phase that starts at base_lr; or accept the jump, as the published recipes do.",
    ),
)
def _check_warmup_end(view: SolverView) -> Iterator[Finding]:
    solver = view.message
    warmup = solver.warmup_iter
    if not has_known_rates(solver) or not first_iter(view.link) < warmup < view.link.last_iter:
        return
    before, after = lr_at(solver, warmup - 1), lr_at(solver, warmup)
    # A short warm-up rises by more than 2% per iteration: up to one more of its steps is not a jump.
    is_step = min(before, solver.base_lr) <= after <= max(before, solver.base_lr)
    if is_step or not (is_jump(before, after) and is_jump(solver.base_lr, after)):
        return
    yield finding(
        "warmup-end-jump",
        "warmup_iter",
        before=before,
        after=after,
        change=compare_rates(before, after),
        last=warmup - 1,
        warmup=warmup,
        policy=solver.lr_policy,
        base_lr=solver.base_lr,
    )


@rate_rule(
    "final-rate-kept",
    "note",
    "a single or resumed solver whose final rate is above 1e-5 of its base_lr",
    effect="the noise of the last batches stays in the final model",
    write='no change needed if the schedule is known to work; lr_policy: "poly" decays to 0',
    values=("end", "base_lr"),
)
@rate_rule(
    "final-rate-high",
    "warning",
    "a last phase that does not decay to 0: its final rate is above 1e-5 of its base_lr",
    effect="the noise of the last batches stays in the final model",
    write='add a phase whose rate decays to 0, for example with lr_policy: "poly" and power: 2',
    values=("end", "base_lr"),
    explanation=Explanation(
        "At a rate that is not near 0, the last few batches still change the weights, and their "
        "noise stays in the model that is evaluated.",
        'Let the rate of the last phase decay to 0, for example with lr_policy "poly" and power 2.',
    ),
)
def _check_final_rate(view: SolverView) -> Iterator[Finding]:
    solver = view.message
    if not view.is_last or not has_known_rates(solver):
        return
    end = lr_at(solver, view.link.last_iter - 1)
    zero = {"poly": solver.max_iter, "poly_cyc": solver.lr_iter}.get(solver.lr_policy)
    # A decay that reaches 0 behind the last iteration is complete, however few its steps are.
    if end <= _MAX_FINAL_SHARE * solver.base_lr or (zero == view.link.last_iter and solver.power > 0):
        return
    share = f"{end:.4g}, which is {end / solver.base_lr:.2g} of its base_lr"
    rate = f"its base_lr, {end:.4g}" if end == solver.base_lr else f"a rate of {share}"
    what = f"the last phase ends at {rate}"
    # Classic schedules, of a single solver or of resumed ones, never reach 0.
    is_classic = solver.lr_policy not in _POLICIES_TO_ZERO and (view.is_alone or view.link.resumes)
    yield finding(
        "final-rate-kept" if is_classic else "final-rate-high",
        "max_iter",
        what,
        end=end,
        base_lr=solver.base_lr,
    )
