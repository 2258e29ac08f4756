"""Layers that join, split, select, rearrange or reduce their bottoms."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.dimensions import (
    MAX_AXES,
    Dim,
    MisfitError,
    Shapes,
    canonical_axis,
    describe_lack,
    merge,
    product,
    sum_counts,
    sum_sizes,
)
from caffe_recipes.caffe.layer_types.entry import (
    MANY,
    LayerType,
    Refusal,
    Result,
    no_tops,
    own_number,
    per_value,
)
from caffe_recipes.wording import shorten


def _concat(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Join bottoms along one axis; Intel's `per_fla_fuse` flattens them after the batch first.

    Source: Intel Caffe, src/caffe/layers/mkldnn_concat_layer.cpp.
    """
    param = layer.concat_param
    axis = canonical_axis(bottoms[0], param.concat_dim if param.HasField("concat_dim") else param.axis)
    if len({len(shape) for shape in bottoms}) > 1:
        raise MisfitError("needs bottoms with the same number of axes")
    if axis == 1 and getattr(param, "per_fla_fuse", False):
        ones = [1] * (len(bottoms[0]) - 2)
        bottoms = [(shape[0], product(shape[1:]), *ones) for shape in bottoms]
    rest = merge([(*shape[:axis], 0, *shape[axis + 1 :]) for shape in bottoms])
    return [(*rest[:axis], sum_counts(shape[axis] for shape in bottoms), *rest[axis + 1 :])], []


def _slice_axis(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
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
        raise MisfitError(
            f"cannot slice {size} into {tops} tops" + (f" at {shorten(str(points))}" if points else "")
        )
    return [(*bottom[:axis], part, *bottom[axis + 1 :]) for part in parts], []


def _flatten(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Merge the axes from `axis` to `end_axis` into one."""
    bottom = bottoms[0]
    start = canonical_axis(bottom, layer.flatten_param.axis)
    end = canonical_axis(bottom, layer.flatten_param.end_axis)
    if start > end:
        raise MisfitError(f"has axis {start} after end_axis {end}")
    return [(*bottom[:start], product(bottom[start : end + 1]), *bottom[end + 1 :])], []


def _reshape(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Change the sizes of axes; 0 keeps a size, and -1 computes it from the others.

    Intel's `pixelshuffler: r` moves r x r channels to each pixel instead (Intel Caffe, reshape_layer.cpp).
    """
    param, bottom = layer.reshape_param, bottoms[0]
    factor = getattr(param, "pixelshuffler", 1)
    if factor != 1:
        if len(bottom) != 4 or factor < 1 or (bottom[1] or 0) % factor**2:
            raise MisfitError(f"cannot be shuffled by pixelshuffler {factor}")
        channels, *sides = bottom[1:]
        shuffled = [None if side is None else side * factor for side in sides]
        return [(bottom[0], None if channels is None else channels // factor**2, *shuffled)], []
    start = param.axis if param.axis >= 0 else len(bottom) + param.axis + 1
    end = len(bottom) if param.num_axes == -1 else start + param.num_axes
    if not 0 <= start <= end <= len(bottom):
        raise MisfitError(
            f"has axis {param.axis} and num_axes {param.num_axes}, beyond the axes of its bottom"
        )
    old, wanted = bottom[start:end], list(param.shape.dim)
    if len(wanted) > MAX_AXES:
        raise MisfitError(f"cannot reshape to {len(wanted):,} axes, more than Caffe's {MAX_AXES}")
    if (
        wanted.count(-1) > 1
        or any(dim < -1 for dim in wanted)
        or any(dim == 0 and i >= len(old) for i, dim in enumerate(wanted))
    ):
        raise MisfitError(f"cannot reshape to {', '.join(map(str, wanted))}")
    new: list[Dim] = [old[i] if dim == 0 else dim for i, dim in enumerate(wanted)]
    if -1 in new:
        rest, total = product(dim for dim in new if dim != -1), product(old)
        new[new.index(-1)] = total // rest if rest and total is not None else None
    before, after = product(old), product(new)
    if None not in (before, after) and before != after:
        raise MisfitError(f"cannot reshape to {', '.join(map(str, wanted))}")
    return [(*bottom[:start], *new, *bottom[end:])], []


def _permute(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Permute the axes; those that are not listed follow in their old order."""
    order = list(layer.permute_param.order)
    if len(set(order)) != len(order) or any(axis >= len(bottoms[0]) for axis in order):
        raise MisfitError(f"cannot permute its axes as {shorten(', '.join(map(str, order)))}")
    order += [axis for axis in range(len(bottoms[0])) if axis not in order]
    return [tuple(bottoms[0][axis] for axis in order)], []


def _crop(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Crop the axes of the first bottom, from `axis` on, to the size of the second."""
    axis = canonical_axis(bottoms[0], layer.crop_param.axis)
    if len(bottoms[0]) != len(bottoms[1]):
        raise MisfitError("needs bottoms with the same number of axes")
    offsets = list(layer.crop_param.offset) or [0]
    offsets *= len(bottoms[0]) - axis if len(offsets) == 1 else 1
    if len(offsets) != len(bottoms[0]) - axis:
        raise MisfitError(f"has {len(offsets)} values of offset for {len(bottoms[0]) - axis} axes")
    for size, kept, offset in zip(bottoms[0][axis:], bottoms[1][axis:], offsets, strict=True):
        if size is not None and kept is not None and kept + offset > size:
            raise MisfitError(f"cannot crop {size} to {kept} at offset {offset}")
    return [(*bottoms[0][:axis], *bottoms[1][axis:])], []


def _shuffle_channel(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Keep the shape; `group` divides the channels."""
    group = own_number(layer, "shuffle_channel_param", "group", 1)
    if len(bottoms[0]) != 4 or group < 1 or (bottoms[0][1] or 0) % group:
        raise MisfitError(f"cannot shuffle its channels in {group} groups")
    return [bottoms[0]], []


def _interp(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Resize the padded planes by shrink_factor and zoom_factor, or to height and width.

    Source: hszhao/PSPNet, src/caffe/layers/interp_layer.cpp.
    """
    if len(bottoms[0]) != 4:
        raise MisfitError("needs a bottom with 4 axes")
    names = ("shrink_factor", "zoom_factor", "height", "width")
    shrink, zoom, *sizes = (own_number(layer, "interp_param", name) for name in names)
    pads = [own_number(layer, "interp_param", name) for name in ("pad_beg", "pad_end")]
    if any(pad > 0 for pad in pads):
        raise MisfitError("has a pad above 0, where the layer only crops")
    if bool(shrink) == bool(zoom) and not all(sizes) and not shrink:
        raise MisfitError("has neither a factor nor height and width")
    if bool(shrink) == bool(zoom) and all(sizes):
        return [(*bottoms[0][:2], *sizes)], []
    made: list[Dim] = []
    for size in bottoms[0][2:]:
        side = None if size is None else size + sum(pads)
        side = side if side is None or not shrink else (side - 1) // shrink + 1
        made.append(side if side is None or not zoom else side + (side - 1) * (zoom - 1))
    return [(*bottoms[0][:2], *made)], []


def _tile(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Repeat the bottom `tiles` times along one axis."""
    bottom, tiles = bottoms[0], layer.tile_param.tiles
    axis = canonical_axis(bottom, layer.tile_param.axis)
    if tiles < 1:
        raise MisfitError(f"has tiles {tiles}" if tiles else describe_lack(layer.tile_param, "tiles"))
    return [(*bottom[:axis], product([bottom[axis], tiles]), *bottom[axis + 1 :])], []


def _batch_reindex(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Select images of the first bottom by the indices in the second."""
    if len(bottoms[1]) != 1 or not bottoms[0]:
        raise MisfitError("needs a batch, and a second bottom with one axis of indices")
    return [(bottoms[1][0], *bottoms[0][1:])], []


def _filter_images(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Keep the images for which the last bottom, the selector, is not 0; at set-up, as in Caffe, all."""
    *kept, selector = bottoms
    if not all(bottoms) or product(selector[1:]) not in (1, None):
        raise MisfitError("needs a selector with one number per image")
    merge([shape[:1] for shape in bottoms])
    return list(kept), []


def _split(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    return [bottoms[0]] * len(layer.top), []


def _keep_all(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    return list(bottoms), []


def _reduction(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Reduce `axis` and all axes after it."""
    return [bottoms[0][: canonical_axis(bottoms[0], layer.reduction_param.axis)]], []


def _arg_max(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Keep the indices of the largest values, per image or along `axis`."""
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
        raise MisfitError(
            f"has top_k {top_k}, but its bottom has only {size} values" if top_k else "has top_k 0"
        )


def _check_axis(layer: pb.LayerParameter) -> Iterator[Refusal]:
    block, old = ("slice_param", "slice_dim") if layer.type == "Slice" else ("concat_param", "concat_dim")
    param = getattr(layer, block)
    if param.HasField("axis") and param.HasField(old):
        yield Refusal(
            "axis-given-twice",
            f"{block}.{old}",
            f"has axis and {old}",
            f"Caffe aborts: either axis or {old} should be specified; not both",
            f"remove {old}",
        )


_view = partial(LayerType, is_view=True, is_elementwise=True, keeps_order=True)
# Collects the batches of all ranks, or hands out their parts: in one process, its tops are its bottoms.
# Source: yjxiong/caffe, gather_layer.cpp and scatter_layer.cpp.
_exchange = partial(
    _view, shapes=_keep_all, bottoms=(1, MANY), min_tops=lambda layer: len(layer.bottom), keeps_zero=True
)

TYPES = (
    LayerType("ArgMax", shapes=_arg_max, no_backward=None, is_never_loss=True, is_result=True),
    LayerType("BatchReindex", shapes=_batch_reindex, bottoms=(2, 2), no_backward=(1,)),
    LayerType(
        "Concat",
        has_engine=True,
        shapes=_concat,
        bottoms=(1, MANY),
        refuses=(_check_axis,),
        is_never_loss=True,
        is_elementwise=True,
        kind="join",
    ),
    LayerType("Crop", shapes=_crop, bottoms=(2, 2)),
    LayerType(
        "Filter",
        shapes=_filter_images,
        bottoms=(2, MANY),
        min_tops=lambda layer: len(layer.bottom) - 1,
        is_sized_by_values=True,
        no_backward=(-1,),
        is_result=True,
    ),
    _view("Flatten", shapes=_flatten),
    _exchange("Gather"),
    LayerType("Permute", shapes=_permute),
    LayerType(
        "Reduction",
        shapes=_reduction,
        is_result=True,
        operations=lambda found, phase: sum_sizes(found.bottoms),
    ),
    _view("Reshape", shapes=_reshape),
    _exchange("Scatter"),
    LayerType(
        "Silence",
        shapes=no_tops,
        bottoms=(1, MANY),
        is_never_loss=True,
        is_result=True,
    ),
    LayerType("Slice", shapes=_slice_axis, refuses=(_check_axis,), is_elementwise=True),
    _view("Split", has_engine=True, shapes=_split, keeps_zero=True),
    LayerType("ShuffleChannel", shapes=_shuffle_channel),
    LayerType("Interp", shapes=_interp, operations=lambda found, phase: per_value(found, 4)),
    LayerType("Tile", shapes=_tile),
)
