"""Layers that join, split, select, rearrange or reduce their bottoms, as ONNX nodes."""

from __future__ import annotations

import math

from onnx import TensorProto

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.entry import own_number
from caffe_recipes.engine.onnx_operators.converter import Converter, Site

_END = 2**63 - 1


def _concat(site: Site) -> list[str]:
    param = site.layer.concat_param
    axis = param.concat_dim if param.HasField("concat_dim") else param.axis
    return [site.add("Concat", *site.xs, axis=axis)]


def _slice(site: Site) -> list[str]:
    param = site.layer.slice_param
    axis = param.slice_dim if param.HasField("slice_dim") else param.axis
    sizes = site.integers(*(top[axis] for top in site.shapes.tops))
    return site.add_several("Split", len(site.shapes.tops), site.xs[0], sizes, axis=axis)


def _reshape(site: Site) -> list[str]:
    return [site.reshape(site.xs[0], site.shapes.tops[0])]


def _permute(site: Site) -> list[str]:
    order = list(site.layer.permute_param.order)
    order += [axis for axis in range(len(site.shapes.bottoms[0])) if axis not in order]
    return [site.add("Transpose", site.xs[0], perm=order)]


def _crop(site: Site) -> list[str]:
    first = site.shapes.bottoms[0]
    axis = site.layer.crop_param.axis % len(first)
    offsets = list(site.layer.crop_param.offset) or [0]
    offsets = offsets * (len(first) - axis) if len(offsets) == 1 else offsets
    ends = [
        _END if size < 0 else s + size for s, size in zip(offsets, site.shapes.tops[0][axis:], strict=True)
    ]
    axes = site.integers(*range(axis, len(first)))
    return [site.add("Slice", site.xs[0], site.integers(*offsets), site.integers(*ends), axes)]


def _shuffle_channel(site: Site) -> list[str]:
    n, channels, *sides = site.shapes.tops[0]
    group = own_number(site.layer, "shuffle_channel_param", "group", 1)
    split = site.reshape(site.xs[0], (n, group, channels // group, *sides))
    exchanged = site.add("Transpose", split, perm=[0, 2, 1, *range(3, 3 + len(sides))])
    return [site.reshape(exchanged, site.shapes.tops[0])]


def _interp(site: Site) -> list[str]:
    before, after = (own_number(site.layer, "interp_param", name) for name in ("pad_beg", "pad_end"))
    x = site.xs[0]
    if before or after:
        ends = [after or _END] * 2
        x = site.add("Slice", x, site.integers(-before, -before), site.integers(*ends), site.integers(2, 3))
    sizes = site.integers(*site.shapes.tops[0][2:])
    how = {"mode": "linear", "coordinate_transformation_mode": "align_corners", "axes": [2, 3]}
    return [site.add("Resize", x, "", "", sizes, **how)]


def _tile(site: Site) -> list[str]:
    param = site.layer.tile_param
    return [site.add("Concat", *[site.xs[0]] * param.tiles, axis=param.axis)]


def _batch_reindex(site: Site) -> list[str]:
    return [site.add("Gather", site.xs[0], site.add("Cast", site.xs[1], to=TensorProto.INT64))]


def _arg_max(site: Site) -> list[str]:
    """Sort the reversed axis, since Caffe takes the later one of equal values first."""
    param, shape = site.layer.argmax_param, site.shapes.bottoms[0]
    flat = not param.HasField("axis")
    axis = 1 if flat else param.axis % len(shape)
    size = math.prod(shape[1:]) if flat else shape[axis]
    x = site.reshape(site.xs[0], (shape[0], size)) if flat else site.xs[0]
    one = (site.integers(-1), site.integers(-_END), site.integers(axis), site.integers(-1))
    values, places = site.add_several(
        "TopK", 2, site.add("Slice", x, *one), site.integers(param.top_k), axis=axis
    )
    last = site.integers(size - 1)
    indices = site.add("Cast", site.add("Sub", last, places), to=TensorProto.FLOAT)
    if not flat:
        return [values if param.out_max_val else indices]
    both = [indices, values] if param.out_max_val else [indices]
    joined = site.add("Concat", *both, axis=1) if len(both) == 2 else both[0]
    return [site.reshape(joined, site.shapes.tops[0])]


_REDUCTIONS = {
    pb.ReductionParameter.SUM: "ReduceSum",
    pb.ReductionParameter.ASUM: "ReduceL1",
    pb.ReductionParameter.SUMSQ: "ReduceSumSquare",
    pb.ReductionParameter.MEAN: "ReduceMean",
}


def _reduction(site: Site) -> list[str]:
    param, shape = site.layer.reduction_param, site.shapes.bottoms[0]
    axes = site.integers(*range(param.axis % len(shape), len(shape)))
    y = site.add(_REDUCTIONS[param.operation], site.xs[0], axes, keepdims=0)
    return [y if param.coeff == 1 else site.add("Mul", y, site.floats(param.coeff))]


CONVERTERS: dict[str, Converter] = {
    "Split": lambda site: [site.xs[0]] * len(site.layer.top),
    "Concat": _concat,
    "Slice": _slice,
    "Flatten": _reshape,
    "Reshape": _reshape,
    "Permute": _permute,
    "Crop": _crop,
    "Gather": lambda site: list(site.xs),
    "Scatter": lambda site: list(site.xs),
    "Silence": lambda site: [],
    "ArgMax": _arg_max,
    "Reduction": _reduction,
    "ShuffleChannel": _shuffle_channel,
    "Interp": _interp,
    "Tile": _tile,
    "BatchReindex": _batch_reindex,
}
