"""Which `*_param` block belongs to which layer types: what of a layer Caffe never reads."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping

from caffe_recipes.caffe import pb
from caffe_recipes.review.lint.nets.view import SOURCE_BLOCKS

# Blocks that any layer may have: they are for the engine, or for MLSL.
_OF_ANY = frozenset(("mn_activation_param", "mn_grad_compress_param", "quantization_param"))

# Where the name of the block is not the name of one type.
_TYPES = {
    "argmax_param": "ArgMax",
    "batch_norm_param": "BatchNorm MKLBatchNorm",
    "convolution_param": "Convolution Deconvolution Im2col",
    "data_param": "AnnotatedData Data VideoData",
    "dropout_param": "Dropout SpatialDropout",
    "infogain_loss_param": "InfogainLoss",
    "norm_param": "Normalize",
    "recurrent_param": "LSTM RNN",
    "sigmoid_param": "Sigmoid SigmoidCrossEntropyLoss",
    "smooth_l1_loss_param": "SmoothL1Loss SmoothL1LossOHEM",
    "softmax_param": "InfogainLoss Softmax SoftmaxWithLoss SoftmaxWithLossOHEM",
    "transform_param": " ".join(sorted(set(SOURCE_BLOCKS) - {"HDF5Data"})),
}


def readers_of(block: str, types: Iterable[str]) -> frozenset[str] | None:
    """Give the layer types that read a block of LayerParameter; None if any may, or it is not known.

    >>> sorted(readers_of("inner_product_param", ["InnerProduct", "ReLU"]))
    ['InnerProduct']
    """
    if block in _OF_ANY:
        return None
    if block == "loss_param":
        return frozenset(name for name in types if "Loss" in name)
    if block in _TYPES:
        return frozenset(_TYPES[block].split())
    stem = block.removesuffix("_param").replace("_", "")
    return frozenset(name for name in types if name.lower() == stem) or None


@functools.cache
def block_readers(types: frozenset[str]) -> Mapping[str, frozenset[str]]:
    """Give for each `*_param` block the types that read it, for blocks that not any type may have."""
    names = (field.name for field in pb.LayerParameter.DESCRIPTOR.fields if field.message_type)
    found = {name: readers_of(name, types) for name in names if name.endswith("_param")}
    return {name: readers for name, readers in found.items() if readers is not None}


def filler_fields(layer: pb.LayerParameter) -> Iterator[tuple[str, pb.FillerParameter]]:
    """Yield each filler of a layer with its path (`convolution_param.weight_filler`)."""
    for block, value in layer.ListFields():
        if block.message_type is None or not block.name.endswith("_param"):
            continue
        for field, filler in value.ListFields():
            if field.message_type is not pb.FillerParameter.DESCRIPTOR:
                continue
            path = f"{block.name}.{field.name}"
            if isinstance(filler, pb.FillerParameter):
                yield path, filler
            else:
                yield from ((f"{path}[{i}]", each) for i, each in enumerate(filler))
