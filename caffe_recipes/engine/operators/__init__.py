"""The operators of the engine, by the families of `caffe/layer_types/`: `OPERATORS` of each module.

Some layers can compute their top into a bottom (`OVERWRITING`), and so save its memory. A bottom can be
overwritten if its layer made it as a new tensor, which its own gradient does not need (`FRESH`). Layers that
keep a state from pass to pass (`STATEFUL`) cannot be computed once more for a gradient.
"""

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
from caffe_recipes.engine.operators.operator import Setup, SetupOverwriting

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

OVERWRITING: dict[str, SetupOverwriting] = activation.OVERWRITING | elementwise.OVERWRITING
FRESH = convolution.FRESH | elementwise.FRESH | inner_product.FRESH | normalization.FRESH
STATEFUL = recurrent.STATEFUL
