"""Upgrade V0 layers, of 2013, to V1: their types, where each field goes, and padding layers.

Source: upgrade_proto.cpp of BVLC Caffe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.upgrade_steps import UpgradeStep
from caffe_recipes.errors import PrototxtError
from caffe_recipes.wording import describe_count, did_you_mean

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
