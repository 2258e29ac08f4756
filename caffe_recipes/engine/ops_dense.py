"""Layers that mix neighbours or channels: convolution, pooling, inner product."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from caffe_recipes.caffe import pb
from caffe_recipes.engine.layer import Forward, Setup, Shapes, fault, show

_Window = pb.ConvolutionParameter | pb.PoolingParameter


def _convolution(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """Convolve, or with Deconvolution apply a convolution's transpose; each bottom has a top.

    Weights are (num_output, channels / group, kernel...), transposed (channels, num_output / group, ...).
    """
    param, axes = layer.convolution_param, len(shapes.bottoms[0]) - 2
    if param.axis not in (1, -1 - axes) or not 1 <= axes <= 3:
        raise fault(layer, f"cannot convolve {show(shapes.bottoms[0])} along axis {param.axis}", "use axis 1")
    stride, pad = spatial(param, "stride", axes, 1), spatial(param, "pad", axes, 0)
    dilation = list(param.dilation) * axes if len(param.dilation) == 1 else list(param.dilation) or [1] * axes
    transposed, group, none = layer.type == "Deconvolution", param.group, [0] * axes

    def forward(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        w, b = blobs[0], blobs[1] if len(blobs) > 1 else None
        return [torch.convolution(x, w, b, stride, pad, dilation, transposed, none, group) for x in xs]

    return forward


def spatial(param: _Window, field: str, axes: int, default: int) -> list[int]:
    """Read `kernel_size`, `stride` or `pad` along each spatial axis.

    >>> spatial(pb.PoolingParameter(kernel_h=3, kernel_w=2), "kernel_size", 2, 1)
    [3, 2]
    """
    stem = field.removesuffix("_size")
    if param.HasField(f"{stem}_h") or param.HasField(f"{stem}_w"):
        return [getattr(param, f"{stem}_h"), getattr(param, f"{stem}_w")]
    values = list(getattr(param, field)) or [default]
    return values * axes if len(values) == 1 else values


def _pooling(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """Pool over windows: the output size rounds up, and no window starts beyond the padded input.

    AVE divides by the size of the window clipped to the padded input.
    """
    shape, param = shapes.bottoms[0], layer.pooling_param
    if len(shape) != 4 or len(layer.top) > 1 or param.pool not in (param.MAX, param.AVE):
        raise fault(layer, "is not a MAX or AVE pooling of four axes with one top")
    if param.global_pooling:
        kernel, stride, pad = list(shape[2:]), [1, 1], [0, 0]
    else:
        kernel, stride = spatial(param, "kernel_size", 2, 1), spatial(param, "stride", 2, 1)
        pad = spatial(param, "pad", 2, 0)
    if any(p >= k for p, k in zip(pad, kernel, strict=True)):
        raise fault(layer, f"has pad {pad} for kernel {kernel}", "give a pad below the kernel")
    maximum, (height, width) = param.pool == param.MAX, shapes.tops[0][2:]
    # Torch pads by half a kernel at most; where Caffe is asked for more, the input is padded beforehand.
    wide = any(2 * p > k for p, k in zip(pad, kernel, strict=True))
    around = (pad[1], pad[1], pad[0], pad[0])
    inner = [0, 0] if wide else pad
    if not maximum and kernel == list(shape[2:]) and not any(pad):
        return lambda xs, _: [xs[0].mean((2, 3), keepdim=True)]  # one window: many times as fast

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        x = functional.pad(xs[0], around, value=-math.inf if maximum else 0.0) if wide else xs[0]
        if maximum:
            y = functional.max_pool2d(x, kernel, stride, inner, ceil_mode=True)
        else:
            y = functional.avg_pool2d(x, kernel, stride, inner, ceil_mode=True)
        return [y[:, :, :height, :width] if wide else y]

    return forward


def _inner_product(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """x W^T + b over all axes from `axis` on. Weights are (num_output, K), or (K, num_output) transposed."""
    param, axes = layer.inner_product_param, len(shapes.bottoms[0])
    axis = param.axis % axes

    def forward(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        x = xs[0].flatten(axis) if axes > axis + 1 else xs[0]
        w, b = blobs[0], blobs[1] if len(blobs) > 1 else None
        return [functional.linear(x, w.t() if param.transpose else w, b)]

    return forward


def _lrn(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """x / (k + alpha / n * sum of squares) ^ beta, over n channels or, with k 1, over a window of n x n."""
    param = layer.lrn_param
    size, alpha, beta, k = param.local_size, param.alpha, param.beta, param.k
    if size % 2 == 0 or len(shapes.bottoms[0]) != 4:
        raise fault(layer, f"local_size is {size}", "give an odd local_size, and an input of four axes")

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
