"""Sums, products and maxima of blobs, and products and sums with learned ones."""

from __future__ import annotations

from collections.abc import Iterator

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.dimensions import (
    SCALAR,
    Dim,
    LayerShapes,
    MisfitError,
    Shape,
    Shapes,
    canonical_axis,
    merge,
)
from caffe_recipes.caffe.layer_types.entry import MANY, LayerType, Refusal, Result, one_per_value, per_value
from caffe_recipes.wording import describe_count


def _eltwise(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    return [merge(bottoms)], []


def _operand(param: pb.ScaleParameter | pb.BiasParameter, bottoms: Shapes) -> Shape:
    """Return the shape of the factor or summand: axes of the first bottom, or that of the second bottom."""
    first = bottoms[0]
    axis = 0 if bottoms[1:] == [SCALAR] else canonical_axis(first, param.axis)
    count = len(bottoms[1]) if len(bottoms) > 1 else param.num_axes
    end = len(first) if count == -1 else axis + count
    if not axis <= end <= len(first):
        raise MisfitError(f"has axis {param.axis} and {count} axes, beyond the axes of its bottom")
    return merge([first[axis:end], *bottoms[1:]])


def _scale(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    operand = _operand(layer.scale_param, bottoms)
    learned = (len(bottoms) == 1) + layer.scale_param.bias_term
    return [bottoms[0]], [operand] * learned


def _bias(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    return [bottoms[0]], [_operand(layer.bias_param, bottoms)][: 2 - len(bottoms)]


def _axpy(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Scale each channel of the second bottom by a number of the first one, and add the third one."""
    scale, *planes = bottoms
    plane = merge(planes)
    if len(plane) != 4 or len(scale) not in (2, 4) or any(dim not in (1, None) for dim in scale[2:]):
        raise MisfitError("needs two bottoms with 4 axes, and before them one number for each channel")
    merge([scale[:2], plane[:2]])
    return [plane], []


def _check_eltwise(layer: pb.LayerParameter) -> Iterator[Refusal]:
    param = layer.eltwise_param
    product = param.operation == pb.EltwiseParameter.PROD
    if param.coeff and (product or len(param.coeff) != len(layer.bottom)):
        yield Refusal(
            "eltwise-coeff",
            "eltwise_param.coeff[0]",
            "has coeff for a product"
            if product
            else f"has {len(param.coeff)} coeff for {describe_count(len(layer.bottom), 'bottom')}",
            "Caffe aborts: Eltwise takes one coefficient per bottom, for sums only",
            "remove coeff, or operation: SUM" if product else f"give {len(layer.bottom)} coeff",
        )


def _eltwise_operations(found: LayerShapes, phase: int) -> Dim:
    return per_value(found, len(found.bottoms) - (0 if found.layer.eltwise_param.coeff else 1))


def _scale_fillers(layer: pb.LayerParameter) -> list[pb.FillerParameter]:
    """Return the filler of the factor, which is 1 if none is set, if it is learned, and of the bias."""
    param = layer.scale_param
    one = pb.FillerParameter(type="constant", value=1)
    factor = [param.filler if param.HasField("filler") else one] if len(layer.bottom) == 1 else []
    return [*factor, param.bias_filler]


TYPES = (
    LayerType("Axpy", shapes=_axpy, bottoms=(3, 3), operations=one_per_value),
    LayerType(
        "Eltwise",
        has_engine=True,
        shapes=_eltwise,
        bottoms=(2, MANY),
        refuses=(_check_eltwise,),
        is_elementwise=True,
        operations=_eltwise_operations,
        details=lambda layer: pb.EltwiseParameter.EltwiseOp.Name(layer.eltwise_param.operation),
        kind="join",
    ),
    LayerType(
        "Scale",
        shapes=_scale,
        bottoms=(1, 2),
        learned=2,
        fillers=_scale_fillers,
        blob_names=lambda layer: ("weight", "bias")[len(layer.bottom) - 1 :],
        in_place=True,
        is_never_label=True,
        operations=one_per_value,
    ),
    LayerType(
        "Bias",
        shapes=_bias,
        bottoms=(1, 2),
        learned=1,
        fillers=lambda layer: [layer.bias_param.filler],
        blob_names=lambda layer: ("bias",),
        in_place=True,
        is_elementwise=True,
        operations=one_per_value,
    ),
)
