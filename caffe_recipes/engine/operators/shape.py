"""Layers that join, split, select, rearrange or reduce their bottoms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.entry import own_number
from caffe_recipes.engine.operators.operator import Forward, Setup, TensorShapes, class_indices
from caffe_recipes.errors import DataError


def _concat(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    param = layer.concat_param
    axis = param.concat_dim if param.HasField("concat_dim") else param.axis
    return lambda xs, _: [torch.cat(list(xs), axis)]


def _slice(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """Split a blob along an axis at the `slice_point`s or into equal parts."""
    param = layer.slice_param
    axis = param.slice_dim if param.HasField("slice_dim") else param.axis
    sizes = [top[axis] for top in shapes.tops]
    return lambda xs, _: list(torch.split(xs[0], sizes, axis))


def _reshape(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """Give a blob a new shape, for Flatten and Reshape."""
    return lambda xs, _: [xs[0].reshape(shapes.tops[0])]


def _permute(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    order = list(layer.permute_param.order)
    order += [axis for axis in range(len(shapes.bottoms[0])) if axis not in order]
    return lambda xs, _: [xs[0].permute(order)]


def _crop(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """Crop the first bottom to the size of the second, from `axis` on, at `offset`."""
    first = shapes.bottoms[0]
    axis = layer.crop_param.axis % len(first)
    offsets = list(layer.crop_param.offset) or [0]
    offsets = offsets * (len(first) - axis) if len(offsets) == 1 else offsets
    starts = [0] * axis + offsets
    cuts = tuple(slice(s, s + n) for s, n in zip(starts, shapes.tops[0], strict=True))
    return lambda xs, _: [xs[0][cuts]]


def _shuffle_channel(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """Exchange the two axes of the channels as (group, channels / group)."""
    n, channels, *sides = shapes.tops[0]
    group = own_number(layer, "shuffle_channel_param", "group", 1)
    split = (n, group, channels // group, *sides)
    return lambda xs, _: [xs[0].reshape(split).transpose(1, 2).reshape(shapes.tops[0])]


def _interp(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """Resize planes bilinearly, with the corners of both in the same place; a negative pad crops before."""
    size = shapes.tops[0][2:]
    before, after = (own_number(layer, "interp_param", name) for name in ("pad_beg", "pad_end"))
    around = (before, after, before, after)

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        x = functional.pad(xs[0], around)
        return [functional.interpolate(x, size, mode="bilinear", align_corners=True)]

    return forward


def _tile(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    param = layer.tile_param
    return lambda xs, _: [torch.cat([xs[0]] * param.tiles, param.axis)]


def _batch_reindex(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """Select images of the first bottom by the indices in the second."""
    count = shapes.bottoms[0][0]

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        return [xs[0].index_select(0, class_indices(xs[1], count))]

    return forward


def _filter_images(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """Keep the images of all bottoms but the last for which the last one, the selector, is not 0.

    Raises DataError if there are none: Caffe divides by their number.
    """

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        *kept, selector = xs
        chosen = selector.detach().reshape(len(selector)).nonzero()[:, 0]
        if not len(chosen):
            what = f"selects none of the {len(selector)} images of a batch"
            raise DataError(f"layer '{layer.name}' ({layer.type})", what, "give a larger batch_size")
        return [x.index_select(0, chosen) for x in kept]

    return forward


def _split(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    count = len(layer.top)
    return lambda xs, _: [xs[0]] * count


def _exchange(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    return lambda xs, _: list(xs)


def _silence(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    return lambda xs, _: []


def _arg_max(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """The indices of the top_k largest values, and the values with out_max_val. Of ties, the later first."""
    param = layer.argmax_param
    flat = not param.HasField("axis")
    axis = 1 if flat else param.axis

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        x = xs[0].detach().reshape(len(xs[0]), -1) if flat else xs[0].detach()
        values, places = torch.sort(x.flip(axis), dim=axis, descending=True, stable=True)
        values = values.narrow(axis, 0, param.top_k)
        indices = (x.shape[axis] - 1 - places.narrow(axis, 0, param.top_k)).to(values.dtype)
        if not flat:
            return [values if param.out_max_val else indices]
        both = [indices, values] if param.out_max_val else [indices]
        return [torch.stack(both, 1).view(shapes.tops[0])]

    return forward


def _reduction(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """The sum, absolute sum, sum of squares or mean over all axes from `axis` on, times `coeff`."""
    param = layer.reduction_param
    combine, axis = _REDUCTIONS[param.operation], param.axis % len(shapes.bottoms[0])
    return lambda xs, _: [combine(xs[0].flatten(axis)) * param.coeff]


_REDUCTIONS: dict[int, Callable[[Tensor], Tensor]] = {
    pb.ReductionParameter.SUM: lambda x: x.sum(-1),
    pb.ReductionParameter.ASUM: lambda x: x.abs().sum(-1),
    pb.ReductionParameter.SUMSQ: lambda x: (x * x).sum(-1),
    pb.ReductionParameter.MEAN: lambda x: x.mean(-1),
}


OPERATORS: dict[str, Setup] = {
    "Split": _split,
    "Concat": _concat,
    "Slice": _slice,
    "Flatten": _reshape,
    "Reshape": _reshape,
    "Permute": _permute,
    "Crop": _crop,
    "Gather": _exchange,
    "Scatter": _exchange,
    "Silence": _silence,
    "Filter": _filter_images,
    "ArgMax": _arg_max,
    "Reduction": _reduction,
    "ShuffleChannel": _shuffle_channel,
    "Interp": _interp,
    "Tile": _tile,
    "BatchReindex": _batch_reindex,
}

# The types that need the blobs of all ranks.
ONE_PROCESS = frozenset(("Gather", "Scatter"))
