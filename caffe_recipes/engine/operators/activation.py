"""Functions of single values: activations, powers and logarithms, dropout; and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from caffe_recipes.caffe import pb
from caffe_recipes.engine.operators.operator import (
    Forward,
    Setup,
    SetupOverwriting,
    TensorShapes,
    layer_error,
)

_Function = Callable[[Tensor], Tensor]


def _pointwise(choose: Callable[[pb.LayerParameter], _Function]) -> Setup:
    """Return the setup of a layer y = f(x), where `choose` returns f for a layer."""

    def setup(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
        function = choose(layer)
        return lambda xs, _: [function(xs[0])]

    return setup


def _relu(layer: pb.LayerParameter) -> _Function:
    slope = layer.relu_param.negative_slope
    return (lambda x: functional.leaky_relu(x, slope)) if slope else torch.relu


def _elu(layer: pb.LayerParameter) -> _Function:
    alpha = layer.elu_param.alpha
    return lambda x: functional.elu(x, alpha)


def _power(layer: pb.LayerParameter) -> _Function:
    """(shift + scale * x) ^ power."""
    power, scale, shift = layer.power_param.power, layer.power_param.scale, layer.power_param.shift
    if power == 1:
        return lambda x: scale * x + shift
    return lambda x: torch.pow(scale * x + shift, power)


def _exp(layer: pb.LayerParameter) -> _Function:
    """base ^ (shift + scale * x); base -1 means e."""
    param = layer.exp_param
    factor = _log_of_base(param.base)
    return lambda x: torch.exp((param.shift + param.scale * x) * factor)


def _log(layer: pb.LayerParameter) -> _Function:
    """log_base(shift + scale * x); base -1 means e."""
    param = layer.log_param
    factor = _log_of_base(param.base)
    return lambda x: torch.log(param.shift + param.scale * x) / factor


def _log_of_base(base: float) -> float:
    return 1.0 if base == -1 else math.log(base)


def _dropout(layer: pb.LayerParameter) -> _Function:
    """In TRAIN, drop a fraction `dropout_ratio` of the elements, and scale the others by 1 / (1 - ratio)."""
    ratio = layer.dropout_param.dropout_ratio
    training = layer.phase == pb.TRAIN
    return lambda x: functional.dropout(x, ratio, training)


def _spatial_dropout(layer: pb.LayerParameter) -> _Function:
    """As `_dropout`, but of whole channels of an image."""
    ratio, training = layer.dropout_param.dropout_ratio, layer.phase == pb.TRAIN

    def drop(x: Tensor) -> Tensor:
        kept = functional.dropout(x.new_ones(x.shape[:2]), ratio, training)
        return x * kept.reshape(*x.shape[:2], *[1] * (x.dim() - 2))

    return drop


def _clip(layer: pb.LayerParameter) -> _Function:
    low, high = (getattr(getattr(layer, "clip_param", None), name, None) for name in ("min", "max"))
    if low is None or high is None:
        raise layer_error(layer, "has no clip_param with min and max", "give both")
    return lambda x: x.clamp(low, high)


def _swish(layer: pb.LayerParameter) -> _Function:
    beta = getattr(getattr(layer, "swish_param", None), "beta", 1.0)
    return lambda x: x * torch.sigmoid(beta * x)


def _threshold(layer: pb.LayerParameter) -> _Function:
    threshold = layer.threshold_param.threshold
    return lambda x: (x > threshold).to(x.dtype)


def _prelu(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """max(0, x) + slope * min(0, x), with a learned slope per channel, or a single one."""

    def forward(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        return [functional.prelu(xs[0], blobs[0].reshape(-1))]

    return forward


def _softmax(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    axis = layer.softmax_param.axis
    return lambda xs, _: [torch.softmax(xs[0], axis)]


OPERATORS: dict[str, Setup] = {
    "ReLU": _pointwise(_relu),
    "Dropout": _pointwise(_dropout),
    "Sigmoid": _pointwise(lambda layer: torch.sigmoid),
    "TanH": _pointwise(lambda layer: torch.tanh),
    "ELU": _pointwise(_elu),
    "AbsVal": _pointwise(lambda layer: torch.abs),
    "BNLL": _pointwise(lambda layer: lambda x: torch.logaddexp(x, torch.zeros_like(x))),
    "Power": _pointwise(_power),
    "Exp": _pointwise(_exp),
    "Log": _pointwise(_log),
    "Softmax": _softmax,
    "ReLU6": _pointwise(lambda layer: lambda x: x.clamp(0, 6)),
    "Clip": _pointwise(_clip),
    "Swish": _pointwise(_swish),
    "SpatialDropout": _pointwise(_spatial_dropout),
    "Threshold": _pointwise(_threshold),
    "PReLU": _prelu,
}

OVERWRITING: dict[str, SetupOverwriting] = {
    "ReLU": lambda layer: None if layer.relu_param.negative_slope else lambda xs: torch.relu_(xs[0])
}
