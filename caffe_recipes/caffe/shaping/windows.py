"""Shape rules of the layers that slide windows over their bottoms, and the sizes of these windows."""

from __future__ import annotations

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shaping.dims import (
    Dim,
    MisfitError,
    Result,
    Shape,
    Shapes,
    canonical_axis,
    conv_size,
    merge,
    pool_size,
    product,
)


def _spatial(
    param: pb.ConvolutionParameter | pb.PoolingParameter, field: str, axes: int, default: int
) -> tuple[int, ...]:
    """Read `kernel_size`, `pad` or `stride`: one number for all axes, one each, or `_h` and `_w`."""
    stem = field.removesuffix("_size")
    if param.HasField(f"{stem}_h") or param.HasField(f"{stem}_w"):
        values = [getattr(param, f"{stem}_h"), getattr(param, f"{stem}_w")]
    else:
        values = list(getattr(param, field)) or [default]
    if len(values) == 1:
        values *= axes
    if len(values) != axes:
        raise MisfitError(f"gives {len(values)} of {field} for {axes} spatial axes")
    if min(values, default=default) < default:
        raise MisfitError(f"has {field} {min(values)}")
    return tuple(values)


def _kernel(param: pb.ConvolutionParameter | pb.PoolingParameter, axes: int) -> tuple[int, ...]:
    if not (param.kernel_size or param.HasField("kernel_h") or param.HasField("kernel_w")):
        raise MisfitError("has no kernel_size")
    return _spatial(param, "kernel_size", axes, 1)


def convolution(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Convolve each bottom with the same weights, or with them transposed in a Deconvolution."""
    param, bottom = layer.convolution_param, merge(bottoms)
    channel = canonical_axis(bottom, param.axis)
    size = bottom[channel + 1 :]
    kernel = _kernel(param, len(size))
    stride, pad = _spatial(param, "stride", len(size), 1), _spatial(param, "pad", len(size), 0)
    dilation = _dilation(param, len(size))
    outputs, channels, group = param.num_output, bottom[channel], param.group
    if not outputs:
        raise MisfitError("has no num_output")
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


def _dilation(param: pb.ConvolutionParameter, axes: int) -> tuple[int, ...]:
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


def pooling(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Pool windows, or all of a channel; a second top is the mask of MAX."""
    param, bottom = layer.pooling_param, bottoms[0]
    channel = canonical_axis(bottom, param.axis)
    size = bottom[channel + 1 :]
    if param.global_pooling:
        pooled: list[Dim] = [1] * len(size)
    else:
        kernel = _kernel(param, len(size))
        stride, pad = _spatial(param, "stride", len(size), 1), _spatial(param, "pad", len(size), 0)
        for width, around in zip(kernel, pad, strict=True):
            if around >= width:
                raise MisfitError(f"has pad {around}, not smaller than its kernel_size {width}")
        pooled = [pool_size(*of) for of in zip(size, kernel, stride, pad, strict=True)]
    return [(*bottom[: channel + 1], *pooled)] * 2, []


def im2col(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Lay out each window as a column: channels x kernel by positions."""
    param, bottom = layer.convolution_param, bottoms[0]
    channel = canonical_axis(bottom, param.axis)
    size = bottom[channel + 1 :]
    kernel = _kernel(param, len(size))
    stride, pad = _spatial(param, "stride", len(size), 1), _spatial(param, "pad", len(size), 0)
    dilation = _dilation(param, len(size))
    sizes = [conv_size(*of) for of in zip(size, kernel, stride, pad, dilation, strict=True)]
    return [(*bottom[:channel], product([bottom[channel], *kernel]), *sizes)], []


def spatial_pyramid(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Pool into 1, 2 x 2, 4 x 4, ... windows, `pyramid_height` times, and join all as one vector.

    A window is the size over the number of windows, rounded up; what that overshoots is padding, half of it
    (rounded up) on each side. One level alone stays 1 x 1.
    """
    levels, bottom = layer.spp_param.pyramid_height, bottoms[0]
    if not 1 <= levels <= 16:
        raise MisfitError(f"has pyramid_height {levels}" if levels else "has no pyramid_height")
    if len(bottom) != 4:
        raise MisfitError("needs a bottom of 4 axes")
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
        raise MisfitError(f"cannot part {size} into {windows} windows")
    return pool_size(size, kernel, kernel, pad)
