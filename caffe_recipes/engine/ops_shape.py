"""Layers that join, split, choose or rearrange blobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.engine.layer import Forward, Setup, Shapes, fault

_Join = Callable[[Tensor, Tensor], Tensor]


def _concat(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    param = layer.concat_param
    axis = param.concat_dim if param.HasField("concat_dim") else param.axis
    return lambda xs, _: [torch.cat(list(xs), axis)]


def _slice(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """Cut a blob at `slice_point`s along an axis, or into equal parts."""
    param = layer.slice_param
    axis = param.slice_dim if param.HasField("slice_dim") else param.axis
    sizes = [top[axis] for top in shapes.tops]
    return lambda xs, _: list(torch.split(xs[0], sizes, axis))


def _reshape(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """Give a blob other dimensions: Flatten and Reshape."""
    return lambda xs, _: [xs[0].reshape(shapes.tops[0])]


def _permute(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    order = list(layer.permute_param.order)
    order += [axis for axis in range(len(shapes.bottoms[0])) if axis not in order]
    return lambda xs, _: [xs[0].permute(order)]


def _crop(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """Cut the first bottom to the second's size, from `axis` on, at `offset`."""
    first = shapes.bottoms[0]
    axis = layer.crop_param.axis % len(first)
    offsets = list(layer.crop_param.offset) or [0]
    offsets = offsets * (len(first) - axis) if len(offsets) == 1 else offsets
    starts = [0] * axis + offsets
    cuts = tuple(slice(s, s + n) for s, n in zip(starts, shapes.tops[0], strict=True))
    return lambda xs, _: [xs[0][cuts]]


def _split(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    count = len(layer.top)
    return lambda xs, _: [xs[0]] * count


def _silence(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    return lambda xs, _: []


def _eltwise(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """Add (with `coeff`), multiply, or take the greatest of blobs of one shape."""
    param = layer.eltwise_param
    if param.coeff and (len(param.coeff) != len(layer.bottom) or param.operation != param.SUM):
        raise fault(layer, "has coeff that do not fit", "give coeff for SUM only, one for each bottom")
    coefficients = list(param.coeff)

    def weighted(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        return [reduce(torch.add, [c * x for c, x in zip(coefficients, xs, strict=True)])]

    if any(c != 1 for c in coefficients):
        return weighted
    join = _JOINS[param.operation]
    return lambda xs, _: [reduce(join, xs)]


def _greater(a: Tensor, b: Tensor) -> Tensor:
    """Take the greater; of equals the later gets the gradient, as in Caffe: torch.maximum would halve it."""
    return torch.where(a > b, a, b)


_JOINS: dict[int, _Join] = {
    pb.EltwiseParameter.SUM: torch.add,
    pb.EltwiseParameter.PROD: torch.mul,
    pb.EltwiseParameter.MAX: _greater,
}


def _arg_max(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """Give the indices (with out_max_val also the values) of the top_k greatest, of equals the later."""
    param = layer.argmax_param
    flat = not param.HasField("axis")
    axis = 1 if flat else param.axis

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        x = xs[0].detach().flatten(1) if flat else xs[0].detach()
        if not 1 <= param.top_k <= x.shape[axis]:
            raise fault(layer, f"top_k is {param.top_k} of {x.shape[axis]} values")
        values, places = torch.sort(x.flip(axis), dim=axis, descending=True, stable=True)
        values = values.narrow(axis, 0, param.top_k)
        indices = (x.shape[axis] - 1 - places.narrow(axis, 0, param.top_k)).to(values.dtype)
        if not flat:
            return [values if param.out_max_val else indices]
        both = [indices, values] if param.out_max_val else [indices]
        return [torch.stack(both, 1).view(shapes.tops[0])]

    return forward


def _reduction(layer: pb.LayerParameter, shapes: Shapes) -> Forward:
    """Reduce all axes from `axis` on: their sum, absolute sum, sum of squares or mean, times `coeff`."""
    param = layer.reduction_param
    combine, axis = _REDUCTIONS[param.operation], param.axis % len(shapes.bottoms[0])
    return lambda xs, _: [combine(xs[0].flatten(axis)) * param.coeff]


_REDUCTIONS: dict[int, Callable[[Tensor], Tensor]] = {
    pb.ReductionParameter.SUM: lambda x: x.sum(-1),
    pb.ReductionParameter.ASUM: lambda x: x.abs().sum(-1),
    pb.ReductionParameter.SUMSQ: lambda x: (x * x).sum(-1),
    pb.ReductionParameter.MEAN: lambda x: x.mean(-1),
}

SHAPE: dict[str, Setup] = {
    "Split": _split,
    "Eltwise": _eltwise,
    "Concat": _concat,
    "Slice": _slice,
    "Flatten": _reshape,
    "Reshape": _reshape,
    "Permute": _permute,
    "Crop": _crop,
    "Silence": _silence,
    "ArgMax": _arg_max,
    "Reduction": _reduction,
}
