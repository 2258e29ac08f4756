"""What a layer is to the engine: a setup that, given the layer and its shapes, makes its forward function.

Shapes are `caffe.shapes`' business, gradients are autograd's; a setup knows the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shapes import LayerShapes, show_shape
from caffe_recipes.errors import InputError

Shape = tuple[int, ...]
Forward = Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class Shapes:
    """The shapes of a layer's bottoms, tops and learned blobs."""

    bottoms: tuple[Shape, ...]
    tops: tuple[Shape, ...]
    learned: tuple[Shape, ...]


Setup = Callable[[pb.LayerParameter, Shapes], Forward]


def fault(layer: pb.LayerParameter, what: str, hint: str = "") -> InputError:
    """Make the error for a layer that the engine cannot run; the net adds its file."""
    return InputError(f"layer '{layer.name}' ({layer.type})", what, hint)


def known_shapes(shapes: LayerShapes) -> Shapes:
    """Take over inferred shapes, all of whose dimensions must be known and above 0; raises InputError."""

    def known(shape: Sequence[int | None] | None) -> Shape:
        dims = tuple(dim for dim in shape or () if dim is not None and dim > 0)
        if shape is None or len(dims) != len(shape):
            raise fault(shapes.layer, f"has a blob {show_shape(None if shape is None else tuple(shape))}")
        return dims

    learned = shapes.learned or ()
    return Shapes(*(tuple(map(known, of)) for of in (shapes.bottoms, shapes.tops, learned)))


def show(shape: Sequence[int]) -> str:
    """Print a shape as Caffe's log does.

    >>> show((32, 3, 28, 28)), show(())
    ('32 3 28 28 (75264)', '(1)')
    """
    return " ".join([*map(str, shape), f"({math.prod(shape)})"])
