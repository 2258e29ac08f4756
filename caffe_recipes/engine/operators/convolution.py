"""Convolution and its transpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.unsupported_names import DEPTHWISE
from caffe_recipes.caffe.layer_types.convolution import as_depthwise
from caffe_recipes.caffe.layer_types.windows import as_volume, dilations, per_axis, windows
from caffe_recipes.caffe.shapes import show_shape
from caffe_recipes.engine.operators.operator import Forward, Setup, TensorShapes, layer_error

# The convolution and its transpose, by the number of axes. Autocast leaves torch.convolution alone on a CPU.
_CONVOLUTIONS: dict[int, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    1: (functional.conv1d, functional.conv_transpose1d),
    2: (functional.conv2d, functional.conv_transpose2d),
    3: (functional.conv3d, functional.conv_transpose3d),
}


def _convolution(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """Convolution, or its transpose for Deconvolution, of each bottom into its top.

    Weights are (num_output, channels / group, kernel...), or for the transpose (channels, num_output / group,
    kernel...).
    """
    param, shape = layer.convolution_param, shapes.bottoms[0]
    channel = param.axis % len(shape)
    axes = len(shape) - channel - 1
    if axes > 3:
        raise layer_error(layer, f"cannot convolve {show_shape(shape)} along {axes} axes", "use 3 or fewer")
    # Without spatial axes, a convolution is a matrix product over channels: the window is a single value.
    stride, pad = per_axis(param, "stride", axes, 1) or (1,), per_axis(param, "pad", axes, 0) or (0,)
    dilation = dilations(param, axes) or (1,)
    group, plain, transpose = param.group, *_CONVOLUTIONS[len(stride)]

    def convolve(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        if layer.type == "Deconvolution":
            return transpose(x, w, b, stride, pad, 0, group, dilation)
        return plain(x, w, b, stride, pad, dilation, group)

    def forward(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        w, b = blobs[0], blobs[1] if len(blobs) > 1 else None
        return [convolve(x, w, b) for x in xs]

    if channel == 1 and axes:
        return forward

    def forward_folded(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        """Convolve with all axes before the channel axis folded into one."""
        w = blobs[0].reshape(*blobs[0].shape[:2], *(blobs[0].shape[2:] or (1,)))
        tops = forward([x.reshape(-1, *shape[channel:], *[1] * (not axes)) for x in xs], [w, *blobs[1:]])
        return [y.reshape(top) for y, top in zip(tops, shapes.tops, strict=True)]

    return forward_folded


def _depthwise(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    channels = shapes.bottoms[0][layer.convolution_param.axis]
    return _convolution(as_depthwise(layer, channels), shapes)


def _im2col(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """The values under the window at each place: channels x kernel values, those of a channel together."""
    param, shape = layer.convolution_param, shapes.bottoms[0]
    channel = param.axis % len(shape)
    axes = len(shape) - channel - 1
    kernel, stride, pad = windows(param, axes)
    spread = dilations(param, axes)
    around = [side for size in reversed(pad) for side in (size, size)]
    count = shapes.tops[0][channel + 1 :]

    def forward(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        x = functional.pad(xs[0], around)
        for axis, (size, step, gap, places) in enumerate(zip(kernel, stride, spread, count, strict=True)):
            at = torch.arange(places, device=x.device) * step
            taps = torch.arange(size, device=x.device) * gap
            chosen = (taps[:, None] + at).flatten()  # the axis becomes (kernel, places)
            x = x.index_select(channel + 1 + 2 * axis, chosen).unflatten(
                channel + 1 + 2 * axis, (size, places)
            )
        first = channel + 1
        order = [*range(first), *range(first, first + 2 * axes, 2), *range(first + 1, first + 2 * axes, 2)]
        return [x.permute(order).reshape(shapes.tops[0])]

    return forward


OPERATORS: dict[str, Setup] = {
    "Convolution": _convolution,
    "Convolution3D": lambda layer, shapes: _convolution(as_volume(layer), shapes),
    "Deconvolution": _convolution,
    "Deconvolution3D": lambda layer, shapes: _convolution(as_volume(layer), shapes),
    "Im2col": _im2col,
    **dict.fromkeys(DEPTHWISE, _depthwise),
}

FRESH = frozenset(("Convolution", "Convolution3D", "Deconvolution", "Deconvolution3D", *DEPTHWISE))
