"""Sums, products and maxima of blobs, and products and sums with learned ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce

import torch
from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.engine.operators.operator import (
    Forward,
    Overwriting,
    Setup,
    SetupOverwriting,
    TensorShape,
    TensorShapes,
)


def _scale(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """Multiply by a learned blob, or by the second bottom, and add a learned bias."""
    spread = spread_operand(layer.scale_param, shapes)
    learned, bias = len(shapes.bottoms) == 1, layer.scale_param.bias_term

    def forward(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        factor = (blobs[0] if learned else xs[1]).view(spread)
        return [torch.addcmul(blobs[-1].view(spread), xs[0], factor) if bias else xs[0] * factor]

    return forward


def _bias(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """Add a learned blob, or the second bottom."""
    spread = spread_operand(layer.bias_param, shapes)
    return lambda xs, blobs: [xs[0] + (blobs[0] if blobs else xs[1]).view(spread)]


def spread_operand(param: pb.ScaleParameter | pb.BiasParameter, shapes: TensorShapes) -> TensorShape:
    """Return the shape of the smaller operand with trailing ones, so that it broadcasts from `axis` on."""
    first = shapes.bottoms[0]
    operand = shapes.bottoms[1] if len(shapes.bottoms) == 2 else shapes.learned[0]
    after = len(first) - param.axis % len(first) - len(operand) if operand else 0
    return (*operand, *[1] * after)


def scales_channels(layer: pb.LayerParameter) -> bool:
    """Return whether a layer is the usual Scale, with a learned factor and bias per channel."""
    param = layer.scale_param
    usual = param.axis == 1 and param.num_axes == 1 and param.bias_term
    return layer.type == "Scale" and len(layer.bottom) == 1 and usual


def _eltwise(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """Sum (with `coeff`), product or maximum of blobs of the same shape."""
    param = layer.eltwise_param
    coefficients = list(param.coeff)

    def weighted(xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        return [reduce(torch.add, [c * x for c, x in zip(coefficients, xs, strict=True)])]

    if param.operation == param.SUM and any(c != 1 for c in coefficients):
        return weighted
    join = _JOINS[param.operation]
    return lambda xs, _: [join(xs)]


def _eltwise_overwriting(layer: pb.LayerParameter) -> Overwriting | None:
    """Add the second of two blobs to the first one."""
    param = layer.eltwise_param
    is_plain_sum = param.operation == param.SUM and all(c == 1 for c in param.coeff)
    return (lambda xs: xs[0].add_(xs[1])) if is_plain_sum and len(layer.bottom) == 2 else None


def _greatest(xs: Sequence[Tensor]) -> Tensor:
    """Return the maximum. Only one of several equal values gets the gradient.

    As in Caffe, this is the second one among the first two blobs, else the first one. torch.maximum would
    split the gradient between them.
    """
    first = torch.where(xs[0] > xs[1], xs[0], xs[1])
    return reduce(lambda top, x: torch.where(x > top, x, top), xs[2:], first)


_JOINS: dict[int, Callable[[Sequence[Tensor]], Tensor]] = {
    pb.EltwiseParameter.SUM: partial(reduce, torch.add),
    pb.EltwiseParameter.PROD: partial(reduce, torch.mul),
    pb.EltwiseParameter.MAX: _greatest,
}


def _axpy(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """a x + y, with a number a for each channel."""
    return lambda xs, _: [torch.addcmul(xs[2], xs[0].reshape(*shapes.tops[0][:2], 1, 1), xs[1])]


OPERATORS: dict[str, Setup] = {"Axpy": _axpy, "Bias": _bias, "Eltwise": _eltwise, "Scale": _scale}

OVERWRITING: dict[str, SetupOverwriting] = {"Eltwise": _eltwise_overwriting}
FRESH = frozenset(("Bias", "Eltwise", "Scale"))
