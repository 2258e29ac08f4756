"""The inner product with learned weights."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from caffe_recipes.caffe import pb
from caffe_recipes.engine.operators.operator import Forward, Setup, TensorShapes, class_indices


def _inner_product(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """x W^T + b over all axes from `axis` on. W is (num_output, K), or (K, num_output) with `transpose`."""
    param, axes = layer.inner_product_param, len(shapes.bottoms[0])
    axis = param.axis % axes

    def forward(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        x = xs[0].flatten(axis) if axes > axis + 1 else xs[0]
        w, b = blobs[0], blobs[1] if len(blobs) > 1 else None
        return [functional.linear(x, w.t() if param.transpose else w, b)]

    return forward


def _embed(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    """Row i of the weights (input_dim, num_output) for each index i, plus the bias."""

    def forward(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        rows = functional.embedding(class_indices(xs[0], layer.embed_param.input_dim), blobs[0])
        return [rows + blobs[1] if len(blobs) > 1 else rows]

    return forward


def _parameter(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    return lambda _, blobs: [blobs[0]]


OPERATORS: dict[str, Setup] = {"InnerProduct": _inner_product, "Embed": _embed, "Parameter": _parameter}

FRESH = frozenset(("InnerProduct",))
