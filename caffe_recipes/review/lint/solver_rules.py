"""Rules for single solvers: its rate, and values that Caffe rejects, misuses or never reads.

Rates that another Caffe computes differently are not checked.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from caffe_recipes.caffe.chain import first_iter, has_known_rates, planned_snapshots
from caffe_recipes.caffe.dialects import OURS, find_dialect, load_dialects
from caffe_recipes.caffe.rates import POLICY_NEEDS, RateFault, check_rates, lr_at
from caffe_recipes.caffe.refusals import ENGINES
from caffe_recipes.caffe.upgrade import SOLVER_TYPES
from caffe_recipes.review.lint.net_view import show_number
from caffe_recipes.review.lint.rules import Explanation, Fix, finding, path_rule, rate_rule, value_rule
from caffe_recipes.wording import describe_count

if TYPE_CHECKING:
    from caffe_recipes.caffe import pb
    from caffe_recipes.caffe.chain import Link, Solver
    from caffe_recipes.caffe.prototxt import Document
    from caffe_recipes.review.lint.rules import Finding

MIN_JUMP = 0.02
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


def check_solver(link: Link, *, is_last: bool, is_alone: bool, batch: int) -> Iterator[Finding]:
    """Find mistakes in the rate and the values of a phase's solver.

    `is_last` is whether the phase is the last of its chain, and `is_alone` whether it is the only one.
    `batch` is the number of images of all ranks in one iteration, 0 if unknown.
    """
    # The checks return the field as the place of a finding.
    rates = _check_schedule(link, is_last=is_last, is_alone=is_alone, batch=batch)
    solver = _upgrade_type(link.solver.message)
    values = (found for check in _VALUE_CHECKS for found in check(solver))
    for found in (*rates, *values, *_check_prefix(link)):
        yield found.located(link.solver.where, link.name)


def _upgrade_type(solver: pb.SolverParameter) -> pb.SolverParameter:
    """Return the solver with the type that the old field `solver_type` stands for, if only that is set."""
    if solver.HasField("type") or not solver.HasField("solver_type"):
        return solver
    upgraded = deepcopy(solver)
    upgraded.type = SOLVER_TYPES[type(solver).SolverType.Name(solver.solver_type)]
    upgraded.ClearField("solver_type")
    return upgraded


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
@rate_rule(
    "power-missing",
    "warning",
    "poly, poly_cyc or inv without power: a constant rate",
    what="lr_policy {policy} without power",
    effect="the default is 0, so the rate stays at {base_lr:.4g}",
    write="power: 1, or another value",
)
def _check_schedule(link: Link, *, is_last: bool, is_alone: bool, batch: int) -> Iterator[Finding]:
    solver = link.solver.message
    if solver.max_iter <= 0:
        what = "max_iter is missing" if not solver.HasField("max_iter") else f"max_iter is {solver.max_iter}"
        yield finding("max-iter-missing", "max_iter", what)
    limit = _max_rate(batch, is_warmed_up=solver.warmup_iter > 0)
    # NVIDIA's larc scales the rate of each layer down.
    if solver.base_lr > limit and not getattr(link.solver.given, "larc", False):
        yield finding("base-lr-large", "base_lr", base_lr=solver.base_lr, limit=limit)
    yield from _check_rate_faults(link)
    if solver.lr_policy in _POWER_POLICIES and not solver.HasField("power"):
        yield finding("power-missing", "lr_policy", policy=solver.lr_policy, base_lr=solver.base_lr)
    yield from _check_warmup(link)
    if has_known_rates(solver):
        yield from _check_rate_zero(link)
        yield from _check_warmup_end(link)
        if is_last:
            yield from _check_final_rate(link, is_alone=is_alone)


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
def _check_warmup(link: Link) -> Iterator[Finding]:
    solver = link.solver.message
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
def _check_rate_faults(link: Link) -> Iterator[Finding]:
    solver = link.solver.message
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
        if fault.kind == "no base_lr" and getattr(link.solver.given, "stagelr", None):
            continue  # Intel's multifixed takes its rates from there
        yield finding(name, field, fault.what)


@rate_rule(
    "rate-zero",
    "warning",
    "a rate that is already 0 halfway through",
    what="the rate is 0 at iteration {middle}, halfway through",
    effect="nothing is learned after that",
    write="use a gamma closer to 1, fewer steps, or fewer iterations",
)
def _check_rate_zero(link: Link) -> Iterator[Finding]:
    solver, middle = link.solver.message, link.last_iter // 2
    if solver.base_lr and middle and lr_at(solver, middle) == 0:
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
def _check_warmup_end(link: Link) -> Iterator[Finding]:
    solver = link.solver.message
    warmup = solver.warmup_iter
    if not first_iter(link) < warmup < link.last_iter:
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
    "a last phase whose final rate is above 1e-5 of its base_lr",
    effect="the noise of the last batches stays in the final model",
    write='add a phase whose rate decays to 0, for example with lr_policy: "poly" and power: 2',
    values=("end", "base_lr"),
    explanation=Explanation(
        "At a rate that is not near 0, the last few batches still change the weights, and their "
        "noise stays in the model that is evaluated.",
        'Let the rate of the last phase decay to 0, for example with lr_policy "poly" and power 2.',
    ),
)
def _check_final_rate(link: Link, *, is_alone: bool) -> Iterator[Finding]:
    solver = link.solver.message
    end = lr_at(solver, link.last_iter - 1)
    zero = {"poly": solver.max_iter, "poly_cyc": solver.lr_iter}.get(solver.lr_policy)
    # With a power below 1, the rate drops to 0 in the last step.
    if end <= _MAX_FINAL_SHARE * solver.base_lr or (zero == link.last_iter and 0 < solver.power < 1):
        return
    share = f"{end:.4g}, which is {end / solver.base_lr:.2g} of its base_lr"
    rate = f"its base_lr, {end:.4g}" if end == solver.base_lr else f"a rate of {share}"
    what = f"the last phase ends at {rate}"
    # Classic schedules, of a single solver or of resumed ones, never reach 0.
    is_classic = solver.lr_policy not in _POLICIES_TO_ZERO and (is_alone or link.resumes)
    yield finding(
        "final-rate-kept" if is_classic else "final-rate-high",
        "max_iter",
        what,
        end=end,
        base_lr=solver.base_lr,
    )


# For each field that only some lr policies, or solver types, read: those that do.
_POLICIES_READING = {
    "gamma": ("exp", "inv", "multistep", "plateau", "sigmoid", "step"),
    "power": ("inv", "poly", "poly_cyc"),
    "stepsize": ("sigmoid", "step"),
    "stepvalue": ("multistep",),
    "lr_iter": ("poly_cyc",),
    "plateau_winsize": ("plateau",),
}
_TYPES_READING = {
    "momentum2": ("Adam",),
    "rms_decay": ("RMSProp",),
    "delta": ("AdaDelta", "AdaGrad", "Adam", "RMSProp"),
}
_MULTIPLYING_POLICIES = ("exp", "multistep", "plateau", "step")
_REGULARIZATIONS = ("L1", "L2")
_MAX_DECAY = 0.1 * (1 + 1e-6)  # 0.1 as a float32 is above 0.1


@value_rule(
    "snapshot-folder-missing",
    "warning",
    "a snapshot_prefix in a folder that does not exist under the Caffe root",
    what="snapshot_prefix is in {folder}, which does not exist under the Caffe root",
    effect="Caffe does not create it: it aborts at the start, or with `snapshot: 0` at the end of the "
    "training",
    write="run `mkdir -p {folder}` before training",
)
def check_snapshot_folder(solver: Solver, root: Path) -> Iterator[Finding]:
    """Find a snapshot_prefix whose folder does not exist under the Caffe root."""
    folder, slash, _ = solver.message.snapshot_prefix.rpartition("/")
    if not slash or not folder or folder.startswith("/"):
        return
    try:
        exists = (root / folder).is_dir()
    except (OSError, ValueError):  # a name that is too long, or contains a NUL
        exists = False
    if not exists:
        place = solver.where("snapshot_prefix")
        yield finding("snapshot-folder-missing", place, folder=folder)


@value_rule(
    "solver-type-unknown",
    "error",
    "a solver type that does not exist",
    what="type '{type}' is not a solver type",
    effect="Caffe aborts with `Unknown solver type: {type}`",
    write='type: "{nearest}"',
)
@value_rule(
    "regularization-unknown",
    "error",
    "a regularization_type that is neither L1 nor L2",
    what="regularization_type '{kind}' is neither L1 nor L2",
    effect="Caffe aborts with `Unknown regularization type: {kind}` at the first update",
    write='regularization_type: "{nearest}"',
)
def _check_type_names(solver: pb.SolverParameter) -> Iterator[Finding]:
    known = sorted({name for dialect in load_dialects().values() for name in dialect.solver_types})
    if solver.type not in known:
        yield finding("solver-type-unknown", "type", type=solver.type, nearest=_nearest(solver.type, known))
    kind = solver.regularization_type
    if kind not in _REGULARIZATIONS:
        yield finding(
            "regularization-unknown",
            "regularization_type",
            kind=kind,
            nearest=_nearest(kind, _REGULARIZATIONS, "L2"),
        )


def _nearest(name: str, known: list[str] | tuple[str, ...], other: str = "SGD") -> str:
    """Return the known name that is nearest to a wrong one, ignoring case; `other` if none is near."""
    alike = {each.lower(): each for each in known}
    return next((alike[one] for one in difflib.get_close_matches(name.lower(), alike, n=1)), other)


solver_value_refused = value_rule(
    "solver-value-refused",
    "error",
    "a value that makes Caffe abort or divide by 0: iter_size, average_loss, test_iter and others",
)


_EVALUATIONS = ("classification", "detection")


@solver_value_refused
def _check_nets(solver: pb.SolverParameter) -> Iterator[Finding]:
    given = [name for name in ("net", "net_param", "train_net", "train_net_param") if solver.HasField(name)]
    if len(given) > 1:
        what = f"{' and '.join(given)} each set a net to train"
        yield finding(
            "solver-value-refused",
            given[-1],
            what,
            effect="Caffe aborts with `SolverParameter must not contain more than one of these fields`",
            write=f"keep {given[0]}",
        )
    if solver.test_iter and solver.eval_type not in _EVALUATIONS:
        yield finding(
            "solver-value-refused",
            "eval_type",
            f"eval_type is '{solver.eval_type}'",
            effect=f"Caffe aborts at the first test with `Unknown evaluation type: {solver.eval_type}`",
            write=f"eval_type: one of {', '.join(_EVALUATIONS)}",
        )
    if solver.engine.partition(":")[0].strip().upper() not in ("", *ENGINES):
        what = f"engine is '{solver.engine}'"
        yield finding(
            "solver-value-refused",
            "engine",
            what,
            effect="Caffe aborts when it sets up the net, because it does not have this engine",
            write=f"engine: one of {', '.join(ENGINES)}",
        )


solver_value_negative = value_rule(
    "solver-value-negative", "warning", "a negative display, snapshot or clip_gradients"
)


# For each field that Caffe aborts at or divides by: whether its value is one of these, the effect, and what
# to write.
_REFUSED_VALUES: Mapping[str, tuple[Callable[[pb.SolverParameter], bool], str, str]] = {
    "iter_size": (
        lambda solver: solver.iter_size < 1,
        "Caffe computes no gradients and divides them by 0, so the weights become NaN",
        "iter_size: 1, or remove it",
    ),
    "average_loss": (
        lambda solver: solver.average_loss < 1,
        "Caffe divides by it and crashes (SIGFPE) at the first iteration, or averages over all",
        "average_loss: 1, or remove it",
    ),
    "test_interval": (
        lambda solver: solver.test_interval < 0,
        "Caffe aborts with `Check failed: param_.test_interval() > 0`, or never tests",
        "test_interval: the number of iterations between tests",
    ),
    "clip_gradients": (
        lambda solver: solver.clip_gradients == 0,
        "gradients are scaled down to a norm of 0, so nothing is learned",
        "clip_gradients: the largest allowed norm, or remove it",
    ),
    "delta": (
        lambda solver: (
            solver.type in _TYPES_READING["delta"] and solver.HasField("delta") and solver.delta <= 0
        ),
        "delta keeps a divisor above 0; without it, weights become NaN where a gradient is 0",
        "delta: 1e-8",
    ),
}


@solver_value_refused
@solver_value_negative
def _check_values(solver: pb.SolverParameter) -> Iterator[Finding]:
    for field, (is_refused, effect, write) in _REFUSED_VALUES.items():
        if is_refused(solver):
            value = getattr(solver, field)
            what = f"{field} is {value if isinstance(value, int) else show_number(value)}"
            yield finding("solver-value-refused", field, what, effect=effect, write=write)
    for field in ("display", "snapshot"):
        value = getattr(solver, field)
        if value < 0:
            yield finding(
                "solver-value-negative",
                field,
                f"{field} is {value}",
                effect=f"Caffe uses {-value}, and caffe-torch exits with an error",
                write=f"{field}: {-value}",
            )
    norm = solver.clip_gradients
    if norm < 0 and norm != -1:  # -1 is the default
        yield finding(
            "solver-value-negative",
            "clip_gradients",
            f"clip_gradients is {show_number(norm)}",
            effect="a negative value disables clipping",
            write=f"clip_gradients: {show_number(-norm)}, or remove it",
        )


@solver_value_refused
@path_rule(
    "test-never-fires",
    "warning",
    "a test_interval beyond max_iter",
    what="test_interval {test_interval} is beyond max_iter {max_iter}",
    effect="Caffe tests before the first iteration and never again",
    write="test_interval: {max_iter}, or less",
)
def _check_tests(solver: pb.SolverParameter) -> Iterator[Finding]:
    for index, count in enumerate(solver.test_iter):
        if count < 1:
            yield finding(
                "solver-value-refused",
                f"test_iter[{index}]",
                f"test_iter is {count}",
                effect="the sums of the test are divided by it: the results are NaN or missing",
                write="test_iter: the number of test images / the test batch_size",
            )
    if solver.test_iter and solver.test_interval > solver.max_iter > 0:
        yield finding(
            "test-never-fires", "test_interval", test_interval=solver.test_interval, max_iter=solver.max_iter
        )


def misses_test_nets(solver: pb.SolverParameter) -> bool:
    """Return whether Caffe refuses the number of test_iter fields: only `net` may be tested unnamed.

    Source: Solver::InitTestNets, which checks this before test_state and test_interval.
    """
    tests, named = len(solver.test_iter), len(solver.test_net) + len(solver.test_net_param)
    is_train_only = solver.HasField("train_net") or solver.HasField("train_net_param")
    is_shared = solver.HasField("net") or solver.HasField("net_param")
    return tests < named or (tests > named and not is_shared and (is_train_only or named > 0))


@solver_value_refused
@path_rule(
    "tested-twice",
    "warning",
    "several test_iter fields for one net in the same state",
    what="test_iter is set {count}, for {nets} and the net itself",
    effect="Caffe sets up the net {times} times and repeats the same test",
    write="keep {keep} test_iter, or add a test_state for each",
)
def _check_test_nets(solver: pb.SolverParameter) -> Iterator[Finding]:
    tests, named = len(solver.test_iter), len(solver.test_net) + len(solver.test_net_param)
    if tests - named > 1 and not solver.test_state:
        count = describe_count(tests, "time")
        yield finding(
            "tested-twice",
            f"test_iter[{named + 1}]",
            count=count,
            nets=describe_count(named, "test net"),
            times=tests - named,
            keep=named + 1,
        )
    if misses_test_nets(solver):
        what = f"test_iter is set {describe_count(tests, 'time')}, for {describe_count(named, 'test net')}"
        field = "test_iter[0]" if tests else "test_net[0]" if solver.test_net else "test_net_param[0]"
        yield finding(
            "solver-value-refused",
            field,
            what,
            effect="Caffe aborts with `test_iter must be specified for each test network`",
            write="add a test_net, write `net` instead of train_net, or remove test_iter and test_interval"
            if not named
            else "set one test_iter for each test net",
        )
    states = len(solver.test_state)
    if states not in (0, tests):
        what = f"test_state is set {describe_count(states, 'time')}, for {describe_count(tests, 'test net')}"
        yield finding(
            "solver-value-refused",
            "test_state[0]",
            what,
            effect="Caffe aborts with `test_state must be unspecified or specified once per test net`",
            write="set one test_state for each test net, or none",
        )


@solver_value_refused
@value_rule(
    "solver-share-range",
    "error",
    "momentum, momentum2 or rms_decay that is below 0, or 1 or above",
    what="{field} is {value}; it must be at least 0 and below 1",
    write="{field}: {usual}",
)
def _check_factors(solver: pb.SolverParameter) -> Iterator[Finding]:
    if solver.type == "AdaGrad" and solver.momentum:
        what = f"AdaGrad with momentum {show_number(solver.momentum)}"
        yield finding(
            "solver-value-refused",
            "momentum",
            what,
            effect="Caffe aborts with `Momentum cannot be used with AdaGrad`",
            write="remove momentum",
        )
    shares = {"momentum": "0.9", "momentum2": "0.999", "rms_decay": "0.99"}
    for field, usual in shares.items():
        value = getattr(solver, field)
        is_read = solver.type in _TYPES_READING.get(field, (solver.type,))
        if is_read and solver.HasField(field) and not 0 <= value < 1:
            yield finding(
                "solver-share-range",
                field,
                effect="earlier updates never fade, so the weights grow without bound"
                if value >= 1
                else "each update undoes part of the previous one",
                field=field,
                value=show_number(value),
                usual=usual,
            )


@value_rule(
    "weight-decay-negative",
    "error",
    "a weight_decay below 0",
    what="weight_decay is {decay}",
    effect="each update makes the weights larger",
    write="weight_decay: {opposite}",
)
@value_rule(
    "weight-decay-large",
    "warning",
    "a weight_decay above 0.1",
    what="weight_decay is {decay}; usual values are 0.0001 to 0.001",
    effect="it outweighs the gradients, so the weights shrink to 0 and little is learned",
    write="weight_decay: for example 0.0001",
)
def _check_weight_decay(solver: pb.SolverParameter) -> Iterator[Finding]:
    decay = solver.weight_decay
    if decay < 0:
        yield finding(
            "weight-decay-negative", "weight_decay", decay=show_number(decay), opposite=show_number(-decay)
        )
    elif decay > _MAX_DECAY:
        yield finding("weight-decay-large", "weight_decay", decay=show_number(decay))


@value_rule(
    "rate-grows", "warning", "a gamma above 1, or a power below 0", effect="the rate grows until the end"
)
def _check_growth(solver: pb.SolverParameter) -> Iterator[Finding]:
    policy = solver.lr_policy
    if policy in _MULTIPLYING_POLICIES and solver.gamma > 1:
        what = f"gamma is {show_number(solver.gamma)}, and lr_policy {policy} multiplies the rate by it"
        yield finding(
            "rate-grows",
            "gamma",
            what,
            write=f"gamma: {show_number(1 / solver.gamma)}, or another value below 1",
        )
    if policy in _MULTIPLYING_POLICIES and solver.HasField("gamma") and solver.gamma == 1:
        what = f"gamma is 1, and lr_policy {policy} multiplies the rate by it"
        yield _rate_constant("gamma", what, "gamma: 0.1")
    if policy in _POLICIES_READING["power"] and solver.HasField("power"):
        if solver.power < 0:
            what = f"power is {show_number(solver.power)} under lr_policy {policy}"
            yield finding("rate-grows", "power", what, write=f"power: {show_number(-solver.power)}")
        if solver.power == 0:
            yield _rate_constant(
                "power", f"power is 0 under lr_policy {policy}", "power: 1, or another value above 0"
            )


@value_rule(
    "rate-constant",
    "warning",
    "an lr_policy whose rate never changes: power 0, gamma 1, or no step before max_iter",
    effect="the rate never changes",
    write='{advice}; or lr_policy: "fixed"',
)
def _rate_constant(field: str, what: str, write: str) -> Finding:
    return finding("rate-constant", field, what, advice=write)


@value_rule(
    "steps-disordered",
    "warning",
    "stepvalues that are not in increasing order",
    what="stepvalue {step} comes after {earlier}",
    effect="Caffe takes the steps in the given order: this one waits for {earlier}, then both are "
    "taken at once",
    write="move stepvalue: {step} before it, in increasing order",
)
@value_rule(
    "step-never-taken",
    "warning",
    "a stepvalue beyond max_iter",
    what="stepvalue {step} is beyond max_iter {max_iter}",
    effect="the final rate is higher than the steps suggest",
    write="stepvalue: below {max_iter}, or remove it",
)
def _check_steps(solver: pb.SolverParameter) -> Iterator[Finding]:
    max_iter, steps = solver.max_iter, list(solver.stepvalue)
    if solver.lr_policy == "step" and solver.stepsize > max_iter > 0:
        what = f"stepsize {solver.stepsize} is beyond max_iter {max_iter}"
        yield _rate_constant("stepsize", what, f"stepsize: below {max_iter}")
    if solver.lr_policy != "multistep":
        return
    back = next((i for i in range(1, len(steps)) if steps[i] < steps[i - 1]), None)
    if back is not None:
        yield finding("steps-disordered", f"stepvalue[{back}]", step=steps[back], earlier=steps[back - 1])
    late = [i for i, step in enumerate(steps) if step > max_iter > 0]
    if late and len(late) == len(steps):
        what = f"every stepvalue is beyond max_iter {max_iter}"
        yield _rate_constant(f"stepvalue[{late[0]}]", what, f"stepvalue: below {max_iter}")
    elif late:
        yield finding("step-never-taken", f"stepvalue[{late[0]}]", step=steps[late[0]], max_iter=max_iter)


@value_rule(
    "solver-field-unread",
    "warning",
    "a field that the lr_policy or the type never reads",
    what="{name} is never read by {reader}",
    effect="it has no effect; was another policy, type or field intended?",
    write="remove it, or choose a policy or type that reads it",
    explanation=Explanation(
        "Each lr_policy and each type reads certain fields and ignores the others. A field that is ignored "
        "changes nothing; it is often left over from another policy.",
        "Remove it, or choose a policy or type that reads it.",
    ),
    fix="removes the field",
)
def _check_unread(solver: pb.SolverParameter) -> Iterator[Finding]:
    policy, kind, present = solver.lr_policy, solver.type, {field.name for field, _ in solver.ListFields()}
    unread = []
    if policy in POLICY_NEEDS:
        unread = [(name, f"lr_policy {policy}") for name, by in _POLICIES_READING.items() if policy not in by]
    unread += [(name, f"type {kind}") for name, by in _TYPES_READING.items() if kind not in by]
    if not solver.warmup_iter:
        unread.append(("warmup_start_lr", "a solver without warmup_iter"))
    for name, reader in unread:
        if name in present:
            is_list = name in ("stepvalue", "plateau_winsize")
            fields = (
                [f"{name}[{index}]" for index in range(len(getattr(solver, name)))] if is_list else [name]
            )
            fixes = tuple(Fix(field, name) for field in fields)
            yield finding("solver-field-unread", fields[0], fixes=fixes, name=name, reader=reader)


_VALUE_CHECKS = (
    _check_type_names,
    _check_nets,
    _check_values,
    _check_tests,
    _check_test_nets,
    _check_factors,
    _check_weight_decay,
    _check_growth,
    _check_steps,
    _check_unread,
)


@value_rule(
    "snapshot-prefix-missing",
    "error",
    "snapshots without a snapshot_prefix",
    what="a snapshot is written at iteration {first}, but there is no snapshot_prefix",
    write='snapshot_prefix: "{name}"',
)
@value_rule(
    "snapshot-unnamed",
    "warning",
    "a final snapshot without a snapshot_prefix, for another Caffe (--dialect)",
    what="a snapshot is written at iteration {first}, but there is no snapshot_prefix",
    write='snapshot_prefix: "{name}"',
)
def _check_prefix(link: Link) -> Iterator[Finding]:
    solver, fired = link.solver.message, planned_snapshots(link)
    if solver.snapshot_prefix or not fired:
        return
    written = f"Caffe writes _iter_{fired[0]}.caffemodel into the current folder"
    is_foreign = link.solver.given is not None
    yield finding(
        "snapshot-unnamed" if is_foreign and not solver.snapshot else "snapshot-prefix-missing",
        "snapshot",
        effect="Caffe aborts with `snapshot is specified but snapshot_prefix is not`"
        if solver.snapshot > 0
        else written
        if is_foreign
        else f"{written}, and caffe-torch exits with an error",
        first=fired[0],
        name=link.name,
    )


# Fields of nvcaffe and Intel's Caffe that change the rate, but that `lr_at` does not support.
_DIALECT_RATE_FIELDS = ("rampup_interval", "min_lr", "stagelr")
_DIALECT_POLICIES = ("multifixed",)

_RATE_RULES = frozenset(
    (
        "final-rate-high",
        "final-rate-kept",
        "lr-policy-unknown",
        "rate-constant",
        "rate-not-finite",
        "rate-zero",
        "warmup-end-jump",
        "warmup-missing",
    )
)
_JOIN_RULES = frozenset(("join-jump", "resume-jump"))


@rate_rule(
    "rates-not-judged",
    "note",
    "a rate that depends on fields of the dialect, and so was not checked",
    what="{names} set a rate that only {dialect} computes",
    effect="the rules for the rate, its jumps and its end were skipped",
    write="no change needed; check the rates in the log",
)
def check_dialect_rates(document: Document[Message], dialect: str) -> Iterator[Finding]:
    """Find solvers whose rates depend on fields of the dialect, and so are not checked."""
    if dialect == OURS:
        return
    known = find_dialect(dialect)
    for path, solver in solvers_in(document.message):
        given = [field for field in _DIALECT_RATE_FIELDS if _is_given(solver, field)]
        fields = [field for field in given if known.knows("SolverParameter", field)]
        if solver.lr_policy in _DIALECT_POLICIES and solver.lr_policy in known.lr_policies:
            fields.append("lr_policy")
        if fields:
            yield finding(
                "rates-not-judged",
                document.where(f"{path}{fields[0]}"),
                names=" and ".join(fields),
                dialect=dialect,
            )


def drop_rate_findings(findings: Iterable[Finding], paths: Collection[str]) -> Iterator[Finding]:
    """Yield the findings without those on the rates of the solvers in these files, and on jumps."""
    for one in findings:
        is_theirs = one.where.startswith(tuple(f"{path}:" for path in paths)) or one.where in paths
        if paths and (one.id in _JOIN_RULES or (is_theirs and one.id in _RATE_RULES)):
            continue
        yield one


def solvers_in(message: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - a message of the schema of all Caffes
    """Yield the solvers in a file, each with the prefix of its field paths."""
    if message.DESCRIPTOR.name == "SolverParameter":
        yield "", message
    elif message.DESCRIPTOR.name == "MultiPhaseSolverParameter":
        for index, pair in enumerate(message.params_pair):
            yield f"params_pair[{index}].solver_params.", pair.solver_params


def _is_given(solver: Any, field: str) -> bool:  # noqa: ANN401 - a message of the schema of all Caffes
    return bool(getattr(solver, field, None))
