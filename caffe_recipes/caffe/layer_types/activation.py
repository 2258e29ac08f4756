"""Functions of single values: activations, powers and logarithms, dropout; and softmax."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.dimensions import SCALAR, Shapes, canonical_axis
from caffe_recipes.caffe.layer_types.entry import (
    Bound,
    LayerType,
    Refusal,
    Result,
    keep_shape,
    one_per_value,
)


def _prelu(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    channels = bottoms[0][canonical_axis(bottoms[0], 1)]
    return [bottoms[0]], [SCALAR if layer.prelu_param.channel_shared else (channels,)]


def _softmax(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    canonical_axis(bottoms[0], layer.softmax_param.axis)
    return [bottoms[0]], []


def _check_dropout(layer: pb.LayerParameter) -> Iterator[Refusal]:
    ratio = layer.dropout_param.dropout_ratio
    if not 0 <= ratio < 1:
        yield Refusal(
            "dropout-ratio",
            "dropout_param.dropout_ratio",
            f"has dropout_ratio {ratio:.6g}, the share that is set to 0",
            "Caffe sets all values to 0 or to NaN",
            "write dropout_ratio: 0.5" if ratio > 0 else "remove the layer",
        )


def _prelu_fillers(layer: pb.LayerParameter) -> list[pb.FillerParameter]:
    quarter = pb.FillerParameter(type="constant", value=0.25)
    return [layer.prelu_param.filler if layer.prelu_param.HasField("filler") else quarter]


_NO_LOGARITHM = "Caffe aborts: base must be strictly positive, and its logarithm neither 0 nor NaN"
_pointwise = partial(LayerType, shapes=keep_shape, in_place=True, is_elementwise=True)

TYPES = (
    _pointwise("AbsVal", in_place=False),
    _pointwise("BNLL", loses_bottom=lambda layer: True),
    _pointwise("Clip"),
    _pointwise(
        "Dropout",
        refuses=(_check_dropout,),
        is_never_loss=True,
        keeps_zero=True,
        is_never_label=True,
        details=lambda layer: f"{layer.dropout_param.dropout_ratio:.3g}",
    ),
    _pointwise(
        "ELU",
        backward_reads_top=True,
        loses_bottom=lambda layer: layer.elu_param.alpha < 0,  # which flips the sign that is tested
        is_never_label=True,
    ),
    _pointwise(
        "Exp",
        refuses=(
            Bound(
                "exp_param.base",
                lambda layer: layer.exp_param.base <= 0 and layer.exp_param.base != -1,
                _NO_LOGARITHM,
                "give a base above 0, or -1 for e",
            ),
        ),
        zeroing_fields=("exp_param.scale",),
        backward_reads_top=True,
    ),
    _pointwise(
        "Log",
        refuses=(
            Bound(
                "log_param.base",
                lambda layer: (
                    layer.log_param.base != -1 and (layer.log_param.base <= 0 or layer.log_param.base == 1)
                ),
                _NO_LOGARITHM,
                "give a base above 0 that is not 1, or -1 for e",
            ),
            Bound(
                "log_param.scale",
                lambda layer: layer.log_param.scale == 0 and layer.log_param.shift <= 0,
                "Caffe takes only logarithms of numbers that are not positive: all values are infinite "
                "or NaN",
                "write scale: 1",
            ),
        ),
        zeroing_fields=("log_param.scale",),
        loses_bottom=lambda layer: True,
    ),
    LayerType("LogSoftmax", is_run=False, keeps_order=True),
    LayerType("MnActivation", is_run=False, in_place=True),
    _pointwise(
        "PReLU",
        shapes=_prelu,
        learned=1,
        fillers=_prelu_fillers,
        keeps_zero=True,
        is_never_label=True,
        operations=one_per_value,
    ),
    _pointwise(
        "Power", zeroing_fields=("power_param.power", "power_param.scale"), loses_bottom=lambda layer: True
    ),
    _pointwise(
        "ReLU",
        has_engine=True,
        loses_bottom=lambda layer: layer.relu_param.negative_slope < 0,  # as for ELU
        is_never_loss=True,
        keeps_zero=True,
    ),
    _pointwise("ReLU6", keeps_zero=True),
    _pointwise("Sigmoid", has_engine=True, backward_reads_top=True, is_never_label=True, is_result=True),
    LayerType(
        "Softmax",
        has_engine=True,
        shapes=_softmax,
        in_place=True,
        backward_reads_top=True,
        is_never_loss=True,
        keeps_order=True,
        is_never_label=True,
        is_result=True,
    ),
    _pointwise(
        "SpatialDropout",
        blocks=("dropout_param",),
        refuses=(_check_dropout,),
        in_place=False,
        keeps_zero=True,
    ),
    _pointwise("Swish", in_place=False),
    _pointwise("TanH", has_engine=True, backward_reads_top=True, is_never_label=True),
    _pointwise("Threshold", no_backward=None, is_elementwise=False),
)
