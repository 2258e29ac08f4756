"""Fold each BatchNorm, and the Scale after it, into the convolution before it, weights included.

A channel y of the convolution becomes (y - mean) / sqrt(variance + eps) * gamma + beta, which is a
convolution with weights W * a and bias (b - mean) * a + beta, where a = gamma / sqrt(variance + eps). Mean
and variance are blobs 0 and 1 divided by blob 2, or 0 if that is 0 (BVLC Caffe, batch_norm_layer.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.deploy import Deploy
from caffe_recipes.caffe.prototxt import LAYER
from caffe_recipes.caffe.weights import blob_shape, blob_values, load_weights
from caffe_recipes.errors import WeightsError

FloatArray = NDArray[np.float64]


def fold_file(deploy: Deploy, weights: Path) -> tuple[Deploy, pb.NetParameter]:
    """Return a deploy net without the batch norms that can be folded, and the weights for it.

    Raises WeightsError if the weights lack a layer of a fold.
    """
    known = {layer.name: layer for layer in load_weights(weights).layer if layer.blobs}
    net, gone = type(deploy.net)(), set[int]()
    net.CopyFrom(deploy.net)
    for conv, norm, scale in _chains(net):
        index = [number for number in (norm, scale) if number is not None]
        layers = [net.layer[number] for number in (conv, *index)]
        missing = [layer.name for layer in layers if layer.name not in known]
        if missing:
            raise WeightsError(weights, f"has no layer '{missing[0]}'", "give the weights of this net")
        _fold(layers, known)
        layers[0].top[0] = layers[-1].top[0]
        gone.update(index)
    places = [number for number in range(len(net.layer)) if number not in gone]
    made = type(net)()
    made.CopyFrom(net)
    del made.layer[:]
    made.layer.extend(net.layer[number] for number in places)
    folded = pb.NetParameter(name=net.name)
    folded.layer.extend(known[layer.name] for layer in made.layer if layer.name in known)
    moves = {old: new for new, old in enumerate(places)}
    comments = {}
    for path, comment in deploy.comments.items():
        match = LAYER.match(path)
        if match is None:
            comments[path] = comment
        elif int(match[1]) in moves:
            comments[f"layer[{moves[int(match[1])]}]{path[match.end() :]}"] = comment
    note = f"{len(gone)} layers folded into the convolutions before them"
    return replace(deploy, net=made, comments=comments, notes=(*deploy.notes, note)), folded


def _chains(net: pb.NetParameter) -> Iterator[tuple[int, int, int | None]]:
    """Yield the indexes of each convolution, the BatchNorm that alone reads it, and the Scale after that."""
    for conv, layer in enumerate(net.layer):
        if layer.type == "Convolution" and not any(param.name for param in layer.param):
            norm = _only_reader(net, conv)
            if norm is None or net.layer[norm].type != "BatchNorm":
                continue
            scale = _only_reader(net, norm)
            is_folded = scale is not None and _scales_channels(net.layer[scale])
            yield conv, norm, scale if is_folded else None


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


def _fold(layers: list[pb.LayerParameter], known: dict[str, pb.LayerParameter]) -> None:
    conv, norm, *scales = layers
    own = known[conv.name]
    sums = [_values(blob) for blob in known[norm.name].blobs]
    factor = 1 / sums[2][0] if sums[2][0] else 0.0
    by = 1 / np.sqrt(sums[1] * factor + norm.batch_norm_param.eps)
    add: FloatArray = -sums[0] * factor * by
    for scale in scales:
        blobs = [_values(blob) for blob in known[scale.name].blobs]
        by, add = by * blobs[0], add * blobs[0]
        add = add + blobs[1] if len(blobs) > 1 else add
    shape = blob_shape(own.blobs[0])
    weights = _values(own.blobs[0]).reshape(len(by), -1) * by[:, None]
    bias = _values(own.blobs[1]) if len(own.blobs) > 1 else np.zeros(len(by))
    del own.blobs[:]
    _add_blob(own, shape, weights)
    _add_blob(own, (len(by),), bias * by + add)
    conv.convolution_param.ClearField("bias_term")


def _values(blob: pb.BlobProto) -> FloatArray:
    return np.array(blob_values(blob), np.float64)


def _add_blob(layer: pb.LayerParameter, shape: tuple[int, ...], values: FloatArray) -> None:
    blob = layer.blobs.add(shape=pb.BlobShape(dim=shape))
    blob.data.extend(values.astype(np.float32).ravel().tolist())
