"""Layers that mix neighbours or channels: convolution, pooling, inner product."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from caffe_recipes.caffe import pb
from caffe_recipes.engine.layer import Blob, Layer, Setup, Shape, axis_of, fault, need_bottoms, show


def _convolution(layer: pb.LayerParameter, bottoms: list[Shape]) -> Layer:
    """Convolve; each bottom has a top. Weights are (num_output, channels / group, kernel...)."""
    return _any_convolution(layer, bottoms, transposed=False)


def _deconvolution(layer: pb.LayerParameter, bottoms: list[Shape]) -> Layer:
    """Apply the transpose of a convolution. Weights are (channels, num_output / group, kernel...)."""
    return _any_convolution(layer, bottoms, transposed=True)


def _any_convolution(layer: pb.LayerParameter, bottoms: list[Shape], transposed: bool) -> Layer:
    need_bottoms(layer, bottoms, 1, 64)
    param, shape = layer.convolution_param, bottoms[0]
    if axis_of(layer, param.axis, shape) != 1 or not 3 <= len(shape) <= 5:
        raise fault(layer, f"cannot convolve {show(shape)} along axis {param.axis}", "use axis 1")
    kernel, stride, pad, dilation = window(layer, param, len(shape) - 2)
    outputs, channels, group = param.num_output, shape[1], param.group
    if not outputs or not group or channels % group or outputs % group:
        what = f"cannot map {channels} channels to {outputs} in {group} groups"
        raise fault(layer, what, "group must divide both, and num_output be above 0")
    if transposed:
        sizes = [
            s * (n - 1) + d * (k - 1) + 1 - 2 * p
            for n, k, s, p, d in zip(shape[2:], kernel, stride, pad, dilation, strict=True)
        ]
    else:
        sizes = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(shape[2:], kernel, stride, pad, dilation, strict=True)
        ]
    if min(sizes) < 1:
        raise fault(layer, f"its kernel {tuple(kernel)} is larger than its input {shape[2:]}")
    first, second = (channels, outputs) if transposed else (outputs, channels)
    weights = Blob((first, second // group, *kernel), param.weight_filler)
    bias = (Blob((outputs,), param.bias_filler),) if param.bias_term else ()
    none = [0] * len(kernel)

    def forward(xs: Sequence[Tensor], w: Sequence[Tensor]) -> list[Tensor]:
        b = w[1] if len(w) > 1 else None
        return [torch.convolution(x, w[0], b, stride, pad, dilation, transposed, none, group) for x in xs]

    return Layer([(b[0], outputs, *sizes) for b in bottoms], forward, (weights, *bias))


def window(
    layer: pb.LayerParameter, param: pb.ConvolutionParameter, axes: int
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Give kernel, stride, pad and dilation of a convolution along each of its spatial axes."""
    if param.HasField("kernel_h") or param.HasField("kernel_w"):
        if axes != 2 or param.kernel_size:
            raise fault(layer, "kernel_h and kernel_w are for two axes, in place of kernel_size")
        kernel = [param.kernel_h, param.kernel_w]
    else:
        kernel = _per_axis(layer, "kernel_size", param.kernel_size, axes, 0)
    by_letter = axes == 2 and not param.stride and (param.HasField("stride_h") or param.HasField("stride_w"))
    stride = (
        [param.stride_h, param.stride_w] if by_letter else _per_axis(layer, "stride", param.stride, axes, 1)
    )
    by_letter = axes == 2 and not param.pad and (param.HasField("pad_h") or param.HasField("pad_w"))
    pad = [param.pad_h, param.pad_w] if by_letter else _per_axis(layer, "pad", param.pad, axes, 0)
    dilation = _per_axis(layer, "dilation", param.dilation, axes, 1)
    if min(*kernel, *stride, *dilation) < 1:
        raise fault(layer, f"kernel {kernel}, stride {stride}, dilation {dilation}", "give each above 0")
    return kernel, stride, pad, dilation


def _per_axis(
    layer: pb.LayerParameter, name: str, values: Sequence[int], axes: int, default: int
) -> list[int]:
    if len(values) not in (0, 1, axes):
        raise fault(layer, f"{name} is given {len(values)} times", f"give it once, or {axes} times")
    return [values[0]] * axes if len(values) == 1 else list(values) or [default] * axes


def _pooling(layer: pb.LayerParameter, bottoms: list[Shape]) -> Layer:
    """Pool over windows: the output size rounds up, and no window starts beyond the padded input.

    AVE divides by the size of the window clipped to the padded input.
    """
    need_bottoms(layer, bottoms, 1)
    shape, param = bottoms[0], layer.pooling_param
    if len(shape) != 4 or len(layer.top) > 1 or param.pool not in (param.MAX, param.AVE):
        raise fault(layer, "is not a MAX or AVE pooling of four axes with one top")
    kernel, stride, pad = pooling_window(layer, shape)
    sizes = [pooled_size(n, k, s, p) for n, k, s, p in zip(shape[2:], kernel, stride, pad, strict=True)]
    if min(sizes) < 1:
        raise fault(layer, f"its kernel {tuple(kernel)} is larger than its input {shape[2:]}")
    maximum = param.pool == param.MAX
    # Torch pads by half a kernel at most; where Caffe is asked for more, the input is padded beforehand.
    wide = any(2 * p > k for p, k in zip(pad, kernel, strict=True))
    around = (pad[1], pad[1], pad[0], pad[0])
    inner = [0, 0] if wide else pad

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        x = functional.pad(xs[0], around, value=-math.inf if maximum else 0.0) if wide else xs[0]
        if maximum:
            y = functional.max_pool2d(x, kernel, stride, inner, ceil_mode=True)
        else:
            y = functional.avg_pool2d(x, kernel, stride, inner, ceil_mode=True)
        return [y[:, :, : sizes[0], : sizes[1]] if wide else y]

    return Layer([(*shape[:2], *sizes)], forward)


def pooled_size(size: int, kernel: int, stride: int, pad: int) -> int:
    """Give the output size of a pooling along one axis.

    >>> pooled_size(112, 3, 2, 0), pooled_size(6, 3, 2, 0), pooled_size(5, 2, 2, 1)
    (56, 3, 3)
    """
    pooled = -(-(size + 2 * pad - kernel) // stride) + 1
    return pooled - 1 if (pooled - 1) * stride >= size + pad else pooled


def pooling_window(layer: pb.LayerParameter, shape: Shape) -> tuple[list[int], list[int], list[int]]:
    """Give kernel, stride and pad of a pooling along its two spatial axes."""
    param = layer.pooling_param
    if param.global_pooling:
        if param.kernel_size or param.HasField("kernel_h") or param.HasField("kernel_w"):
            raise fault(layer, "global_pooling takes no kernel")
        return list(shape[2:]), [1, 1], [0, 0]
    kernel = _per_axis(layer, "kernel_size", param.kernel_size, 2, 0)
    kernel = kernel if param.kernel_size else [param.kernel_h, param.kernel_w]
    stride = _per_axis(layer, "stride", param.stride, 2, 1)
    stride = stride if param.stride else [param.stride_h, param.stride_w]
    pad = _per_axis(layer, "pad", param.pad, 2, 0) if param.pad else [param.pad_h, param.pad_w]
    if min(*kernel, *stride) < 1 or any(p >= k for p, k in zip(pad, kernel, strict=True)):
        raise fault(layer, f"kernel {kernel}, stride {stride}, pad {pad}", "give pad < kernel, stride > 0")
    return kernel, stride, pad


def _inner_product(layer: pb.LayerParameter, bottoms: list[Shape]) -> Layer:
    """x W^T + b over all axes from `axis` on. Weights are (num_output, K), or (K, num_output) transposed."""
    need_bottoms(layer, bottoms, 1)
    param, shape = layer.inner_product_param, bottoms[0]
    axis = axis_of(layer, param.axis, shape)
    outputs, inputs = param.num_output, math.prod(shape[axis:])
    if not outputs:
        raise fault(layer, "num_output is missing")
    flat = (inputs, outputs) if param.transpose else (outputs, inputs)
    bias = (Blob((outputs,), param.bias_filler),) if param.bias_term else ()

    def forward(xs: Sequence[Tensor], w: Sequence[Tensor]) -> list[Tensor]:
        x = xs[0].flatten(axis) if len(shape) > axis + 1 else xs[0]
        b = w[1] if len(w) > 1 else None
        return [functional.linear(x, w[0].t() if param.transpose else w[0], b)]

    return Layer([(*shape[:axis], outputs)], forward, (Blob(flat, param.weight_filler), *bias))


def _lrn(layer: pb.LayerParameter, bottoms: list[Shape]) -> Layer:
    """x / (k + alpha / n * sum of squares) ^ beta, over n channels or over a window of n x n."""
    need_bottoms(layer, bottoms, 1)
    param = layer.lrn_param
    size, alpha, beta, k = param.local_size, param.alpha, param.beta, param.k
    if size % 2 == 0 or len(bottoms[0]) != 4:
        raise fault(layer, f"local_size is {size}", "give an odd local_size, and an input of four axes")

    def across(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        return [functional.local_response_norm(xs[0], size, alpha, beta, k)]

    def within(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        x = xs[0]
        squares = functional.avg_pool2d(x * x, size, 1, size // 2)
        return [x * torch.pow(1 + alpha * squares, -beta)]

    forward = across if param.norm_region == param.ACROSS_CHANNELS else within
    return Layer([bottoms[0]], forward)


DENSE: dict[str, Setup] = {
    "Convolution": _convolution,
    "Deconvolution": _deconvolution,
    "Pooling": _pooling,
    "InnerProduct": _inner_product,
    "LRN": _lrn,
}
