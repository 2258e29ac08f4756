"""BatchNorm with Caffe's running sums, and the Scale and Bias that follow it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from caffe_recipes.caffe import pb
from caffe_recipes.engine.layer import Forward, Setup, Shape, Shapes

_WIDTH = 1024  # floats: rows that long are summed fastest


def _batch_norm(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """Normalise each channel by the batch's mean and variance (TRAIN) or by the running ones (TEST).

    Blobs: 0 the sum of means, 1 the sum of variances (unbiased, m / (m - 1)), 2 their factor. A TRAIN pass
    makes each f * blob + statistic, and the factor f * factor + 1, with f = moving_average_fraction. Blobs
    3 and 4, if there, are those of the Scale that follows.
    """
    param, shape = layer.batch_norm_param, shapes.bottoms[0]
    fraction, eps = param.moving_average_fraction, param.eps
    running = param.use_global_stats if param.HasField("use_global_stats") else layer.phase == pb.TEST
    count = math.prod(shape) // shapes.learned[0][0]

    def channels_of(x: Tensor) -> Tensor:
        return x if len(shape) > 1 else x.unsqueeze(1)

    def by_running(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        factor = torch.where(blobs[2] == 0, blobs[2], 1 / blobs[2])
        w, b = blobs[3:] or (None, None)
        y = functional.batch_norm(channels_of(xs[0]), blobs[0] * factor, blobs[1] * factor, w, b, eps=eps)
        return [y.view_as(xs[0])]

    def by_batch(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        x = channels_of(xs[0])
        mean, variance = _statistics(x.detach())
        w, b = blobs[3:] or (None, None)
        y: Tensor = _Normalised.apply(x, w, b, mean, variance, eps)  # type: ignore[no-untyped-call]
        blobs[2].mul_(fraction).add_(1)
        blobs[0].mul_(fraction).add_(mean)
        blobs[1].mul_(fraction).add_(variance, alpha=count / max(1, count - 1))
        return [y.view_as(xs[0])]

    return by_running if running else by_batch


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Give each channel's mean and variance (biased).

    With channels last, torch adds up all values of a channel one by one, and 4e-6 of a mean is lost in 25,000
    of them. Seen as `parts` times as many channels, each a share of the values, they are summed in pieces.
    """
    last, channels = x.movedim(1, -1), x.shape[1]
    if not last.is_contiguous():
        return torch.batch_norm_update_stats(x, None, None, 0.0)
    most = max(1, _WIDTH // channels)
    parts = math.gcd(x.numel() // channels, 2 ** (most.bit_length() - 1))
    found = torch.batch_norm_update_stats(last.view(-1, parts * channels), None, None, 0.0)
    means, variances = (statistic.view(parts, channels) for statistic in found)
    between, mean = torch.var_mean(means, 0, correction=0)
    return mean, variances.mean(0) + between


class _Normalised(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) * w + b, where mean and variance are x's own."""

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
    """Give the shape of the smaller operand with ones after it, so that it broadcasts from `axis` on."""
    first = shapes.bottoms[0]
    operand = shapes.bottoms[1] if len(shapes.bottoms) == 2 else shapes.learned[0]
    after = len(first) - param.axis % len(first) - len(operand) if operand else 0
    return (*operand, *[1] * after)


def scales_channels(layer: pb.LayerParameter) -> bool:
    """Tell whether a layer is the usual Scale: one factor and one bias per channel, both learned."""
    param = layer.scale_param
    usual = param.axis == 1 and param.num_axes == 1 and param.bias_term
    return layer.type == "Scale" and len(layer.bottom) == 1 and usual


NORM: dict[str, Setup] = {"BatchNorm": _batch_norm, "Scale": _scale, "Bias": _bias}
