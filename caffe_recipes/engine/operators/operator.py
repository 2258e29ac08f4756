"""What an operator is: the setup of a layer type, which returns the forward function of a layer.

A setup implements only the arithmetic: shapes come from `caffe.shapes`, and gradients from autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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


@dataclass
class BatchStatistics:
    """Whose images the statistics of a BatchNorm are of: this rank's, or with `sum` those of all `ranks`.

    `sum` adds a tensor up over the ranks, in place. While `is_recomputing`, a pass is computed once more for
    its gradient, and must not move the running statistics again.
    """

    ranks: int = 1
    sum: Callable[[Tensor], object] | None = None
    is_recomputing: bool = False

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """Compute a pass once more for its gradient."""
        self.is_recomputing = True
        try:
            yield
        finally:
            self.is_recomputing = False

    def combine(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the variance of all ranks, from those of this one."""
        if self.sum is None:
            return mean, variance
        moments = torch.stack([mean.double(), variance.double() + mean.double() ** 2])
        self.sum(moments)
        means, squares = moments / self.ranks
        return means.to(mean.dtype), (squares - means**2).clamp(min=0).to(variance.dtype)

    def total(self, *own: Tensor) -> Sequence[Tensor]:
        """Return the sums of tensors of one shape over all ranks."""
        if self.sum is None:
            return own
        stacked = torch.stack(own)
        self.sum(stacked)
        return list(stacked)


NO_RANKS = BatchStatistics()


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
            what = f"has a blob {show_shape(None if shape is None else tuple(shape))}"
            raise layer_error(shapes.layer, what, "check its sizes, and those of its bottoms")
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
