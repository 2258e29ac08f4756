"""Shape rules of the layers that only rearrange, join, split or reduce their bottoms."""

from __future__ import annotations

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shaping.dims import Dim, MisfitError, Result, Shapes, canonical_axis, merge, product


def concat(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Join bottoms along one axis."""
    param = layer.concat_param
    axis = canonical_axis(bottoms[0], param.concat_dim if param.HasField("concat_dim") else param.axis)
    if len({len(shape) for shape in bottoms}) > 1:
        raise MisfitError("needs bottoms of as many axes")
    rest = merge([(*shape[:axis], 0, *shape[axis + 1 :]) for shape in bottoms])
    sizes = [shape[axis] for shape in bottoms]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    return [(*rest[:axis], total, *rest[axis + 1 :])], []


def cut(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Cut the bottom along one axis, at `slice_point` or into equal parts."""
    param, bottom, tops = layer.slice_param, bottoms[0], len(layer.top)
    axis = canonical_axis(bottom, param.slice_dim if param.HasField("slice_dim") else param.axis)
    size, points = bottom[axis], list(param.slice_point)
    if points and len(points) != tops - 1:
        raise MisfitError(f"gives {len(points)} slice_point for {tops} tops")
    if size is None:
        parts: list[Dim] = [None] * tops
    elif points:
        parts = [end - start for start, end in zip([0, *points], [*points, size], strict=True)]
    else:
        parts = [size // tops if size % tops == 0 else 0] * tops if tops else []
    if any(part is not None and part < 1 for part in parts):
        raise MisfitError(f"cannot slice {size} into {tops} tops" + (f" at {points}" if points else ""))
    return [(*bottom[:axis], part, *bottom[axis + 1 :]) for part in parts], []


def flatten(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Fold the axes from `axis` to `end_axis` into one."""
    bottom = bottoms[0]
    start = canonical_axis(bottom, layer.flatten_param.axis)
    end = canonical_axis(bottom, layer.flatten_param.end_axis)
    if start > end:
        raise MisfitError(f"has axis {start} behind end_axis {end}")
    return [(*bottom[:start], product(bottom[start : end + 1]), *bottom[end + 1 :])], []


def reshape(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Give the axes new sizes; 0 copies one, -1 takes what is left."""
    param, bottom = layer.reshape_param, bottoms[0]
    start = param.axis if param.axis >= 0 else len(bottom) + param.axis + 1
    end = len(bottom) if param.num_axes == -1 else start + param.num_axes
    if not 0 <= start <= end <= len(bottom):
        raise MisfitError(f"has axis {param.axis} and num_axes {param.num_axes}, beyond its bottom's")
    old, wanted = bottom[start:end], list(param.shape.dim)
    if wanted.count(-1) > 1 or any(dim == 0 and i >= len(old) for i, dim in enumerate(wanted)):
        raise MisfitError(f"cannot reshape to {', '.join(map(str, wanted))}")
    new: list[Dim] = [old[i] if dim == 0 else dim for i, dim in enumerate(wanted)]
    if -1 in new:
        rest, total = product(dim for dim in new if dim != -1), product(old)
        new[new.index(-1)] = total // rest if rest and total is not None else None
    before, after = product(old), product(new)
    if None not in (before, after) and before != after:
        raise MisfitError(f"cannot reshape to {', '.join(map(str, wanted))}")
    return [(*bottom[:start], *new, *bottom[end:])], []


def permute(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Order the axes anew; those not named follow in their old order."""
    order = list(layer.permute_param.order)
    if len(set(order)) != len(order) or any(axis >= len(bottoms[0]) for axis in order):
        raise MisfitError(f"cannot order its axes {', '.join(map(str, order))}")
    order += [axis for axis in range(len(bottoms[0])) if axis not in order]
    return [tuple(bottoms[0][axis] for axis in order)], []


def reduction(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Reduce `axis` and all after it."""
    return [bottoms[0][: canonical_axis(bottoms[0], layer.reduction_param.axis)]], []


def arg_max(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Keep the indices of the largest, per image or along `axis`."""
    param, bottom = layer.argmax_param, bottoms[0]
    if param.HasField("axis"):
        axis = canonical_axis(bottom, param.axis)
        _check_top_k(param.top_k, bottom[axis])
        return [(*bottom[:axis], param.top_k, *bottom[axis + 1 :])], []
    ones = [1] * (len(bottom) - 3)
    _check_top_k(param.top_k, product(bottom[1:]))
    return [(bottom[canonical_axis(bottom, 0)], 1 + param.out_max_val, param.top_k, *ones)], []


def _check_top_k(top_k: int, size: Dim) -> None:
    if top_k < 1 or (size is not None and top_k > size):
        raise MisfitError(f"has top_k {top_k}, more than its bottom's {size}" if top_k else "has top_k 0")


def crop(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Cut the first bottom to the second's size, from `axis` on."""
    axis = canonical_axis(bottoms[0], layer.crop_param.axis)
    if len(bottoms[0]) != len(bottoms[1]):
        raise MisfitError("needs bottoms of as many axes")
    offsets = list(layer.crop_param.offset) or [0]
    offsets *= len(bottoms[0]) - axis if len(offsets) == 1 else 1
    if len(offsets) != len(bottoms[0]) - axis:
        raise MisfitError(f"gives {len(offsets)} of offset for {len(bottoms[0]) - axis} axes")
    for size, kept, offset in zip(bottoms[0][axis:], bottoms[1][axis:], offsets, strict=True):
        if size is not None and kept is not None and kept + offset > size:
            raise MisfitError(f"cannot crop {size} to {kept} at offset {offset}")
    return [(*bottoms[0][:axis], *bottoms[1][axis:])], []


def tile(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Repeat the bottom `tiles` times along one axis."""
    bottom, tiles = bottoms[0], layer.tile_param.tiles
    axis = canonical_axis(bottom, layer.tile_param.axis)
    if tiles < 1:
        raise MisfitError("has no tiles" if not tiles else f"has tiles {tiles}")
    return [(*bottom[:axis], product([bottom[axis], tiles]), *bottom[axis + 1 :])], []


def batch_reindex(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Choose images of the first bottom by the indices in the second."""
    if len(bottoms[1]) != 1 or not bottoms[0]:
        raise MisfitError("needs a batch and one axis of indices")
    return [(bottoms[1][0], *bottoms[0][1:])], []


def choose(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Keep those images for which the last bottom, the selector, is not 0; how many is not known before."""
    *kept, selector = bottoms
    if not all(bottoms) or product(selector[1:]) not in (1, None):
        raise MisfitError("needs a selector of one number an image")
    merge([shape[:1] for shape in bottoms])
    return [(None, *shape[1:]) for shape in kept], []
