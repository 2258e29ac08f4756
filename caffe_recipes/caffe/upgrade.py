"""Upgrade old nets and solvers as Caffe itself does when it reads them.

The steps are Caffe's, in Caffe's order: V0 layers, transformations of data layers, V1 layers, inputs; for a
solver, its type. Comments move with their fields; those of dropped fields go above the layer.

Source: Caffe's upgrade_proto.cpp. BVLC's version also sets the lr_mult of a BatchNorm's three `param` to 0;
ours does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import NO_COMMENTS, Document
from caffe_recipes.caffe.text.comments import Comment, join_comments
from caffe_recipes.caffe.upgrade_old import (
    UpgradeStep,
    move_comments,
    upgrade_transforms,
    upgrade_v0,
    upgrade_v1,
)
from caffe_recipes.errors import PrototxtError
from caffe_recipes.wording import describe_count

_AXES = 4  # values of `input_dim` for each input


def upgrade_inputs(net: pb.NetParameter) -> UpgradeStep | None:
    """Turn `input` with `input_shape` or `input_dim` into a first layer of type Input; None without `input`.

    If no input has a shape, as in old caffemodels, the inputs are dropped, as in Caffe. Raises PrototxtError
    if there are fewer shapes than inputs.
    """
    if not net.input:
        return None
    shapes = _input_shapes(net)
    new = deepcopy(net)
    for field in ("input", "input_shape", "input_dim", "layer"):
        new.ClearField(field)
    if shapes:
        new.layer.add(name="input", type="Input", top=net.input, input_param=pb.InputParameter(shape=shapes))
    new.layer.MergeFrom(net.layer)
    if not shapes:
        return UpgradeStep(new, {}, (f"{describe_count(len(net.input), 'input')} without a shape: dropped",))
    moves = {f"layer[{index}]": f"layer[{index + 1}]" for index in range(len(net.layer))}
    for index in range(len(net.input)):
        moves[f"input[{index}]"] = f"layer[0].top[{index}]"
        moves[f"input_shape[{index}]"] = f"layer[0].input_param.shape[{index}]"
    spare = len(net.input)  # the comments of superfluous shapes go to the layer
    moves |= {f"input_shape[{index}]": "layer[0].spare" for index in range(spare, len(net.input_shape))}
    for index in range(len(net.input_dim)):
        blob, axis = divmod(index, _AXES)
        is_used = blob < len(net.input) and not net.input_shape
        moves[f"input_dim[{index}]"] = (
            f"layer[0].input_param.shape[{blob}].dim[{axis}]" if is_used else "layer[0].spare"
        )
    return UpgradeStep(new, moves, (f"{describe_count(len(net.input), 'input')}: now a layer of type Input",))


def _input_shapes(net: pb.NetParameter) -> list[pb.BlobShape]:
    """Return the shape of each input, or an empty list if no input has one."""
    count = len(net.input)
    if net.input_shape:
        if len(net.input_shape) < count:
            what = f"{describe_count(count, 'input')} but {len(net.input_shape)} input_shape"
            raise PrototxtError(f"input[{len(net.input_shape)}]", what, "give each input a shape")
        return list(net.input_shape)[:count]
    if not net.input_dim:
        return []
    if len(net.input_dim) < _AXES * count:
        what = f"{describe_count(count, 'input')} but {len(net.input_dim)} input_dim"
        raise PrototxtError("input_dim[0]", what, f"give each input {_AXES}: images, channels, height, width")
    return [pb.BlobShape(dim=net.input_dim[_AXES * i : _AXES * (i + 1)]) for i in range(count)]


M_co = TypeVar("M_co", bound=Message, covariant=True)

SOLVER_TYPES = {
    "SGD": "SGD",
    "NESTEROV": "Nesterov",
    "ADAGRAD": "AdaGrad",
    "RMSPROP": "RMSProp",
    "ADADELTA": "AdaDelta",
    "ADAM": "Adam",
}
_STEPS = (upgrade_v0, upgrade_transforms, upgrade_v1, upgrade_inputs)


@dataclass(frozen=True)
class Upgrade(Generic[M_co]):
    """An upgraded message, its comments by path, and its changes, one line per kind of change."""

    message: M_co
    comments: Mapping[str, Comment]
    changes: tuple[str, ...]


def upgrade_document(document: Document[Message]) -> Upgrade[Message]:
    """Upgrade a file's message of any kind. Raises PrototxtError where Caffe would give up."""
    message = document.message
    try:
        if isinstance(message, pb.NetParameter):
            return upgrade_net(message, document.comments)
        if isinstance(message, pb.SolverParameter):
            return upgrade_solver(message, document.comments)
        if isinstance(message, pb.MultiPhaseSolverParameter):
            return _upgrade_phases(message, document.comments)
    except PrototxtError as error:
        raise PrototxtError(document.where(error.where), error.what, error.hint) from None
    return Upgrade(message, document.comments, ())


def upgrade_net(
    net: pb.NetParameter, comments: Mapping[str, Comment] = NO_COMMENTS
) -> Upgrade[pb.NetParameter]:
    """Return the upgraded net; a net in the current format is returned unchanged.

    Raises PrototxtError, whose `where` is the path of a field, if Caffe would give up.
    """
    changes: list[str] = []
    if net.layer and net.layers:
        what = "the net has both `layers` and `layer`"
        raise PrototxtError("layers[0]", what, "Caffe refuses it; use only `layer`")
    for upgrade_step in _STEPS:
        step = upgrade_step(net)
        if step:
            net, comments = step.net, move_comments(comments, step.moves, step.net)
            changes += step.changes
    return Upgrade(net, comments, tuple(changes))


def upgrade_solver(
    solver: pb.SolverParameter, comments: Mapping[str, Comment] = NO_COMMENTS
) -> Upgrade[pb.SolverParameter]:
    """Return the upgraded solver, with its type as text and upgraded nets.

    Raises PrototxtError, whose `where` is the path of a field, if Caffe would give up.
    """
    new = deepcopy(solver)
    changes: list[str] = []
    if new.HasField("solver_type"):
        if new.HasField("type"):
            what = "is given as well as `type`"
            raise PrototxtError("solver_type", what, "Caffe refuses both; keep `type`")
        old = pb.SolverParameter.SolverType.Name(new.solver_type)
        new.type = SOLVER_TYPES[old]
        new.ClearField("solver_type")
        comments = move_comments(comments, {"solver_type": "type"}, new)
        changes.append(f'solver_type {old}: now type "{new.type}"')
    for path, net in _embedded_nets(new):
        comments = _upgrade_within(net, path, comments, changes)
    return Upgrade(new, comments, tuple(changes))


def _upgrade_phases(
    phases: pb.MultiPhaseSolverParameter, comments: Mapping[str, Comment]
) -> Upgrade[Message]:
    new = deepcopy(phases)
    changes: list[str] = []
    for index, pair in enumerate(new.params_pair):
        if pair.HasField("solver_params"):
            path = f"params_pair[{index}].solver_params"
            comments = _upgrade_within(pair.solver_params, path, comments, changes)
    return Upgrade(new, comments, tuple(changes))


def _embedded_nets(solver: pb.SolverParameter) -> list[tuple[str, pb.NetParameter]]:
    single = [
        (name, getattr(solver, name)) for name in ("net_param", "train_net_param") if solver.HasField(name)
    ]
    tests = [(f"test_net_param[{index}]", net) for index, net in enumerate(solver.test_net_param)]
    return single + tests


def _upgrade_within(
    message: pb.NetParameter | pb.SolverParameter,
    path: str,
    comments: Mapping[str, Comment],
    changes: list[str],
) -> Mapping[str, Comment]:
    """Upgrade a nested message in place; return all comments, and append to `changes`."""
    inner = {
        at.removeprefix(f"{path}."): comment for at, comment in comments.items() if at.startswith(f"{path}.")
    }
    try:
        upgrade: Upgrade[pb.NetParameter] | Upgrade[pb.SolverParameter]
        if isinstance(message, pb.NetParameter):
            upgrade = upgrade_net(message, inner)
        else:
            upgrade = upgrade_solver(message, inner)
    except PrototxtError as error:
        raise PrototxtError(f"{path}.{error.where}", error.what, error.hint) from None
    if not upgrade.changes:
        return comments
    message.CopyFrom(upgrade.message)  # type: ignore[arg-type]  # both have the same class
    changes += [f"{path}: {change}" for change in upgrade.changes]
    outer = {at: comment for at, comment in comments.items() if not at.startswith(f"{path}.")}
    for at, comment in upgrade.comments.items():
        place = f"{path}.{at}" if at else path
        outer[place] = join_comments(outer[place], comment) if place in outer else comment
    return outer
