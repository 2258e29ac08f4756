"""Normalization over the batch, with Caffe's running sums, and over neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.normalization import averaging, bn_mode, has_averages, is_frozen
from caffe_recipes.caffe.shapes import stats_images
from caffe_recipes.engine.operators.operator import (
    NO_RANKS,
    BatchStatistics,
    Forward,
    Setup,
    TensorShapes,
    layer_error,
)

_BN_EPS = 1e-9  # of SegNet's BN, added to the variance
_WIDTH = 1024  # floats: rows of this length are summed the fastest


def _batch_norm(
    layer: pb.LayerParameter, shapes: TensorShapes, batches: BatchStatistics = NO_RANKS
) -> Forward:
    """Normalize each channel by the mean and variance of the batch (TRAIN) or by the running ones (TEST).

    Blob 0 is the sum of means, blob 1 the sum of variances (unbiased, m / (m - 1)), and blob 2 their common
    factor. A TRAIN pass sets each sum to f * sum + statistic, and the factor to f * factor + 1, where f is
    moving_average_fraction. With stats_batch_size, groups of that many images are normalized separately, and
    update the sums one after another: k parts keep f^k of the sums. Blobs 3 and 4, if present, belong to the
    Scale layer that follows.
    """
    param, shape = layer.batch_norm_param, shapes.bottoms[0]
    fraction, eps = param.moving_average_fraction, param.eps
    images = stats_images(layer, layer.phase)
    part = images or shape[0]
    parts = shape[0] // part
    if parts > 1 and batches.sum is not None:
        what = f"has stats_batch_size {part}, but -sync-bn takes the statistics of all ranks"
        raise layer_error(layer, what, "leave one of the two out")
    count = part * math.prod(shape[2:]) * batches.ranks
    kept = [fraction**later for later in reversed(range(parts))]  # of the statistics of each part

    def by_running(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        factor = torch.where(blobs[2] == 0, blobs[2], 1 / blobs[2])
        w, b = blobs[3:] or (None, None)
        return [functional.batch_norm(xs[0], blobs[0] * factor, blobs[1] * factor, w, b, eps=eps)]

    def by_batch(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        w, b = blobs[3:] or (None, None)
        y, mean, variance = _normalize_by_batch(xs[0], w, b, eps, batches, parts)
        if not batches.is_recomputing:  # the sums have moved when the pass was computed first
            weights = mean.new_tensor(kept)
            blobs[2].mul_(fraction**parts).add_(sum(kept))
            blobs[0].mul_(fraction**parts).add_(weights @ mean)
            blobs[1].mul_(fraction**parts).add_(weights @ variance, alpha=count / max(1, count - 1))
        return [y]

    return by_running if images is None else by_batch


def _normalize_by_batch(
    x: Tensor, w: Tensor | None, b: Tensor | None, eps: float, batches: BatchStatistics, parts: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a batch normalized by its own statistics, and its means and variances: parts x channels."""
    if parts == 1 and batches.sum is None:
        mean, variance = _statistics(x.detach())
        y: Tensor = _Normalized.apply(x, w, b, mean, variance, eps)  # type: ignore[no-untyped-call]
        return y, mean[None], variance[None]
    mean, variance = batches.combine(*_statistics_of_parts(x.detach(), parts))
    y = _NormalizedParts.apply(x, w, b, mean, variance, eps, batches)  # type: ignore[no-untyped-call]
    return y, mean, variance


def _statistics_of_parts(x: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    """Return the means and variances of each part of a batch: parts x channels."""
    found = [_statistics(part) for part in x.chunk(parts)]
    return torch.stack([mean for mean, _ in found]), torch.stack([variance for _, variance in found])


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the (biased) variance of each channel.

    With channels last, torch adds up the values of a channel one by one, with an error of 4e-6 in the mean of
    25,000 values. Therefore the values are viewed as `parts` times as many channels and summed in parts.
    """
    if x.dtype == torch.bfloat16:
        x = x.float()
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


class _NormalizedParts(torch.autograd.Function):
    """As _Normalized, for each part of a batch, whose mean and variance are rows of `mean` and `variance`.

    All parts are normalized in one pass: y = x * scale + shift, with a scale and a shift for each part and
    channel, and dx = dy * c1 + x * c2 + c3. Only the sums in c2 and c3 are computed part by part. They are
    those of all ranks where the statistics are.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        w: Tensor | None,
        b: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        eps: float,
        batches: BatchStatistics,
    ) -> Tensor:
        inverse = (variance + eps).rsqrt()
        scale = inverse if w is None else inverse * w
        shift = -mean * scale if b is None else b - mean * scale
        ctx.save_for_backward(x, scale, mean, inverse)
        ctx.batches = batches
        y: Tensor = torch.empty_like(x)
        torch.addcmul(_spread(shift, x), _by_part(x, mean), _spread(scale, x), out=_by_part(y, mean))
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, scale, mean, inverse = ctx.saved_tensors
        dy = grads[0]
        sums, products = _gradient_sums(dy, x, mean, inverse)  # of dy, and of dy * (x - mean) * inverse
        of_w, of_b = products.sum(0), sums.sum(0)
        sums, products = ctx.batches.total(sums, products)
        share = 1 / (x.numel() // x.shape[1] // len(mean) * ctx.batches.ranks)
        by_x = -scale * inverse * products * share
        rest = -scale * sums * share - by_x * mean
        dx = torch.empty_like(x)
        out = _by_part(dx, mean)
        torch.addcmul(_spread(rest, x), _by_part(x, mean), _spread(by_x, x), out=out)
        out.addcmul_(_by_part(dy, mean), _spread(scale, x))
        wanted = ctx.needs_input_grad
        return (dx, of_w if wanted[1] else None, of_b if wanted[2] else None, None, None, None, None)


def _by_part(x: Tensor, mean: Tensor) -> Tensor:
    """Return a view of a batch as (parts, images of a part, channels, ...)."""
    view: Tensor = x.unflatten(0, (len(mean), -1))
    return view


def _spread(values: Tensor, x: Tensor) -> Tensor:
    """Return values of each part and channel so that they broadcast over those of a batch by parts."""
    return values.view(len(values), 1, -1, *[1] * (x.dim() - 2))


def _gradient_sums(dy: Tensor, x: Tensor, mean: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of dy, and of dy * (x - mean) * inverse, over each part: parts x channels."""
    by_native, ones = torch.ops.aten.native_batch_norm_backward, torch.ones_like(mean[0])
    only_sums = (False, True, True)
    found = [
        by_native(gradient, part, ones, None, None, m, i, True, 0.0, only_sums)
        for gradient, part, m, i in zip(dy.chunk(len(mean)), x.chunk(len(mean)), mean, inverse, strict=True)
    ]
    _, products, sums = (list(column) for column in zip(*found, strict=True))
    return torch.stack(sums), torch.stack(products)


def _averaged_bn(layer: pb.LayerParameter, batches: BatchStatistics) -> Forward:
    """Normalize by the batch (TRAIN) or by moving averages (TEST, or frozen), then scale and shift.

    Blobs 2 and 3 are the averages of mean and (biased) variance: momentum * average + (1 - momentum) * value.
    """
    momentum, eps = averaging(layer)

    def by_average(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        scale, shift, mean, variance = (blob.view(-1) for blob in blobs)
        return [functional.batch_norm(xs[0], mean, variance, scale, shift, eps=eps)]

    def by_batch(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        scale, shift = (blob.view(-1) for blob in blobs[:2])
        y, *statistics = _normalize_by_batch(xs[0], scale, shift, eps, batches)
        if not batches.is_recomputing:  # the averages have moved when the pass was computed first
            for average, value in zip(blobs[2:], statistics, strict=True):
                average.detach().view(-1).mul_(momentum).add_(value[0], alpha=1 - momentum)
        return [y]

    return by_average if layer.phase == pb.TEST or is_frozen(layer) else by_batch


def _bn(layer: pb.LayerParameter, shapes: TensorShapes, batches: BatchStatistics = NO_RANKS) -> Forward:
    """With moving averages, or SegNet's: scale and shift, with bn_mode LEARN after normalization.

    SegNet's normalizes by the batch in TEST, too.
    """
    if has_averages(layer):
        return _averaged_bn(layer, batches)
    count = len(shapes.tops)

    def infer(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return [xs[0] * blobs[0] + blobs[1]]

    def learn(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        scale, shift = (blob.view(-1) for blob in blobs)
        y, mean, variance = _normalize_by_batch(xs[0], scale, shift, _BN_EPS, batches)
        # Copies: a layer in place may overwrite these tops, but the gradient needs the mean.
        return [y, *(value.clone().view(1, -1, 1, 1) for value in (mean, variance))][:count]

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
    param, shape = layer.mvn_param, shapes.tops[0]
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
        y: Tensor = _UnitLength.apply(xs[0], blobs[0].view(spread), axes, param.eps)  # type: ignore[no-untyped-call]
        return [y]

    return forward


class _UnitLength(torch.autograd.Function):
    """x / length * scale, with the length of x along axes.

    As in Caffe, the gradient of x is `scale` times what it would be without the scale, also where the scale
    differs between channels.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:  # noqa: ANN401
        length = (x.square().sum(axes, keepdim=True) + eps).sqrt()
        unit = x / length
        ctx.save_for_backward(unit, length, scale)
        ctx.axes = axes
        return unit * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        unit, length, scale = ctx.saved_tensors
        along = grads[0] * unit
        dx = scale * (grads[0] - unit * along.sum(ctx.axes, keepdim=True)) / length
        return dx, along.sum_to_size(1, *scale.shape).view_as(scale), None, None


class SetupWithStatistics(Protocol):
    """A setup that also gets whose images the statistics of a batch are of."""

    def __call__(
        self, layer: pb.LayerParameter, shapes: TensorShapes, batches: BatchStatistics = NO_RANKS, /
    ) -> Forward:
        """Return the forward function of a layer."""


BATCH_NORMS: dict[str, SetupWithStatistics] = {"BatchNorm": _batch_norm, "BN": _bn}

OPERATORS: dict[str, Setup] = {
    **BATCH_NORMS,
    "LRN": _lrn,
    "MVN": _mvn,
    "Normalize": _normalize,
}

FRESH = frozenset(BATCH_NORMS)
