"""Rules for values of a solver that Caffe rejects, misuses or never reads."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from caffe_recipes.caffe.dialects import load_dialects
from caffe_recipes.caffe.rates import POLICY_NEEDS
from caffe_recipes.caffe.refusals import ENGINES
from caffe_recipes.review.lint.findings import Fix
from caffe_recipes.review.lint.net_text import show_number
from caffe_recipes.review.lint.registry import Explanation, finding
from caffe_recipes.review.lint.subjects import SolverView, value_rule

if TYPE_CHECKING:
    from caffe_recipes.caffe import pb
    from caffe_recipes.review.lint.findings import Finding


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
def _check_type_names(view: SolverView) -> Iterator[Finding]:
    solver = view.message
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
def _check_nets(view: SolverView) -> Iterator[Finding]:
    solver = view.message
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
def _check_values(view: SolverView) -> Iterator[Finding]:
    solver = view.message
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
@value_rule(
    "solver-share-range",
    "error",
    "momentum, momentum2 or rms_decay that is below 0, or 1 or above",
    what="{field} is {value}; it must be at least 0 and below 1",
    write="{field}: {usual}",
)
def _check_factors(view: SolverView) -> Iterator[Finding]:
    solver = view.message
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
def _check_weight_decay(view: SolverView) -> Iterator[Finding]:
    solver = view.message
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
def _check_growth(view: SolverView) -> Iterator[Finding]:
    solver = view.message
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


@value_rule.also(
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
def _check_steps(view: SolverView) -> Iterator[Finding]:
    solver = view.message
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
def _check_unread(view: SolverView) -> Iterator[Finding]:
    solver = view.message
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
