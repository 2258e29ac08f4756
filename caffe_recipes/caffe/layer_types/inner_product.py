"""Layers of learned matrices and blobs: inner products, tables of vectors, and a blob by itself."""

from __future__ import annotations

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.dimensions import (
    Dim,
    LayerShapes,
    MisfitError,
    Shape,
    Shapes,
    canonical_axis,
    product,
    require,
    sum_sizes,
)
from caffe_recipes.caffe.layer_types.entry import LayerType, Result, per_value


def _inner_product(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    param, bottom = layer.inner_product_param, bottoms[0]
    axis, outputs = canonical_axis(bottom, param.axis), param.num_output
    require(param, "num_output")
    inputs = product(bottom[axis:])
    weights = (inputs, outputs) if param.transpose else (outputs, inputs)
    return [(*bottom[:axis], outputs)], [weights, (outputs,)][: 1 + param.bias_term]


def _embed(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Replace each index by one of `input_dim` vectors of length `num_output`."""
    param = layer.embed_param
    require(param, "num_output")
    require(param, "input_dim")
    learned: list[Shape] = [(param.input_dim, param.num_output), (param.num_output,)]
    return [(*bottoms[0], param.num_output)], learned[: 1 + param.bias_term]


def _parameter(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    shape = tuple(layer.parameter_param.shape.dim)
    if any(dim < 0 for dim in shape):
        raise MisfitError("has a negative dim")
    return [shape], [shape]


def _multiply_adds(found: LayerShapes, phase: int) -> Dim:
    """Count outputs x inputs."""
    transposed = found.layer.inner_product_param.transpose
    return product([sum_sizes(found.tops), found.weights[0 if transposed else 1]])


TYPES = (
    LayerType(
        "InnerProduct",
        has_engine=True,
        shapes=_inner_product,
        learned=2,
        fillers=lambda layer: [
            layer.inner_product_param.weight_filler,
            layer.inner_product_param.bias_filler,
        ],
        is_never_loss=True,
        is_linear=True,
        is_never_label=True,
        multiply_adds=_multiply_adds,
        details=lambda layer: str(layer.inner_product_param.num_output),
        kind="matrix",
    ),
    LayerType(
        "Embed",
        shapes=_embed,
        learned=2,
        fillers=lambda layer: [layer.embed_param.weight_filler, layer.embed_param.bias_filler],
        no_backward=(0,),
        operations=lambda found, phase: per_value(found, int(found.layer.embed_param.bias_term)),
    ),
    LayerType("Parameter", shapes=_parameter, bottoms=(0, 0), learned=1, is_result=True),
)
