"""Pooling of windows and of whole channels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.windows import per_axis
from caffe_recipes.engine.operators.operator import Forward, Setup, TensorShapes, layer_error


def _pooling(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
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


OPERATORS: dict[str, Setup] = {"Pooling": _pooling}
