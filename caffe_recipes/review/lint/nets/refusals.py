"""Rules on what Caffe checks when it sets a layer up, and stops at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from caffe_recipes.caffe import pb
from caffe_recipes.review.findings import Severity
from caffe_recipes.review.lint.nets.view import Draft, NetView, number, title

RULES: dict[str, tuple[Severity, str]] = {
    "size-given-twice": ("error", "kernel_size, pad or stride given for both axes and for each"),
    "global-pooling-sized": ("error", "global_pooling with kernel_size, pad or stride"),
    "dropout-ratio": ("error", "dropout_ratio not between 0 and 1"),
    "eltwise-coeff": ("error", "coeff of Eltwise for a product, or not one for each bottom"),
    "loss-weight-count": ("error", "loss_weight not given once for each top"),
    "loss-weight-odd": ("warning", "loss_weight on a layer that is no loss"),
    "propagate-down-count": ("error", "propagate_down not given once for each bottom"),
}

_SPATIAL = {
    "Convolution": "convolution_param",
    "Deconvolution": "convolution_param",
    "Pooling": "pooling_param",
}
_NO_LOSS_WORDS = """
    Accuracy AnnotatedData ArgMax BatchNorm Concat Convolution Data Dropout HDF5Data ImageData
    InnerProduct LRN Pooling ReLU Silence Softmax
"""
_NO_LOSS = frozenset(_NO_LOSS_WORDS.split())


class Fault(NamedTuple):
    """What is wrong with a layer: the rule, the field, the text after the layer's title, and so on."""

    rule: str
    field: str
    what: str
    effect: str
    write: str


def check_refusals(view: NetView) -> Iterator[Draft]:
    """Check each layer of the file for what Caffe would stop at."""
    for index, layer in enumerate(view.net.layer):
        for check in (*_BY_TYPE.get(layer.type, ()), _loss_weight, _propagate_down):
            for fault in check(layer):
                what = f"{title(layer)} {fault.what}"
                yield Draft(fault.rule, index, fault.field, what, fault.effect, fault.write)


def _spatial(layer: pb.LayerParameter) -> Iterator[Fault]:
    block = _SPATIAL[layer.type]
    param = getattr(layer, block)
    for field in ("kernel_size", "pad", "stride"):
        stem = field.removesuffix("_size")
        axes = [name for name in (f"{stem}_h", f"{stem}_w") if param.HasField(name)]
        if getattr(param, field) and axes:
            yield Fault(
                "size-given-twice",
                f"{block}.{axes[0]}",
                f"has {field} and {' and '.join(axes)}",
                f"Caffe stops: either {field} or {stem}_h/w should be specified; not both",
                f"keep {field}, or {stem}_h and {stem}_w",
            )


def _pooling(layer: pb.LayerParameter) -> Iterator[Fault]:
    param = layer.pooling_param
    kernel = list(param.kernel_size) or [side for side in (param.kernel_h, param.kernel_w) if side]
    pad = list(param.pad) or [param.pad_h, param.pad_w]
    stride = list(param.stride) or [param.stride_h, param.stride_w]
    if param.global_pooling:
        wrong = [
            name
            for name, given in {
                "kernel_size": bool(kernel),
                "pad": any(pad),
                "stride": any(side != 1 for side in stride),
            }.items()
            if given
        ]
        if wrong:
            yield Fault(
                "global-pooling-sized",
                f"pooling_param.{wrong[0]}[0]",
                f"has global_pooling and {' and '.join(wrong)}",
                "Caffe stops: with global_pooling the kernel is the whole image, pad 0 and stride 1",
                f"take {' and '.join(wrong)} out, or global_pooling",
            )


def _dropout(layer: pb.LayerParameter) -> Iterator[Fault]:
    ratio = layer.dropout_param.dropout_ratio
    if not 0 < ratio < 1:
        yield Fault(
            "dropout-ratio",
            "dropout_param.dropout_ratio",
            f"has dropout_ratio {number(ratio)}, the share that is set to 0",
            "Caffe stops: Check failed: threshold",
            "dropout_ratio: 0.5" if ratio > 0 else "take the layer out",
        )


def _eltwise(layer: pb.LayerParameter) -> Iterator[Fault]:
    param = layer.eltwise_param
    product = param.operation == pb.EltwiseParameter.PROD
    if param.coeff and (product or len(param.coeff) != len(layer.bottom)):
        yield Fault(
            "eltwise-coeff",
            "eltwise_param.coeff[0]",
            "has coeff for a product"
            if product
            else f"has {len(param.coeff)} coeff for {len(layer.bottom)} bottoms",
            "Caffe stops: Eltwise takes one coefficient per bottom, for sums only",
            "take coeff out, or operation: SUM" if product else f"give {len(layer.bottom)} coeff",
        )


def _loss_weight(layer: pb.LayerParameter) -> Iterator[Fault]:
    # A loss without a top gets one by itself.
    tops = len(layer.top) or ("Loss" in layer.type)
    if layer.loss_weight and len(layer.loss_weight) != tops:
        yield Fault(
            "loss-weight-count",
            "loss_weight[0]",
            f"has {len(layer.loss_weight)} loss_weight and {int(tops)} tops",
            "Caffe stops: loss_weight must be unspecified or specified once per top blob",
            f"give {int(tops)}",
        )
    if layer.type in _NO_LOSS and any(layer.loss_weight):
        yield Fault(
            "loss-weight-odd",
            "loss_weight[0]",
            "has loss_weight and is no loss",
            "training minimizes the sum of all its values, or Caffe stops where it has no gradient",
            "give loss_weight to the loss",
        )


def _propagate_down(layer: pb.LayerParameter) -> Iterator[Fault]:
    count = len(layer.propagate_down)
    if count and count != len(layer.bottom):
        yield Fault(
            "propagate-down-count",
            "propagate_down[0]",
            f"has {count} propagate_down and {len(layer.bottom)} bottoms",
            "Caffe stops: propagate_down param must be specified either 0 or bottom_size times",
            "give one for each bottom",
        )


_BY_TYPE: dict[str, tuple[Callable[[pb.LayerParameter], Iterator[Fault]], ...]] = {
    "Convolution": (_spatial,),
    "Deconvolution": (_spatial,),
    "Dropout": (_dropout,),
    "Eltwise": (_eltwise,),
    "Pooling": (_spatial, _pooling),
}
