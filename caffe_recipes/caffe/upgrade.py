"""Upgrade old nets and solvers as Caffe itself does when it reads them.

The steps are Caffe's, in Caffe's order: V0 layers, transformations of data layers, V1 layers, inputs; for a
solver, its type. Comments move with their fields; those of dropped fields go above the layer.

V0, of 2013: `layers { layer { name: "conv1" type: "conv" num_output: 96 } bottom: "data" }`. It becomes V1,
`layers { name: "conv1" type: CONVOLUTION convolution_param { .. } }`, and a padding layer becomes the `pad`
of the layer that it feeds.

V1, of 2014: `layers { name: "conv1" type: CONVOLUTION blobs_lr: 1 }`. It becomes
`layer { name: "conv1" type: "Convolution" param { lr_mult: 1 } }`, and the transformations of data layers go
into `transform_param`.

Source: Caffe's upgrade_proto.cpp. BVLC's version also sets the lr_mult of a BatchNorm's three `param` to 0;
ours does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.unsupported_names import find_fork_type
from caffe_recipes.caffe.layer_types import LAYER_TYPES
from caffe_recipes.caffe.prototxt import NO_COMMENTS, Document, is_kind
from caffe_recipes.caffe.text.comments import Comment, join_comments
from caffe_recipes.caffe.upgrade_steps import UpgradeStep, move_comments
from caffe_recipes.caffe.upgrade_v0 import upgrade_v0
from caffe_recipes.errors import PrototxtError
from caffe_recipes.wording import describe_count

_V1_NAMES = {name.replace("_", ""): name for name in pb.V1LayerParameter.LayerType.DESCRIPTOR.values_by_name}
V1_TYPES = {"NONE": ""} | {
    v1: name for name, entry in LAYER_TYPES.items() if (v1 := entry.v1 or _V1_NAMES.get(name.upper()))
}

# V1 fields with one value per learned blob, and the field of `param` that each becomes.
_PARAM = {
    "param": "name",
    "blob_share_mode": "share_mode",
    "blobs_lr": "lr_mult",
    "weight_decay": "decay_mult",
}

_DATA_BLOCKS = {
    pb.V1LayerParameter.DATA: "data_param",
    pb.V1LayerParameter.IMAGE_DATA: "image_data_param",
    pb.V1LayerParameter.WINDOW_DATA: "window_data_param",
}
_TRANSFORMS = ("scale", "mean_file", "crop_size", "mirror")


def upgrade_transforms(net: pb.NetParameter) -> UpgradeStep | None:
    """Move scale, mean_file, crop_size and mirror of V1 data layers into transform_param.

    Returns None if none is set. As in Caffe, every data layer of such a net gets a transform_param, even if
    it is empty. In a current `layer`, Caffe ignores these fields, so they stay where they are.
    """
    if not net.layers:
        return None
    new = deepcopy(net)
    moves: dict[str, str] = {}
    moved: set[str] = set()
    for index, layer in enumerate(new.layers):
        name = _DATA_BLOCKS.get(layer.type)
        if name is None:
            continue
        block: Any = getattr(layer, name)
        block.SetInParent()
        layer.transform_param.SetInParent()
        for field in _TRANSFORMS:
            if block.HasField(field):
                setattr(layer.transform_param, field, getattr(block, field))
                block.ClearField(field)
                at = f"layers[{index}]"
                moves[f"{at}.{name}.{field}"] = f"{at}.transform_param.{field}"
                moved.add(field)
    if not moves:
        return None
    fields = ", ".join(field for field in _TRANSFORMS if field in moved)
    return UpgradeStep(new, moves, (f"{fields} of data layers: now in transform_param",))


def upgrade_v1(net: pb.NetParameter) -> UpgradeStep | None:
    """Turn each `layers` into a `layer`; None if there is none."""
    if not net.layers:
        return None
    new = deepcopy(net)
    new.ClearField("layers")
    moves: dict[str, str] = {}
    for index, old in enumerate(net.layers):
        moves |= _upgrade_v1_layer(old, new.layer.add(), index)
    return UpgradeStep(new, moves, (f"{describe_count(len(net.layers), 'V1 layer')}: now `layer`",))


def _upgrade_v1_layer(old: pb.V1LayerParameter, new: pb.LayerParameter, index: int) -> dict[str, str]:
    """Fill `new`; return the moves. All fields except those of `param` have kept their names."""
    path, place = f"layers[{index}]", f"layer[{index}]"
    moves = {path: place}
    for field, value in old.ListFields():
        if field.name in _PARAM:
            for position, item in enumerate(value):
                while len(new.param) <= position:
                    new.param.add()
                setattr(new.param[position], _PARAM[field.name], item)
                at = f"{place}.param[{position}].{_PARAM[field.name]}"
                moves[f"{path}.{field.name}[{position}]"] = at
        elif field.name == "type":
            new.type = _current_type(enum_name(old, "type"))
        elif field.is_repeated:
            getattr(new, field.name).MergeFrom(value)
        elif field.message_type is not None:
            getattr(new, field.name).CopyFrom(value)
        else:
            setattr(new, field.name, value)
    return moves


def enum_name(message: Message, field: str) -> str:
    """Return the name of the value of an enum field; it need not be in our schema."""
    enum = message.DESCRIPTOR.fields_by_name[field].enum_type
    assert enum is not None
    return str(enum.values_by_number[getattr(message, field)].name)


def _current_type(name: str) -> str:
    """Return the current name of a V1 type; that of a fork's is the fork's own, or else the old name."""
    return V1_TYPES[name] if name in V1_TYPES else find_fork_type(name) or name


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
        made = new.layer.add(name="input", type="Input", top=net.input)
        for dims in shapes:
            made.input_param.shape.add(dim=dims)
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


def _input_shapes(net: pb.NetParameter) -> list[Sequence[int]]:
    """Return the shape of each input, or an empty list if no input has one."""
    count = len(net.input)
    if net.input_shape:
        if len(net.input_shape) < count:
            what = f"{describe_count(count, 'input')} but {len(net.input_shape)} input_shape"
            raise PrototxtError(f"input[{len(net.input_shape)}]", what, "give each input a shape")
        return [shape.dim for shape in net.input_shape[:count]]
    if not net.input_dim:
        return []
    if len(net.input_dim) < _AXES * count:
        what = f"{describe_count(count, 'input')} but {len(net.input_dim)} input_dim"
        raise PrototxtError("input_dim[0]", what, f"give each input {_AXES}: images, channels, height, width")
    return [net.input_dim[_AXES * i : _AXES * (i + 1)] for i in range(count)]


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
    try:
        return _upgrade_message(document.message, document.comments)
    except PrototxtError as error:
        raise PrototxtError(document.where(error.where), error.what, error.hint) from None


def _upgrade_message(message: Message, comments: Mapping[str, Comment]) -> Upgrade[Message]:
    if is_kind(message, pb.NetParameter):
        return upgrade_net(message, comments)
    if is_kind(message, pb.SolverParameter):
        return upgrade_solver(message, comments)
    if is_kind(message, pb.MultiPhaseSolverParameter):
        return _upgrade_phases(message, comments)
    return Upgrade(message, comments, ())


def as_current_net(document: Document[pb.NetParameter]) -> Document[pb.NetParameter]:
    """Return a net in the old format (`layers`) as Caffe upgrades it, with places in the old text.

    A net in the current format is returned as it is. Raises PrototxtError, whose `where` is the path of a
    field, if Caffe would give up.
    """
    old = document.message.layers
    if not old:
        return document
    net = upgrade_net(document.message).message
    now = {index: new for new, index in enumerate(_old_indexes(net.layer, old)) if index is not None}
    offsets = dict(document.offsets)
    for path, offset in document.offsets.items():
        given = _OLD_LAYER.match(path)
        if given and int(given[1]) in now:
            offsets[f"layer[{now[int(given[1])]}]{path[given.end() :]}"] = offset
    return replace(document, message=net, offsets=offsets, given=None)


_OLD_LAYER = re.compile(r"layers\[(\d+)\]")


def _old_indexes(layers: Sequence[pb.LayerParameter], old: Sequence[pb.V1LayerParameter]) -> list[int | None]:
    """Return the index of the old layer for each upgraded layer; order and names are the same in both."""
    found: list[int | None] = []
    names = [each.name or each.layer.name for each in old]
    start = 0
    for layer in layers:
        index = next((i for i in range(start, len(names)) if names[i] == layer.name), None)
        found.append(index)
        start = start if index is None else index + 1
    return found


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
        old = enum_name(new, "solver_type")
        new.type = SOLVER_TYPES.get(old, old)
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
    message: Message, path: str, comments: Mapping[str, Comment], changes: list[str]
) -> Mapping[str, Comment]:
    """Upgrade a nested message in place; return all comments, and append to `changes`."""
    inner = {
        at.removeprefix(f"{path}."): comment for at, comment in comments.items() if at.startswith(f"{path}.")
    }
    try:
        upgrade = _upgrade_message(message, inner)
    except PrototxtError as error:
        raise PrototxtError(f"{path}.{error.where}", error.what, error.hint) from None
    if not upgrade.changes:
        return comments
    message.CopyFrom(upgrade.message)
    changes += [f"{path}: {change}" for change in upgrade.changes]
    outer = {at: comment for at, comment in comments.items() if not at.startswith(f"{path}.")}
    for at, comment in upgrade.comments.items():
        place = f"{path}.{at}" if at else path
        outer[place] = join_comments(outer[place], comment) if place in outer else comment
    return outer
