"""Layers that join, split, choose or rearrange blobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.engine.layer import Layer, Setup, Shape, axis_of, fault, need_bottoms, show


def _concat(layer: pb.LayerParameter, bottoms: list[Shape]) -> Layer:
    need_bottoms(layer, bottoms, 1, 1024)
    param = layer.concat_param
    axis = axis_of(layer, param.concat_dim if param.HasField("concat_dim") else param.axis, bottoms[0])
    for shape in bottoms[1:]:
        if len(shape) != len(bottoms[0]) or _without(shape, axis) != _without(bottoms[0], axis):
            raise fault(layer, f"cannot join {show(bottoms[0])} and {show(shape)} along axis {axis}")
    joined = list(bottoms[0])
    joined[axis] = sum(shape[axis] for shape in bottoms)
    return Layer([tuple(joined)], lambda x, _: [torch.cat(list(x), axis)])


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def _slice(layer: pb.LayerParameter, bottoms: list[Shape]) -> Layer:
    """Cut a blob at `slice_point`s along an axis, or into equal parts."""
    need_bottoms(layer, bottoms, 1)
    param, shape, parts = layer.slice_param, bottoms[0], len(layer.top)
    axis = axis_of(layer, param.slice_dim if param.HasField("slice_dim") else param.axis, shape)
    points = list(param.slice_point) or [shape[axis] * i // parts for i in range(1, parts)]
    edges = [0, *points, shape[axis]]
    sizes = [stop - start for start, stop in pairwise(edges)]
    if len(sizes) != parts or min(sizes) < 1 or (not param.slice_point and shape[axis] % parts):
        raise fault(layer, f"cannot cut {shape[axis]} at {points} into {parts} tops")
    tops = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
    return Layer(tops, lambda x, _: list(torch.split(x[0], sizes, axis)))


def _flatten(layer: pb.LayerParameter, bottoms: list[Shape]) -> Layer:
    need_bottoms(layer, bottoms, 1)
    shape = bottoms[0]
    start = axis_of(layer, layer.flatten_param.axis, shape)
    stop = axis_of(layer, layer.flatten_param.end_axis, shape) + 1
    top = (*shape[:start], math.prod(shape[start:stop]), *shape[stop:])
    return Layer([top], lambda x, _: [x[0].reshape(top)])


def _reshape(layer: pb.LayerParameter, bottoms: list[Shape]) -> Layer:
    """Give a blob new dimensions: 0 copies one from below, -1 is what is left over."""
    need_bottoms(layer, bottoms, 1)
    param, shape = layer.reshape_param, bottoms[0]
    start = param.axis if param.axis >= 0 else len(shape) + param.axis + 1
    stop = len(shape) if param.num_axes == -1 else start + param.num_axes
    if not 0 <= start <= stop <= len(shape):
        raise fault(layer, f"axis {param.axis} and num_axes {param.num_axes} are beyond {show(shape)}")
    dims = list(param.shape.dim)
    if any(dim == 0 and start + i >= len(shape) for i, dim in enumerate(dims)):
        raise fault(layer, f"copies (0) a dimension that {show(shape)} has not")
    middle = [shape[start + i] if dim == 0 else dim for i, dim in enumerate(dims)]
    top = [*shape[:start], *middle, *shape[stop:]]
    known = math.prod(dim for dim in top if dim != -1)
    if top.count(-1) == 1 and known and math.prod(shape) % known == 0:
        top[top.index(-1)] = math.prod(shape) // known
    if math.prod(top) != math.prod(shape) or min(top, default=1) < 0:
        raise fault(layer, f"cannot make {tuple(top)} of {show(shape)}")
    return Layer([tuple(top)], lambda x, _: [x[0].reshape(top)])


def _split(layer: pb.LayerParameter, bottoms: list[Shape]) -> Layer:
    need_bottoms(layer, bottoms, 1)
    count = len(layer.top)
    return Layer([bottoms[0]] * count, lambda x, _: [x[0]] * count)


def _silence(layer: pb.LayerParameter, bottoms: list[Shape]) -> Layer:
    return Layer([], lambda x, _: [])


def _eltwise(layer: pb.LayerParameter, bottoms: list[Shape]) -> Layer:
    """Add (with `coeff`), multiply, or take the greatest of blobs of one shape."""
    need_bottoms(layer, bottoms, 2, 1024)
    param = layer.eltwise_param
    if any(shape != bottoms[0] for shape in bottoms):
        raise fault(layer, "its bottoms differ: " + ", ".join(map(show, bottoms)))
    if param.coeff and (len(param.coeff) != len(bottoms) or param.operation != param.SUM):
        raise fault(layer, "coeff is for SUM, one for each bottom")
    coefficients = list(param.coeff)

    def weighted(x: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        return [reduce(torch.add, [c * b for c, b in zip(coefficients, x, strict=True)])]

    if any(c != 1 for c in coefficients):
        return Layer([bottoms[0]], weighted)
    # Where two are equal Caffe gives MAX's gradient to the later; torch.maximum would share it out.
    join: Callable[[Tensor, Tensor], Tensor] = {
        param.SUM: torch.add,
        param.PROD: torch.mul,
        param.MAX: lambda a, b: torch.where(a > b, a, b),
    }[param.operation]
    return Layer([bottoms[0]], lambda x, _: [reduce(join, x)])


def _arg_max(layer: pb.LayerParameter, bottoms: list[Shape]) -> Layer:
    """Give the indices (with out_max_val also the values) of the top_k greatest, of equals the later."""
    need_bottoms(layer, bottoms, 1)
    param, shape = layer.argmax_param, bottoms[0]
    axis = axis_of(layer, param.axis, shape) if param.HasField("axis") else None
    size = shape[axis] if axis is not None else math.prod(shape[1:])
    if not 1 <= param.top_k <= size:
        raise fault(layer, f"top_k is {param.top_k} of {size} values")
    if axis is not None:
        top: Shape = (*shape[:axis], param.top_k, *shape[axis + 1 :])
    else:
        top = (shape[0], 2 if param.out_max_val else 1, param.top_k)

    def forward(x: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        data = x[0].detach() if axis is not None else x[0].detach().reshape(shape[0], 1, -1)
        along = axis if axis is not None else 2
        values, backwards = torch.sort(data.flip(along), along, descending=True, stable=True)
        values = values.narrow(along, 0, param.top_k)
        indices = (size - 1 - backwards.narrow(along, 0, param.top_k)).to(values.dtype)
        if axis is not None:
            return [values if param.out_max_val else indices]
        return [torch.cat([indices, values], 1) if param.out_max_val else indices]

    return Layer([top], forward)


def _tile(layer: pb.LayerParameter, bottoms: list[Shape]) -> Layer:
    need_bottoms(layer, bottoms, 1)
    axis, tiles = axis_of(layer, layer.tile_param.axis, bottoms[0]), layer.tile_param.tiles
    if tiles < 1:
        raise fault(layer, f"tiles is {tiles}", "give a number above 0")
    repeats = [tiles if i == axis else 1 for i in range(len(bottoms[0]))]
    top = tuple(n * r for n, r in zip(bottoms[0], repeats, strict=True))
    return Layer([top], lambda x, _: [x[0].repeat(repeats)])


def _reduction(layer: pb.LayerParameter, bottoms: list[Shape]) -> Layer:
    """Reduce all axes from `axis` on: their sum, absolute sum, sum of squares or mean, times `coeff`."""
    need_bottoms(layer, bottoms, 1)
    param = layer.reduction_param
    axis = axis_of(layer, param.axis, bottoms[0])
    combine: Callable[[Tensor], Tensor] = {
        param.SUM: lambda x: x.sum(-1),
        param.ASUM: lambda x: x.abs().sum(-1),
        param.SUMSQ: lambda x: (x * x).sum(-1),
        param.MEAN: lambda x: x.mean(-1),
    }[param.operation]
    return Layer([bottoms[0][:axis]], lambda x, _: [combine(x[0].flatten(axis)) * param.coeff])


SHAPE: dict[str, Setup] = {
    "Split": _split,
    "Eltwise": _eltwise,
    "Concat": _concat,
    "Slice": _slice,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Silence": _silence,
    "ArgMax": _arg_max,
    "Tile": _tile,
    "Reduction": _reduction,
}
