"""Normalization over the batch, with Caffe's running sums, and over neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.normalization import bn_mode
from caffe_recipes.caffe.shapes import stats_images
from caffe_recipes.engine.operators.operator import Forward, Setup, TensorShapes, layer_error

_BN_EPS = 1e-9  # of SegNet's BN, added to the variance
_WIDTH = 1024  # floats: rows of this length are summed the fastest


def _batch_norm(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
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
        if part == shape[0]:
            return [of_part(xs[0], blobs)]
        return [torch.cat([of_part(x, blobs) for x in xs[0].split(part)])]

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


def _bn(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """SegNet's: scale and shift; with bn_mode LEARN, after normalization by the batch, in TEST too."""
    count = len(shapes.tops)

    def infer(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return [xs[0] * blobs[0] + blobs[1]]

    def learn(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        mean, variance = _statistics(xs[0].detach())
        scale, shift = (blob.view(-1) for blob in blobs)
        y: Tensor = _Normalized.apply(xs[0], scale, shift, mean, variance, _BN_EPS)  # type: ignore[no-untyped-call]
        return [y, mean.view(1, -1, 1, 1), variance.view(1, -1, 1, 1)][:count]

    if bn_mode(layer) == "LEARN":
        return learn
    if count > 1:
        raise layer_error(layer, "makes no mean and variance with bn_mode INFERENCE", "remove these tops")
    return infer


def _lrn(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """x / (k + alpha / n * sum of squares) ^ beta over n channels, or over an n x n window with k = 1."""
    param = layer.lrn_param
    size, alpha, beta, k = param.local_size, param.alpha, param.beta, param.k

    def across(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        return [functional.local_response_norm(xs[0], size, alpha, beta, k)]

    def within(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        squares = functional.avg_pool2d(xs[0] * xs[0], size, 1, size // 2)
        return [xs[0] * torch.pow(1 + alpha * squares, -beta)]

    return across if param.norm_region == param.ACROSS_CHANNELS else within


def _mvn(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """Subtract the mean of each channel, or of each image, and divide by the standard deviation + eps."""
    param, shape = layer.mvn_param, shapes.bottoms[0]
    rows = math.prod(shape[: 1 if param.across_channels else 2])

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        x = xs[0].reshape(rows, -1)
        if param.normalize_variance:
            y: Tensor = _Standardized.apply(x, param.eps)  # type: ignore[no-untyped-call]
        else:
            y = x - x.mean(1, keepdim=True)
        return [y.reshape(shape)]

    return forward


class _Standardized(torch.autograd.Function):
    """(x - mean) / (deviation + eps) of each row.

    As in Caffe, the backward pass takes the deviation to be much larger than eps. That of autograd would
    divide by 0 in a row of equal values.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:  # noqa: ANN401
        centred = x - x.mean(1, keepdim=True)
        divisor = centred.square().mean(1, keepdim=True).sqrt() + eps
        y = centred / divisor
        ctx.save_for_backward(y, divisor)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        y, divisor = ctx.saved_tensors
        along = y * (grads[0] * y).mean(1, keepdim=True)
        return (grads[0] - grads[0].mean(1, keepdim=True) - along) / divisor, None


def _normalize(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """Scale the channels of each pixel, or a whole image, to length 1, and multiply by the learned blob."""
    param, shape = layer.norm_param, shapes.bottoms[0]
    axes = tuple(range(1, len(shape))) if param.across_spatial else (1,)
    spread = (-1, *[1] * (len(shape) - 2))

    def forward(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        lengths = ((xs[0] * xs[0]).sum(axes, keepdim=True) + param.eps).sqrt()
        return [xs[0] / lengths * blobs[0].view(spread)]

    return forward


OPERATORS: dict[str, Setup] = {
    "BatchNorm": _batch_norm,
    "BN": _bn,
    "LRN": _lrn,
    "MVN": _mvn,
    "Normalize": _normalize,
}

FRESH = frozenset(("BatchNorm", "BN"))
