"""Values of a solver's fields that Caffe stops at, computes nonsense with, or never reads."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import load_dialects
from caffe_recipes.caffe.rates import POLICY_NEEDS
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.chains.chain import Link, Solver, fired_snapshots
from caffe_recipes.review.lint.nets.view import number
from caffe_recipes.review.lint.rules import finding

# Which lr policies, or solver types, read a field that not all of them read.
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
_MULTIPLYING = ("exp", "multistep", "plateau", "step")
_REGULARIZATIONS = ("L1", "L2")
_MOST_DECAY = 0.1 * (1 + 1e-6)  # a float32 0.1 lies above 0.1


class Fault(NamedTuple):
    """What is wrong with a field: the rule, the field, and what a finding says."""

    rule: str
    field: str
    what: str
    effect: str
    write: str


def check_solver_values(link: Link) -> Iterator[Finding]:
    """Find values of one phase's solver that Caffe refuses, computes nonsense with, or never reads."""
    solver = link.solver.message
    checks = (_names, _counts, _tests, _factors, _decay, _growth, _steps, _unread)
    for check in checks:
        for fault in check(solver):
            where = link.solver.where(fault.field)
            yield finding(fault.rule, where, fault.what, fault.effect, fault.write, link.name)
    yield from _prefix(link)


def check_snapshot_folder(solver: Solver, root: Path) -> Iterator[Finding]:
    """Find a snapshot_prefix whose folder, seen from the Caffe root, is not there."""
    folder, slash, _ = solver.message.snapshot_prefix.rpartition("/")
    if not slash or not folder or folder.startswith("/"):
        return
    try:
        is_there = (root / folder).is_dir()
    except (OSError, ValueError):  # a name that is too long, or holds a NUL
        is_there = False
    if not is_there:
        what = f"snapshot_prefix is in {folder}, which is not under the Caffe root"
        effect = "Caffe does not make it: it stops at the start, or, with `snapshot: 0`, once all is trained"
        place = solver.where("snapshot_prefix")
        yield finding("snapshot-folder-missing", place, what, effect, f"mkdir -p {folder}, before it trains")


def _names(solver: pb.SolverParameter) -> Iterator[Fault]:
    known = sorted({name for dialect in load_dialects().values() for name in dialect.solver_types})
    if solver.type not in known:
        what = f"type '{solver.type}' is no solver"
        effect = f"Caffe stops with `Unknown solver type: {solver.type}`"
        yield Fault("solver-type-unknown", "type", what, effect, f'type: "{_nearest(solver.type, known)}"')
    kind = solver.regularization_type
    if kind not in _REGULARIZATIONS:
        what = f"regularization_type '{kind}' is neither L1 nor L2"
        effect = f"Caffe stops with `Unknown regularization type: {kind}` at the first update"
        write = f'regularization_type: "{_nearest(kind, _REGULARIZATIONS, "L2")}"'
        yield Fault("regularization-unknown", "regularization_type", what, effect, write)


def _nearest(name: str, known: list[str] | tuple[str, ...], other: str = "SGD") -> str:
    """Give the known name that a wrong one was meant for, by its letters in either case."""
    alike = {each.lower(): each for each in known}
    return next((alike[one] for one in difflib.get_close_matches(name.lower(), alike, n=1)), other)


def _counts(solver: pb.SolverParameter) -> Iterator[Fault]:
    least = {
        "iter_size": "the gradients are of no image, and are divided by 0: the weights become NaN",
        "average_loss": "Caffe divides by it: it stops with SIGFPE at the first iteration, or averages all",
    }
    for field, effect in least.items():
        value = getattr(solver, field)
        if value < 1:
            yield Fault(
                "solver-value-refused", field, f"{field} is {value}", effect, f"{field}: 1, or leave it out"
            )
    for field in ("display", "snapshot"):
        value = getattr(solver, field)
        if value < 0:
            effect = f"Caffe takes it for {-value}, and caffe-torch refuses it"
            yield Fault("solver-value-negative", field, f"{field} is {value}", effect, f"{field}: {-value}")


def _tests(solver: pb.SolverParameter) -> Iterator[Fault]:
    tests = len(solver.test_iter)
    for index, count in enumerate(solver.test_iter):
        if count < 1:
            effect = "the sums of the test are divided by it: NaN, or nothing at all"
            write = "test_iter: the test images / the test batch_size"
            yield Fault("solver-value-refused", f"test_iter[{index}]", f"test_iter is {count}", effect, write)
    if solver.test_interval < 0:
        effect = "Caffe stops with `Check failed: param_.test_interval() > 0`, or never tests"
        write = "test_interval: the iterations between tests"
        yield Fault(
            "solver-value-refused", "test_interval", f"test_interval is {solver.test_interval}", effect, write
        )
    named = len(solver.test_net) + len(solver.test_net_param)
    is_shared = solver.HasField("net") or solver.HasField("net_param")
    if tests < named or (tests > named and not is_shared and named):
        what = f"test_iter is given {tests} times, for {named} test nets"
        effect = "Caffe stops with `test_iter must be specified for each test network`"
        field = "test_iter[0]" if tests else "test_net[0]" if solver.test_net else "test_net_param[0]"
        yield Fault("solver-value-refused", field, what, effect, f"test_iter {named} times")
    states = len(solver.test_state)
    if states not in (0, tests):
        what = f"test_state is given {states} times, for {tests} test nets"
        effect = "Caffe stops with `test_state must be unspecified or specified once per test net`"
        yield Fault(
            "solver-value-refused", "test_state[0]", what, effect, f"test_state {tests} times, or never"
        )


def _factors(solver: pb.SolverParameter) -> Iterator[Fault]:
    if solver.type == "AdaGrad" and solver.momentum:
        effect = "Caffe stops with `Momentum cannot be used with AdaGrad`"
        what = f"AdaGrad with momentum {number(solver.momentum)}"
        yield Fault("solver-value-refused", "momentum", what, effect, "take momentum out")
    shares = {"momentum": "0.9", "momentum2": "0.999", "rms_decay": "0.99"}
    for field, usual in shares.items():
        value = getattr(solver, field)
        is_read = solver.type in _TYPES_READING.get(field, (solver.type,))
        if is_read and solver.HasField(field) and not 0 <= value < 1:
            what = f"{field} is {number(value)}, and it is a share of 0 or more and less than 1"
            effect = (
                "each update keeps all of those before it, or more: the weights grow without bound"
                if value >= 1
                else "each update takes a part of the one before it back"
            )
            yield Fault("solver-share-range", field, what, effect, f"{field}: {usual}")
    if solver.clip_gradients == 0:
        effect = "gradients are scaled down to the norm 0: nothing is learned"
        write = "clip_gradients: the largest norm, or leave it out"
        yield Fault("solver-value-refused", "clip_gradients", "clip_gradients is 0", effect, write)
    if solver.type in _TYPES_READING["delta"] and solver.HasField("delta") and solver.delta <= 0:
        effect = "it keeps a divisor above 0: where a gradient is 0 the weights become NaN"
        yield Fault(
            "solver-value-refused", "delta", f"delta is {number(solver.delta)}", effect, "delta: 1e-8"
        )


def _decay(solver: pb.SolverParameter) -> Iterator[Fault]:
    decay = solver.weight_decay
    if decay < 0:
        what, effect = f"weight_decay is {number(decay)}", "each update makes the weights larger"
        yield Fault("weight-decay-negative", "weight_decay", what, effect, f"weight_decay: {number(-decay)}")
    elif decay > _MOST_DECAY:
        what = f"weight_decay is {number(decay)}, and usual ones are 0.0001 to 0.001"
        effect = "it outweighs the gradients: the weights go to 0, and little is learned"
        yield Fault("weight-decay-large", "weight_decay", what, effect, "weight_decay: 0.0001, say")


def _growth(solver: pb.SolverParameter) -> Iterator[Fault]:
    policy, effect = solver.lr_policy, "the rate grows to the end"
    if policy in _MULTIPLYING and solver.gamma > 1:
        what = f"gamma is {number(solver.gamma)}, and lr_policy {policy} multiplies the rate by it"
        write = f"gamma: {number(1 / solver.gamma)}, or another below 1"
        yield Fault("rate-grows", "gamma", what, effect, write)
    if policy in _MULTIPLYING and solver.HasField("gamma") and solver.gamma == 1:
        what = f"gamma is 1, and lr_policy {policy} multiplies the rate by it"
        yield _constant("gamma", what, "gamma: 0.1")
    if policy in _POLICIES_READING["power"] and solver.HasField("power"):
        if solver.power < 0:
            what = f"power is {number(solver.power)} under lr_policy {policy}"
            yield Fault("rate-grows", "power", what, effect, f"power: {number(-solver.power)}")
        if solver.power == 0:
            yield _constant("power", f"power is 0 under lr_policy {policy}", "power: 1, or another above 0")


def _constant(field: str, what: str, write: str) -> Fault:
    return Fault("rate-constant", field, what, "the rate never changes", f'{write}; or lr_policy: "fixed"')


def _steps(solver: pb.SolverParameter) -> Iterator[Fault]:
    most, steps = solver.max_iter, list(solver.stepvalue)
    if solver.lr_policy == "step" and solver.stepsize > most > 0:
        what = f"stepsize {solver.stepsize} is beyond max_iter {most}"
        yield _constant("stepsize", what, f"stepsize: below {most}")
    if solver.lr_policy != "multistep":
        return
    back = next((i for i in range(1, len(steps)) if steps[i] < steps[i - 1]), None)
    if back is not None:
        what = f"stepvalue {steps[back]} comes after {steps[back - 1]}"
        effect = f"Caffe takes them in their order: this one waits for {steps[back - 1]}, then both are taken"
        write = f"stepvalue: {steps[back]} before it, in rising order"
        yield Fault("steps-disordered", f"stepvalue[{back}]", what, effect, write)
    late = [i for i, step in enumerate(steps) if step > most > 0]
    if late and len(late) == len(steps):
        what = f"every stepvalue is beyond max_iter {most}"
        yield _constant(f"stepvalue[{late[0]}]", what, f"stepvalue: below {most}")
    elif late:
        what = f"stepvalue {steps[late[0]]} is beyond max_iter {most}"
        write = f"stepvalue: below {most}, or take it out"
        effect = "the rate ends higher than the steps say"
        yield Fault("step-never-taken", f"stepvalue[{late[0]}]", what, effect, write)


def _unread(solver: pb.SolverParameter) -> Iterator[Fault]:
    policy, kind, present = solver.lr_policy, solver.type, {field.name for field, _ in solver.ListFields()}
    unread = []
    if policy in POLICY_NEEDS:
        unread = [(name, f"lr_policy {policy}") for name, by in _POLICIES_READING.items() if policy not in by]
    unread += [(name, f"type {kind}") for name, by in _TYPES_READING.items() if kind not in by]
    if not solver.warmup_iter:
        unread.append(("warmup_start_lr", "a solver without warmup_iter"))
    for name, reader in unread:
        if name in present:
            field = f"{name}[0]" if name in ("stepvalue", "plateau_winsize") else name
            effect = "it changes nothing; was another policy, type or field meant?"
            what = f"{name} is never read by {reader}"
            yield Fault("solver-field-unread", field, what, effect, "take it out, or give what reads it")


def _prefix(link: Link) -> Iterator[Finding]:
    solver, fired = link.solver.message, fired_snapshots(link)
    if solver.snapshot_prefix or not fired:
        return
    name = f"_iter_{fired[0]}.caffemodel"
    effect = (
        "Caffe stops with `snapshot is specified but snapshot_prefix is not`"
        if solver.snapshot > 0
        else f"Caffe writes {name} into the folder that it is started in; caffe-torch refuses it"
    )
    where, what = link.solver.where("snapshot"), f"a snapshot at {fired[0]}, and no snapshot_prefix"
    write = f'snapshot_prefix: "{link.name}"'
    yield finding("snapshot-prefix-missing", where, what, effect, write, link.name)
