"""BatchNorm with Caffe's running sums, and the Scale and Bias that follow it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from caffe_recipes.caffe import pb
from caffe_recipes.engine.layer import Blob, Layer, Setup, Shape, axis_of, fault, need_bottoms, show

_ONE = pb.FillerParameter(type="constant", value=1)
_ZERO = pb.FillerParameter(type="constant", value=0)


def _batch_norm(layer: pb.LayerParameter, bottoms: list[Shape]) -> Layer:
    """Normalise each channel by the batch's mean and variance (TRAIN) or by the running ones (TEST).

    Blobs: 0 the sum of means, 1 the sum of variances (unbiased, m / (m - 1)), 2 their factor. A TRAIN pass
    makes each f * blob + statistic, and the factor f * factor + 1, with f = moving_average_fraction.
    """
    need_bottoms(layer, bottoms, 1)
    param, shape = layer.batch_norm_param, bottoms[0]
    channels = shape[1] if len(shape) > 1 else 1
    fraction, eps = param.moving_average_fraction, param.eps
    running = layer.phase == pb.TEST
    if param.HasField("use_global_stats"):
        running = param.use_global_stats
    count = math.prod(shape) // channels

    def by_running(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        factor = torch.where(blobs[2] == 0, blobs[2], 1 / blobs[2])
        x = xs[0] if len(shape) > 1 else xs[0].unsqueeze(1)
        y = functional.batch_norm(x, blobs[0] * factor, blobs[1] * factor, eps=eps)
        return [y.reshape(xs[0].shape)]

    def by_batch(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        x = xs[0] if len(shape) > 1 else xs[0].unsqueeze(1)
        if count == 1:  # torch refuses to normalise one value by itself
            mean, variance, y = x.detach().reshape(-1), torch.zeros_like(blobs[1]), (x - x) * eps**-0.5
        else:
            # With momentum 1 torch leaves the batch's own mean and unbiased variance there; it multiplies what
            # was there by 0, which leaves a NaN one.
            mean, variance = torch.zeros_like(blobs[0]), torch.zeros_like(blobs[1])
            y = functional.batch_norm(x, mean, variance, training=True, momentum=1.0, eps=eps)
        with torch.no_grad():
            blobs[2].mul_(fraction).add_(1)
            blobs[0].mul_(fraction).add_(mean)
            blobs[1].mul_(fraction).add_(variance)
        return [y.reshape(xs[0].shape)]

    statistics = tuple(Blob(size, _ZERO, has_gradient=False) for size in ((channels,), (channels,), (1,)))
    return Layer([shape], by_running if running else by_batch, statistics)


def _scale(layer: pb.LayerParameter, bottoms: list[Shape]) -> Layer:
    """Multiply by a learned blob (starts at 1), or by the second bottom, and add a learned bias."""
    need_bottoms(layer, bottoms, 1, 2)
    param, shape = layer.scale_param, bottoms[0]
    filler = param.filler if param.HasField("filler") else _ONE
    bias_filler = param.bias_filler if param.HasField("bias_filler") else _ZERO
    size, spread = _spread(layer, param.axis, param.num_axes, bottoms)
    learned = () if len(bottoms) == 2 else (Blob(size, filler),)
    bias = (Blob(size, bias_filler),) if param.bias_term else ()

    def forward(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        factor = blobs[0] if learned else xs[1]
        if not bias:
            return [xs[0] * factor.view(spread)]
        return [torch.addcmul(blobs[-1].view(spread), xs[0], factor.view(spread))]

    return Layer([shape], forward, (*learned, *bias))


def _bias(layer: pb.LayerParameter, bottoms: list[Shape]) -> Layer:
    """Add a learned blob (starts at 0), or the second bottom."""
    need_bottoms(layer, bottoms, 1, 2)
    param, shape = layer.bias_param, bottoms[0]
    filler = param.filler if param.HasField("filler") else _ZERO
    size, spread = _spread(layer, param.axis, param.num_axes, bottoms)
    learned = () if len(bottoms) == 2 else (Blob(size, filler),)
    return Layer([shape], lambda x, w: [x[0] + (w[0] if learned else x[1]).view(spread)], learned)


def _spread(layer: pb.LayerParameter, axis: int, axes: int, bottoms: list[Shape]) -> tuple[Shape, Shape]:
    """Give the shape of the smaller operand, and that shape with ones so that it broadcasts."""
    shape = bottoms[0]
    start = axis_of(layer, axis, shape)
    stop = len(shape) if axes == -1 else start + axes
    if len(bottoms) == 2:
        stop = start + len(bottoms[1])
    size = shape[start:stop]
    if stop > len(shape) or (len(bottoms) == 2 and bottoms[1] != size):
        other = show(bottoms[1]) if len(bottoms) == 2 else f"{axes} axes"
        raise fault(layer, f"{other} do not lie along {show(shape)} from axis {start} on")
    return size, (*size, *[1] * (len(shape) - stop))


NORM: dict[str, Setup] = {"BatchNorm": _batch_norm, "Scale": _scale, "Bias": _bias}
