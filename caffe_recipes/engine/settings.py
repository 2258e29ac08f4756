"""Load solvers and nets, and check them before training starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.engine import to_engine_net
from caffe_recipes.caffe.dialects.schema import load_lenient
from caffe_recipes.caffe.hdf5_weights import import_h5py
from caffe_recipes.caffe.prototxt import Document, is_kind, load_document
from caffe_recipes.caffe.rates import check_rates
from caffe_recipes.caffe.text.writer import float_text
from caffe_recipes.caffe.upgrade import SOLVER_TYPES, upgrade_net
from caffe_recipes.errors import InputError, PrototxtError

_TYPES = tuple(SOLVER_TYPES.values())


def load_solver(path: str, level: int, stages: Sequence[str]) -> pb.SolverParameter:
    """Return the solver in a file. Raises InputError, with file and field, if the engine cannot run it."""
    document = load_document(path, pb.SolverParameter)
    solver = document.message
    if solver.HasField("solver_type"):
        old = pb.SolverParameter.SolverType.Name(solver.solver_type)
        if solver.HasField("type"):
            what = f'has type "{solver.type}" and solver_type {old}'
            raise InputError(document.where("solver_type"), what, "keep type")
        solver.type = SOLVER_TYPES[old]
        solver.ClearField("solver_type")
    solver.train_state.level = level
    solver.train_state.stage.extend(stages)
    for what, hint in _list_errors(solver):
        raise InputError(path, what, hint)
    for field, what in _list_wrong_numbers(solver):
        raise InputError(document.where(field), what, f"write {field}: {_USUAL.get(field, 'a number')}")
    if solver.snapshot_format == solver.HDF5:
        import_h5py()  # not only when the first snapshot is due
    for fault in check_rates(solver):
        raise InputError(path, str(fault), "correct the schedule")
    return solver


def _list_errors(solver: pb.SolverParameter) -> list[tuple[str, str]]:
    """Return the errors in a solver, as (what is wrong, what to do)."""
    generic = solver.HasField("net") + solver.HasField("net_param")
    nets = generic + solver.HasField("train_net") + solver.HasField("train_net_param")
    regularization = solver.regularization_type
    cases = [
        (solver.type not in _TYPES, f"type '{solver.type}' is unknown", f"choose from {', '.join(_TYPES)}"),
        (nets != 1, f"specifies {nets} train nets", "give one of net, net_param, train_net, train_net_param"),
        (not solver.HasField("max_iter"), "max_iter is missing", "give it"),
        (solver.max_iter < 0, f"max_iter is {solver.max_iter}", "give 0 or more"),
        (solver.iter_size < 1, f"iter_size is {solver.iter_size}", "give 1 or more"),
        (solver.average_loss < 1, f"average_loss is {solver.average_loss}", "give 1 or more"),
        (solver.display < 0, f"display is {solver.display}", "give 0 or more"),
        (solver.snapshot < 0, f"snapshot is {solver.snapshot}", "give 0 or more"),
        (not solver.snapshot_prefix and _snapshots(solver), "snapshot_prefix is missing", "give it"),
        (
            solver.type == "AdaGrad" and solver.momentum != 0,
            "AdaGrad takes no momentum",
            "remove momentum",
        ),
        (
            regularization not in ("L1", "L2"),
            f"regularization_type '{regularization}' is unknown",
            "give L1 or L2",
        ),
        (solver.snapshot_diff, "snapshot_diff is not supported", "remove it"),
        (solver.eval_type != "classification", f"eval_type {solver.eval_type} is not supported", "remove it"),
        *_list_test_errors(solver, bool(generic)),
    ]
    return [(what, hint) for wrong, what, hint in cases if wrong]


def _list_test_errors(solver: pb.SolverParameter, generic: bool) -> list[tuple[bool, str, str]]:
    """Return the checks of the test nets, as (whether it failed, what is wrong, what to do)."""
    named, tests = len(solver.test_net) + len(solver.test_net_param), len(solver.test_iter)
    states = len(solver.test_state)
    return [
        (
            tests < named if generic else tests != named,
            f"has {tests} test_iter for {named} test nets",
            "give one for each",
        ),
        (
            tests > 0 and solver.test_interval < 1,
            f"has test_iter, but test_interval is {solver.test_interval}",
            "give 1 or more",
        ),
        (any(count < 1 for count in solver.test_iter), "test_iter is below 1", "give 1 or more"),
        (
            states not in (0, tests),
            f"has {states} test_state for {tests} test nets",
            "give one for each, or none",
        ),
    ]


_USUAL = {
    "clip_gradients": "the largest allowed norm",
    "delta": "1e-8",
    "momentum": "0.9",
    "momentum2": "0.999",
    "rms_decay": "0.99",
    "weight_decay": "0.0005",
}

# For each type, the fields with values at which Caffe stops (rms_decay), or trains without a message though
# weights become NaN or stay as they are: which values are valid, and how to say so. Others are used as given.
_RANGES: Mapping[str, Mapping[str, tuple[Callable[[float], bool], str]]] = {
    "RMSProp": {
        "rms_decay": (lambda value: 0 <= value < 1, "at least 0 and below 1"),
        "delta": (lambda value: value >= 0, "at least 0"),
    },
    "AdaDelta": {
        "momentum": (lambda value: 0 <= value <= 1, "at least 0 and at most 1"),
        "delta": (lambda value: value > 0, "above 0"),
    },
    "Adam": {
        "momentum": (lambda value: -1 < value < 1, "above -1 and below 1"),
        "momentum2": (lambda value: 0 <= value < 1, "at least 0 and below 1"),
    },
}


def _list_wrong_numbers(solver: pb.SolverParameter) -> Iterator[tuple[str, str]]:
    """Yield the numbers that no weight can be computed with, as (field, what is wrong)."""
    for given, value in solver.ListFields():
        is_limit = given.name == "clip_gradients" and not math.isnan(value)  # inf and -inf: no limit
        if isinstance(value, float) and not math.isfinite(value) and not is_limit:
            yield given.name, f"{given.name} is {float_text(value)}"
    for field, (is_valid, wanted) in _RANGES.get(solver.type, {}).items():
        if not is_valid(value := getattr(solver, field)):
            yield field, f"{field} is {float_text(value)}, but {solver.type} needs {wanted}"


def _snapshots(solver: pb.SolverParameter) -> bool:
    return bool(solver.snapshot) or solver.snapshot_after_train


def train_net(solver: pb.SolverParameter, path: str) -> tuple[pb.NetParameter, str]:
    """Return the TRAIN net with its state, and the file that it was read from."""
    net, source = _common_net(solver, path)
    if solver.HasField("train_net_param"):
        net, source = deepcopy(solver.train_net_param), path
    elif solver.HasField("train_net"):
        net, source = load_net(solver.train_net), solver.train_net
    state = pb.NetState(phase=pb.TRAIN)
    state.MergeFromString(net.state.SerializeToString())
    state.MergeFrom(solver.train_state)
    net.state.ParseFromString(state.SerializeToString())
    return net, source


def test_nets(solver: pb.SolverParameter, path: str) -> list[tuple[pb.NetParameter, str]]:
    """Return the TEST nets and their files, one per test_iter: first the test nets, then the common net."""
    nets = [(deepcopy(param), path) for param in solver.test_net_param]
    nets += [(load_net(name), name) for name in solver.test_net]
    nets += [_common_net(solver, path) for _ in range(len(solver.test_iter) - len(nets))]
    for index, (net, _) in enumerate(nets):
        state = pb.NetState(phase=pb.TEST)
        state.MergeFromString(net.state.SerializeToString())
        if solver.test_state:
            state.MergeFrom(solver.test_state[index])
        net.state.ParseFromString(state.SerializeToString())
    return nets


def _common_net(solver: pb.SolverParameter, path: str) -> tuple[pb.NetParameter, str]:
    if solver.HasField("net"):
        return load_net(solver.net), solver.net
    return deepcopy(solver.net_param), path


def load_net(path: str) -> pb.NetParameter:
    """Return the net in a file of any Caffe, upgraded from the old formats as Caffe does.

    A net of another Caffe is converted to ours where it means the same. Other fields that the engine runs
    stay, in the schema of all Caffes. Raises InputError that names all fields that it does not run.
    """
    return runnable_net(load_lenient(path))


def runnable_net(document: Document[Any]) -> pb.NetParameter:
    """Return the net in a document, as `load_net` does."""
    path = document.path
    if not is_kind(document.message, pb.NetParameter):
        raise InputError(path, "is not a net", "give the prototxt of a net")
    try:
        net = upgrade_net(document.message).message
    except PrototxtError as error:
        raise error.reworded(where=document.where(error.where)) from None
    if not net.layer:
        raise InputError(path, "has no layers", "give the prototxt of a net")
    return to_engine_net(replace(document, message=net))
