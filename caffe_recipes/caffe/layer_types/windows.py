"""The windows of convolutions and pooling: kernel size, stride, pad and dilation along each axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.schema import to_ours
from caffe_recipes.caffe.layer_types.dimensions import Dim, MisfitError, Shapes
from caffe_recipes.caffe.layer_types.entry import LayerType, Refusal, Result, own_block
from caffe_recipes.caffe.prototxt import parse_prototxt, render_prototxt
from caffe_recipes.errors import PrototxtError

Windowed = pb.ConvolutionParameter | pb.PoolingParameter


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


def per_axis(param: Windowed, field: str, axes: int, default: int) -> tuple[int, ...]:
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


def windows(param: Windowed, axes: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the kernel size, stride and pad per axis."""
    given = param.kernel_size or getattr(param, "kernel_size_3d", None)
    if axes and not (given or param.HasField("kernel_h") or param.HasField("kernel_w")):
        raise MisfitError("has no kernel_size")
    kernel = per_axis(param, "kernel_size", axes, 1)
    return kernel, per_axis(param, "stride", axes, 1), per_axis(param, "pad", axes, 0)


def dilations(param: pb.ConvolutionParameter, axes: int) -> tuple[int, ...]:
    """Return the dilation per axis, from one number or one per axis."""
    values = tuple(param.dilation) or (1,)
    if len(values) not in (1, axes) or min(values) < 1:
        raise MisfitError(f"has dilation {', '.join(map(str, values))} for {axes} spatial axes")
    return values * axes if len(values) == 1 else values


# The sizes of C3D's windows: those along time, and along height and width with their default.
_VOLUME = {
    "kernel_size": ("kernel_depth", 0),
    "stride": ("temporal_stride", 1),
    "pad": ("temporal_pad", 0),
}


def as_volume(layer: pb.LayerParameter) -> pb.LayerParameter:
    """Return a layer of C3D, over time, height and width, as a plain one with three spatial axes.

    Version 1.0 has its settings in the plain layer's block. `group` is not read, and `filter_group` only
    saves memory. Source: facebook/C3D, convolution3d_layer.cpp, deconvolution3d_layer.cpp, pool3d_layer.cpp.
    Raises MisfitError for a value that the plain layer does not take.
    """
    plain = pb.LayerParameter.FromString(to_ours(layer).SerializePartialToString())
    plain.type = layer.type.removesuffix("3D")
    block = "pooling" if plain.type == "Pooling" else "convolution"
    own = getattr(layer, f"{block}3d_param", None)
    if isinstance(own, str):
        raise MisfitError(f"has {block}3d_param {own}, which is not a block")
    given = deepcopy(own if own and own.ListFields() else getattr(layer, f"{block}_param"))
    text = [
        f"{size}: {_only(given, name) or default}"
        for size, (time, default) in _VOLUME.items()
        for name in (time, size, size)
    ]
    for name in (*_VOLUME, *(time for time, _ in _VOLUME.values()), "group", "filter_group"):
        if name in given.DESCRIPTOR.fields_by_name:
            given.ClearField(name)
    param = getattr(plain, f"{block}_param")
    try:
        param.CopyFrom(parse_prototxt("\n".join([render_prototxt(given), *text]), type(param)))
    except PrototxtError as error:
        raise MisfitError(f"has a value that {block}_param does not take: {error.what}") from None
    return plain


def _only(param: Windowed, name: str) -> str:
    """Return a number of a block as text, of a repeated field too; "" if not set. Raises MisfitError."""
    value = getattr(param, name, "")
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, Message) or len(value) > 1:
        raise MisfitError(f"takes one number as {name}")
    return "".join(map(str, value))


def volume_type(plain: LayerType) -> LayerType:
    """Return the entry of C3D's layer from that of the plain one."""
    shapes, fillers = plain.shapes, plain.fillers
    assert shapes

    def volume_shapes(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
        if len(bottoms[0]) != 5:
            raise MisfitError("needs a bottom with 5 axes: images, channels, time, height and width")
        return shapes(as_volume(layer), bottoms)

    return replace(
        plain,
        name=f"{plain.name}3D",
        blocks=(plain.block,),
        has_engine=False,
        bottoms=(1, 1),
        shapes=volume_shapes,
        fillers=fillers and (lambda layer: fillers(as_volume(layer))),
        refuses=(),
        multiply_adds=lambda found, phase: plain.multiply_adds(
            replace(found, layer=as_volume(found.layer)), phase
        ),
        operations=lambda found, phase: plain.operations(replace(found, layer=as_volume(found.layer)), phase),
        kernel=lambda layer: plain.kernel(as_volume(layer)),
        details=lambda layer: plain.details(as_volume(layer)),
    )


def check_windows(layer: pb.LayerParameter) -> Iterator[Refusal]:
    """Yield sizes of a window that are given twice or for one axis only."""
    block = own_block(layer.type) or "convolution_param"
    param = getattr(layer, block)
    for field in ("kernel_size", "pad", "stride"):
        stem = field.removesuffix("_size")
        axes = [name for name in (f"{stem}_h", f"{stem}_w") if param.HasField(name)]
        if getattr(param, field) and axes:
            yield Refusal(
                "size-given-twice",
                f"{block}.{axes[0]}",
                f"has {field} and {' and '.join(axes)}",
                f"Caffe aborts: either {field} or {stem}_h/w should be specified; not both",
                f"keep {field}, or {stem}_h and {stem}_w",
            )
        # A convolution reads a missing value as 0, which is valid only for pad.
        elif len(axes) == 1 and not (field == "pad" and layer.type != "Pooling"):
            other = f"{stem}_w" if axes[0].endswith("_h") else f"{stem}_h"
            yield Refusal(
                "size-half-given",
                f"{block}.{axes[0]}",
                f"has {axes[0]} but no {other}",
                f"Caffe aborts: both {stem}_h and {stem}_w are required",
                f"add {other}, or write {field}",
            )


def window(param: Windowed, field: str) -> list[int]:
    """Return `kernel_size`, `pad` or `stride` for each axis; empty if it is not set."""
    stem = field.removesuffix("_size")
    if param.HasField(f"{stem}_h"):
        return [getattr(param, f"{stem}_h"), getattr(param, f"{stem}_w")]
    values = list(getattr(param, field))
    return values * 2 if len(values) == 1 else values


def show_window(param: Windowed) -> str:
    """Return kernel, pad and stride in the short form of Caffe's summarize.py."""
    kernel, pad, stride = (show_sides(window(param, name)) for name in ("kernel_size", "pad", "stride"))
    return (
        kernel
        + (f"+{pad}" if pad not in ("", "0") else "")
        + (f"/{stride}" if stride not in ("", "1") else "")
    )


def show_sides(values: Sequence[int]) -> str:
    """Return one number if all axes have the same, otherwise all of them."""
    return "x".join(map(str, values[:1] if len(set(values)) == 1 else values))


def describe_window(param: Windowed) -> list[str]:
    """Return the kernel size, and the stride if it is not 1, as a drawing shows them."""
    parts = ["×".join(map(str, window(param, "kernel_size")))]
    strides = sorted(set(window(param, "stride")))
    if strides and strides != [1]:
        parts.append(f"stride {'×'.join(map(str, strides))}")
    return parts
