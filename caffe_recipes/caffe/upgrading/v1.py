"""Nets of 2014: `layers { name: "conv1" type: CONVOLUTION blobs_lr: 1 }`.

Each becomes `layer { name: "conv1" type: "Convolution" param { lr_mult: 1 } }`, and what data layers do to
images goes into `transform_param`. Facts from Caffe's upgrade_proto.cpp.
"""

from __future__ import annotations

from typing import Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.upgrading.moves import Step, count_of

TYPES = {
    "NONE": "",
    "ABSVAL": "AbsVal",
    "ACCURACY": "Accuracy",
    "ARGMAX": "ArgMax",
    "BNLL": "BNLL",
    "CONCAT": "Concat",
    "CONTRASTIVE_LOSS": "ContrastiveLoss",
    "CONVOLUTION": "Convolution",
    "DATA": "Data",
    "DECONVOLUTION": "Deconvolution",
    "DROPOUT": "Dropout",
    "DUMMY_DATA": "DummyData",
    "ELTWISE": "Eltwise",
    "EUCLIDEAN_LOSS": "EuclideanLoss",
    "EXP": "Exp",
    "FLATTEN": "Flatten",
    "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output",
    "HINGE_LOSS": "HingeLoss",
    "IM2COL": "Im2col",
    "IMAGE_DATA": "ImageData",
    "INFOGAIN_LOSS": "InfogainLoss",
    "INNER_PRODUCT": "InnerProduct",
    "LRN": "LRN",
    "MEMORY_DATA": "MemoryData",
    "MULTINOMIAL_LOGISTIC_LOSS": "MultinomialLogisticLoss",
    "MVN": "MVN",
    "POOLING": "Pooling",
    "POWER": "Power",
    "RELU": "ReLU",
    "SIGMOID": "Sigmoid",
    "SIGMOID_CROSS_ENTROPY_LOSS": "SigmoidCrossEntropyLoss",
    "SILENCE": "Silence",
    "SLICE": "Slice",
    "SOFTMAX": "Softmax",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "SPLIT": "Split",
    "TANH": "TanH",
    "THRESHOLD": "Threshold",
    "WINDOW_DATA": "WindowData",
}

# What V1 gave one list each, one entry per learned blob, by its field in a `param`.
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


def upgrade_transforms(net: pb.NetParameter) -> Step | None:
    """Move scale, mean_file, crop_size and mirror of V1 data layers into transform_param.

    None if none is set. As in Caffe, every data layer of such a net gets a transform_param, if an empty one.
    In a `layer` of today Caffe ignores these fields, so they stay there.
    """
    if not net.layers:
        return None
    new = pb.NetParameter()
    new.CopyFrom(net)
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
    return Step(new, moves, (f"{fields} of data layers: now in transform_param",))


def upgrade_v1(net: pb.NetParameter) -> Step | None:
    """Turn each `layers` into a `layer`; None if there is none."""
    if not net.layers:
        return None
    new = pb.NetParameter()
    new.CopyFrom(net)
    new.ClearField("layers")
    moves: dict[str, str] = {}
    for index, old in enumerate(net.layers):
        moves |= _upgrade_layer(old, new.layer.add(), index)
    return Step(new, moves, (f"{count_of(len(net.layers), 'V1 layer')}: now `layer`",))


def _upgrade_layer(old: pb.V1LayerParameter, new: pb.LayerParameter, index: int) -> dict[str, str]:
    """Fill `new`; return what moved. All fields but those of `param` have kept their names."""
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
            new.type = TYPES[pb.V1LayerParameter.LayerType.Name(old.type)]
        elif field.is_repeated:
            getattr(new, field.name).MergeFrom(value)
        elif field.message_type is not None:
            getattr(new, field.name).CopyFrom(value)
        else:
            setattr(new, field.name, value)
    return moves
