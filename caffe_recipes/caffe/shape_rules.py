"""Infer the shapes of each layer type's tops and learned blobs from the shapes of its bottoms.

Each rule takes a layer and its bottoms' shapes, and returns (tops, learned blobs) or raises MisfitError.
There are rules for layers that rearrange, join, split or reduce their bottoms; for recurrent layers; for
layers that slide windows over their bottoms; and for data layers, whose shapes come from the layer and the
first record of its LMDB.

A layer may be of the schema of all Caffes: fields that only another Caffe has are read with `getattr`.

An unknown dimension (such as the channels of an LMDB that is not on this machine) is None and fits any other.
A sequence is a blob of steps x streams x features; the second bottom of a recurrent layer is its continuation
blob of steps x streams, which is 0 where a new sequence starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.schema import rounds_down
from caffe_recipes.wording import describe_count, shorten

Dim = int | None
Shape = tuple[Dim, ...]
Shapes = Sequence[Shape]
Result = tuple[Shapes, Shapes]

SCALAR: Shape = ()

MAX_AXES = 32  # kMaxBlobAxes; Caffe aborts at a blob with more
_MAX_COUNT = 2**63 - 1  # LONG_MAX, Intel's limit; lint reports blobs over INT_MAX, BVLC's


class MisfitError(Exception):
    """A layer cannot take its bottoms; the caller adds the layer's name and the bottoms' shapes."""


def conv_size(size: Dim, kernel: int, stride: int, pad: int, dilation: int = 1) -> Dim:
    """Return the output size of a convolution along one axis, rounded down.

    >>> conv_size(224, kernel=7, stride=2, pad=3)
    112
    """
    if size is None:
        return None
    span = size + 2 * pad - (dilation * (kernel - 1) + 1)
    if span < 0:
        spread = f" with dilation {dilation} ({dilation * (kernel - 1) + 1} wide)" if dilation > 1 else ""
        raise MisfitError(f"has kernel_size {kernel}{spread}, larger than its padded input")
    return span // stride + 1


def pool_size(size: Dim, kernel: int, stride: int, pad: int, *, is_floor: bool = False) -> Dim:
    """Return the output size of pooling along one axis: rounded up, but no window starts beyond the input.

    `is_floor` rounds it down instead, as BVLC's `round_mode: FLOOR` and forks' `ceil_mode: false` do.

    >>> pool_size(112, kernel=3, stride=2, pad=0), pool_size(112, kernel=3, stride=2, pad=1)
    (56, 57)
    """
    if size is None:
        return None
    span = size + 2 * pad - kernel
    count = (span // stride if is_floor else -(-span // stride)) + 1
    if count < 1:  # a window slightly larger than its padded input is clipped
        raise MisfitError(f"has kernel_size {kernel}, larger than its padded input")
    return count - 1 if (count - 1) * stride >= size + pad else count


def describe_lack(param: Message, field: str) -> str:
    """Return the words for a number that must be set and positive but is not.

    >>> describe_lack(pb.TileParameter(tiles=0), "tiles"), describe_lack(pb.TileParameter(), "tiles")
    ('has tiles 0', 'has no tiles')
    """
    return f"has {field} 0" if param.HasField(field) else f"has no {field}"


def _require(param: Message, field: str) -> None:
    """Raise MisfitError for a number that is not set, or 0."""
    if not getattr(param, field):
        raise MisfitError(describe_lack(param, field))


def product(dims: Iterable[Dim]) -> Dim:
    """Return the product of dimensions; None if one of them is unknown."""
    known = list(dims)
    return None if None in known else math.prod(dim for dim in known if dim is not None)


def check_size(shape: Shape) -> None:
    """Raise MisfitError for a blob that Caffe refuses for its size.

    Multiplying more axes could take arbitrarily long. An unknown dimension counts as 1.

    >>> check_size((2**62, None, 2))
    Traceback (most recent call last):
    caffe_recipes.caffe.shape_rules.MisfitError: has a blob of over 2^63-1 numbers
    """
    if len(shape) > MAX_AXES:
        raise MisfitError(f"has a blob of {len(shape):,} axes, more than Caffe's {MAX_AXES}")
    if abs(product(dim for dim in shape if dim is not None) or 0) > _MAX_COUNT:
        raise MisfitError("has a blob of over 2^63-1 numbers")


def merge(shapes: Shapes) -> Shape:
    """Return the common shape, with unknown dimensions filled in. Raises MisfitError if shapes differ."""
    if len({len(shape) for shape in shapes}) > 1:
        raise MisfitError("needs bottoms of the same shape")
    merged = []
    for dims in zip(*shapes, strict=True):
        known = {dim for dim in dims if dim is not None}
        if len(known) > 1:
            raise MisfitError("needs bottoms of the same shape")
        merged.append(known.pop() if known else None)
    return tuple(merged)


def canonical_axis(shape: Shape, axis: int) -> int:
    """Return the index, from 0, of an axis that may be counted from the end. Raises MisfitError."""
    if not -len(shape) <= axis < len(shape):
        raise MisfitError(f"has axis {axis}, which its bottom does not have")
    return axis % len(shape)


def concat(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
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
    sizes = [shape[axis] for shape in bottoms]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    return [(*rest[:axis], total, *rest[axis + 1 :])], []


def slice_axis(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
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


def flatten(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Merge the axes from `axis` to `end_axis` into one."""
    bottom = bottoms[0]
    start = canonical_axis(bottom, layer.flatten_param.axis)
    end = canonical_axis(bottom, layer.flatten_param.end_axis)
    if start > end:
        raise MisfitError(f"has axis {start} after end_axis {end}")
    return [(*bottom[:start], product(bottom[start : end + 1]), *bottom[end + 1 :])], []


def reshape(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
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


def permute(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Permute the axes; those that are not listed follow in their old order."""
    order = list(layer.permute_param.order)
    if len(set(order)) != len(order) or any(axis >= len(bottoms[0]) for axis in order):
        raise MisfitError(f"cannot permute its axes as {shorten(', '.join(map(str, order)))}")
    order += [axis for axis in range(len(bottoms[0])) if axis not in order]
    return [tuple(bottoms[0][axis] for axis in order)], []


def reduction(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Reduce `axis` and all axes after it."""
    return [bottoms[0][: canonical_axis(bottoms[0], layer.reduction_param.axis)]], []


def arg_max(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
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


def crop(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
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


def tile(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Repeat the bottom `tiles` times along one axis."""
    bottom, tiles = bottoms[0], layer.tile_param.tiles
    axis = canonical_axis(bottom, layer.tile_param.axis)
    if tiles < 1:
        raise MisfitError(f"has tiles {tiles}" if tiles else describe_lack(layer.tile_param, "tiles"))
    return [(*bottom[:axis], product([bottom[axis], tiles]), *bottom[axis + 1 :])], []


def batch_reindex(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Select images of the first bottom by the indices in the second."""
    if len(bottoms[1]) != 1 or not bottoms[0]:
        raise MisfitError("needs a batch, and a second bottom with one axis of indices")
    return [(bottoms[1][0], *bottoms[0][1:])], []


def filter_images(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Keep the images for which the last bottom, the selector, is not 0; their number is unknown."""
    *kept, selector = bottoms
    if not all(bottoms) or product(selector[1:]) not in (1, None):
        raise MisfitError("needs a selector with one number per image")
    merge([shape[:1] for shape in bottoms])
    return [(None, *shape[1:]) for shape in kept], []


def embed(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Replace each index by one of `input_dim` vectors of length `num_output`."""
    param = layer.embed_param
    _require(param, "num_output")
    _require(param, "input_dim")
    learned: list[Shape] = [(param.input_dim, param.num_output), (param.num_output,)]
    return [(*bottoms[0], param.num_output)], learned[: 1 + param.bias_term]


def lstm(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Run an LSTM, whose four gates depend on the input, the static input and the last hidden state."""
    inputs, static, hidden = _recurrent(layer, bottoms, states=2)
    outputs = hidden[-1] or 0
    gates = 4 * outputs
    learned: list[Shape] = [(gates, inputs), (gates,), *((gates, size) for size in static), (gates, outputs)]
    return _recurrent_tops(layer, bottoms, hidden, states=2), learned


def rnn(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Run a plain recurrent layer, with a hidden state and an output computed from it."""
    inputs, static, hidden = _recurrent(layer, bottoms, states=1)
    outputs = hidden[-1] or 0
    square: Shape = (outputs, outputs)
    learned: list[Shape] = [(outputs, inputs), (outputs,), *((outputs, size) for size in static)]
    return _recurrent_tops(layer, bottoms, hidden, states=1), [*learned, square, square, (outputs,)]


def lstm_unit(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Run one step of an LSTM, from cell state, four gates and continuation to cell and hidden state."""
    cell, gates, begun = bottoms
    if any(len(shape) < 2 for shape in bottoms) or len(cell) < 3 or len(gates) < 3:
        raise MisfitError("needs a cell state and gates with 3 axes, and a continuation blob with 2")
    merge([cell[:2], gates[:2], begun[:2]])
    if None not in (cell[2], gates[2]) and gates[2] != 4 * (cell[2] or 0):
        raise MisfitError("needs four gates for each of its cells")
    return [cell, cell], []


def _recurrent(
    layer: pb.LayerParameter, bottoms: Shapes, states: int
) -> tuple[Dim, list[Dim], tuple[Dim, Dim, Dim]]:
    """Check the bottoms; return the sizes of the input and of any static input, and the shape of a state."""
    param, first = layer.recurrent_param, bottoms[0]
    _require(param, "num_output")
    exposed = states if param.expose_hidden else 0
    if not 2 + exposed <= len(bottoms) <= 3 + exposed:
        raise MisfitError(f"takes {2 + exposed} to {3 + exposed} bottoms, not {len(bottoms)}")
    if len(first) < 2 or len(bottoms[1]) != 2:
        raise MisfitError("needs a sequence of steps x streams, and a continuation blob with these two axes")
    merge([first[:2], bottoms[1]])
    hidden = (1, first[1], param.num_output)
    given = bottoms[len(bottoms) - exposed :]
    merge([hidden, *given])
    static = [product(shape[1:]) for shape in bottoms[2 : len(bottoms) - exposed]]
    if static:
        merge([(first[1],), bottoms[2][:1]])
    return product(first[2:]), static, hidden


def _recurrent_tops(
    layer: pb.LayerParameter, bottoms: Shapes, hidden: tuple[Dim, Dim, Dim], states: int
) -> list[Shape]:
    exposed = states if layer.recurrent_param.expose_hidden else 0
    return [(*bottoms[0][:2], hidden[-1]), *[hidden] * exposed]


def per_axis(
    param: pb.ConvolutionParameter | pb.PoolingParameter, field: str, axes: int, default: int
) -> tuple[int, ...]:
    """Return `kernel_size`, `pad` or `stride` per axis, from one number, one per axis, or `_h` and `_w`.

    >>> per_axis(pb.PoolingParameter(kernel_h=3, kernel_w=2), "kernel_size", 2, 1)
    (3, 2)
    """
    stem = field.removesuffix("_size")
    if param.HasField(f"{stem}_h") or param.HasField(f"{stem}_w"):
        values = [getattr(param, f"{stem}_h"), getattr(param, f"{stem}_w")]
    else:
        values = list(getattr(param, field)) or list(getattr(param, f"{field}_3d", ())) or [default]
    if len(values) == 1:
        values *= axes
    if len(values) != axes:
        raise MisfitError(f"has {len(values)} values of {field} for {axes} spatial axes")
    if min(values, default=default) < default:
        raise MisfitError(f"has {field} {min(values)}")
    return tuple(values)


def _windows(
    param: pb.ConvolutionParameter | pb.PoolingParameter, axes: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the kernel size, stride and pad per axis."""
    given = param.kernel_size or getattr(param, "kernel_size_3d", None)
    if axes and not (given or param.HasField("kernel_h") or param.HasField("kernel_w")):
        raise MisfitError("has no kernel_size")
    kernel = per_axis(param, "kernel_size", axes, 1)
    return kernel, per_axis(param, "stride", axes, 1), per_axis(param, "pad", axes, 0)


def convolution(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Convolve each bottom with the same weights, which a Deconvolution transposes.

    With Intel's `fusion_type: SUM_FUSION`, a second bottom is added to the only top.
    """
    param = layer.convolution_param
    bottoms = bottoms[:1] if _is_summed(layer) else bottoms
    bottom = merge(bottoms)
    channel = canonical_axis(bottom, param.axis)
    size = bottom[channel + 1 :]
    kernel, stride, pad = _windows(param, len(size))
    dilation = dilations(param, len(size))
    outputs, channels, group = param.num_output, bottom[channel], param.group
    _require(param, "num_output")
    if not group or outputs % group or (channels or 0) % group:
        raise MisfitError(f"has group {group}, which does not divide its channels or num_output {outputs}")
    if layer.type == "Deconvolution":
        sizes = [_deconv_size(*of) for of in zip(size, kernel, stride, pad, dilation, strict=True)]
        weights: Shape = (channels, outputs // group, *kernel)
    else:
        sizes = [conv_size(*of) for of in zip(size, kernel, stride, pad, dilation, strict=True)]
        weights = (outputs, None if channels is None else channels // group, *kernel)
    top = (*bottom[:channel], outputs, *sizes)
    return [top] * len(bottoms), [weights, (outputs,)][: 1 + param.bias_term]


def _is_summed(layer: pb.LayerParameter) -> bool:
    return bool(getattr(layer.convolution_param, "fusion_type", 0))


def dilations(param: pb.ConvolutionParameter, axes: int) -> tuple[int, ...]:
    """Return the dilation per axis, from one number or one per axis."""
    values = tuple(param.dilation) or (1,)
    if len(values) not in (1, axes) or min(values) < 1:
        raise MisfitError(f"has dilation {', '.join(map(str, values))} for {axes} spatial axes")
    return values * axes if len(values) == 1 else values


def _deconv_size(size: Dim, kernel: int, stride: int, pad: int, dilation: int) -> Dim:
    if size is None:
        return None
    result = stride * (size - 1) + dilation * (kernel - 1) + 1 - 2 * pad
    if result < 1:
        raise MisfitError(f"has pad {pad}, larger than its output")
    return result


_POOLED_AXES = (2, 3)


def pooling(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Pool windows or whole channels; with MAX, there may be a second top, the mask."""
    param, bottom = layer.pooling_param, bottoms[0]
    channel = canonical_axis(bottom, param.axis)
    size = bottom[channel + 1 :]
    if len(size) not in _POOLED_AXES:
        raise MisfitError("needs 2 or 3 axes after the channels")
    if param.global_pooling:
        pooled: list[Dim] = [1] * len(size)
    else:
        kernel, stride, pad = _windows(param, len(size))
        for width, around in zip(kernel, pad, strict=True):
            if around >= width:
                raise MisfitError(f"has pad {around}, not smaller than its kernel_size {width}")
        is_floor = rounds_down(param)
        pooled = [pool_size(*of, is_floor=is_floor) for of in zip(size, kernel, stride, pad, strict=True)]
    return [(*bottom[: channel + 1], *pooled)] * (2 if param.pool == param.MAX else 1), []


def im2col(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Lay out each window as a column of channels x kernel values."""
    param, bottom = layer.convolution_param, bottoms[0]
    channel = canonical_axis(bottom, param.axis)
    size = bottom[channel + 1 :]
    kernel, stride, pad = _windows(param, len(size))
    dilation = dilations(param, len(size))
    sizes = [conv_size(*of) for of in zip(size, kernel, stride, pad, dilation, strict=True)]
    return [(*bottom[:channel], product([bottom[channel], *kernel]), *sizes)], []


def spatial_pyramid(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Pool into 1, 2 x 2, 4 x 4, ... windows, on `pyramid_height` levels, and join all into one vector.

    The side of a window is the input size divided by the number of windows, rounded up. The excess is
    padding, half of it (rounded up) on each side. The output of a single level stays 1 x 1.
    """
    levels, bottom = layer.spp_param.pyramid_height, bottoms[0]
    _require(layer.spp_param, "pyramid_height")
    if levels > 16:
        raise MisfitError(f"has pyramid_height {levels}")
    if len(bottom) != 4:
        raise MisfitError("needs a bottom with 4 axes")
    if levels == 1:
        return [(*bottom[:2], 1, 1)], []
    windows = [product(_pyramid_size(size, 2**level) for size in bottom[2:]) for level in range(levels)]
    total = None if None in windows else sum(count for count in windows if count is not None)
    return [(bottom[0], product([bottom[1], total]))], []


def _pyramid_size(size: Dim, windows: int) -> Dim:
    if size is None:
        return None
    kernel = -(-size // windows)
    pad = (kernel * windows - size + 1) // 2
    if pad >= kernel:
        raise MisfitError(f"cannot divide {size} into {windows} windows")
    return pool_size(size, kernel, kernel, pad)


class ShapeRule(NamedTuple):
    """How to infer a layer type's shapes, and how many bottoms it takes."""

    infer: Callable[[pb.LayerParameter, Shapes], Result]
    min_bottoms: int
    max_bottoms: float

    def min_tops(self, layer: pb.LayerParameter) -> int:
        """Return the least number of tops of a layer that has any."""
        if layer.type in ("Convolution", "Deconvolution"):
            return 1 if _is_summed(layer) else len(layer.bottom)
        if layer.type == "Filter":
            return len(layer.bottom) - 1
        if layer.type in ("LSTM", "RNN") and layer.recurrent_param.expose_hidden:
            return 3 if layer.type == "LSTM" else 2
        return 2 if layer.type == "LSTMUnit" else 1

    @property
    def arity(self) -> str:
        """How many bottoms the layer takes, in words."""
        if self.min_bottoms == self.max_bottoms:
            return describe_count(self.min_bottoms, "bottom")
        most = "or more" if math.isinf(self.max_bottoms) else f"to {self.max_bottoms}"
        return f"{self.min_bottoms} {most} bottoms"


def _same_shape(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    return [bottoms[0]], []


def _split(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    return [bottoms[0]] * len(layer.top), []


def _no_tops(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    return [], []


def _inner_product(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    param, bottom = layer.inner_product_param, bottoms[0]
    axis, outputs = canonical_axis(bottom, param.axis), param.num_output
    _require(param, "num_output")
    inputs = product(bottom[axis:])
    weights = (inputs, outputs) if param.transpose else (outputs, inputs)
    return [(*bottom[:axis], outputs)], [weights, (outputs,)][: 1 + param.bias_term]


def _batch_norm(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Keep the shape; the blobs are the sum of means, the sum of variances, and the running factor.

    NVIDIA's has two more with `scale_bias` or a filler: scale and shift (its batch_norm_layer.cpp).
    """
    channels = bottoms[0][canonical_axis(bottoms[0], 1)]  # with one axis, Caffe aborts when it reshapes
    return [bottoms[0]], [(channels,), (channels,), (1,), *[(channels,)] * 2 * has_own_scale(layer)]


def has_own_scale(layer: pb.LayerParameter) -> bool:
    """Return whether a BatchNorm of NVIDIA's Caffe scales and shifts by itself, without a Scale layer."""
    param = layer.batch_norm_param
    if not hasattr(param, "scale_bias"):  # bias_filler alone is Intel's, whose plain engine ignores it
        return False
    return param.scale_bias or param.HasField("scale_filler") or param.HasField("bias_filler")


def _operand(param: pb.ScaleParameter | pb.BiasParameter, bottoms: Shapes) -> Shape:
    """Return the shape of the factor or summand: axes of the first bottom, or that of the second bottom."""
    first = bottoms[0]
    axis = 0 if bottoms[1:] == [SCALAR] else canonical_axis(first, param.axis)
    count = len(bottoms[1]) if len(bottoms) > 1 else param.num_axes
    end = len(first) if count == -1 else axis + count
    if not axis <= end <= len(first):
        raise MisfitError(f"has axis {param.axis} and {count} axes, beyond the axes of its bottom")
    return merge([first[axis:end], *bottoms[1:]])


def _scale(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    operand = _operand(layer.scale_param, bottoms)
    learned = (len(bottoms) == 1) + layer.scale_param.bias_term
    return [bottoms[0]], [operand] * learned


def _bias(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    return [bottoms[0]], [_operand(layer.bias_param, bottoms)][: 2 - len(bottoms)]


def _prelu(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    channels = bottoms[0][canonical_axis(bottoms[0], 1)]
    return [bottoms[0]], [SCALAR if layer.prelu_param.channel_shared else (channels,)]


def _lrn(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    if layer.lrn_param.local_size % 2 == 0:
        raise MisfitError(f"has local_size {layer.lrn_param.local_size}, which is not odd")
    if len(bottoms[0]) != 4:
        raise MisfitError("needs a bottom with 4 axes")
    return [bottoms[0]], []


def _softmax(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    canonical_axis(bottoms[0], layer.softmax_param.axis)
    return [bottoms[0]], []


def _normalize(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    if len(bottoms[0]) < 2:
        raise MisfitError("needs a bottom with at least 2 axes")
    return [bottoms[0]], [SCALAR if layer.norm_param.channel_shared else (bottoms[0][1],)]


def _parameter(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    shape = tuple(layer.parameter_param.shape.dim)
    if any(dim < 0 for dim in shape):
        raise MisfitError("has a negative dim")
    return [shape], [shape]


def _eltwise(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    return [merge(bottoms)], []


def _check_batch(bottoms: Shapes) -> None:
    """Check that predictions and labels have the same number of images."""
    predictions, labels = bottoms[:2]
    if not predictions or not labels:
        raise MisfitError("needs bottoms with at least one dimension")
    if None not in (predictions[0], labels[0]) and predictions[0] != labels[0]:
        raise MisfitError("needs bottoms with the same first dimension")


def _check_labels(bottoms: Shapes, axis: int) -> None:
    predictions, labels = bottoms[:2]
    classes = canonical_axis(predictions, axis)
    wanted, given = product((*predictions[:classes], *predictions[classes + 1 :])), product(labels)
    if None not in (wanted, given) and wanted != given:
        raise MisfitError(f"needs one label for each of its {wanted} predictions")


def _softmax_loss(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    _check_batch(bottoms)
    _check_labels(bottoms, layer.softmax_param.axis)
    counts = {product(bottom) for bottom in bottoms[1:]}
    if None not in counts and len(counts) > 1:
        raise MisfitError("needs one weight for each label")
    return [SCALAR, bottoms[0]], []


def _accuracy(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    _check_labels(bottoms, layer.accuracy_param.axis)
    return [SCALAR, (bottoms[0][canonical_axis(bottoms[0], layer.accuracy_param.axis)],)], []


def _value_loss(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    _check_batch(bottoms)
    counts = {product(bottom) for bottom in bottoms[:2]}
    if None not in counts and len(counts) > 1:
        raise MisfitError("needs as many targets as predictions")
    return [SCALAR], []


def _image_loss(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    _check_batch(bottoms)
    return [SCALAR], []


def _label_loss(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Compare each image's predictions with its label; a third bottom is the infogain matrix."""
    _check_batch(bottoms)
    if product(bottoms[1][1:]) not in (1, None):
        raise MisfitError("needs one label per image")
    classes = product(bottoms[0][1:])
    if (
        len(bottoms) > 2
        and None not in (classes, product(bottoms[2]))
        and (product(bottoms[2]) != product([classes, classes]))
    ):
        raise MisfitError(f"needs a matrix of {classes} x {classes} as its third bottom")
    return [SCALAR], []


def _legacy_dims(shape: Shape) -> Shape:
    """Return channels, height and width as Caffe's older layers see them: a missing axis has size 1."""
    if len(shape) > 4:
        raise MisfitError("needs bottoms with at most 4 axes")
    return (*shape, *[1] * (4 - len(shape)))[1:]


def _contrastive_loss(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    _check_batch(bottoms)
    for shape in bottoms:
        if product(_legacy_dims(shape)[1:]) not in (1, None):
            raise MisfitError("needs bottoms with height and width 1")
    merge([_legacy_dims(shape) for shape in bottoms[:2]])
    if _legacy_dims(bottoms[2])[0] not in (1, None):
        raise MisfitError("needs one number per pair as its third bottom")
    return [SCALAR], []


def _smooth_loss(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    _check_batch(bottoms)
    merge([_legacy_dims(shape) for shape in bottoms])
    return [SCALAR], []


_SHAPE_KEEPING = """
    AbsVal BNLL Dropout ELU Exp Log MVN Power ReLU Sigmoid SpatialDropout TanH Threshold
"""

RULES: dict[str, ShapeRule] = {
    **dict.fromkeys(_SHAPE_KEEPING.split(), ShapeRule(_same_shape, 1, 1)),
    "Accuracy": ShapeRule(_accuracy, 2, 2),
    "ArgMax": ShapeRule(arg_max, 1, 1),
    "BatchNorm": ShapeRule(_batch_norm, 1, 1),
    "BatchReindex": ShapeRule(batch_reindex, 2, 2),
    "Bias": ShapeRule(_bias, 1, 2),
    "Concat": ShapeRule(concat, 1, math.inf),
    "ContrastiveLoss": ShapeRule(_contrastive_loss, 3, 3),
    "Convolution": ShapeRule(convolution, 1, math.inf),
    "Crop": ShapeRule(crop, 2, 2),
    "Deconvolution": ShapeRule(convolution, 1, math.inf),
    "Eltwise": ShapeRule(_eltwise, 2, math.inf),
    "Embed": ShapeRule(embed, 1, 1),
    "EuclideanLoss": ShapeRule(_value_loss, 2, 2),
    "Filter": ShapeRule(filter_images, 2, math.inf),
    "Flatten": ShapeRule(flatten, 1, 1),
    "HDF5Output": ShapeRule(_no_tops, 2, 2),
    "HingeLoss": ShapeRule(_image_loss, 2, 2),
    "Im2col": ShapeRule(im2col, 1, 1),
    "InfogainLoss": ShapeRule(_label_loss, 2, 3),
    "InnerProduct": ShapeRule(_inner_product, 1, 1),
    "LRN": ShapeRule(_lrn, 1, 1),
    "LSTM": ShapeRule(lstm, 2, 5),
    "LSTMUnit": ShapeRule(lstm_unit, 3, 3),
    "MultinomialLogisticLoss": ShapeRule(_label_loss, 2, 2),
    "Normalize": ShapeRule(_normalize, 1, 1),
    "PReLU": ShapeRule(_prelu, 1, 1),
    "Parameter": ShapeRule(_parameter, 0, 0),
    "Permute": ShapeRule(permute, 1, 1),
    "Pooling": ShapeRule(pooling, 1, 1),
    "RNN": ShapeRule(rnn, 2, 4),
    "Reduction": ShapeRule(reduction, 1, 1),
    "Reshape": ShapeRule(reshape, 1, 1),
    "SPP": ShapeRule(spatial_pyramid, 1, 1),
    "Scale": ShapeRule(_scale, 1, 2),
    "SigmoidCrossEntropyLoss": ShapeRule(_value_loss, 2, 2),
    "Silence": ShapeRule(_no_tops, 1, math.inf),
    "Slice": ShapeRule(slice_axis, 1, 1),
    "SmoothL1Loss": ShapeRule(_smooth_loss, 2, 4),
    "Softmax": ShapeRule(_softmax, 1, 1),
    "SoftmaxWithLoss": ShapeRule(_softmax_loss, 2, 3),
    "Split": ShapeRule(_split, 1, 1),
    "Tile": ShapeRule(tile, 1, 1),
}


Image = tuple[Dim, Dim, Dim]
Images = Callable[[str], Image | None]


def _data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape]:
    image = images(layer.data_param.source) or (None, None, None)
    return _batch_shapes(layer, layer.data_param, image)


def _annotated_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape | None]:
    """Return the shape of the images as for Data; that of the boxes depends on the records."""
    first, *_ = _data(layer, images)
    return [first, *[None] * (len(layer.top) - 1)]


def _image_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape]:
    param = layer.image_data_param
    image = (3 if param.is_color else 1, param.new_height or None, param.new_width or None)
    return _batch_shapes(layer, param, image)


def _memory_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape]:
    param = layer.memory_data_param
    return _batch_shapes(layer, param, (param.channels, param.height, param.width))


def _video_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape]:
    image = images(layer.video_data_param.video_file) or (3, None, None)
    return _batch_shapes(layer, layer.data_param, image)


def _window_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape]:
    """Return the shapes of windows of crop_size, which may be in either of two blocks."""
    param = layer.window_data_param
    side = layer.transform_param.crop_size or param.crop_size
    if not side:
        raise MisfitError(describe_lack(param, "crop_size"))
    return _batch_shapes(layer, param, (3, side, side))


def _hdf5_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape | None]:
    """Return the shape of the first top if `images` knows it; those of other tops depend on the file."""
    param = layer.hdf5_data_param
    _require(param, "batch_size")
    image = images(param.source)
    first = None if image is None else (param.batch_size, *image)
    return [first, *[None] * (len(layer.top) - 1)]


def _batch_shapes(
    layer: pb.LayerParameter,
    param: Any,  # noqa: ANN401 - a block with batch_size
    image: Image,
) -> Sequence[Shape]:
    """Return the shapes of data and label; an unknown image has as many channels as mean_values."""
    _require(param, "batch_size")
    batch_size: int = param.batch_size
    transform = layer.transform_param
    channels, height, width = image
    if transform.force_color or transform.force_gray:
        channels = 3 if transform.force_color else 1
    elif channels is None and len(transform.mean_value) > 1:
        channels = len(transform.mean_value)
    height = transform.crop_size or transform.crop_h or transform.resize_param.height or height
    width = transform.crop_size or transform.crop_w or transform.resize_param.width or width
    around = 2 * getattr(transform, "pad", 0)  # Intel's, for a border around the crop
    height, width = (side and side + around for side in (height, width))
    return [(batch_size, channels, height, width), (batch_size,)]


def _input(layer: pb.LayerParameter, images: Images) -> Sequence[Shape | None]:
    shapes = [tuple(shape.dim) for shape in layer.input_param.shape]
    return _top_shapes(layer, shapes) if shapes else [None] * len(layer.top)


def _dummy_data(layer: pb.LayerParameter, images: Images) -> Sequence[Shape | None]:
    param = layer.dummy_data_param
    shapes: list[Shape] = [tuple(shape.dim) for shape in param.shape]
    if not shapes:  # num, channels, height and width, each given once or once for each top
        tops = len(layer.top)
        fields = [list(values) for values in (param.num, param.channels, param.height, param.width)]
        if any(len(values) not in (1, tops) for values in fields):
            return [None] * tops  # reported by `refusals`
        shapes = list(zip(*(values * tops if len(values) == 1 else values for values in fields), strict=True))
    if any(0 in shape for shape in shapes):
        raise MisfitError("has a dim of 0, so its top would be empty")
    return _top_shapes(layer, shapes)


def _top_shapes(layer: pb.LayerParameter, shapes: Sequence[Shape]) -> Sequence[Shape]:
    """Return the shape of each top; a single shape is used for all tops."""
    if len(shapes) not in (1, len(layer.top)):
        raise MisfitError(f"has {len(shapes)} shapes for {len(layer.top)} tops")
    if any(dim is not None and dim < 0 for shape in shapes for dim in shape):
        raise MisfitError("has a negative dim")
    return list(shapes) * len(layer.top) if len(shapes) == 1 else shapes


SOURCES: dict[str, Callable[[pb.LayerParameter, Images], Sequence[Shape | None]]] = {
    "AnnotatedData": _annotated_data,
    "Data": _data,
    "DummyData": _dummy_data,
    "HDF5Data": _hdf5_data,
    "ImageData": _image_data,
    "Input": _input,
    "MemoryData": _memory_data,
    "VideoData": _video_data,
    "WindowData": _window_data,
}
