"""The shape of each layer type's tops and learned blobs, from the shapes of its bottoms.

Every rule takes the layer and its bottoms' shapes and gives (tops, learned blobs), or raises MisfitError.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from caffe_recipes.caffe import pb, shape_moves
from caffe_recipes.caffe.shape_dims import (
    SCALAR,
    Dim,
    MisfitError,
    Result,
    Shape,
    Shapes,
    canonical_axis,
    conv_size,
    merge,
    pool_size,
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


def _spatial(
    param: pb.ConvolutionParameter | pb.PoolingParameter, field: str, axes: int, default: int
) -> tuple[int, ...]:
    """Read `kernel_size`, `pad` or `stride`: one number for all axes, one each, or `_h` and `_w`."""
    stem = field.removesuffix("_size")
    if param.HasField(f"{stem}_h") or param.HasField(f"{stem}_w"):
        values = [getattr(param, f"{stem}_h"), getattr(param, f"{stem}_w")]
    else:
        values = list(getattr(param, field)) or [default]
    if len(values) == 1:
        values *= axes
    if len(values) != axes:
        raise MisfitError(f"gives {len(values)} of {field} for {axes} spatial axes")
    if min(values, default=default) < default:
        raise MisfitError(f"has {field} {min(values)}")
    return tuple(values)


def _kernel(param: pb.ConvolutionParameter | pb.PoolingParameter, axes: int) -> tuple[int, ...]:
    if not (param.kernel_size or param.HasField("kernel_h") or param.HasField("kernel_w")):
        raise MisfitError("has no kernel_size")
    return _spatial(param, "kernel_size", axes, 1)


def _convolution(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    param, bottom = layer.convolution_param, merge(bottoms)
    channel = canonical_axis(bottom, param.axis)
    size = bottom[channel + 1 :]
    kernel = _kernel(param, len(size))
    stride, pad = _spatial(param, "stride", len(size), 1), _spatial(param, "pad", len(size), 0)
    dilation = _dilation(param, len(size))
    outputs, channels, group = param.num_output, bottom[channel], param.group
    if not outputs:
        raise MisfitError("has no num_output")
    if not group or outputs % group or (channels or 0) % group:
        raise MisfitError(f"has group {group}, which does not divide its channels or num_output {outputs}")
    if layer.type == "Deconvolution":
        sizes = [_deconv_size(*of) for of in zip(size, kernel, stride, pad, dilation, strict=True)]
        weights: Shape = (channels, outputs // group, *kernel)
    else:
        sizes = [conv_size(*of) for of in zip(size, kernel, stride, pad, dilation, strict=True)]
        weights = (outputs, None if channels is None else channels // group, *kernel)
    top = (*bottom[:channel], outputs, *sizes)
    return [top] * len(bottoms), [weights, (outputs,)][: 1 + param.bias_term]


def _dilation(param: pb.ConvolutionParameter, axes: int) -> tuple[int, ...]:
    values = tuple(param.dilation) or (1,)
    if len(values) not in (1, axes) or min(values) < 1:
        raise MisfitError(f"has dilation {', '.join(map(str, values))} for {axes} spatial axes")
    return values * axes if len(values) == 1 else values


def _deconv_size(size: Dim, kernel: int, stride: int, pad: int, dilation: int) -> Dim:
    if size is None:
        return None
    result = stride * (size - 1) + dilation * (kernel - 1) + 1 - 2 * pad
    if result < 1:
        raise MisfitError(f"has pad {pad}, larger than its output")
    return result


def _pooling(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    param, bottom = layer.pooling_param, bottoms[0]
    channel = canonical_axis(bottom, param.axis)
    size = bottom[channel + 1 :]
    if param.global_pooling:
        pooled: list[Dim] = [1] * len(size)
    else:
        kernel = _kernel(param, len(size))
        stride, pad = _spatial(param, "stride", len(size), 1), _spatial(param, "pad", len(size), 0)
        pooled = [pool_size(*of) for of in zip(size, kernel, stride, pad, strict=True)]
    return [(*bottom[: channel + 1], *pooled)] * 2, []


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
    AbsVal BNLL Dropout ELU Exp LRN Log MVN Power ReLU Sigmoid Softmax SpatialDropout TanH Threshold
"""

RULES: dict[str, Rule] = {
    **dict.fromkeys(_SHAPE_KEEPING.split(), Rule(_same, 1, 1)),
    "Accuracy": Rule(_accuracy, 2, 2),
    "ArgMax": Rule(shape_moves.arg_max, 1, 1),
    "BatchNorm": Rule(_batch_norm, 1, 1),
    "Bias": Rule(_bias, 1, 2),
    "Concat": Rule(shape_moves.concat, 1, math.inf),
    "ContrastiveLoss": Rule(_loss_by_image, 3, 3),
    "Convolution": Rule(_convolution, 1, math.inf),
    "Crop": Rule(shape_moves.crop, 2, 2),
    "Deconvolution": Rule(_convolution, 1, math.inf),
    "Eltwise": Rule(_eltwise, 2, math.inf),
    "EuclideanLoss": Rule(_loss_by_value, 2, 2),
    "Flatten": Rule(shape_moves.flatten, 1, 1),
    "HingeLoss": Rule(_loss_by_image, 2, 2),
    "InfogainLoss": Rule(_loss_by_image, 2, 3),
    "InnerProduct": Rule(_inner_product, 1, 1),
    "MultinomialLogisticLoss": Rule(_loss_by_image, 2, 2),
    "PReLU": Rule(_prelu, 1, 1),
    "Permute": Rule(shape_moves.permute, 1, 1),
    "Pooling": Rule(_pooling, 1, 1),
    "Reduction": Rule(shape_moves.reduction, 1, 1),
    "Reshape": Rule(shape_moves.reshape, 1, 1),
    "Scale": Rule(_scale, 1, 2),
    "SigmoidCrossEntropyLoss": Rule(_loss_by_value, 2, 2),
    "Silence": Rule(_no_tops, 1, math.inf),
    "Slice": Rule(shape_moves.cut, 1, 1),
    "SmoothL1Loss": Rule(_loss_by_value, 2, 4),
    "SoftmaxWithLoss": Rule(_softmax_loss, 2, 3),
    "Split": Rule(_split, 1, 1),
}
