"""Write caffemodels and solverstates as Caffe does, and load them into a net."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.schema import to_ours
from caffe_recipes.caffe.hdf5_weights import render_state, render_weights
from caffe_recipes.caffe.packed_blobs import fill_blob, packed_data
from caffe_recipes.caffe.shapes import show_shape
from caffe_recipes.caffe.weights import blob_shape, blob_values, fits_shape, save_bytes, save_message
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.engine.operators.elementwise import scales_channels
from caffe_recipes.engine.updates import ParamGroup, view_as_blob
from caffe_recipes.errors import InputError, WeightsError, hint_for
from caffe_recipes.files.atomic_writes import check_replaceable
from caffe_recipes.wording import describe_count, find_nearest, plural

_PLAIN_BLOBS = 3  # of a BatchNorm that does not scale by itself


def snapshot_name(prefix: str, iteration: int, suffix: str) -> str:
    """Return the path of a snapshot.

    >>> snapshot_name("/tmp/resnet", 7800, ".caffemodel")
    '/tmp/resnet_iter_7800.caffemodel'
    """
    return f"{prefix}_iter_{iteration}{suffix}"


def check_prefix(prefix: str, last: int) -> None:
    """Raise InputError if no snapshot can be written with `prefix`, up to iteration `last`.

    Called before training starts.
    """
    ends = (".caffemodel", ".solverstate", ".caffemodel.h5", ".solverstate.h5")
    files = [Path(snapshot_name(prefix, last, end)) for end in ends]
    folder = files[0].parent
    try:
        if not folder.is_dir():
            what, hint = f"the folder {folder} does not exist", "create it"
            if folder.exists():
                what, hint = f"{folder} is not a folder", "choose another prefix"
            raise InputError(f"snapshot_prefix '{prefix}'", what, hint)
        if not os.access(folder, os.W_OK):
            what = f"cannot write to {folder}"
            raise InputError(f"snapshot_prefix '{prefix}'", what, "check its permissions")
        for path in files:
            check_replaceable(path)
    except OSError as error:
        what = f"cannot write snapshots there: {error.strerror}"
        hint = hint_for(error, "check its folder")
        raise InputError(f"snapshot_prefix '{prefix}'", what, hint) from None


def build_net_message(net: RunnableNet) -> pb.NetParameter:
    """Return a net and its learned blobs as a message: the content of a caffemodel."""
    message = pb.NetParameter(name=net.name)
    for node in net.nodes:
        layer = message.layer.add()
        layer.ParseFromString(to_ours(node.param).SerializeToString())
        for blob, shape in zip(node.blobs, node.learned, strict=True):
            _fill_blob(layer.blobs.add(), blob.reshape(shape))
    return message


def _history_blobs(net: RunnableNet, groups: Sequence[ParamGroup]) -> list[Tensor]:
    depth = len(groups[0].history) if groups else 0
    blobs: dict[tuple[int, int], Tensor] = {}
    for group in groups:
        for level, flat in enumerate(group.history):
            for index, start, stop in group.ranges:
                blobs[level, index] = view_as_blob(flat[start:stop], net.params[index].tensor.shape)
    return [blobs[level, index] for level in range(depth) for index in range(len(net.params))]


def _fill_blob(blob: pb.BlobProto, tensor: Tensor) -> None:
    fill_blob(blob, tensor.shape, tensor.detach().cpu().numpy().astype("<f4").tobytes())


def save_snapshot(
    net: RunnableNet,
    groups: Sequence[ParamGroup],
    solver: pb.SolverParameter,
    state: pb.SolverState,
    log: Log,
) -> None:
    """Write `<prefix>_iter_<N>.caffemodel` and `.solverstate`, with N from `state`; for HDF5, with `.h5`.

    The solverstate is `state` with the name of the caffemodel and the history: the first history blob of each
    parameter, in order, then the second ones. Raises WeightsError if a file cannot be written.
    """
    log.info("solver.cpp:708", "Snapshot begin")
    is_hdf5 = solver.snapshot_format == solver.HDF5
    kind, end = ("HDF5", ".h5") if is_hdf5 else ("binary proto", "")
    model = snapshot_name(solver.snapshot_prefix, state.iter, f".caffemodel{end}")
    log.info("solver.cpp:770", f"Snapshotting to {kind} file {model}")
    weights = build_net_message(net)
    if is_hdf5:
        save_bytes(render_weights((layer.name, layer.blobs) for layer in weights.layer), model)
    else:
        save_message(weights, model)
    name = snapshot_name(solver.snapshot_prefix, state.iter, f".solverstate{end}")
    log.info("sgd_solver.cpp:750", f"Snapshotting solver state to {kind} file {name}")
    state.learned_net = model
    for blob in _history_blobs(net, groups):
        _fill_blob(state.history.add(), blob)
    if is_hdf5:
        save_bytes(render_state(state), name)
    else:
        save_message(state, name)
    log.info("solver.cpp:735", "Snapshot end")


@torch.no_grad()
def copy_weights(
    net: RunnableNet,
    weights: pb.NetParameter,
    path: str,
    log: Log,
    new: Collection[str] = (),
    hint: str = "give the weights of this net",
) -> list[str]:
    """Copy the weights of all layers that the net also has, except `new` ones, from a file.

    Returns the names of all learned layers in the file. Its other layers are ignored and logged.
    Raises WeightsError if a shape does not match, or if the net and the file have no layer in common.
    `{layers}` in `hint` is replaced with the name of a layer that does not fit.
    """
    wanted = {name: blobs for name, blobs in net.blobs().items() if name not in new}
    found = set()
    layers = list(_separate_norms(net, weights))
    for layer in layers:
        if layer.name not in wanted:
            if layer.blobs:
                log.info("net.cpp:1137", f"Ignoring source layer {layer.name}")
            continue
        if not layer.blobs:
            continue
        mine, shapes = wanted[layer.name], net.learned_shapes()[layer.name]
        if len(mine) != len(layer.blobs):
            blobs = describe_count(len(layer.blobs), "blob")
            what = f"layer '{layer.name}' has {blobs}, but {len(mine)} in {net.path}"
            raise WeightsError(path, what, hint.format(layers=layer.name))
        for index, (tensor, shape, blob) in enumerate(zip(mine, shapes, layer.blobs, strict=True)):
            where = f"layer '{layer.name}', blob {index},"
            _check_shape(path, net.path, where, shape, blob, hint.format(layers=layer.name))
            tensor.copy_(_blob_tensor(blob).view(tensor.shape))
        found.add(layer.name)
    if wanted and not found:
        what = f"has no layer in common with {net.path}: it belongs to another net"
        raise WeightsError(path, what, f"its layers are {_list_first(layer.name for layer in weights.layer)}")
    return [layer.name for layer in layers if layer.blobs]


def _separate_norms(net: RunnableNet, weights: pb.NetParameter) -> Iterator[pb.LayerParameter]:
    """Yield the layers of a file, with the batch norms of Intel's MKL engines taken apart as the net is.

    Such a BatchNorm has five blobs: the last two are the factor and the shift of the Scale layer after it,
    which Intel's Caffe merges into it (include/caffe/util/remove_batch_norm.hpp).
    """
    there = {layer.name for layer in weights.layer if layer.blobs}
    scales = {node.bottoms[0]: node.param.name for node in net.nodes if scales_channels(node.param)}
    parts = {
        node.param.name: scales.get(node.tops[0])
        for node in net.nodes
        if node.param.type == "BatchNorm" and len(node.blobs) == _PLAIN_BLOBS
    }
    for layer in weights.layer:
        scale = parts.get(layer.name)
        if scale is None or scale in there or len(layer.blobs) != _PLAIN_BLOBS + 2:
            yield layer
            continue
        yield pb.LayerParameter(name=layer.name, blobs=layer.blobs[:_PLAIN_BLOBS])
        yield pb.LayerParameter(name=scale, blobs=layer.blobs[_PLAIN_BLOBS:])


def check_complete(
    net: RunnableNet, layers_by_file: Mapping[str, Sequence[str]], hint: str, new: Collection[str] = ()
) -> None:
    """Raise WeightsError if a learned layer is neither `new` nor in one of the files in `layers_by_file`.

    Caffe would silently start such a layer from its fillers, for example one that was renamed after the
    weights were written. `{layers}` in `hint` is replaced with the names of the missing layers.
    """
    wanted, there = net.blobs(), [name for names in layers_by_file.values() for name in names]
    missing = [name for name in wanted if name not in there and name not in new]
    if not missing:
        return
    spare = [name for name in there if name not in wanted]
    near = [match for name in missing if (match := find_nearest(name, spare))] or spare
    layers, verb = plural(len(missing), "layer"), plural(len(missing), "is", "are")
    what = f"{layers} {_list_first(map(repr, missing))} {verb} not in {' or '.join(layers_by_file)}"
    what += f", which has {_list_first(map(repr, dict.fromkeys(near)))}" if near else ""
    raise WeightsError(net.path, what, hint.format(layers=",".join(missing)))


def _list_first(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:5]) + (", ..." if len(listed) > 5 else "")


def _blob_tensor(blob: pb.BlobProto) -> Tensor:
    """Return a blob's values."""
    if blob.double_data:
        return torch.tensor(blob_values(blob), dtype=torch.float32)
    return torch.frombuffer(bytearray(packed_data(blob)), dtype=torch.float32)


def _check_shape(
    path: str, net: str, where: str, wanted: Sequence[int], blob: pb.BlobProto, hint: str
) -> None:
    if not fits_shape(blob, tuple(wanted)):
        what = f"{where} is {show_shape(blob_shape(blob))}, but {show_shape(tuple(wanted))} in {net}"
        raise WeightsError(path, what, hint)


@torch.no_grad()
def copy_history(
    net: RunnableNet,
    groups: Sequence[ParamGroup],
    solver: pb.SolverParameter,
    state: pb.SolverState,
    path: str,
) -> None:
    """Copy the history of a solverstate. Raises WeightsError if it belongs to another net or solver type.

    Caffe writes no velocity for RMSProp, which therefore restarts at 0.
    """
    mine, hint = _history_blobs(net, groups), "resume with the net and the solver type that wrote it"
    if solver.type == "RMSProp" and len(state.history) == len(net.params):
        mine = mine[: len(net.params)]
    if len(mine) != len(state.history):
        blobs = describe_count(len(state.history), "blob")
        what = f"has {blobs} of history, but this net and solver need {len(mine)}"
        raise WeightsError(path, what, hint)
    for index, (tensor, blob) in enumerate(zip(mine, state.history, strict=True)):
        _check_shape(path, net.path, f"history {index}", tensor.shape, blob, hint)
        tensor.copy_(_blob_tensor(blob).view(tensor.shape))
