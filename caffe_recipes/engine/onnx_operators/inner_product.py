"""The inner product and the embedding as ONNX nodes."""

from __future__ import annotations

import math

from onnx import TensorProto

from caffe_recipes.engine.onnx_operators.converter import Converter, Site


def _inner_product(site: Site) -> list[str]:
    """x W^T + b, of a matrix whose columns are all axes from `axis` on."""
    param, shape = site.layer.inner_product_param, site.shapes.bottoms[0]
    axis = param.axis % len(shape)
    is_matrix = axis == 1 and len(shape) == 2
    x = site.xs[0] if is_matrix else site.reshape(site.xs[0], (-1, math.prod(shape[axis:])))
    blobs = [site.blob(name) for name in ("weight", "bias") if name in site.blobs]
    y = site.add("Gemm", x, *blobs, transB=0 if param.transpose else 1)
    return [y if axis == 1 else site.reshape(y, site.shapes.tops[0])]


def _embed(site: Site) -> list[str]:
    indices = site.add("Cast", site.xs[0], to=TensorProto.INT64)
    rows = site.add("Gather", site.blob("weight"), indices)
    return [site.add("Add", rows, site.blob("bias")) if "bias" in site.blobs else rows]


CONVERTERS: dict[str, Converter] = {
    "InnerProduct": _inner_product,
    "Embed": _embed,
    "Parameter": lambda site: [site.add("Identity", site.blob("weight"))],
}
