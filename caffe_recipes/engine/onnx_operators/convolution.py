"""Convolution and its transpose as ONNX nodes."""

from __future__ import annotations

from dataclasses import replace

from caffe_recipes.caffe.dialects.unsupported_names import DEPTHWISE
from caffe_recipes.caffe.layer_types.windows import as_volume, dilations, per_axis
from caffe_recipes.engine.onnx_operators.converter import Converter, Site


def _convolution(site: Site) -> list[str]:
    """Convolve each bottom, with all axes before the channel axis folded into one."""
    param, shape = site.layer.convolution_param, site.shapes.bottoms[0]
    channel = param.axis % len(shape)
    axes = len(shape) - channel - 1
    pad = per_axis(param, "pad", axes, 0) or (0,)
    weights = site.blobs["weight"]
    blobs = [site.blob("weight", (*weights.shape[:2], *(weights.shape[2:] or (1,))))]
    if "bias" in site.blobs:
        blobs.append(site.blob("bias"))
    tops = []
    for x, top in zip(site.xs, site.shapes.tops, strict=True):
        folds = channel != 1 or not axes
        given = site.reshape(x, (-1, *shape[channel:], *[1] * (not axes))) if folds else x
        y = site.add(
            "ConvTranspose" if site.layer.type == "Deconvolution" else "Conv",
            given,
            *blobs,
            kernel_shape=list(weights.shape[2:] or (1,)),
            strides=list(per_axis(param, "stride", axes, 1) or (1,)),
            pads=[*pad, *pad],
            dilations=list(dilations(param, axes) or (1,)),
            group=shape[channel] if site.layer.type in DEPTHWISE else param.group,
        )
        tops.append(site.reshape(y, top) if folds else y)
    return tops


def _volume(site: Site) -> list[str]:
    return _convolution(replace(site, layer=as_volume(site.layer)))


CONVERTERS: dict[str, Converter] = {
    "Convolution": _convolution,
    "Convolution3D": _volume,
    "Deconvolution": _convolution,
    "Deconvolution3D": _volume,
    **dict.fromkeys(DEPTHWISE, _convolution),
}
