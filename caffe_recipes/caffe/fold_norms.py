"""Fold each BatchNorm, and the Scale after it, into the convolution before it, weights included.

A channel y of the convolution becomes (y - mean) / sqrt(variance + eps) * gamma + beta, which is a
convolution with weights W * a and bias (b - mean) * a + beta, where a = gamma / sqrt(variance + eps). Mean
and variance are blobs 0 and 1 divided by blob 2, or 0 if that is 0 (BVLC Caffe, batch_norm_layer.cpp).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.deploy import Deploy, keep_comments
from caffe_recipes.caffe.dialects.unsupported_names import DEPTHWISE
from caffe_recipes.caffe.shapes import infer_shapes, show_shape, stats_images
from caffe_recipes.caffe.weights import blob_shape, blob_values, load_weights
from caffe_recipes.errors import WeightsError
from caffe_recipes.wording import describe_names, plural

FloatArray = NDArray[np.float64]

_FOLDED = "only one that alone reads a convolution, and uses the statistics in the weights, is folded"


def fold_file(deploy: Deploy, weights: Path) -> tuple[Deploy, pb.NetParameter]:
    """Return a deploy net without the batch norms that can be folded, and the weights for it.

    Raises WeightsError if the weights lack a layer of the net, or belong to a net of other shapes.
    """
    known = {layer.name: layer for layer in load_weights(weights).layer if layer.blobs}
    _check_blobs(deploy, known, weights)
    net, gone = type(deploy.net)(), set[int]()
    net.CopyFrom(deploy.net)
    for conv, norm, scale in _chains(net):
        index = [number for number in (norm, scale) if number is not None]
        layers = [net.layer[number] for number in (conv, *index)]
        is_scaled = _is_scaled(known, layers[1])
        learned = [*layers[:2], *(one for one in layers[2:] if one.name in known or not is_scaled)]
        missing = [layer.name for layer in learned if layer.name not in known]
        if missing:
            raise WeightsError(weights, f"has no layer '{missing[0]}'", "give the weights of this net")
        _fold(learned, known)
        layers[0].top[0] = layers[-1].top[0]
        gone.update(index)
    places = [number for number in range(len(net.layer)) if number not in gone]
    made = type(net)()
    made.CopyFrom(net)
    del made.layer[:]
    made.layer.extend(net.layer[number] for number in places)
    folded = pb.NetParameter(name=net.name)
    folded.layer.extend(known[layer.name] for layer in made.layer if layer.name in known)
    comments = keep_comments(deploy.comments, {old: new for new, old in enumerate(places)}, made)
    notes = [f"{len(gone)} layers folded into the convolutions before them"]
    if left := [layer.name for layer in made.layer if layer.type == "BatchNorm"]:
        notes.append(f"BatchNorm {describe_names(left)} {plural(len(left), 'stays', 'stay')}: {_FOLDED}")
    return replace(deploy, net=made, comments=comments, notes=(*deploy.notes, *notes)), folded


def _check_blobs(deploy: Deploy, known: dict[str, pb.LayerParameter], weights: Path) -> None:
    """Raise WeightsError if the weights lack a layer of the net, or a blob, or have one of another size."""
    hint = "give the weights of this net, or another --input"
    found, missing = infer_shapes(deploy.net, pb.TEST).layers, list[str]()
    for index, one in enumerate(found):
        if not one.learned:
            continue
        if one.layer.name not in known:
            before = [each.layer for each in found[:index] if one.layer.bottom[0] in each.layer.top]
            if not (one.layer.type == "Scale" and before and _is_scaled(known, before[-1])):
                missing.append(f"'{one.layer.name}'")
            continue
        where, blobs = f"layer '{one.layer.name}'", known[one.layer.name].blobs
        if len(blobs) < len(one.learned):
            raise WeightsError(weights, f"{where} has {len(blobs)} of {len(one.learned)} blobs", hint)
        for number, (shape, blob) in enumerate(zip(one.learned, blobs, strict=False)):
            if None not in shape and math.prod(dim or 1 for dim in shape) != len(blob_values(blob)):
                what = f"{where}, blob {number}, is {show_shape(blob_shape(blob))}"
                raise WeightsError(weights, f"{what}, but {show_shape(shape)} in the net", hint)
    if missing:
        what = f"has no {plural(len(missing), 'layer')} {describe_names(missing)}"
        raise WeightsError(weights, what, "give the weights of this net")


def _chains(net: pb.NetParameter) -> Iterator[tuple[int, int, int | None]]:
    """Yield the indexes of each convolution, the BatchNorm that alone reads it, and the Scale after that."""
    for conv, layer in enumerate(net.layer):
        is_shared = len(layer.top) > 1 or any(param.name for param in layer.param)
        if (layer.type == "Convolution" or layer.type in DEPTHWISE) and not is_shared:
            norm = _only_reader(net, conv)
            if norm is None or not _uses_statistics(net.layer[norm]):
                continue
            scale = _only_reader(net, norm)
            is_folded = scale is not None and _scales_channels(net.layer[scale])
            yield conv, norm, scale if is_folded else None


def _uses_statistics(layer: pb.LayerParameter) -> bool:
    """Return whether a layer is a BatchNorm that normalizes by the statistics in its weights."""
    return layer.type == "BatchNorm" and stats_images(layer, pb.TEST) is None


def _scales_channels(layer: pb.LayerParameter) -> bool:
    param = layer.scale_param
    return layer.type == "Scale" and len(layer.bottom) == 1 and param.axis in (1, -3) and param.num_axes == 1


def _only_reader(net: pb.NetParameter, index: int) -> int | None:
    """Return the layer that reads a layer's top, if it is the only one that reads this value."""
    top, readers = net.layer[index].top[0], []
    for number in range(index + 1, len(net.layer)):
        layer = net.layer[number]
        if top in layer.bottom:
            readers.append(number)
        if top in layer.top:
            break
    return readers[0] if len(readers) == 1 else None


def fold_blobs(
    conv: Sequence[FloatArray], norm: Sequence[FloatArray], scale: Sequence[FloatArray], eps: float
) -> tuple[FloatArray, FloatArray]:
    """Return the weights and the bias of a convolution with the blobs of a BatchNorm and a Scale folded in.

    A convolution and a Scale may have no bias, and `scale` may be empty.
    """
    weights, mean_sum, variance_sum, factor = conv[0], *norm
    share = 1 / factor[0] if factor[0] else 0.0
    by = 1 / np.sqrt(variance_sum * share + eps)
    add = -mean_sum * share * by
    if scale:
        by, add = by * scale[0], add * scale[0] + (scale[1] if len(scale) > 1 else 0)
    spread = by.reshape(-1, *[1] * (weights.ndim - 1))
    return weights * spread, conv[1] * by + add if len(conv) > 1 else add


def _is_scaled(known: dict[str, pb.LayerParameter], norm: pb.LayerParameter) -> bool:
    """Return whether the blobs of a BatchNorm end with a scale and a shift.

    So do NVIDIA's, and those of Intel's MKL engines, which merge the Scale layer into it.
    """
    return norm.name in known and len(known[norm.name].blobs) == 5


def _fold(layers: list[pb.LayerParameter], known: dict[str, pb.LayerParameter]) -> None:
    conv, norm, *scales = layers
    own, norms = known[conv.name], [_values(blob) for blob in known[norm.name].blobs]
    shape = blob_shape(own.blobs[0])
    before = [_values(own.blobs[0]).reshape(shape), *map(_values, own.blobs[1:])]
    weights, bias = fold_blobs(before, norms[:3], norms[3:], norm.batch_norm_param.eps)
    for scale in scales:
        factors = [_values(blob) for blob in known[scale.name].blobs]
        weights, bias = fold_blobs([weights, bias], _PLAIN, factors, 0)
    del own.blobs[:]
    _add_blob(own, shape, weights)
    _add_blob(own, bias.shape, bias)
    conv.convolution_param.ClearField("bias_term")


_PLAIN = (np.zeros(1), np.ones(1), np.ones(1))  # the blobs of a BatchNorm that changes nothing


def _values(blob: pb.BlobProto) -> FloatArray:
    return np.array(blob_values(blob), np.float64)


def _add_blob(layer: pb.LayerParameter, shape: tuple[int, ...], values: FloatArray) -> None:
    blob = layer.blobs.add(shape=pb.BlobShape(dim=shape))
    blob.data.extend(values.astype(np.float32).ravel().tolist())
