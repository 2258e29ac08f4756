"""The ONNX converters of layer types, by the families of `engine/operators/`: `CONVERTERS` of each module.

They need the package onnx, so that only what exports imports them.
"""

from __future__ import annotations

from caffe_recipes.engine.onnx_operators import (
    activation,
    convolution,
    elementwise,
    inner_product,
    normalization,
    pooling,
    shape,
)
from caffe_recipes.engine.onnx_operators.converter import Converter

FAMILIES = (activation, convolution, elementwise, inner_product, normalization, pooling, shape)

CONVERTERS: dict[str, Converter] = {
    name: one for family in FAMILIES for name, one in family.CONVERTERS.items()
}
