"""Caffemodels and solverstates of a run: written as Caffe writes them, and read back."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.weights import blob_shape, blob_values, is_legacy, save_message
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.engine.ops import show
from caffe_recipes.engine.updates import ParamGroup, shaped
from caffe_recipes.errors import InputError, WeightsError
from caffe_recipes.files import check_replaceable
from caffe_recipes.wording import find_nearest, plural


def snapshot_name(prefix: str, iteration: int, suffix: str) -> str:
    """Name a snapshot.

    >>> snapshot_name("/tmp/resnet", 7800, ".caffemodel")
    '/tmp/resnet_iter_7800.caffemodel'
    """
    return f"{prefix}_iter_{iteration}{suffix}"


def check_folder(prefix: str) -> None:
    """Raise InputError, before anything is trained, if no snapshot can be written beside `prefix`."""
    folder = Path(prefix).parent
    if not folder.is_dir():
        raise InputError(f"snapshot_prefix '{prefix}'", f"there is no folder {folder}", "make it")
    if not os.access(folder, os.W_OK):
        raise InputError(f"snapshot_prefix '{prefix}'", f"cannot write to {folder}", "check its permissions")
    try:
        check_replaceable(Path(snapshot_name(prefix, 0, ".caffemodel")))
    except OSError as error:
        what = f"cannot be written there: {error.strerror}"
        raise InputError(f"snapshot_prefix '{prefix}'", what, "check its folder") from None


def net_message(net: RunnableNet) -> pb.NetParameter:
    """Make the message of a net with its learned blobs: what a caffemodel holds."""
    message = pb.NetParameter(name=net.name)
    for node in net.nodes:
        layer = message.layer.add()
        layer.CopyFrom(node.param)
        for blob, shape in zip(node.blobs, node.learned, strict=True):
            _put(layer.blobs.add(), blob.reshape(shape))
    return message


def _histories(net: RunnableNet, groups: Sequence[ParamGroup]) -> list[Tensor]:
    depth = len(groups[0].history) if groups else 0
    blobs: dict[tuple[int, int], Tensor] = {}
    for group in groups:
        for level, flat in enumerate(group.history):
            for index, start, stop in group.places:
                blobs[level, index] = shaped(flat[start:stop], net.params[index].tensor.shape)
    return [blobs[level, index] for level in range(depth) for index in range(len(net.params))]


def _put(blob: pb.BlobProto, tensor: Tensor) -> None:
    """Fill a blob; its values go in as the bytes of the wire, for one by one ResNet-50's take ten seconds."""
    blob.shape.dim.extend(tensor.shape)
    values = tensor.detach().numpy().astype("<f4").tobytes()
    blob.MergeFromString(_DATA_TAG + _varint(len(values)) + values)


_DATA_TAG = bytes([pb.BlobProto.DATA_FIELD_NUMBER << 3 | 2])  # a packed field: its length, then its values


def _varint(number: int) -> bytes:
    """Write a number as protobuf does: seven bits a byte, the lowest first.

    >>> _varint(300).hex()
    'ac02'
    """
    low = []
    while number > 0x7F:
        low.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*low, number])


def save_snapshot(
    net: RunnableNet, groups: Sequence[ParamGroup], prefix: str, state: pb.SolverState, log: Log
) -> None:
    """Write `<prefix>_iter_<N>.caffemodel` and `.solverstate`, N being `state.iter`.

    The solverstate is `state` with the model's name and the history: all first blobs in the order of the
    parameters, then all second ones. Raises WeightsError where a file cannot be written.
    """
    log.info("solver.cpp:708", "Snapshot begin")
    model = snapshot_name(prefix, state.iter, ".caffemodel")
    log.info("solver.cpp:770", f"Snapshotting to binary proto file {model}")
    save_message(net_message(net), model)
    name = snapshot_name(prefix, state.iter, ".solverstate")
    log.info("sgd_solver.cpp:750", f"Snapshotting solver state to binary proto file {name}")
    state.learned_net = model
    for blob in _histories(net, groups):
        _put(state.history.add(), blob)
    save_message(state, name)
    log.info("solver.cpp:735", "Snapshot end")


@torch.no_grad()
def copy_weights(
    net: RunnableNet, weights: pb.NetParameter, path: str, log: Log, new: Collection[str] = ()
) -> list[str]:
    """Copy the blobs of layers that bear a name of the net's, but for those that are `new`.

    The file's other layers are ignored, which is logged. Gives the names of all its learned layers. Raises
    WeightsError for a shape that does not match, or no name that does.
    """
    wanted = {name: blobs for name, blobs in net.blobs().items() if name not in new}
    found = set()
    for layer in weights.layer:
        if layer.name not in wanted:
            if layer.blobs:
                log.info("net.cpp:1137", f"Ignoring source layer {layer.name}")
            continue
        if not layer.blobs:
            continue
        mine, shapes = wanted[layer.name], net.learned()[layer.name]
        if len(mine) != len(layer.blobs):
            what = f"layer '{layer.name}' has {len(layer.blobs)} blobs, and {len(mine)} in {net.path}"
            raise WeightsError(path, what, "give the weights of this net")
        for index, (tensor, shape, blob) in enumerate(zip(mine, shapes, layer.blobs, strict=True)):
            _check_shape(path, net.path, f"layer '{layer.name}', blob {index},", shape, blob)
            tensor.copy_(_values(blob).view(tensor.shape))
        found.add(layer.name)
    if wanted and not found:
        what = f"holds no layer of {net.path}: it is of another net"
        raise WeightsError(path, what, f"its layers are {_some(layer.name for layer in weights.layer)}")
    return [layer.name for layer in weights.layer if layer.blobs]


def check_complete(
    net: RunnableNet, held: Mapping[str, Sequence[str]], hint: str, new: Collection[str] = ()
) -> None:
    """Raise WeightsError if a learned layer is neither `new` nor held by one of the files in `held`.

    Caffe would start it from its fillers and say nothing: so ends a layer renamed since the weights were
    written. `hint` may hold `{layers}`, the names of the layers that are missing.
    """
    wanted, there = net.blobs(), [name for names in held.values() for name in names]
    missing = [name for name in wanted if name not in there and name not in new]
    if not missing:
        return
    spare = [name for name in there if name not in wanted]
    near = [match for name in missing if (match := find_nearest(name, spare))] or spare
    layers, verb = plural(len(missing), "layer"), plural(len(missing), "is", "are")
    what = f"{layers} {_some(map(repr, missing))} {verb} not in {' or '.join(held)}"
    what += f", which has {_some(map(repr, dict.fromkeys(near)))}" if near else ""
    raise WeightsError(net.path, what, hint.format(layers=",".join(missing)))


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:5]) + (", ..." if len(listed) > 5 else "")


def _values(blob: pb.BlobProto) -> Tensor:
    """Give a blob's values; those in single precision as the bytes of the wire (see _put)."""
    if blob.double_data:
        return torch.tensor(blob_values(blob), dtype=torch.float32)
    wire = bytearray(pb.BlobProto(data=blob.data).SerializeToString())
    return torch.frombuffer(wire, dtype=torch.float32, offset=len(wire) - 4 * len(blob.data))


def _check_shape(path: str, net: str, where: str, wanted: Sequence[int], blob: pb.BlobProto) -> None:
    shape, own = blob_shape(blob), tuple(wanted)
    if is_legacy(blob):  # four axes always
        own = (1,) * (4 - len(own)) + own
    if shape != own:
        what = f"{where} is {show(shape)}, and {show(tuple(wanted))} in {net}"
        raise WeightsError(
            path, what, "give the weights of this net, or train with -new_layers and the layer's name"
        )


@torch.no_grad()
def copy_history(net: RunnableNet, groups: Sequence[ParamGroup], state: pb.SolverState, path: str) -> None:
    """Copy a solverstate's history; raises WeightsError where it is of another net or solver type."""
    mine = _histories(net, groups)
    if len(mine) != len(state.history):
        what = f"holds {len(state.history)} blobs of history, and this net and solver have {len(mine)}"
        raise WeightsError(path, what, "resume with the net and the solver type it was written by")
    for index, (tensor, blob) in enumerate(zip(mine, state.history, strict=True)):
        _check_shape(path, net.path, f"history {index}", tensor.shape, blob)
        tensor.copy_(_values(blob).view(tensor.shape))
