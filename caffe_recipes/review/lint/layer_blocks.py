"""The layer types that read each `*_param` block, and the fillers in these blocks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types import reads_block

if TYPE_CHECKING:
    from caffe_recipes.review.lint.net_view import NetView


# Blocks that the engine or MLSL reads, which any layer may have.
_ANY_TYPE_BLOCKS = frozenset(("mn_activation_param", "mn_grad_compress_param", "quantization_param"))
# Types that read `loss_param` in BVLC's and NVIDIA's Caffe, but not in Intel's.
_BVLC_LOSS_READERS = frozenset(("InfogainLoss", "SigmoidCrossEntropyLoss"))
_INTEL_ONLY_TYPE = "MKLBatchNorm"  # identifies Intel's Caffe


def readers_of(block: str, types: Iterable[str]) -> frozenset[str] | None:
    """Return the layer types that read a block of LayerParameter; None if any type may, or if unknown.

    >>> sorted(readers_of("inner_product_param", ["InnerProduct", "ReLU"]))
    ['InnerProduct']
    """
    if block in _ANY_TYPE_BLOCKS:
        return None
    readers = {name for name in types if reads_block(name, block)}
    if block == "loss_param" and _INTEL_ONLY_TYPE not in types:
        readers |= _BVLC_LOSS_READERS.intersection(types)
    return frozenset(readers) or None


@functools.cache
def block_readers(types: frozenset[str]) -> Mapping[str, frozenset[str]]:
    """Return the types that read each `*_param` block, except for blocks that any type may have."""
    names = (field.name for field in pb.LayerParameter.DESCRIPTOR.fields if field.message_type)
    found = {name: readers_of(name, types) for name in names if name.endswith("_param")}
    return {name: readers for name, readers in found.items() if readers is not None}


def filler_fields(layer: pb.LayerParameter) -> Iterator[tuple[str, pb.FillerParameter]]:
    """Yield each filler of a layer with its path, such as `convolution_param.weight_filler`."""
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


# The fields that each filler reads; the `scale` of msra is Intel's.
FILLERS = {
    "bilinear": (),
    "constant": ("value",),
    "gaussian": ("mean", "std", "sparse"),
    "msra": ("variance_norm", "scale"),
    "positive_unitball": (),
    "uniform": ("min", "max"),
    "xavier": ("variance_norm",),
}


def is_filler_used(view: NetView, layer: pb.LayerParameter, path: str) -> bool:
    """Return whether Caffe uses a filler: the layer's type reads its block, and its blob exists."""
    block, _, field = path.partition(".")
    is_read = layer.type in block_readers(view.dialect.layer_types).get(block, frozenset((layer.type,)))
    return is_read and (field != "bias_filler" or getattr(getattr(layer, block), "bias_term", True))


LINEAR_BLOCKS = {"Convolution": "convolution_param", "InnerProduct": "inner_product_param"}
