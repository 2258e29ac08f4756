"""Pooling as ONNX nodes.

The padding at the end is computed, so that each program makes the same windows: readers of ONNX disagree on
what `ceil_mode` does with a last window that begins in the padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from caffe_recipes.caffe.layer_types.pooling import pyramid_window
from caffe_recipes.caffe.layer_types.windows import as_volume, per_axis, pool_size
from caffe_recipes.engine.onnx_operators.converter import Converter, Site
from caffe_recipes.engine.operators.operator import TensorShape


def _pooling(site: Site) -> list[str]:
    shape, param = site.shapes.bottoms[0], site.layer.pooling_param
    first = param.axis % len(shape) + 1
    axes = len(shape) - first
    if param.global_pooling:
        kernel, stride, pad = shape[first:], (1,) * axes, (0,) * axes
    else:
        kernel, stride = per_axis(param, "kernel_size", axes, 1), per_axis(param, "stride", axes, 1)
        pad = per_axis(param, "pad", axes, 0)
    x = site.xs[0] if first == 2 else site.reshape(site.xs[0], (-1, *shape[first - 1 :]))
    sizes = site.shapes.tops[0][first:]
    window = _Window(shape[first:], kernel, stride, pad, sizes)
    if len(site.layer.top) == 2:
        made = _with_mask(site, x, window)
    else:
        made = [_pool(site, x, window, param.pool == param.MAX)]
    return made if first == 2 else [site.reshape(y, site.shapes.tops[0]) for y in made]


class _Window:
    """The windows along each axis: the padding at its end, and the values that each window divides by."""

    def __init__(
        self,
        shape: Sequence[int],
        kernel: TensorShape,
        stride: TensorShape,
        pad: TensorShape,
        sizes: Sequence[int],
    ) -> None:
        along = list(zip(shape, kernel, stride, pad, sizes, strict=True))
        self.is_global = tuple(kernel) == tuple(shape) and not any(pad)
        self.size = int(np.prod(kernel))
        self.has_pad = any(pad)
        ends = [max(0, (count - 1) * step + k - size - p) for size, k, step, p, count in along]
        self.attributes = {"kernel_shape": [*kernel], "strides": [*stride], "pads": [*pad, *ends]}
        self.inner_size = int(np.prod(shape))
        clipped = [
            np.minimum(np.arange(count) * step + k, size + 2 * p) - np.arange(count) * step
            for size, k, step, p, count in along
        ]
        self.divisors = np.array(np.prod(np.meshgrid(*clipped, indexing="ij"), axis=0), np.float32)


def _pool(site: Site, x: str, window: _Window, is_max: bool) -> str:
    if window.is_global:
        return site.add("GlobalMaxPool" if is_max else "GlobalAveragePool", x)
    if is_max:
        return site.add("MaxPool", x, **window.attributes)
    # Without padding, Caffe divides by the values in the window; with it, the zeros around the image count.
    y = site.add("AveragePool", x, count_include_pad=int(window.has_pad), **window.attributes)
    if window.has_pad and (window.divisors != window.size).any():
        y = site.add("Mul", y, site.constant(np.float32(window.size) / window.divisors))
    return y


def _with_mask(site: Site, x: str, window: _Window) -> list[str]:
    """Return the maxima and the index in the channel of each of them."""
    y, indices = site.add_several("MaxPool", 2, x, **window.attributes)
    mask = site.add("Mod", indices, site.integers(window.inner_size))
    return [y, site.add("Cast", mask, to=TensorProto.FLOAT)]


def _spatial_pyramid(site: Site) -> list[str]:
    shape, param = site.shapes.bottoms[0], site.layer.spp_param
    levels = []
    for level in range(param.pyramid_height):
        kernel, pad = zip(*(pyramid_window(size, 2**level) for size in shape[2:]), strict=True)
        sizes = [pool_size(*of) or 0 for of in zip(shape[2:], kernel, kernel, pad, strict=True)]
        window = _Window(shape[2:], kernel, kernel, pad, sizes)
        levels.append(_pool(site, site.xs[0], window, param.pool == param.MAX))
    if len(levels) == 1:
        return levels
    return [site.add("Concat", *(site.add("Flatten", level, axis=1) for level in levels), axis=1)]


CONVERTERS: dict[str, Converter] = {
    "Pooling": _pooling,
    "Pooling3D": lambda site: _pooling(replace(site, layer=as_volume(site.layer))),
    "SPP": _spatial_pyramid,
}
