"""Convolution, its transpose, and the layout of its windows as columns."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.unsupported_names import DEPTHWISE
from caffe_recipes.caffe.layer_types.dimensions import (
    Dim,
    LayerShapes,
    MisfitError,
    Shape,
    Shapes,
    canonical_axis,
    merge,
    product,
    require,
    sum_sizes,
)
from caffe_recipes.caffe.layer_types.entry import MANY, LayerType, Result
from caffe_recipes.caffe.layer_types.windows import (
    check_windows,
    conv_size,
    describe_window,
    dilations,
    show_sides,
    show_window,
    volume_type,
    windows,
)


def _convolution(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Convolve each bottom with the same weights, which a Deconvolution transposes.

    With Intel's `fusion_type: SUM_FUSION`, a second bottom is added to the only top.
    """
    param = layer.convolution_param
    bottoms = bottoms[:1] if _is_summed(layer) else bottoms
    bottom = merge(bottoms)
    channel, kernel, axes = _slide(param, bottom)
    outputs, channels, group = param.num_output, bottom[channel], param.group
    require(param, "num_output")
    if not group or outputs % group or (channels or 0) % group:
        raise MisfitError(f"has group {group}, which does not divide its channels or num_output {outputs}")
    if layer.type == "Deconvolution":
        sizes = [_deconv_size(*axis) for axis in axes]
        weights: Shape = (channels, outputs // group, *kernel)
    else:
        sizes = [conv_size(*axis) for axis in axes]
        weights = (outputs, None if channels is None else channels // group, *kernel)
    top = (*bottom[:channel], outputs, *sizes)
    return [top] * len(bottoms), [weights, (outputs,)][: 1 + param.bias_term]


def as_depthwise(layer: pb.LayerParameter, channels: int) -> pb.LayerParameter:
    """Return a depthwise convolution of a fork as a Convolution with as many groups as channels."""
    grouped = deepcopy(layer)
    grouped.type, grouped.convolution_param.group = "Convolution", channels
    return grouped


def _depthwise(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    axis = canonical_axis(bottoms[0], layer.convolution_param.axis)
    channels = bottoms[0][axis]
    if channels is None:
        return [(None,) * len(bottoms[0])] * len(bottoms), []
    return _convolution(as_depthwise(layer, channels), bottoms)


def _slide(
    param: pb.ConvolutionParameter, bottom: Shape
) -> tuple[int, tuple[int, ...], list[tuple[Dim, int, int, int, int]]]:
    """Return the channel axis, the kernel, and size, kernel, stride, pad and dilation of each later axis."""
    channel = canonical_axis(bottom, param.axis)
    size = bottom[channel + 1 :]
    kernel, stride, pad = windows(param, len(size))
    return channel, kernel, list(zip(size, kernel, stride, pad, dilations(param, len(size)), strict=True))


def _is_summed(layer: pb.LayerParameter) -> bool:
    return bool(getattr(layer.convolution_param, "fusion_type", 0))


def _deconv_size(size: Dim, kernel: int, stride: int, pad: int, dilation: int) -> Dim:
    if size is None:
        return None
    result = stride * (size - 1) + dilation * (kernel - 1) + 1 - 2 * pad
    if result < 1:
        raise MisfitError(f"has pad {pad}, larger than its output")
    return result


def _im2col(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Lay out each window as a column of channels x kernel values."""
    param, bottom = layer.convolution_param, bottoms[0]
    channel, kernel, axes = _slide(param, bottom)
    if not axes:
        raise MisfitError("needs a bottom with axes after its channels")
    sizes = [conv_size(*axis) for axis in axes]
    return [(*bottom[:channel], product([bottom[channel], *kernel]), *sizes)], []


def _multiply_adds(found: LayerShapes, phase: int) -> Dim:
    """Count in_c / group x k_h x k_w for each of the out_c x out_h x out_w output values."""
    return product([sum_sizes(found.tops), *found.weights[1:]])


def _transposed_multiply_adds(found: LayerShapes, phase: int) -> Dim:
    """Count out_c / group x k_h x k_w for each of the in_c x in_h x in_w input values."""
    return product([sum_sizes(found.bottoms), *found.weights[1:]])


def _kernel(layer: pb.LayerParameter) -> str:
    param = layer.convolution_param
    dilation, group = show_sides(list(param.dilation)), param.group
    return (
        show_window(param)
        + (f" d{dilation}" if dilation not in ("", "1") else "")
        + (f" g{group}" if group > 1 else "")
    )


def _details(layer: pb.LayerParameter) -> str:
    param = layer.convolution_param
    kernel, *stride = describe_window(param)
    parts = [kernel, str(param.num_output), *stride]
    if param.group > 1:
        parts.append(f"{param.group} groups")
    if any(dilation > 1 for dilation in param.dilation):
        parts.append(f"dilation {max(param.dilation)}")
    return ", ".join(parts)


_CONVOLUTION = LayerType(
    "Convolution",
    has_engine=True,
    shapes=_convolution,
    bottoms=(1, MANY),
    min_tops=lambda layer: 1 if _is_summed(layer) else len(layer.bottom),
    learned=2,
    fillers=lambda layer: [layer.convolution_param.weight_filler, layer.convolution_param.bias_filler],
    refuses=(check_windows,),
    is_never_loss=True,
    is_linear=True,
    is_never_label=True,
    multiply_adds=_multiply_adds,
    kernel=_kernel,
    details=_details,
    kind="matrix",
)

_DECONVOLUTION = replace(
    _CONVOLUTION,
    name="Deconvolution",
    blocks=("convolution_param",),
    is_never_loss=False,
    multiply_adds=_transposed_multiply_adds,
)

TYPES = (
    _CONVOLUTION,
    _DECONVOLUTION,
    *map(volume_type, (_CONVOLUTION, _DECONVOLUTION)),
    *(
        replace(_CONVOLUTION, name=name, blocks=("convolution_param",), shapes=_depthwise)
        for name in sorted(DEPTHWISE)
    ),
    LayerType("Im2col", blocks=("convolution_param",), shapes=_im2col, refuses=(check_windows,)),
)
