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
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.unsupported_names import find_fork_type
from caffe_recipes.caffe.layer_types import LAYER_TYPES
from caffe_recipes.caffe.prototxt import NO_COMMENTS, Document, is_kind
from caffe_recipes.caffe.text.comments import Comment, join_comments
from caffe_recipes.errors import PrototxtError
from caffe_recipes.wording import describe_count, did_you_mean

_STEP = re.compile(r"(\w+)(?:\[(\d+)\])?")


@dataclass(frozen=True)
class UpgradeStep:
    """The result of one step of the upgrade of a net.

    `moves` maps the old path of each field that moved to its new path; the fields in it move with it. If no
    field has the new path, the field was dropped, and its comment goes above the enclosing block.
    """

    net: pb.NetParameter
    moves: Mapping[str, str]
    changes: tuple[str, ...]


def _move_comments(
    comments: Mapping[str, Comment], moves: Mapping[str, str], message: Message
) -> dict[str, Comment]:
    """Return the comments by the paths of their fields in the upgraded message; no comment is lost."""
    moved: dict[str, Comment] = {}
    for old, comment in comments.items():
        path = _new_path(old, moves)
        while path and (value := _value_at(message, path)) is None:
            path, comment = path.rpartition(".")[0], Comment(above=comment.texts)
        if path and (comment.below or comment.closing) and not isinstance(value, Message):
            comment = Comment(above=comment.texts)
        moved[path] = join_comments(moved[path], comment) if path in moved else comment
    return moved


def _new_path(path: str, moves: Mapping[str, str]) -> str:
    """Return a path with its longest moved prefix replaced."""
    start, end = path, ""
    while start and start not in moves:
        start, _, last = start.rpartition(".")
        end = f".{last}{end}"
    return f"{moves[start]}{end}" if start else path


def _value_at(message: Message, path: str) -> Any:  # noqa: ANN401 - any field's value
    """Return the value at a path, or None if it is not set."""
    value: Any = message
    for step in path.split("."):
        match = _STEP.fullmatch(step)
        if not match or not isinstance(value, Message) or match[1] not in value.DESCRIPTOR.fields_by_name:
            return None
        name, index = match[1], match[2]
        if value.DESCRIPTOR.fields_by_name[name].is_repeated != (index is not None):
            return None
        if index is None:
            value = getattr(value, name) if value.HasField(name) else None
        else:
            items = getattr(value, name)
            value = items[int(index)] if int(index) < len(items) else None
    return value


V0_TYPES = {
    "accuracy": "ACCURACY",
    "bnll": "BNLL",
    "concat": "CONCAT",
    "conv": "CONVOLUTION",
    "data": "DATA",
    "dropout": "DROPOUT",
    "euclidean_loss": "EUCLIDEAN_LOSS",
    "flatten": "FLATTEN",
    "hdf5_data": "HDF5_DATA",
    "hdf5_output": "HDF5_OUTPUT",
    "im2col": "IM2COL",
    "images": "IMAGE_DATA",
    "infogain_loss": "INFOGAIN_LOSS",
    "innerproduct": "INNER_PRODUCT",
    "lrn": "LRN",
    "multinomial_logistic_loss": "MULTINOMIAL_LOGISTIC_LOSS",
    "pool": "POOLING",
    "relu": "RELU",
    "sigmoid": "SIGMOID",
    "softmax": "SOFTMAX",
    "softmax_loss": "SOFTMAX_LOSS",
    "split": "SPLIT",
    "tanh": "TANH",
    "window_data": "WINDOW_DATA",
}

_ANY = "*"
_CONV, _POOL, _FULL, _LRN = "convolution_param", "pooling_param", "inner_product_param", "lrn_param"
_DATA, _IMAGES, _WINDOWS, _HDF5 = "data_param", "image_data_param", "window_data_param", "hdf5_data_param"
_LEARNED = {"conv": _CONV, "innerproduct": _FULL}
_SOURCES = {"data": _DATA, "hdf5_data": _HDF5, "images": _IMAGES, "window_data": _WINDOWS}

# Where each field goes: its new name, and the block that it goes to, by the layer's type.
_FIELDS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "name": ("name", {_ANY: ""}),
    "blobs": ("blobs", {_ANY: ""}),
    "blobs_lr": ("blobs_lr", {_ANY: ""}),
    "weight_decay": ("weight_decay", {_ANY: ""}),
    "num_output": ("num_output", _LEARNED),
    "biasterm": ("bias_term", _LEARNED),
    "weight_filler": ("weight_filler", _LEARNED),
    "bias_filler": ("bias_filler", _LEARNED),
    "pad": ("pad", {"conv": _CONV, "pool": _POOL}),
    "kernelsize": ("kernel_size", {"conv": _CONV, "pool": _POOL}),
    "stride": ("stride", {"conv": _CONV, "pool": _POOL}),
    "group": ("group", {"conv": _CONV}),
    "pool": ("pool", {"pool": _POOL}),
    "dropout_ratio": ("dropout_ratio", {"dropout": "dropout_param"}),
    "local_size": ("local_size", {"lrn": _LRN}),
    "alpha": ("alpha", {"lrn": _LRN}),
    "beta": ("beta", {"lrn": _LRN}),
    "k": ("k", {"lrn": _LRN}),
    "source": ("source", {**_SOURCES, "infogain_loss": "infogain_loss_param"}),
    "batchsize": ("batch_size", _SOURCES),
    "scale": ("scale", {_ANY: "transform_param"}),
    "meanfile": ("mean_file", {_ANY: "transform_param"}),
    "cropsize": ("crop_size", {_ANY: "transform_param"}),
    "mirror": ("mirror", {_ANY: "transform_param"}),
    "rand_skip": ("rand_skip", {"data": _DATA, "images": _IMAGES}),
    "shuffle_images": ("shuffle", {"images": _IMAGES}),
    "new_height": ("new_height", {"images": _IMAGES}),
    "new_width": ("new_width", {"images": _IMAGES}),
    "concat_dim": ("concat_dim", {"concat": "concat_param"}),
    "det_fg_threshold": ("fg_threshold", {"window_data": _WINDOWS}),
    "det_bg_threshold": ("bg_threshold", {"window_data": _WINDOWS}),
    "det_fg_fraction": ("fg_fraction", {"window_data": _WINDOWS}),
    "det_context_pad": ("context_pad", {"window_data": _WINDOWS}),
    "det_crop_mode": ("crop_mode", {"window_data": _WINDOWS}),
    "hdf5_output_param": ("hdf5_output_param", {"hdf5_output": ""}),
}
_KEPT_IN_NET = ("name", "layers", "input", "input_dim", "force_backward")


def upgrade_v0(net: pb.NetParameter) -> UpgradeStep | None:
    """Turn a net with V0 layers into one with V1 layers; None if it has none.

    What Caffe drops, such as fields that a type does not read, is dropped and reported. Raises PrototxtError,
    whose `where` is the field's path, if Caffe would give up.
    """
    if not any(old.HasField("layer") for old in net.layers):
        return None
    for index, old in enumerate(net.layers):
        if not old.HasField("layer"):
            what = "is not a V0 layer, but other layers are"
            raise PrototxtError(f"layers[{index}]", what, "write all layers in one format")
    folded, consumers = _fold_paddings(net)
    kept = [index for index, old in enumerate(net.layers) if old.layer.type != "padding"]
    places = {index: f"layers[{place}]" for place, index in enumerate(kept)}
    new = type(net)()
    moves: dict[str, str] = {}
    dropped = _upgrade_net_fields(net, new)
    for index in kept:
        layer = new.layers.add()
        layer_moves, layer_dropped = _upgrade_v0_layer(folded.layers[index], layer, index, places[index])
        moves |= layer_moves
        dropped += layer_dropped
    for index in range(len(net.layers)):
        if index not in places:
            moves |= _padding_moves(index, consumers[index], places, moves)
    return UpgradeStep(
        new, moves, tuple(_describe_changes(len(net.layers), len(net.layers) - len(kept), dropped))
    )


def _upgrade_net_fields(net: pb.NetParameter, new: pb.NetParameter) -> list[str]:
    """Copy the net's own fields that existed in 2013; return what is dropped."""
    dropped = []
    for field, value in net.ListFields():
        if field.name not in _KEPT_IN_NET:
            dropped.append(f"the net's {field.name}")
        elif field.name != "layers":
            _set_by_path(new, field.name, value, field.name)
    return dropped


def _fold_paddings(net: pb.NetParameter) -> tuple[pb.NetParameter, dict[int, list[int]]]:
    """Give each layer that a padding layer feeds its `pad` and bottom; return the indexes of those layers.

    They are listed by the index of the padding layer. Raises PrototxtError if Caffe would refuse the net.
    """
    folded = deepcopy(net)
    consumers: dict[int, list[int]] = {
        index: [] for index, old in enumerate(net.layers) if old.layer.type == "padding"
    }
    producers: dict[str, int | None] = dict.fromkeys(net.input)
    for index, old in enumerate(net.layers):
        for position, bottom in enumerate(old.bottom):
            where = f"layers[{index}].bottom[{position}]"
            if bottom not in producers:
                raise PrototxtError(
                    where, f"no layer above produces the bottom '{bottom}'", "Caffe refuses it"
                )
            producer = producers[bottom]
            if producer is None or producer not in consumers:
                continue
            _check_padding(net, producer, index, where)
            consumers[producer].append(index)
            folded.layers[index].layer.pad = net.layers[producer].layer.pad
            folded.layers[index].bottom[position] = net.layers[producer].bottom[0]
        producers |= dict.fromkeys(old.top, index)
    return folded, consumers


def _check_padding(net: pb.NetParameter, padding: int, consumer: int, where: str) -> None:
    producer, old = net.layers[padding], net.layers[consumer]
    if old.layer.type not in ("conv", "pool"):
        what = f"a padding layer feeds '{old.layer.name}' of type '{old.layer.type}'"
        raise PrototxtError(where, what, "Caffe pads conv and pool layers only")
    if len(old.bottom) != 1 or len(producer.bottom) != 1 or len(producer.top) != 1:
        what = f"padding layer '{producer.layer.name}' cannot be merged into '{old.layer.name}'"
        raise PrototxtError(where, what, "give both layers one bottom, and the padding layer one top")


def _padding_moves(
    index: int, consumers: list[int], places: Mapping[int, str], moves: Mapping[str, str]
) -> dict[str, str]:
    """Move a padding layer's comments above the layer that it feeds, or the next; that of `pad`, to `pad`."""
    old = f"layers[{index}]"
    if consumers:
        first = consumers[0]
        return {old: f"{places[first]}.padding", f"{old}.layer.pad": moves[f"layers[{first}].layer.pad"]}
    after = [place for kept, place in places.items() if kept > index]
    return {old: f"{after[0] if after else 'layers'}.padding"}


def _upgrade_v0_layer(
    old: pb.V1LayerParameter, new: pb.V1LayerParameter, index: int, place: str
) -> tuple[dict[str, str], list[str]]:
    """Fill `new`; return the moves, and what was dropped."""
    path, kind, v0 = f"layers[{index}]", old.layer.type, old.layer
    moves, dropped = {path: place, f"{path}.layer": place}, []
    for field, value in old.ListFields():
        if field.name in ("bottom", "top"):
            _set_by_path(new, field.name, value, "")
        elif field.name != "layer":
            dropped.append(f"{field.name} outside the block of '{v0.name}'")
    for field, value in v0.ListFields():
        source = f"{path}.layer.{field.name}"
        name, blocks = _FIELDS.get(field.name, ("", {}))
        block = blocks.get(kind, blocks.get(_ANY))
        if field.name == "type":
            new.type = _v1_type(kind, source)
        elif block is None:
            dropped.append(f"{field.name} of '{v0.name}' (type {kind})")
        else:
            target = ".".join(filter(None, [block, name]))
            moves[source] = f"{place}.{_set_by_path(new, target, value, source)}"
    return moves, dropped


def _v1_type(kind: str, where: str) -> Any:  # noqa: ANN401 - an enum's number
    if kind not in V0_TYPES:
        hint = did_you_mean(kind, V0_TYPES, f"choose from {', '.join(V0_TYPES)}, padding")
        raise PrototxtError(where, f"V0 layers have no type '{kind}'", hint)
    return pb.V1LayerParameter.LayerType.Value(V0_TYPES[kind])


def _set_by_path(message: Message, path: str, value: Any, where: str) -> str:  # noqa: ANN401 - any field's value
    """Set a field by its path; return the path, with an index if a single value was put in a list."""
    *blocks, name = path.split(".")
    holder: Any = message
    for block in blocks:
        holder = getattr(holder, block)
    if isinstance(value, Message):
        getattr(holder, name).CopyFrom(value)
    elif holder.DESCRIPTOR.fields_by_name[name].is_repeated:
        is_single = isinstance(value, int)
        getattr(holder, name).extend([value] if is_single else value)
        return f"{path}[0]" if is_single else path
    else:
        try:
            setattr(holder, name, value)
        except ValueError:  # new_height and new_width were signed in V0
            raise PrototxtError(where, f"{value} is out of range", "give a size in pixels") from None
    return path


def _describe_changes(layers: int, paddings: int, dropped: list[str]) -> Iterator[str]:
    yield f"{describe_count(layers, 'V0 layer')}: types and parameters renamed"
    if paddings:
        yield f"{describe_count(paddings, 'padding layer')}: now the pad of the layers that they feed"
    if dropped:
        yield f"dropped, as in Caffe's own upgrade: {', '.join(dropped)}"


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
            net, comments = step.net, _move_comments(comments, step.moves, step.net)
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
        comments = _move_comments(comments, {"solver_type": "type"}, new)
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
