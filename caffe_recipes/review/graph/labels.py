"""What a box says of its layers, and how wide that is in print."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shaping.dims import Shape

MOST_CHARACTERS = 44

# Widths of DejaVu Sans, the widest of the usual sans-serif fonts, in thousandths of the font's size.
_WIDTHS = {
    **dict.fromkeys("ijl'|", 278),
    **dict.fromkeys(" .,:;!/\\[]()I-", 390),
    **dict.fromkeys("frtJ{}*", 430),
    **dict.fromkeys("mwMW@%→←×", 960),
    **dict.fromkeys("_cksvxyz", 590),
    **dict.fromkeys("ABCDEFGHKLNOPQRSTUVXYZ&<>+=~", 780),
}
_OTHERS = 640


def text_width(text: str, size: float, *, is_bold: bool = False) -> float:
    """Estimate the width of a text in print, in the unit of `size`, rather too wide than too narrow.

    >>> text_width("conv1", 10), text_width("conv1", 10, is_bold=True)
    (31.0, 34.7)
    """
    thousandths = sum(_width(char) for char in text)
    return round(thousandths * size / 1000 * (1.12 if is_bold else 1), 1)


def _width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    if unicodedata.east_asian_width(char) in "WF":
        return 1000
    return _WIDTHS.get(char, _OTHERS)


def shorten(text: str) -> str:
    """Leave out the middle of a text that is too long for a box.

    >>> shorten("conv1"), len(shorten("x" * 100))
    ('conv1', 44)
    """
    if len(text) <= MOST_CHARACTERS:
        return text
    half = (MOST_CHARACTERS - 1) // 2
    return f"{text[: MOST_CHARACTERS - 1 - half]}…{text[-half:]}"


def show_image(shape: Shape | None) -> str:
    """Write a blob's shape without its batch.

    >>> show_image((32, 64, 56, 56)), show_image((32,)), show_image((32, None)), show_image(None)
    ('64×56×56', '1', '?', '?')
    """
    if shape is None:
        return "?"
    return "×".join("?" if dim is None else str(dim) for dim in shape[1:]) or "1"


def describe(layer: pb.LayerParameter) -> str:
    """Say a layer's type and what tells it from others of the type.

    >>> describe(pb.LayerParameter(type="InnerProduct", inner_product_param={"num_output": 1000}))
    'InnerProduct 1000'
    """
    tell = _TELL.get(layer.type)
    return shorten(f"{layer.type} {tell(layer)}".rstrip() if tell else layer.type)


def _window(param: pb.ConvolutionParameter | pb.PoolingParameter, field: str) -> list[int]:
    stem = field.removesuffix("_size")
    if param.HasField(f"{stem}_h"):
        return [getattr(param, f"{stem}_h"), getattr(param, f"{stem}_w")]
    values = list(getattr(param, field))
    return values * 2 if len(values) == 1 else values


def _strided(param: pb.ConvolutionParameter | pb.PoolingParameter) -> list[str]:
    parts = ["×".join(map(str, _window(param, "kernel_size")))]
    strides = sorted(set(_window(param, "stride")))
    if strides and strides != [1]:
        parts.append(f"stride {'×'.join(map(str, strides))}")
    return parts


def _convolution(layer: pb.LayerParameter) -> str:
    param = layer.convolution_param
    kernel, *stride = _strided(param)
    parts = [kernel, str(param.num_output), *stride]
    if param.group > 1:
        parts.append(f"{param.group} groups")
    if any(dilation > 1 for dilation in param.dilation):
        parts.append(f"dilation {max(param.dilation)}")
    return ", ".join(parts)


def _pooling(layer: pb.LayerParameter) -> str:
    param = layer.pooling_param
    method = pb.PoolingParameter.PoolMethod.Name(param.pool)
    return f"{method} global" if param.global_pooling else f"{method} {', '.join(_strided(param))}"


def _eltwise(layer: pb.LayerParameter) -> str:
    return pb.EltwiseParameter.EltwiseOp.Name(layer.eltwise_param.operation)


def _data(layer: pb.LayerParameter) -> str:
    return f"batch {layer.data_param.batch_size}"


def _accuracy(layer: pb.LayerParameter) -> str:
    return f"top {layer.accuracy_param.top_k}"


_TELL: Mapping[str, Callable[[pb.LayerParameter], str]] = {
    "Accuracy": _accuracy,
    "Convolution": _convolution,
    "Data": _data,
    "Deconvolution": _convolution,
    "Dropout": lambda layer: f"{layer.dropout_param.dropout_ratio:.3g}",
    "Eltwise": _eltwise,
    "InnerProduct": lambda layer: str(layer.inner_product_param.num_output),
    "LRN": lambda layer: str(layer.lrn_param.local_size),
    "LSTM": lambda layer: str(layer.recurrent_param.num_output),
    "Pooling": _pooling,
    "RNN": lambda layer: str(layer.recurrent_param.num_output),
}
