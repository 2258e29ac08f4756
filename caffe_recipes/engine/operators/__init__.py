"""The operators of the engine, by the families of `caffe/layer_types/`: `OPERATORS` of each module."""

from __future__ import annotations

from caffe_recipes.engine.operators import (
    activation,
    convolution,
    elementwise,
    inner_product,
    loss,
    normalization,
    pooling,
    recurrent,
    shape,
)
from caffe_recipes.engine.operators.operator import Setup

FAMILIES = (
    activation,
    convolution,
    elementwise,
    inner_product,
    loss,
    normalization,
    pooling,
    recurrent,
    shape,
)

OPERATORS: dict[str, Setup] = {name: setup for family in FAMILIES for name, setup in family.OPERATORS.items()}
