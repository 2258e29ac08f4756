"""Functions of single values, and softmax, as ONNX nodes."""

from __future__ import annotations

import math

from onnx import TensorProto

from caffe_recipes.engine.onnx_operators.converter import Converter, Site


def _node(operator: str) -> Converter:
    """Return the converter to a node that does the same without settings."""
    return lambda site: [site.add(operator, site.xs[0])]


def _relu(site: Site) -> list[str]:
    slope = site.layer.relu_param.negative_slope
    return [site.add("LeakyRelu", site.xs[0], alpha=slope) if slope else site.add("Relu", site.xs[0])]


def _linear(site: Site, scale: float, shift: float) -> str:
    """Return shift + scale * x."""
    x = site.xs[0] if scale == 1 else site.add("Mul", site.xs[0], site.floats(scale))
    return x if shift == 0 else site.add("Add", x, site.floats(shift))


def _power(site: Site) -> list[str]:
    param = site.layer.power_param
    x = _linear(site, param.scale, param.shift)
    return [x if param.power == 1 else site.add("Pow", x, site.floats(param.power))]


def _exp(site: Site) -> list[str]:
    param = site.layer.exp_param
    factor = 1.0 if param.base == -1 else math.log(param.base)
    return [site.add("Exp", _linear(site, param.scale * factor, param.shift * factor))]


def _log(site: Site) -> list[str]:
    param = site.layer.log_param
    y = site.add("Log", _linear(site, param.scale, param.shift))
    return [y if param.base == -1 else site.add("Div", y, site.floats(math.log(param.base)))]


def _clip(site: Site) -> list[str]:
    param = getattr(site.layer, "clip_param")  # noqa: B009 - a block of another Caffe
    return [site.add("Clip", site.xs[0], site.floats(param.min), site.floats(param.max))]


def _swish(site: Site) -> list[str]:
    beta = getattr(getattr(site.layer, "swish_param", None), "beta", 1.0)
    return [site.add("Mul", site.xs[0], site.add("Sigmoid", _linear(site, beta, 0)))]


def _threshold(site: Site) -> list[str]:
    above = site.add("Greater", site.xs[0], site.floats(site.layer.threshold_param.threshold))
    return [site.add("Cast", above, to=TensorProto.FLOAT)]


def _prelu(site: Site) -> list[str]:
    after = len(site.shapes.bottoms[0]) - 2
    return [site.add("PRelu", site.xs[0], site.blob("weight", (-1, *[1] * max(0, after))))]


def _softmax(site: Site) -> list[str]:
    return [site.add("Softmax", site.xs[0], axis=site.layer.softmax_param.axis)]


CONVERTERS: dict[str, Converter] = {
    "ReLU": _relu,
    "Dropout": lambda site: [site.xs[0]],  # as in phase TEST
    "Sigmoid": _node("Sigmoid"),
    "TanH": _node("Tanh"),
    "ELU": lambda site: [site.add("Elu", site.xs[0], alpha=site.layer.elu_param.alpha)],
    "AbsVal": _node("Abs"),
    "BNLL": _node("Softplus"),
    "Power": _power,
    "Exp": _exp,
    "Log": _log,
    "Softmax": _softmax,
    "ReLU6": lambda site: [site.add("Clip", site.xs[0], site.floats(0), site.floats(6))],
    "Clip": _clip,
    "Swish": _swish,
    "SpatialDropout": lambda site: [site.xs[0]],
    "Threshold": _threshold,
    "PReLU": _prelu,
}
