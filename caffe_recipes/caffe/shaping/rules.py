"""The shape of each layer type's tops and learned blobs, from the shapes of its bottoms.

Every rule takes the layer and its bottoms' shapes and gives (tops, learned blobs), or raises MisfitError.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shaping import moves, sequences, windows
from caffe_recipes.caffe.shaping.dims import (
    SCALAR,
    MisfitError,
    Result,
    Shape,
    Shapes,
    canonical_axis,
    merge,
    product,
)


class Rule(NamedTuple):
    """How to infer a layer type's shapes, and how many bottoms it takes."""

    infer: Callable[[pb.LayerParameter, Shapes], Result]
    min_bottoms: int
    max_bottoms: float

    @property
    def arity(self) -> str:
        """Say how many bottoms the layer takes."""
        if self.min_bottoms == self.max_bottoms:
            return str(self.min_bottoms)
        return f"{self.min_bottoms} " + (
            "or more" if math.isinf(self.max_bottoms) else f"to {self.max_bottoms}"
        )


def _same(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    return [bottoms[0]], []


def _split(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    return [bottoms[0]] * len(layer.top), []


def _no_tops(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    return [], []


def _inner_product(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    param, bottom = layer.inner_product_param, bottoms[0]
    axis, outputs = canonical_axis(bottom, param.axis), param.num_output
    if not outputs:
        raise MisfitError("has no num_output")
    inputs = product(bottom[axis:])
    weights = (inputs, outputs) if param.transpose else (outputs, inputs)
    return [(*bottom[:axis], outputs)], [weights, (outputs,)][: 1 + param.bias_term]


def _batch_norm(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Blobs: sum of means, sum of variances, running factor."""
    channels = bottoms[0][1] if len(bottoms[0]) > 1 else 1
    return [bottoms[0]], [(channels,), (channels,), (1,)]


def _operand(param: pb.ScaleParameter | pb.BiasParameter, bottoms: Shapes) -> Shape:
    """Give the shape of the factor or summand: axes of the first bottom, or the whole second bottom."""
    first = bottoms[0]
    axis = 0 if bottoms[1:] == [SCALAR] else canonical_axis(first, param.axis)
    count = len(bottoms[1]) if len(bottoms) > 1 else param.num_axes
    end = len(first) if count == -1 else axis + count
    if not axis <= end <= len(first):
        raise MisfitError(f"has axis {param.axis} and {count} axes, beyond its bottom's")
    return merge([first[axis:end], *bottoms[1:]])


def _scale(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    operand = _operand(layer.scale_param, bottoms)
    learned = (len(bottoms) == 1) + layer.scale_param.bias_term
    return [bottoms[0]], [operand] * learned


def _bias(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    return [bottoms[0]], [_operand(layer.bias_param, bottoms)][: 2 - len(bottoms)]


def _prelu(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    channels = bottoms[0][canonical_axis(bottoms[0], 1)]
    return [bottoms[0]], [SCALAR if layer.prelu_param.channel_shared else (channels,)]


def _lrn(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    if layer.lrn_param.local_size % 2 == 0:
        raise MisfitError(f"has local_size {layer.lrn_param.local_size}, which is not odd")
    if len(bottoms[0]) != 4:
        raise MisfitError("needs a bottom of 4 axes")
    return [bottoms[0]], []


def _softmax(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    canonical_axis(bottoms[0], layer.softmax_param.axis)
    return [bottoms[0]], []


def _normalize(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    if len(bottoms[0]) < 2:
        raise MisfitError("needs a bottom of 2 axes or more")
    return [bottoms[0]], [SCALAR if layer.norm_param.channel_shared else (bottoms[0][1],)]


def _parameter(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    shape = tuple(layer.parameter_param.shape.dim)
    if any(dim < 0 for dim in shape):
        raise MisfitError("has a negative dim")
    return [shape], [shape]


def _eltwise(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    return [merge(bottoms)], []


def _check_labels(bottoms: Shapes, axis: int) -> None:
    predictions, labels = bottoms[:2]
    classes = canonical_axis(predictions, axis)
    wanted, given = product((*predictions[:classes], *predictions[classes + 1 :])), product(labels)
    if None not in (wanted, given) and wanted != given:
        raise MisfitError(f"needs one label for each of its {wanted} predictions")


def _softmax_loss(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    _check_labels(bottoms, layer.softmax_param.axis)
    return [SCALAR, bottoms[0]], []


def _accuracy(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    _check_labels(bottoms, layer.accuracy_param.axis)
    return [SCALAR, (bottoms[0][canonical_axis(bottoms[0], layer.accuracy_param.axis)],)], []


def _loss_by_value(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    counts = {product(bottom) for bottom in bottoms[:2]}
    if None not in counts and len(counts) > 1:
        raise MisfitError("needs as many targets as predictions")
    return [SCALAR], []


def _loss_by_image(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    merge([bottom[:1] for bottom in bottoms[:2]])
    return [SCALAR], []


_SHAPE_KEEPING = """
    AbsVal BNLL Dropout ELU Exp Log MVN Power ReLU Sigmoid SpatialDropout TanH Threshold
"""

RULES: dict[str, Rule] = {
    **dict.fromkeys(_SHAPE_KEEPING.split(), Rule(_same, 1, 1)),
    "Accuracy": Rule(_accuracy, 2, 2),
    "ArgMax": Rule(moves.arg_max, 1, 1),
    "BatchNorm": Rule(_batch_norm, 1, 1),
    "BatchReindex": Rule(moves.batch_reindex, 2, 2),
    "Bias": Rule(_bias, 1, 2),
    "Concat": Rule(moves.concat, 1, math.inf),
    "ContrastiveLoss": Rule(_loss_by_image, 3, 3),
    "Convolution": Rule(windows.convolution, 1, math.inf),
    "Crop": Rule(moves.crop, 2, 2),
    "Deconvolution": Rule(windows.convolution, 1, math.inf),
    "Eltwise": Rule(_eltwise, 2, math.inf),
    "Embed": Rule(sequences.embed, 1, 1),
    "EuclideanLoss": Rule(_loss_by_value, 2, 2),
    "Filter": Rule(moves.choose, 2, math.inf),
    "Flatten": Rule(moves.flatten, 1, 1),
    "HDF5Output": Rule(_no_tops, 2, 2),
    "HingeLoss": Rule(_loss_by_image, 2, 2),
    "Im2col": Rule(windows.im2col, 1, 1),
    "InfogainLoss": Rule(_loss_by_image, 2, 3),
    "InnerProduct": Rule(_inner_product, 1, 1),
    "LRN": Rule(_lrn, 1, 1),
    "LSTM": Rule(sequences.lstm, 2, 5),
    "LSTMUnit": Rule(sequences.lstm_unit, 3, 3),
    "MultinomialLogisticLoss": Rule(_loss_by_image, 2, 2),
    "Normalize": Rule(_normalize, 1, 1),
    "PReLU": Rule(_prelu, 1, 1),
    "Parameter": Rule(_parameter, 0, 0),
    "Permute": Rule(moves.permute, 1, 1),
    "Pooling": Rule(windows.pooling, 1, 1),
    "RNN": Rule(sequences.rnn, 2, 4),
    "Reduction": Rule(moves.reduction, 1, 1),
    "Reshape": Rule(moves.reshape, 1, 1),
    "SPP": Rule(windows.spatial_pyramid, 1, 1),
    "Scale": Rule(_scale, 1, 2),
    "SigmoidCrossEntropyLoss": Rule(_loss_by_value, 2, 2),
    "Silence": Rule(_no_tops, 1, math.inf),
    "Slice": Rule(moves.cut, 1, 1),
    "SmoothL1Loss": Rule(_loss_by_value, 2, 4),
    "Softmax": Rule(_softmax, 1, 1),
    "SoftmaxWithLoss": Rule(_softmax_loss, 2, 3),
    "Split": Rule(_split, 1, 1),
    "Tile": Rule(moves.tile, 1, 1),
}
