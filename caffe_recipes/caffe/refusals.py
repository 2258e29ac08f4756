"""Find settings at which Caffe aborts when it sets up a layer, from the layer alone.

`shapes.py` finds shapes that do not fit. Source: LayerSetUp of the layers, layer.hpp, layer_factory.cpp and
filler.hpp of Intel's and SURFsara's Caffe on CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.wording import describe_count

# Layers whose first top is a loss of weight 1 if loss_weight is not set. If there is no top, Caffe adds one.
IMPLICIT_LOSSES = frozenset(
    (
        "ContrastiveLoss",
        "EuclideanLoss",
        "HingeLoss",
        "InfogainLoss",
        "MultinomialLogisticLoss",
        "SigmoidCrossEntropyLoss",
        "SoftmaxWithLoss",
    )
)

# Losses without a default weight of 1, because their LayerSetUp does not call LossLayer's.
UNWEIGHTED = frozenset(("SmoothL1Loss", "SmoothL1LossOHEM"))

# Layers whose tops have the shape of their bottoms, and whose top may overwrite the bottom.
_IN_PLACE_WORDS = """
    BNLL BatchNorm Bias Clip Dropout ELU Exp Log MKLBatchNorm MVN MnActivation PReLU Power Python ReLU
    Scale Sigmoid Softmax Swish TanH Threshold
"""
IN_PLACE = frozenset(_IN_PLACE_WORDS.split())

# The bottoms that Caffe does not backpropagate to; -1 is the last one, and None means all.
_NO_BACKWARD: dict[str, tuple[int, ...] | None] = {
    "Accuracy": None,
    "ArgMax": None,
    "BatchReindex": (1,),
    "DetectionEvaluate": None,
    "DetectionOutput": None,
    "Embed": (0,),
    "Filter": (-1,),
    "HingeLoss": (1,),
    "InfogainLoss": (1, 2),
    "LSTM": (1,),
    "MultiBoxLoss": (2, 3),
    "MultinomialLogisticLoss": (1,),
    "RNN": (1,),
    "SigmoidCrossEntropyLoss": (1,),
    "SoftmaxWithLoss": (1,),
    "Threshold": None,
}

# The types that have an `engine`, and the block that contains it; other types ignore the field.
ENGINE_BLOCKS = {
    "BatchNorm": "batch_norm_param",
    "Concat": "concat_param",
    "Convolution": "convolution_param",
    "Deconvolution": "convolution_param",
    "Eltwise": "eltwise_param",
    "InnerProduct": "inner_product_param",
    "LRN": "lrn_param",
    "Pooling": "pooling_param",
    "ReLU": "relu_param",
    "Sigmoid": "sigmoid_param",
    "Softmax": "softmax_param",
    "Split": "split_param",
    "TanH": "tanh_param",
}
ENGINES = ("CAFFE", "CUDNN", "MKL2017", "MKLDNN")
_DEFAULT, _CUDNN = 0, 2  # in the Engine enum of each block that has these values

_WINDOWS = {
    "Convolution": "convolution_param",
    "Deconvolution": "convolution_param",
    "Im2col": "convolution_param",
    "Pooling": "pooling_param",
}

# The number of tops, for types with a fixed number.
_TOPS = {
    "ImageData": 2,
    "MemoryData": 2,
    "PSROIPooling": 1,
    "PriorBox": 1,
    "ROIPooling": 1,
    "WindowData": 2,
}


class Refusal(NamedTuple):
    """A setting at which Caffe aborts: the rule, the field, what is wrong, the effect, and what to write."""

    rule: str
    field: str
    what: str
    effect: str
    write: str


def bottoms_without_backward(layer: pb.LayerParameter) -> tuple[int, ...]:
    """Return the indexes of the bottoms that Caffe does not backpropagate to.

    >>> bottoms_without_backward(pb.LayerParameter(type="SoftmaxWithLoss", bottom=["scores", "label"]))
    (1,)
    >>> bottoms_without_backward(pb.LayerParameter(type="Filter"))
    ()
    """
    count = len(layer.bottom)
    closed = _NO_BACKWARD.get(layer.type, ())
    return tuple(range(count)) if closed is None else tuple(b % count for b in closed if -count <= b < count)


def find_refusals(layer: pb.LayerParameter, net_engine: str = "") -> Iterator[Refusal]:
    """Yield the settings of a layer at which Caffe aborts. `net_engine` is the `engine` of its net."""
    for check in (*_BY_TYPE.get(layer.type, ()), _check_bounds, _check_loss_weight, _check_propagate_down):
        yield from check(layer)
    yield from _check_numbers(layer, "")
    yield from _check_engine(layer, net_engine)


def find_filler_refusals(filler: pb.FillerParameter) -> Iterator[Refusal]:
    """Yield the settings at which Caffe aborts in a filler of a known type; `field` is one of its fields."""
    if filler.type == "gaussian" and not filler.std > 0:
        what = f"has a gaussian filler of std {filler.std:g}"
        yield Refusal("filler-range", "std", what, "Caffe aborts: Check failed: sigma > 0", "std: 0.01")
    if filler.type == "uniform" and not filler.min <= filler.max:
        what = f"has a uniform filler from {filler.min:g} to {filler.max:g}"
        yield Refusal("filler-range", "min", what, "Caffe aborts: Check failed: a <= b", "give min below max")
    if filler.type != "gaussian" and filler.sparse != -1:
        what = f"has a {filler.type} filler with sparse"
        effect = "Caffe aborts: Sparsity not supported by this Filler"
        yield Refusal("filler-sparse", "sparse", what, effect, 'remove it, or write type: "gaussian"')
    if filler.type == "gaussian" and filler.sparse < -1:
        what = f"has a gaussian filler of sparse {filler.sparse}"
        yield Refusal(
            "filler-sparse", "sparse", what, "Caffe aborts: Check failed: sparse >= -1", "sparse: 10"
        )


def _check_windows(layer: pb.LayerParameter) -> Iterator[Refusal]:
    block = _WINDOWS[layer.type]
    param = getattr(layer, block)
    for field in ("kernel_size", "pad", "stride"):
        stem = field.removesuffix("_size")
        axes = [name for name in (f"{stem}_h", f"{stem}_w") if param.HasField(name)]
        if getattr(param, field) and axes:
            yield Refusal(
                "size-given-twice",
                f"{block}.{axes[0]}",
                f"has {field} and {' and '.join(axes)}",
                f"Caffe aborts: either {field} or {stem}_h/w should be specified; not both",
                f"keep {field}, or {stem}_h and {stem}_w",
            )
        # A convolution reads a missing value as 0, which is valid only for pad.
        elif len(axes) == 1 and not (field == "pad" and layer.type != "Pooling"):
            other = f"{stem}_w" if axes[0].endswith("_h") else f"{stem}_h"
            yield Refusal(
                "size-half-given",
                f"{block}.{axes[0]}",
                f"has {axes[0]} but no {other}",
                f"Caffe aborts: both {stem}_h and {stem}_w are required",
                f"add {other}, or write {field}",
            )


def _check_pooling(layer: pb.LayerParameter) -> Iterator[Refusal]:
    param = layer.pooling_param
    kernel = param.kernel_size or param.HasField("kernel_h") or param.HasField("kernel_w")
    pad = list(param.pad) or [param.pad_h, param.pad_w]
    stride = list(param.stride) or [param.stride_h, param.stride_w]
    if param.global_pooling:
        given = {
            "kernel_size": bool(kernel),
            "pad": any(pad),
            "stride": any(side != 1 for side in stride),
        }
        wrong = [name for name, is_given in given.items() if is_given]
        if wrong:
            yield Refusal(
                "global-pooling-sized",
                f"pooling_param.{wrong[0]}[0]",
                f"has global_pooling and {' and '.join(wrong)}",
                "Caffe aborts: with global_pooling the kernel is the whole image, pad 0 and stride 1",
                f"remove {' and '.join(wrong)}, or global_pooling",
            )
    if param.pool == param.STOCHASTIC:
        yield Refusal(
            "pooling-stochastic",
            "pooling_param.pool",
            "has pool: STOCHASTIC",
            "Caffe aborts on CPUs: Not Implemented Yet",
            "pool: MAX or pool: AVE",
        )


def _check_dropout(layer: pb.LayerParameter) -> Iterator[Refusal]:
    ratio = layer.dropout_param.dropout_ratio
    if not 0 <= ratio < 1:
        yield Refusal(
            "dropout-ratio",
            "dropout_param.dropout_ratio",
            f"has dropout_ratio {ratio:.6g}, the share that is set to 0",
            "Caffe sets all values to 0 or to NaN",
            "dropout_ratio: 0.5" if ratio > 0 else "remove the layer",
        )


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


def _check_axis(layer: pb.LayerParameter) -> Iterator[Refusal]:
    block, old = ("slice_param", "slice_dim") if layer.type == "Slice" else ("concat_param", "concat_dim")
    param = getattr(layer, block)
    if param.HasField("axis") and param.HasField(old):
        yield Refusal(
            "axis-given-twice",
            f"{block}.{old}",
            f"has axis and {old}",
            f"Caffe aborts: either axis or {old} should be specified; not both",
            f"remove {old}",
        )


def _check_dummy_data(layer: pb.LayerParameter) -> Iterator[Refusal]:
    param = layer.dummy_data_param
    legacy = [name for name in ("num", "channels", "height", "width") if getattr(param, name)]
    if param.shape and legacy:
        yield Refusal(
            "size-given-twice",
            f"dummy_data_param.{legacy[0]}[0]",
            f"has shape and {', '.join(legacy)}",
            "Caffe aborts: Both shape and legacy fields were specified",
            f"remove {', '.join(legacy)}",
        )

    counts = {name: len(getattr(param, name)) for name in ("num", "channels", "height", "width")}
    counts = counts if legacy else {"shape": len(param.shape)}
    counts |= {"data_filler": len(param.data_filler)} if param.data_filler else {}
    wrong = next((name for name, count in counts.items() if count not in (1, len(layer.top))), None)
    if wrong and not (param.shape and legacy):
        yield Refusal(
            "dummy-shapes",
            f"dummy_data_param.{wrong}[0]",
            f"gives {wrong} {counts[wrong]} times for {len(layer.top)} tops",
            f"Caffe aborts: {wrong} must be given once, or once for each top",
            f"{wrong} once, or {len(layer.top)} times",
        )


def _check_infogain(layer: pb.LayerParameter) -> Iterator[Refusal]:
    if len(layer.bottom) == 2 and not layer.infogain_loss_param.source:
        yield Refusal(
            "infogain-source",
            "infogain_loss_param.source",
            "has neither a source nor a third bottom",
            "Caffe aborts: Infogain matrix source must be specified",
            'infogain_loss_param { source: "H.binaryproto" }',
        )


def _check_tops(layer: pb.LayerParameter) -> Iterator[Refusal]:
    """Check the number of tops of types for which `shapes.py` does not."""
    count = _TOPS[layer.type]
    if layer.top and len(layer.top) != count:
        yield Refusal(
            "tops-count",
            "top[0]",
            f"has {describe_count(len(layer.top), 'top')}, but its type makes {count}",
            "Caffe aborts when it sets up the layer, since it checks the number of tops",
            f"give it {describe_count(count, 'top')}",
        )


def _lacks_size(name: str, layer: pb.LayerParameter) -> bool:
    return not getattr(layer.memory_data_param, name)


class _Bound(NamedTuple):
    """A field with values at which Caffe aborts or computes nonsense; `is_wrong` detects them in a layer."""

    field: str
    is_wrong: Callable[[pb.LayerParameter], bool]
    effect: str
    write: str


_NO_LOGARITHM = "Caffe aborts: base must be strictly positive, and its logarithm neither 0 nor NaN"
_BOUNDS: dict[str, tuple[_Bound, ...]] = {
    "Accuracy": (
        _Bound(
            "accuracy_param.top_k",
            lambda layer: layer.accuracy_param.top_k == 0,
            "no label is among the best 0: the accuracy is always 0",
            "top_k: 1",
        ),
    ),
    "BatchNorm": (
        _Bound(
            "batch_norm_param.eps",
            lambda layer: layer.batch_norm_param.eps < 0,
            "Caffe takes the square root of a negative number, which is NaN",
            "eps: 1e-5",
        ),
    ),
    "Data": (
        _Bound(
            "data_param.prefetch",
            lambda layer: layer.data_param.prefetch == 0,
            "Caffe has no buffer to read a batch into, and waits forever",
            "leave it out",
        ),
    ),
    "Exp": (
        _Bound(
            "exp_param.base",
            lambda layer: layer.exp_param.base <= 0 and layer.exp_param.base != -1,
            _NO_LOGARITHM,
            "a base above 0, or -1 for e",
        ),
    ),
    "HDF5Data": (
        _Bound(
            "transform_param",
            lambda layer: layer.HasField("transform_param"),
            "Caffe aborts: HDF5Data does not transform data",
            "remove it, and transform the data in the files",
        ),
    ),
    "HDF5Output": (
        _Bound(
            "hdf5_output_param.file_name",
            lambda layer: not layer.hdf5_output_param.file_name,
            "Caffe aborts: Failed to open HDF5 file",
            'file_name: "scores.h5"',
        ),
    ),
    "LRN": (
        _Bound(
            "lrn_param.k",
            lambda layer: layer.lrn_param.k <= 0 and layer.lrn_param.norm_region == 0,
            "Caffe divides by a power of it where all channels are 0, which gives NaN",
            "k: 1",
        ),
        _Bound(
            "lrn_param.alpha",
            lambda layer: layer.lrn_param.alpha < 0,
            "Caffe takes a root of a number that may be negative, which gives NaN",
            "alpha: 0.0001",
        ),
    ),
    "Log": (
        _Bound(
            "log_param.base",
            lambda layer: (
                layer.log_param.base != -1 and (layer.log_param.base <= 0 or layer.log_param.base == 1)
            ),
            _NO_LOGARITHM,
            "a base above 0 that is not 1, or -1 for e",
        ),
        _Bound(
            "log_param.scale",
            lambda layer: layer.log_param.scale == 0 and layer.log_param.shift <= 0,
            "Caffe takes only logarithms of numbers that are not positive: all values are infinite or NaN",
            "scale: 1",
        ),
    ),
    "MemoryData": tuple(
        _Bound(
            f"memory_data_param.{name}",
            partial(_lacks_size, name),
            "Caffe aborts: batch_size, channels, height, and width must be specified and positive",
            f"{name}: the {name} of the data",
        )
        for name in ("channels", "height", "width")
    ),
    "SPP": (
        _Bound(
            "spp_param.pool",
            lambda layer: layer.spp_param.pool == pb.SPPParameter.STOCHASTIC,
            "Caffe aborts on CPUs: Not Implemented Yet",
            "pool: MAX or pool: AVE",
        ),
    ),
    "SoftmaxWithLoss": (
        _Bound(
            "loss_param.label_smoothing",
            lambda layer: not 0 <= layer.loss_param.label_smoothing < 1,
            "the true class gets a share of 0 or less, so the gradient points away from it",
            "label_smoothing: 0.1",
        ),
    ),
    "WindowData": (
        _Bound(
            "transform_param.crop_size",
            lambda layer: not layer.transform_param.crop_size,
            "Caffe aborts: Check failed: crop_size > 0",
            "transform_param { crop_size: 227 }",
        ),
        _Bound(
            "window_data_param.fg_fraction",
            lambda layer: not 0 <= layer.window_data_param.fg_fraction <= 1,
            "Caffe draws more images than fit in the batch, and writes past its end",
            "fg_fraction: 0.25",
        ),
        _Bound(
            "window_data_param.context_pad",
            lambda layer: 0 < layer.transform_param.crop_size <= 2 * layer.window_data_param.context_pad,
            "the padding leaves nothing of the window: Caffe divides by 0, or resizes to nothing",
            "context_pad: less than half of crop_size",
        ),
    ),
}


def _check_bounds(layer: pb.LayerParameter) -> Iterator[Refusal]:
    for bound in _BOUNDS.get(layer.type, ()):
        if bound.is_wrong(layer):
            block, _, name = bound.field.partition(".")
            value = getattr(getattr(layer, block), name) if name else ""
            shown = f" {value:g}" if isinstance(value, float) else f" {value}" if name else ""
            what = f"has no {name}" if name and value == "" else f"has {name or block}{shown}"
            yield Refusal("layer-value-refused", bound.field, what, bound.effect, bound.write)


_INT_MAX = 2**31 - 1
# Fields that Caffe does not convert to int.
_UNSIGNED = frozenset(("rand_skip",))


def _check_numbers(message: Message, path: str) -> Iterator[Refusal]:
    """Find numbers that are not finite, and integers that do not fit in Caffe's int."""
    for field, values in message.ListFields():
        for index, value in enumerate(values if field.is_repeated else (values,)):
            at = f"{path}{field.name}" + (f"[{index}]" if field.is_repeated else "")
            if isinstance(value, Message):
                yield from _check_numbers(value, f"{at}.")
            elif isinstance(value, float) and not math.isfinite(value):
                effect = "everything that is computed with it becomes NaN or infinite"
                yield Refusal("value-not-finite", at, f"has {field.name} {value}", effect, "a number")
            elif type(value) is int and value > _INT_MAX and field.name not in _UNSIGNED:
                effect = "Caffe stores it as a signed 32-bit integer, so it stops, or uses another number"
                write = f"{field.name}: at most {_INT_MAX}"
                yield Refusal("value-overflows", at, f"has {field.name} {value}", effect, write)


def _check_loss_weight(layer: pb.LayerParameter) -> Iterator[Refusal]:
    # Caffe adds a top to a loss that has none.
    tops = len(layer.top) or int("Loss" in layer.type)
    given = len(layer.loss_weight) or (layer.type in IMPLICIT_LOSSES and tops > 1)
    if given and given != tops:
        yield Refusal(
            "loss-weight-count",
            "loss_weight[0]" if layer.loss_weight else "top[1]",
            f"has {len(layer.loss_weight) or 'no'} loss_weight and {describe_count(tops, 'top')}",
            "Caffe aborts: loss_weight must be unspecified or specified once per top blob"
            + ("" if layer.loss_weight else ", and a loss without any gets one by default"),
            f"give {tops}" if layer.loss_weight or tops != 2 else "loss_weight: 1 loss_weight: 0",
        )


def _check_propagate_down(layer: pb.LayerParameter) -> Iterator[Refusal]:
    count = len(layer.propagate_down)
    if count and count != len(layer.bottom):
        yield Refusal(
            "propagate-down-count",
            "propagate_down[0]",
            f"has {count} propagate_down and {describe_count(len(layer.bottom), 'bottom')}",
            "Caffe aborts: propagate_down param must be specified either 0 or bottom_size times",
            "give one for each bottom",
        )


def _check_engine(layer: pb.LayerParameter, net_engine: str) -> Iterator[Refusal]:
    """Check the engine, which is that of the block, or else of the layer, or else of the net."""
    if layer.type not in ENGINE_BLOCKS:
        return
    block = ENGINE_BLOCKS[layer.type]
    own = getattr(layer, block).engine
    if own == _CUDNN:
        yield Refusal(
            "engine-unknown",
            f"{block}.engine",
            "has engine: CUDNN",
            f"Caffe aborts on CPUs: Layer {layer.name} has unknown engine",
            "engine: CAFFE, or remove it",
        )
    named = layer.engine or net_engine
    if own == _DEFAULT and named and named.partition(":")[0].strip().upper() not in ENGINES:
        yield Refusal(
            "engine-unknown",
            "engine" if layer.engine else "type",
            f"has engine '{named}'" + ("" if layer.engine else " of the net"),
            "Caffe aborts: the engine is unknown",
            f'engine: "CAFFE"; the engines are {", ".join(ENGINES)}',
        )


_BY_TYPE: dict[str, tuple[Callable[[pb.LayerParameter], Iterator[Refusal]], ...]] = {
    "Concat": (_check_axis,),
    "Convolution": (_check_windows,),
    "Deconvolution": (_check_windows,),
    "Dropout": (_check_dropout,),
    "DummyData": (_check_dummy_data,),
    "Eltwise": (_check_eltwise,),
    "Im2col": (_check_windows,),
    "InfogainLoss": (_check_infogain,),
    "Pooling": (_check_windows, _check_pooling),
    "Slice": (_check_axis,),
    **dict.fromkeys(_TOPS, (_check_tops,)),
}
