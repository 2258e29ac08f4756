"""Check that OpenCV gives the numbers of the engine for a deploy net.

OpenCV ignores what it does not know, and then predicts something else without an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.dimensions import size_of
from caffe_recipes.caffe.layer_types.normalization import has_own_scale
from caffe_recipes.caffe.packed_blobs import fill_blob
from caffe_recipes.caffe.prototxt import encode_prototxt, render_prototxt
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.caffe.weights import serialize
from caffe_recipes.engine.module import build_module
from caffe_recipes.engine.settings import load_net
from caffe_recipes.errors import CheckFailed, InputError
from caffe_recipes.limits import host_memory_bytes

TOLERANCE = 1e-4  # of the largest value
_OTHER_WAYS = "use caffe-recipes classify, or export it as ONNX"


def compare_opencv(net: pb.NetParameter, weights: pb.NetParameter | None, path: str) -> float:
    """Return by how much OpenCV differs from the engine at most, relative to the largest value of an output.

    Without weights, they are random, and so is the input. The scores below a softmax at the end are compared
    too, since it hides how large ones differ. Raises CheckFailed if the difference is more than TOLERANCE, or
    if OpenCV cannot run the net, and InputError if the engine cannot.
    """
    _check_memory(net, path)
    for layer in net.layer:
        if layer.type == "BatchNorm" and has_own_scale(layer):
            what = f"layer '{layer.name}' (BatchNorm) has its own scale and shift, which OpenCV misreads"
            raise CheckFailed(
                path, what, _OTHER_WAYS if weights else f"give --fold-bn WEIGHTS, or {_OTHER_WAYS}"
            )
    weights = weights or make_weights(net)
    below = type(net)()
    below.CopyFrom(net)
    while below.layer and below.layer[-1].type == "Softmax":
        del below.layer[-1]
    nets = [net, below] if 0 < len(below.layer) < len(net.layer) else [net]
    return max(_compare(each, weights, path) for each in nets)


def _check_memory(net: pb.NetParameter, path: str) -> None:
    """Raise InputError for a net that this host cannot run: both programs keep its blobs."""
    found = infer_shapes(net, pb.TEST, path=path).layers
    shapes = [shape for one in found for shape in (*one.tops, *(one.learned or ()))]
    needed, there = 2 * 4 * sum(size_of(shape) or 0 for shape in shapes), host_memory_bytes()
    if needed > there:
        what = (
            f"needs {needed / 2**30:,.3g} GiB to be run and compared, and this host has {there / 2**30:,.3g}"
        )
        raise InputError(path, what, "give a smaller --input or --batch, or leave out --for")


def _compare(net: pb.NetParameter, weights: pb.NetParameter, path: str) -> float:
    with TemporaryDirectory() as folder:
        files = Path(folder) / "net.prototxt", Path(folder) / "net.caffemodel"
        files[0].write_bytes(encode_prototxt(render_prototxt(net)))
        files[1].write_bytes(serialize(weights))
        try:
            own = load_net(str(files[0]))
        except InputError as error:
            raise error.reworded(where=path) from None
        module = build_module(own, weights, path, path)
        random = np.random.default_rng(0)
        words = module.word_counts
        inputs = [
            random.integers(words[index], size=shape).astype(np.float32)
            if index in words
            else random.standard_normal(shape, np.float32)
            for index, shape in zip(module.input_indexes, module.input_shapes, strict=True)
        ]
        with torch.no_grad():
            given = [torch.from_numpy(each) for each in inputs]
            values = module.compute(given, module.output_indexes)
        try:
            reader = cv2.dnn.readNetFromCaffe(*map(str, files))
            for name, each in zip(module.input_names, inputs, strict=True):
                reader.setInput(each, name)
            tops = reader.forwardAndRetrieve(reader.getUnconnectedOutLayersNames())
            made = [np.asarray(top, np.float32) for layer in tops for top in layer]
        except cv2.error as error:
            reason = " ".join(str(error.err or error).split())
            hint = "replace the layer, or use caffe-recipes classify or export"
            raise CheckFailed(path, f"OpenCV cannot run this net: {reason}", hint) from None
    wanted = [values[index].numpy() for index in module.output_indexes]
    named = zip(module.output_names, wanted, strict=True)
    found = max((_nearest(name, each, made, path) for name, each in named), default=0.0)
    if not found <= TOLERANCE:
        what = f"OpenCV gives other numbers for this net: they differ by {found:.2g} of the largest value"
        raise CheckFailed(path, what, _OTHER_WAYS)
    return found


def _nearest(name: str, wanted: NDArray[np.float32], made: list[NDArray[np.float32]], path: str) -> float:
    """Return how far the nearest of OpenCV's outputs is: it names and orders them by layer, not by blob.

    Raises CheckFailed if there is none to compare with.
    """
    largest = float(np.abs(wanted).max(initial=0.0)) or 1.0
    if not np.isfinite(largest):
        what = f"its output '{name}' is not finite, so that OpenCV's cannot be compared with it"
        raise CheckFailed(path, what, "check the weights, or leave out --for")
    same = [each.reshape(wanted.shape) for each in made if each.size == wanted.size]
    finite = [each for each in same if np.isfinite(each).all()]
    if not finite:
        what = f"gives an output that is not finite for '{name}'" if same else f"gives '{name}' another size"
        raise CheckFailed(path, f"OpenCV {what}", _OTHER_WAYS)
    return min(float(np.abs(each - wanted).max(initial=0.0)) / largest for each in finite)


def make_weights(net: pb.NetParameter) -> pb.NetParameter:
    """Return random weights for a net that keep the size of its values, and positive variances.

    Layers that share a blob by the name of a param have the same one, since OpenCV reads that of each layer.
    """
    random, weights = np.random.default_rng(0), pb.NetParameter()
    shared = dict[str, NDArray[np.float32]]()
    for one in infer_shapes(net, pb.TEST).layers:
        layer = weights.layer.add(name=one.layer.name, type=one.layer.type)
        names = itertools.chain((param.name for param in one.layer.param), itertools.repeat(""))
        for shape, name in zip(one.learned or (), names, strict=False):
            dims = [dim or 1 for dim in shape]
            values = shared[name] if name in shared else _make_values(random, dims)
            if name:
                shared[name] = values
            fill_blob(layer.blobs.add(), dims, values.tobytes())
    weights.layer.add(name="without blobs").blobs.add(shape=pb.BlobShape(dim=[1]), data=[0.0])
    return weights


def _make_values(random: np.random.Generator, dims: Sequence[int]) -> NDArray[np.float32]:
    if max(dims, default=1) < np.prod(dims):  # not one value per channel, such as 1xCx1x1
        values = random.standard_normal(dims) * (2 / np.prod(dims[1:])) ** 0.5
    else:
        values = random.uniform(0.5, 1.5, dims)
    return values.astype("<f4")
