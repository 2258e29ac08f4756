"""Pooling of windows, of whole channels, and of pyramids of windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.pooling import pyramid_window
from caffe_recipes.caffe.layer_types.windows import as_volume, per_axis, pool_size
from caffe_recipes.engine.operators.operator import (
    Forward,
    Setup,
    TensorShape,
    TensorShapes,
    class_indices,
    layer_error,
)

_Pool = Callable[[Tensor], Tensor]
_MAX = {2: functional.max_pool2d, 3: functional.max_pool3d}
_AVE = {2: functional.avg_pool2d, 3: functional.avg_pool3d}


def _pooling(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """Pool the two or three axes after the channels. A second top is the mask: the index of each maximum."""
    shape, param = shapes.bottoms[0], layer.pooling_param
    first = param.axis % len(shape) + 1
    axes, tops = len(shape) - first, len(layer.top)
    if param.pool not in (param.MAX, param.AVE) or (axes, tops) == (3, 2):
        raise layer_error(layer, "is not a MAX pooling (of two axes for a mask) or an AVE pooling")
    if not param.global_pooling:
        kernel, stride = per_axis(param, "kernel_size", axes, 1), per_axis(param, "stride", axes, 1)
        pad = per_axis(param, "pad", axes, 0)
    else:
        kernel, stride, pad = shape[first:], (1,) * axes, (0,) * axes
    sizes = shapes.tops[0][first:]
    if tops == 2:
        pool = _with_mask(kernel, stride, pad, sizes)
    elif param.pool == param.AVE and kernel == shape[first:] and not any(pad):
        inner = tuple(range(2, 2 + axes))  # a single window: this is many times faster
        return lambda xs, _: [_fold(xs[0], first).mean(inner, keepdim=True).reshape(shapes.tops[0])]
    else:
        single = _windows(param.pool == param.MAX, kernel, stride, pad, sizes)
        pool = lambda x: [single(x)]  # noqa: E731
    if first == 2:
        return lambda xs, _: pool(xs[0])
    return lambda xs, _: [y.reshape(shapes.tops[0]) for y in pool(_fold(xs[0], first))]


def _fold(x: Tensor, first: int) -> Tensor:
    """Return a blob with all axes before the channels, the last one before `first`, folded into one."""
    return x if first == 2 else x.reshape(-1, *x.shape[first - 1 :])


def _windows(
    is_max: bool, kernel: TensorShape, stride: TensorShape, pad: TensorShape, sizes: TensorShape
) -> _Pool:
    """Return a function that pools windows. The output `sizes` are rounded up, or cut where they are not.

    No window starts beyond the padded input. AVE divides by the size of the window, clipped to the padded
    input.
    """
    # torch pads by at most half a kernel; with more padding, the input is padded beforehand.
    wide = any(2 * p > k for p, k in zip(pad, kernel, strict=True))
    around = [side for size in reversed(pad) for side in (size, size)]
    inner = (0,) * len(pad) if wide else pad
    native = (_MAX if is_max else _AVE)[len(kernel)]

    def pool(x: Tensor) -> Tensor:
        if not is_max and len(kernel) == 3 and any(k > n for k, n in zip(kernel, x.shape[2:], strict=True)):
            return _averages(x, kernel, stride, pad, sizes)  # torch refuses such windows
        if wide:
            x = functional.pad(x, around, value=-math.inf if is_max else 0.0)
        y: Tensor = native(x, kernel, stride, inner, ceil_mode=True)
        for axis, size in enumerate(sizes, 2):
            y = y.narrow(axis, 0, size)
        return y

    return pool


def _averages(
    x: Tensor, kernel: TensorShape, stride: TensorShape, pad: TensorShape, sizes: TensorShape
) -> Tensor:
    """Return the averages of windows, axis by axis."""
    for axis, (k, step, p, count) in enumerate(zip(kernel, stride, pad, sizes, strict=True), 2):
        length = x.shape[axis]
        begin = torch.arange(count, device=x.device)[:, None] * step - p
        end = (begin + k).clamp(max=length + p)
        place = torch.arange(length, device=x.device)
        shares = ((begin <= place) & (place < end)).to(x.dtype) / (end - begin)
        x = (x.movedim(axis, -1) @ shares.t()).movedim(-1, axis)
    return x


def _with_mask(
    kernel: TensorShape, stride: TensorShape, pad: TensorShape, sizes: TensorShape
) -> Callable[[Tensor], list[Tensor]]:
    """Return a function for the maxima, and the index in the channel, without padding, of each of them."""

    def pool(x: Tensor) -> list[Tensor]:
        around = (pad[1], pad[1], pad[0], pad[0])
        padded = functional.pad(x, around, value=-math.inf)
        y, index = functional.max_pool2d(padded, kernel, stride, ceil_mode=True, return_indices=True)
        width = padded.shape[3]
        rows, columns = index // width - pad[0], index % width - pad[1]
        mask = (rows * x.shape[3] + columns).to(x.dtype)
        return [each[:, :, : sizes[0], : sizes[1]] for each in (y, mask)]

    return pool


def _spatial_pyramid(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """Pool into 1, 2 x 2, 4 x 4, ... windows, and join the results of all levels into one vector."""
    shape, param = shapes.bottoms[0], layer.spp_param
    levels = []
    for level in range(param.pyramid_height):
        kernel, pad = zip(*(pyramid_window(size, 2**level) for size in shape[2:]), strict=True)
        sizes = [pool_size(*of) for of in zip(shape[2:], kernel, kernel, pad, strict=True)]
        known = tuple(size for size in sizes if size is not None)
        levels.append(_windows(param.pool == param.MAX, kernel, kernel, pad, known))

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        if len(levels) == 1:
            return [levels[0](xs[0])]
        return [torch.cat([pool(xs[0]).flatten(1) for pool in levels], 1)]

    return forward


def _upsample(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """SegNet's: put each value where the mask of a max pooling says, and 0 elsewhere.

    Of several values for one place, the last one stays, and each gets the gradient of that place.
    """
    top = shapes.tops[0]
    size = math.prod(top[2:])

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        places = class_indices(xs[1], size).flatten(2)
        y: Tensor = _Placed.apply(xs[0].flatten(2), places, size)  # type: ignore[no-untyped-call]
        return [y.reshape(top)]

    return forward


class _Placed(torch.autograd.Function):
    """The values of each row at their places in a row of `size`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, size: int) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(places)
        # Which of several values scatter_ keeps is not defined: find the last one first.
        order = torch.arange(x.shape[2], device=x.device).expand_as(places)
        last = order.new_full((*x.shape[:2], size), -1).scatter_reduce_(2, places, order, "amax")
        return torch.where(last < 0, 0, x.gather(2, last.clamp(min=0)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        return grads[0].gather(2, ctx.saved_tensors[0]), None, None


OPERATORS: dict[str, Setup] = {
    "Pooling": _pooling,
    "Pooling3D": lambda layer, shapes: _pooling(as_volume(layer), shapes),
    "SPP": _spatial_pyramid,
    "Upsample": _upsample,
}
