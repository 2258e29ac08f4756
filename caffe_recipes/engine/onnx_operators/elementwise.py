"""Sums, products and maxima, and products and sums with learned blobs, as ONNX nodes."""

from __future__ import annotations

from functools import reduce

from caffe_recipes.caffe import pb
from caffe_recipes.engine.onnx_operators.converter import Converter, Site
from caffe_recipes.engine.operators.elementwise import spread_operand


def _scale(site: Site) -> list[str]:
    spread = spread_operand(site.layer.scale_param, site.shapes)
    is_learned = len(site.xs) == 1
    y = site.add("Mul", site.xs[0], site.blob("weight", spread) if is_learned else _other(site))
    return [site.add("Add", y, site.blob("bias", spread)) if site.layer.scale_param.bias_term else y]


def _bias(site: Site) -> list[str]:
    spread = spread_operand(site.layer.bias_param, site.shapes)
    return [site.add("Add", site.xs[0], site.blob("bias", spread) if site.blobs else _other(site))]


def _other(site: Site) -> str:
    """Return the second bottom in a shape that broadcasts over the first one."""
    param = site.layer.scale_param if site.layer.type == "Scale" else site.layer.bias_param
    return site.reshape(site.xs[1], spread_operand(param, site.shapes))


_JOINS = {pb.EltwiseParameter.SUM: "Add", pb.EltwiseParameter.PROD: "Mul", pb.EltwiseParameter.MAX: "Max"}


def _eltwise(site: Site) -> list[str]:
    param, xs = site.layer.eltwise_param, list(site.xs)
    if param.operation == param.SUM:
        for index, factor in enumerate(param.coeff):
            xs[index] = xs[index] if factor == 1 else site.add("Mul", xs[index], site.floats(factor))
    return [reduce(lambda x, y: site.add(_JOINS[param.operation], x, y), xs)]


def _axpy(site: Site) -> list[str]:
    factor = site.reshape(site.xs[0], (*site.shapes.tops[0][:2], 1, 1))
    return [site.add("Add", site.add("Mul", factor, site.xs[1]), site.xs[2])]


CONVERTERS: dict[str, Converter] = {"Axpy": _axpy, "Bias": _bias, "Eltwise": _eltwise, "Scale": _scale}
