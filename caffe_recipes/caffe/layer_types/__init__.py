"""The layer types of all Caffes, by family: the entry of a type holds all that is known of it.

A new type is an entry in `TYPES` of its family's module; `engine/operators/` has the same families. What the
schema says (blocks, fields, defaults, V1 names) is asked of its descriptor.

A layer may be of the schema of all Caffes: fields that only another Caffe has are read with `getattr`.

Source: LayerSetUp of the layers, layer.hpp, layer_factory.cpp and filler.hpp of Intel's and SURFsara's Caffe
on CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types import (
    activation,
    convolution,
    data,
    detection,
    elementwise,
    inner_product,
    loss,
    normalization,
    pooling,
    recurrent,
    shape,
)
from caffe_recipes.caffe.layer_types.entry import LayerType, own_block

FAMILIES = (
    activation,
    convolution,
    data,
    detection,
    elementwise,
    inner_product,
    loss,
    normalization,
    pooling,
    recurrent,
    shape,
)

LAYER_TYPES: Mapping[str, LayerType] = MappingProxyType(
    {entry.name: entry for family in FAMILIES for entry in family.TYPES}
)
_UNKNOWN = LayerType("")


def find_layer_type(name: str) -> LayerType:
    """Return the entry of a layer type; for an unknown one, an entry in which nothing is known."""
    return LAYER_TYPES.get(name, _UNKNOWN)


def type_of(layer: pb.LayerParameter) -> LayerType:
    """Return the entry of a layer's type, as `find_layer_type` does.

    >>> type_of(pb.LayerParameter(type="Deconvolution")).block, type_of(pb.LayerParameter(type="X")).in_place
    ('convolution_param', False)
    """
    return find_layer_type(layer.type)


def reads_block(name: str, block: str) -> bool:
    """Return whether layers of a type read a block: that with the type's name, or another.

    >>> reads_block("Deconvolution", "convolution_param"), reads_block("ReLU", "convolution_param")
    (True, False)
    """
    return block == own_block(name) or block in find_layer_type(name).blocks


def bottoms_without_backward(layer: pb.LayerParameter) -> tuple[int, ...]:
    """Return the indexes of the bottoms that Caffe does not backpropagate to.

    >>> bottoms_without_backward(pb.LayerParameter(type="SoftmaxWithLoss", bottom=["scores", "label"]))
    (1,)
    >>> bottoms_without_backward(pb.LayerParameter(type="Filter"))
    ()
    """
    count, closed = len(layer.bottom), type_of(layer).no_backward
    return tuple(range(count)) if closed is None else tuple(b % count for b in closed if -count <= b < count)
