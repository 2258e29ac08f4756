"""The layers of the engine: for each layer type, a setup that returns the layer's forward function.

A setup implements only the arithmetic: shapes come from `caffe.shapes`, and gradients from autograd. DENSE
layers mix neighbours or channels (convolution, pooling, inner product, LRN), NORM has BatchNorm with Caffe's
running sums, Scale and Bias, POINTWISE layers treat each element separately, and SHAPE layers join, split,
select or rearrange blobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.dimensions import LayerShapes
from caffe_recipes.caffe.layer_types.windows import dilations, per_axis
from caffe_recipes.caffe.shapes import show_shape, stats_images
from caffe_recipes.errors import InputError

Shape = tuple[int, ...]
Forward = Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class Shapes:
    """The shapes of a layer's bottoms, tops and learned blobs."""

    bottoms: tuple[Shape, ...]
    tops: tuple[Shape, ...]
    learned: tuple[Shape, ...]


Setup = Callable[[pb.LayerParameter, Shapes], Forward]


class LayerError(InputError):
    """Raised for a layer that the engine cannot run. `where` names the layer; the net adds its file."""


def layer_error(layer: pb.LayerParameter, what: str, hint: str = "") -> LayerError:
    """Return the error for a layer that the engine cannot run."""
    return LayerError(f"layer '{layer.name}' ({layer.type})", what, hint)


def require_known_shapes(shapes: LayerShapes) -> Shapes:
    """Return inferred shapes. Raises InputError unless all their dimensions are known and positive."""

    def known(shape: Sequence[int | None] | None) -> Shape:
        dims = tuple(dim for dim in shape or () if dim is not None and dim > 0)
        if shape is None or len(dims) != len(shape):
            raise layer_error(
                shapes.layer, f"has a blob {show_shape(None if shape is None else tuple(shape))}"
            )
        return dims

    learned = shapes.learned or ()
    return Shapes(*(tuple(map(known, of)) for of in (shapes.bottoms, shapes.tops, learned)))


def format_shape(shape: Sequence[int]) -> str:
    """Return a shape in the format of Caffe's log.

    >>> format_shape((32, 3, 28, 28)), format_shape(())
    ('32 3 28 28 (75264)', '(1)')
    """
    return " ".join([*map(str, shape), f"({math.prod(shape)})"])


def _convolution(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """Convolution, or its transpose for Deconvolution, of each bottom into its top.

    Weights are (num_output, channels / group, kernel...), or for the transpose (channels, num_output / group,
    kernel...).
    """
    param, shape = layer.convolution_param, shapes.bottoms[0]
    channel = param.axis % len(shape)
    axes = len(shape) - channel - 1
    if axes > 3:
        raise layer_error(layer, f"cannot convolve {format_shape(shape)} along {axes} axes", "use 3 or fewer")
    # Without spatial axes, a convolution is a matrix product over channels: the window is a single value.
    stride, pad = per_axis(param, "stride", axes, 1) or (1,), per_axis(param, "pad", axes, 0) or (0,)
    dilation = dilations(param, axes) or (1,)
    transposed, group, none = layer.type == "Deconvolution", param.group, [0] * len(stride)

    def forward(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        w, b = blobs[0], blobs[1] if len(blobs) > 1 else None
        return [torch.convolution(x, w, b, stride, pad, dilation, transposed, none, group) for x in xs]

    if channel == 1 and axes:
        return forward

    def forward_folded(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        """Convolve with all axes before the channel axis folded into one."""
        w = blobs[0].reshape(*blobs[0].shape[:2], *(blobs[0].shape[2:] or (1,)))
        tops = forward([x.reshape(-1, *shape[channel:], *[1] * (not axes)) for x in xs], [w, *blobs[1:]])
        return [y.reshape(top) for y, top in zip(tops, shapes.tops, strict=True)]

    return forward_folded


def _pooling(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """Pooling. The output size is rounded up, and no window starts beyond the padded input.

    AVE divides by the size of the window, clipped to the padded input.
    """
    shape, param = shapes.bottoms[0], layer.pooling_param
    planar = len(shape) == 4 and param.axis % 4 == 1
    if not planar or len(layer.top) > 1 or param.pool not in (param.MAX, param.AVE):
        raise layer_error(layer, "is not a MAX or AVE pooling of the last two of four axes with one top")
    if not param.global_pooling:
        kernel, stride = per_axis(param, "kernel_size", 2, 1), per_axis(param, "stride", 2, 1)
        pad = per_axis(param, "pad", 2, 0)
    else:
        kernel, stride, pad = shape[2:], (1, 1), (0, 0)
    maximum, (height, width) = param.pool == param.MAX, shapes.tops[0][2:]
    # torch pads by at most half a kernel; with more padding, the input is padded beforehand.
    wide = any(2 * p > k for p, k in zip(pad, kernel, strict=True))
    around = (pad[1], pad[1], pad[0], pad[0])
    inner = (0, 0) if wide else pad
    if not maximum and kernel == shape[2:] and not any(pad):
        return lambda xs, _: [xs[0].mean((2, 3), keepdim=True)]  # a single window: this is many times faster

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        x = functional.pad(xs[0], around, value=-math.inf if maximum else 0.0) if wide else xs[0]
        if maximum:
            y = functional.max_pool2d(x, kernel, stride, inner, ceil_mode=True)
        else:
            y = functional.avg_pool2d(x, kernel, stride, inner, ceil_mode=True)
        return [y[:, :, :height, :width] if wide else y]

    return forward


def _inner_product(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """x W^T + b over all axes from `axis` on. W is (num_output, K), or (K, num_output) with `transpose`."""
    param, axes = layer.inner_product_param, len(shapes.bottoms[0])
    axis = param.axis % axes

    def forward(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        x = xs[0].flatten(axis) if axes > axis + 1 else xs[0]
        w, b = blobs[0], blobs[1] if len(blobs) > 1 else None
        return [functional.linear(x, w.t() if param.transpose else w, b)]

    return forward


def _lrn(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """x / (k + alpha / n * sum of squares) ^ beta over n channels, or over an n x n window with k = 1."""
    param = layer.lrn_param
    size, alpha, beta, k = param.local_size, param.alpha, param.beta, param.k

    def across(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        return [functional.local_response_norm(xs[0], size, alpha, beta, k)]

    def within(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        squares = functional.avg_pool2d(xs[0] * xs[0], size, 1, size // 2)
        return [xs[0] * torch.pow(1 + alpha * squares, -beta)]

    return across if param.norm_region == param.ACROSS_CHANNELS else within


DENSE: dict[str, Setup] = {
    "Convolution": _convolution,
    "Deconvolution": _convolution,
    "Pooling": _pooling,
    "InnerProduct": _inner_product,
    "LRN": _lrn,
}


_WIDTH = 1024  # floats: rows of this length are summed the fastest


def _batch_norm(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """Normalize each channel by the mean and variance of the batch (TRAIN) or by the running ones (TEST).

    Blob 0 is the sum of means, blob 1 the sum of variances (unbiased, m / (m - 1)), and blob 2 their common
    factor. A TRAIN pass sets each sum to f * sum + statistic, and the factor to f * factor + 1, where f is
    moving_average_fraction. With stats_batch_size, groups of that many images are normalized separately, and
    update the sums one after another. Blobs 3 and 4, if present, belong to the Scale layer that follows.
    """
    param, shape = layer.batch_norm_param, shapes.bottoms[0]
    fraction, eps = param.moving_average_fraction, param.eps
    images = stats_images(layer, layer.phase)
    part = images or shape[0]
    count = part * math.prod(shape[2:])

    def by_running(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        factor = torch.where(blobs[2] == 0, blobs[2], 1 / blobs[2])
        w, b = blobs[3:] or (None, None)
        return [functional.batch_norm(xs[0], blobs[0] * factor, blobs[1] * factor, w, b, eps=eps)]

    def of_part(x: Tensor, blobs: Sequence[Tensor]) -> Tensor:
        mean, variance = _statistics(x.detach())
        w, b = blobs[3:] or (None, None)
        y: Tensor = _Normalized.apply(x, w, b, mean, variance, eps)  # type: ignore[no-untyped-call]
        blobs[2].mul_(fraction).add_(1)
        blobs[0].mul_(fraction).add_(mean)
        blobs[1].mul_(fraction).add_(variance, alpha=count / max(1, count - 1))
        return y

    def by_batch(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        parts = [of_part(x, blobs) for x in xs[0].split(part)]
        return [parts[0] if len(parts) == 1 else torch.cat(parts)]

    return by_running if images is None else by_batch


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the (biased) variance of each channel.

    With channels last, torch adds up the values of a channel one by one, with an error of 4e-6 in the mean of
    25,000 values. Therefore the values are viewed as `parts` times as many channels and summed in parts.
    """
    last, channels = x.movedim(1, -1), x.shape[1]
    if not last.is_contiguous():
        return torch.batch_norm_update_stats(x, None, None, 0.0)
    most = max(1, _WIDTH // channels)
    parts = math.gcd(x.numel() // channels, 2 ** (most.bit_length() - 1))
    found = torch.batch_norm_update_stats(last.view(-1, parts * channels), None, None, 0.0)
    part_means, variances = (statistic.view(parts, channels) for statistic in found)
    between, mean = torch.var_mean(part_means, 0, correction=0)
    return mean, variances.mean(0) + between


class _Normalized(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) * w + b, with the mean and variance of x."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        w: Tensor | None,
        b: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(x, w, mean, (variance + eps).rsqrt())
        ctx.eps = eps
        return functional.batch_norm(x, mean, variance, w, b, eps=eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, w, mean, inverse = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        by_native = torch.ops.aten.native_batch_norm_backward
        found = by_native(grads[0], x, w, None, None, mean, inverse, True, ctx.eps, wanted)
        return (*found, None, None, None)


def _scale(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """Multiply by a learned blob, or by the second bottom, and add a learned bias."""
    spread = _spread(layer.scale_param, shapes)
    learned, bias = len(shapes.bottoms) == 1, layer.scale_param.bias_term

    def forward(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        factor = (blobs[0] if learned else xs[1]).view(spread)
        return [torch.addcmul(blobs[-1].view(spread), xs[0], factor) if bias else xs[0] * factor]

    return forward


def _bias(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """Add a learned blob, or the second bottom."""
    spread = _spread(layer.bias_param, shapes)
    return lambda xs, blobs: [xs[0] + (blobs[0] if blobs else xs[1]).view(spread)]


def _spread(param: pb.ScaleParameter | pb.BiasParameter, shapes: Shapes) -> Shape:
    """Return the shape of the smaller operand with trailing ones, so that it broadcasts from `axis` on."""
    first = shapes.bottoms[0]
    operand = shapes.bottoms[1] if len(shapes.bottoms) == 2 else shapes.learned[0]
    after = len(first) - param.axis % len(first) - len(operand) if operand else 0
    return (*operand, *[1] * after)


def scales_channels(layer: pb.LayerParameter) -> bool:
    """Return whether a layer is the usual Scale, with a learned factor and bias per channel."""
    param = layer.scale_param
    usual = param.axis == 1 and param.num_axes == 1 and param.bias_term
    return layer.type == "Scale" and len(layer.bottom) == 1 and usual


NORM: dict[str, Setup] = {"BatchNorm": _batch_norm, "Scale": _scale, "Bias": _bias}


_Function = Callable[[Tensor], Tensor]


def _pointwise(choose: Callable[[pb.LayerParameter], _Function]) -> Setup:
    """Return the setup of a layer y = f(x), where `choose` returns f for a layer."""

    def setup(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
        function = choose(layer)
        return lambda xs, _: [function(xs[0])]

    return setup


def _relu(layer: pb.LayerParameter) -> _Function:
    slope = layer.relu_param.negative_slope
    return (lambda x: functional.leaky_relu(x, slope)) if slope else torch.relu


def _elu(layer: pb.LayerParameter) -> _Function:
    alpha = layer.elu_param.alpha
    return lambda x: functional.elu(x, alpha)


def _power(layer: pb.LayerParameter) -> _Function:
    """(shift + scale * x) ^ power."""
    power, scale, shift = layer.power_param.power, layer.power_param.scale, layer.power_param.shift
    if power == 1:
        return lambda x: scale * x + shift
    return lambda x: torch.pow(scale * x + shift, power)


def _exp(layer: pb.LayerParameter) -> _Function:
    """base ^ (shift + scale * x); base -1 means e."""
    param = layer.exp_param
    factor = _log_of_base(layer, param.base)
    return lambda x: torch.exp((param.shift + param.scale * x) * factor)


def _log(layer: pb.LayerParameter) -> _Function:
    """log_base(shift + scale * x); base -1 means e."""
    param = layer.log_param
    factor = _log_of_base(layer, param.base)
    return lambda x: torch.log(param.shift + param.scale * x) / factor


def _log_of_base(layer: pb.LayerParameter, base: float) -> float:
    if base == -1:
        return 1.0
    if base <= 0 or base == 1:
        raise layer_error(layer, f"base is {base:g}", "give a base above 0 that is not 1, or -1 for e")
    return math.log(base)


def _dropout(layer: pb.LayerParameter) -> _Function:
    """In TRAIN, drop a fraction `dropout_ratio` of the elements, and scale the others by 1 / (1 - ratio)."""
    ratio = layer.dropout_param.dropout_ratio
    training = layer.phase == pb.TRAIN
    return lambda x: functional.dropout(x, ratio, training)


def _threshold(layer: pb.LayerParameter) -> _Function:
    threshold = layer.threshold_param.threshold
    return lambda x: (x > threshold).to(x.dtype)


def _prelu(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """max(0, x) + slope * min(0, x), with a learned slope per channel, or a single one."""

    def forward(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return [functional.prelu(xs[0], blobs[0].reshape(-1))]

    return forward


POINTWISE: dict[str, Setup] = {
    "ReLU": _pointwise(_relu),
    "Dropout": _pointwise(_dropout),
    "Sigmoid": _pointwise(lambda layer: torch.sigmoid),
    "TanH": _pointwise(lambda layer: torch.tanh),
    "ELU": _pointwise(_elu),
    "AbsVal": _pointwise(lambda layer: torch.abs),
    "BNLL": _pointwise(lambda layer: lambda x: torch.logaddexp(x, torch.zeros_like(x))),
    "Power": _pointwise(_power),
    "Exp": _pointwise(_exp),
    "Log": _pointwise(_log),
    "Threshold": _pointwise(_threshold),
    "PReLU": _prelu,
}


_Join = Callable[[Sequence[Tensor]], Tensor]


def _concat(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    param = layer.concat_param
    axis = param.concat_dim if param.HasField("concat_dim") else param.axis
    return lambda xs, _: [torch.cat(list(xs), axis)]


def _slice(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """Split a blob along an axis at the `slice_point`s or into equal parts."""
    param = layer.slice_param
    axis = param.slice_dim if param.HasField("slice_dim") else param.axis
    sizes = [top[axis] for top in shapes.tops]
    return lambda xs, _: list(torch.split(xs[0], sizes, axis))


def _reshape(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """Give a blob a new shape, for Flatten and Reshape."""
    return lambda xs, _: [xs[0].reshape(shapes.tops[0])]


def _permute(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    order = list(layer.permute_param.order)
    order += [axis for axis in range(len(shapes.bottoms[0])) if axis not in order]
    return lambda xs, _: [xs[0].permute(order)]


def _crop(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """Crop the first bottom to the size of the second, from `axis` on, at `offset`."""
    first = shapes.bottoms[0]
    axis = layer.crop_param.axis % len(first)
    offsets = list(layer.crop_param.offset) or [0]
    offsets = offsets * (len(first) - axis) if len(offsets) == 1 else offsets
    starts = [0] * axis + offsets
    cuts = tuple(slice(s, s + n) for s, n in zip(starts, shapes.tops[0], strict=True))
    return lambda xs, _: [xs[0][cuts]]


def _split(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    count = len(layer.top)
    return lambda xs, _: [xs[0]] * count


def _silence(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    return lambda xs, _: []


def _eltwise(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """Sum (with `coeff`), product or maximum of blobs of the same shape."""
    param = layer.eltwise_param
    coefficients = list(param.coeff)

    def weighted(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        return [reduce(torch.add, [c * x for c, x in zip(coefficients, xs, strict=True)])]

    if param.operation == param.SUM and any(c != 1 for c in coefficients):
        return weighted
    join = _JOINS[param.operation]
    return lambda xs, _: [join(xs)]


def _greatest(xs: Sequence[Tensor]) -> Tensor:
    """Return the maximum. Only one of several equal values gets the gradient.

    As in Caffe, this is the second one among the first two blobs, else the first one. torch.maximum would
    split the gradient between them.
    """
    first = torch.where(xs[0] > xs[1], xs[0], xs[1])
    return reduce(lambda top, x: torch.where(x > top, x, top), xs[2:], first)


_JOINS: dict[int, _Join] = {
    pb.EltwiseParameter.SUM: partial(reduce, torch.add),
    pb.EltwiseParameter.PROD: partial(reduce, torch.mul),
    pb.EltwiseParameter.MAX: _greatest,
}


def _arg_max(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """The indices of the top_k largest values, and the values with out_max_val. Of ties, the later first."""
    param = layer.argmax_param
    flat = not param.HasField("axis")
    axis = 1 if flat else param.axis

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        x = xs[0].detach().reshape(len(xs[0]), -1) if flat else xs[0].detach()
        values, places = torch.sort(x.flip(axis), dim=axis, descending=True, stable=True)
        values = values.narrow(axis, 0, param.top_k)
        indices = (x.shape[axis] - 1 - places.narrow(axis, 0, param.top_k)).to(values.dtype)
        if not flat:
            return [values if param.out_max_val else indices]
        both = [indices, values] if param.out_max_val else [indices]
        return [torch.stack(both, 1).view(shapes.tops[0])]

    return forward


def _reduction(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """The sum, absolute sum, sum of squares or mean over all axes from `axis` on, times `coeff`."""
    param = layer.reduction_param
    combine, axis = _REDUCTIONS[param.operation], param.axis % len(shapes.bottoms[0])
    return lambda xs, _: [combine(xs[0].flatten(axis)) * param.coeff]


_REDUCTIONS: dict[int, Callable[[Tensor], Tensor]] = {
    pb.ReductionParameter.SUM: lambda x: x.sum(-1),
    pb.ReductionParameter.ASUM: lambda x: x.abs().sum(-1),
    pb.ReductionParameter.SUMSQ: lambda x: (x * x).sum(-1),
    pb.ReductionParameter.MEAN: lambda x: x.mean(-1),
}

SHAPE: dict[str, Setup] = {
    "Split": _split,
    "Eltwise": _eltwise,
    "Concat": _concat,
    "Slice": _slice,
    "Flatten": _reshape,
    "Reshape": _reshape,
    "Permute": _permute,
    "Crop": _crop,
    "Silence": _silence,
    "ArgMax": _arg_max,
    "Reduction": _reduction,
}
