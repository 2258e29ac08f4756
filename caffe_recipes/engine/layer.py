"""What a layer is to the engine: a setup that, given the shapes below it, builds its forward function.

A setup is Caffe's LayerSetUp and Reshape in one: it checks the parameters, names the shapes of the tops and
of the learned blobs, and returns a function of (bottoms, blobs). Gradients are autograd's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.errors import InputError

Shape = tuple[int, ...]
Forward = Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class Blob:
    """A learned blob before it is filled; statistics have no gradient."""

    shape: Shape
    filler: pb.FillerParameter
    has_gradient: bool = True


@dataclass(frozen=True)
class Layer:
    """A layer set up: the shapes of its tops, its forward function, and its learned blobs."""

    tops: list[Shape]
    forward: Forward
    blobs: tuple[Blob, ...] = ()


Setup = Callable[[pb.LayerParameter, list[Shape]], Layer]


def fault(layer: pb.LayerParameter, what: str, hint: str = "") -> InputError:
    """Make the error for a layer that cannot be set up; the net adds its file."""
    return InputError(f"layer '{layer.name}' ({layer.type})", what, hint)


def axis_of(layer: pb.LayerParameter, axis: int, shape: Shape) -> int:
    """Give an axis counted from the front; raises InputError where `shape` has no such axis."""
    if not -len(shape) <= axis < len(shape):
        raise fault(layer, f"axis {axis} is beyond its input, {show(shape)}")
    return axis % len(shape)


def need_bottoms(layer: pb.LayerParameter, bottoms: list[Shape], least: int, most: int | None = None) -> None:
    """Raise InputError unless there are between `least` and `most` bottoms (None: exactly `least`)."""
    most = least if most is None else most
    if not least <= len(bottoms) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise fault(layer, f"has {len(bottoms)} bottoms", f"give it {wanted}")


def show(shape: Sequence[int]) -> str:
    """Print a shape as Caffe does.

    >>> show((32, 3, 28, 28)), show(())
    ('32 3 28 28 (75264)', '(1)')
    """
    return " ".join([*map(str, shape), f"({math.prod(shape)})"])
