"""Nets' files as keys of a recipe: the data layers, and a builder of ours where one makes the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.nets import BUILDERS
from caffe_recipes.caffe.text.writer import float_text
from caffe_recipes.errors import InputError
from caffe_recipes.review.lint.chains.chain import Net


def data_values(net: Net) -> dict[str, Any]:
    """Return the keys of `data` that a net's data layers say, but for the numbers of images.

    InputError for a net without a Data layer for TRAIN, whose images a recipe could not name.
    """
    train, test = _data_layer(net, pb.TRAIN), _data_layer(net, pb.TEST)
    if train is None:
        raise InputError(net.path, "has no layer of type Data for TRAIN", "a recipe trains on an LMDB")
    data, transform = train.data_param, train.transform_param
    values: dict[str, Any] = {"train": {"lmdb": data.source}, "test": {}}
    if data.HasField("shuffle"):
        values["train"]["shuffle"] = data.shuffle
    if data.HasField("prefetch"):
        values["train"]["prefetch"] = data.prefetch
    if test is not None:
        values["test"] = {"lmdb": test.data_param.source, "batch_size": test.data_param.batch_size}
        resize = test.transform_param.random_resize_param
        if test.transform_param.HasField("random_resize_param"):
            values["test"]["shorter_side_px"] = resize.min_size
            values["test"]["interp_mode"] = _interpolation(resize.resize_param)
    if transform.crop_size:
        values["crop_size"] = transform.crop_size
    values["mirror"] = transform.mirror
    if transform.mean_value:
        values["mean_value"] = tuple(_float(value) for value in transform.mean_value)
    if transform.HasField("scale"):
        values["scale"] = _float(transform.scale)
    return values


def batch_of(net: Net) -> int:
    """Return the batch of a rank; InputError if there is none."""
    train = _data_layer(net, pb.TRAIN)
    if train is None or not train.data_param.batch_size:
        raise InputError(net.path, "gives no batch_size in a Data layer for TRAIN", "give it there")
    return int(train.data_param.batch_size)


def variant_values(net: Net) -> dict[str, Any]:
    """Return the keys of one of `nets`: the augmentation, and whether it has data for TEST."""
    values: dict[str, Any] = {}
    train = _data_layer(net, pb.TRAIN)
    if train is not None and train.transform_param.HasField("random_aspect_ratio_param"):
        ratio = train.transform_param.random_aspect_ratio_param
        values["random_aspect_ratio"] = {
            "min_area_ratio": _float(ratio.min_area_ratio),
            "max_area_ratio": _float(ratio.max_area_ratio),
            "aspect_ratio_change": _float(ratio.aspect_ratio_change),
            "interp_mode": _interpolation(ratio.resize_param),
        }
    if _data_layer(net, pb.TEST) is None:
        values["test"] = False
    return values


def guess_nets(net: Net, classes: int) -> Iterator[dict[str, Any]]:
    """Yield the keys of `net` for every builder, by the numbers and fillers that a net's layers have."""
    fillers = dict(_fillers(net.message))
    norms = [layer.batch_norm_param for layer in net.message.layer if layer.type == "BatchNorm"]
    fraction = _float(norms[0].moving_average_fraction) if norms else 0
    if len(fillers) < 3 or not 0 < fraction < 1:
        return
    for builder in BUILDERS:
        for zero_init in ("last-block", "every-block", "none"):
            yield {
                "name": net.message.name,
                "classes": classes,
                "builder": builder,
                "batch_norm_fraction": fraction,
                "zero_init": zero_init,
                "fillers": fillers,
            }


def count_classes(net: Net) -> int:
    """Return the outputs of a net's last inner product, else of its last convolution; 0 if it has neither."""
    counts = {
        "InnerProduct": [one.inner_product_param.num_output for one in net.message.layer],
        "Convolution": [one.convolution_param.num_output for one in net.message.layer],
    }
    return next((int(one) for kind in counts.values() for one in reversed(kind) if one), 0)


def has_classifier(net: Net) -> bool:
    """Whether a net ends in an inner product, whose outputs are its classes."""
    return any(one.type == "InnerProduct" and one.inner_product_param.num_output for one in net.message.layer)


def _fillers(net: pb.NetParameter) -> Iterator[tuple[str, dict[str, Any]]]:
    convolutions = [layer.convolution_param for layer in net.layer if layer.type == "Convolution"]
    products = [layer.inner_product_param for layer in net.layer if layer.type == "InnerProduct"]
    for key, params in (
        ("conv1", convolutions[:1]),
        ("conv", convolutions[1:2]),
        ("classifier", products[-1:]),
    ):
        for param in params:
            yield key, {name: value for name, value in _fields(param.weight_filler) if value is not None}


def _fields(filler: pb.FillerParameter) -> Iterator[tuple[str, Any]]:
    yield "type", filler.type
    for name in ("value", "min", "max", "mean", "std"):
        if filler.HasField(name):
            yield name, _float(getattr(filler, name))
    if filler.HasField("variance_norm"):
        yield "variance_norm", pb.FillerParameter.VarianceNorm.Name(filler.variance_norm)


def _data_layer(net: Net, phase: int) -> pb.LayerParameter | None:
    """Find the Data layer of one phase; one without `include` is of both."""
    for layer in net.message.layer:
        phases = {rule.phase for rule in layer.include if rule.HasField("phase")}
        if layer.type == "Data" and (phase in phases or not phases):
            return layer
    return None


def _interpolation(param: pb.ResizeParameter) -> str:
    given = param.interp_mode[0] if param.interp_mode else pb.ResizeParameter.LINEAR
    return pb.ResizeParameter.Interp_mode.Name(given)


def _float(value: float) -> float:
    return float(float_text(value))


def own_net(net: Net, classes: int, folder: Path) -> dict[str, Any]:
    """Return the keys of `net` for a file of the user's own, as its path is from the recipe's folder."""
    path = os.path.relpath(net.path, folder).replace(os.sep, "/")
    return {"name": net.message.name or Path(net.path).stem, "classes": classes, "prototxt": path}
