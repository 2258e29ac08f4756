"""What an operator is: the setup of a layer type, which returns the forward function of a layer.

A setup implements only the arithmetic: shapes come from `caffe.shapes`, and gradients from autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.dimensions import LayerShapes
from caffe_recipes.caffe.shapes import show_shape
from caffe_recipes.errors import InputError

TensorShape = tuple[int, ...]
Forward = Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]]
Overwriting = Callable[[Sequence[Tensor]], Tensor]  # computes the top into the first of its bottoms


@dataclass(frozen=True)
class TensorShapes:
    """The shapes of a layer's bottoms, tops and learned blobs."""

    bottoms: tuple[TensorShape, ...]
    tops: tuple[TensorShape, ...]
    learned: tuple[TensorShape, ...]


Setup = Callable[[pb.LayerParameter, TensorShapes], Forward]
SetupOverwriting = Callable[[pb.LayerParameter], Overwriting | None]  # None if the layer cannot


class LayerError(InputError):
    """Raised for a layer that the engine cannot run. `where` names the layer; the net adds its file."""


def layer_error(layer: pb.LayerParameter, what: str, hint: str = "") -> LayerError:
    """Return the error for a layer that the engine cannot run."""
    return LayerError(f"layer '{layer.name}' ({layer.type})", what, hint)


def require_known_shapes(shapes: LayerShapes) -> TensorShapes:
    """Return inferred shapes. Raises InputError unless all their dimensions are known and positive."""

    def known(shape: Sequence[int | None] | None) -> TensorShape:
        dims = tuple(dim for dim in shape or () if dim is not None and dim > 0)
        if shape is None or len(dims) != len(shape):
            raise layer_error(
                shapes.layer, f"has a blob {show_shape(None if shape is None else tuple(shape))}"
            )
        return dims

    learned = shapes.learned or ()
    return TensorShapes(*(tuple(map(known, of)) for of in (shapes.bottoms, shapes.tops, learned)))


def format_shape(shape: Sequence[int]) -> str:
    """Return a shape in the format of Caffe's log.

    >>> format_shape((32, 3, 28, 28)), format_shape(())
    ('32 3 28 28 (75264)', '(1)')
    """
    return " ".join([*map(str, shape), f"({math.prod(shape)})"])


class LabelError(Exception):
    """Raised for a label that is not a class, with its position in the batch and the number of classes."""

    def __init__(self, position: int, label: int, classes: int) -> None:
        super().__init__(position, label, classes)
        self.position, self.label, self.classes = position, label, classes


def class_indices(labels: Tensor, classes: int, ignored: int | None = None) -> Tensor:
    """Return labels as indices, with 0 for ignored ones. Raises LabelError if a label is not a class."""
    indices = labels.long()
    outside = (indices < 0) | (indices >= classes)
    if ignored is not None:
        outside &= indices != ignored
    if bool(outside.any()):
        position = int(outside.reshape(len(indices), -1).any(1).nonzero()[0])
        label = int(indices[outside].flatten()[0])
        raise LabelError(position, label, classes)
    return indices if ignored is None else torch.where(indices == ignored, 0, indices)
