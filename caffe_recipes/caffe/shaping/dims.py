"""Shapes with dimensions that may be unknown, and Caffe's arithmetic of them.

A dimension that is not known (the channels of an LMDB that nobody has opened) is None, and fits any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Dim = int | None
Shape = tuple[Dim, ...]
Shapes = Sequence[Shape]
Result = tuple[Shapes, Shapes]

SCALAR: Shape = ()


class MisfitError(Exception):
    """Why a layer cannot take its bottoms; the caller adds the layer's name and the bottoms' shapes."""


def conv_size(size: Dim, kernel: int, stride: int, pad: int, dilation: int = 1) -> Dim:
    """Give the output size of a convolution along one axis; rounded down.

    >>> conv_size(224, kernel=7, stride=2, pad=3)
    112
    """
    if size is None:
        return None
    span = size + 2 * pad - (dilation * (kernel - 1) + 1)
    if span < 0:
        spread = (
            f" and dilation {dilation}, together {dilation * (kernel - 1) + 1} wide" if dilation > 1 else ""
        )
        raise MisfitError(f"has kernel_size {kernel}{spread}, larger than its padded input")
    return span // stride + 1


def pool_size(size: Dim, kernel: int, stride: int, pad: int) -> Dim:
    """Give the output size of a pooling along one axis; rounded up, without windows beyond the padded input.

    >>> pool_size(112, kernel=3, stride=2, pad=0), pool_size(112, kernel=3, stride=2, pad=1)
    (56, 57)
    """
    if size is None:
        return None
    span = size + 2 * pad - kernel
    if span < 0:
        raise MisfitError(f"has kernel_size {kernel}, larger than its padded input")
    count = -(-span // stride) + 1
    return count - 1 if (count - 1) * stride >= size + pad else count


def product(dims: Iterable[Dim]) -> Dim:
    """Multiply dimensions; unknown if one of them is."""
    known = list(dims)
    return None if None in known else math.prod(dim for dim in known if dim is not None)


def merge(shapes: Shapes) -> Shape:
    """Give the one shape that all of `shapes` are, filling in unknown dimensions."""
    if len({len(shape) for shape in shapes}) > 1:
        raise MisfitError("needs bottoms of one shape")
    merged = []
    for dims in zip(*shapes, strict=True):
        known = {dim for dim in dims if dim is not None}
        if len(known) > 1:
            raise MisfitError("needs bottoms of one shape")
        merged.append(known.pop() if known else None)
    return tuple(merged)


def canonical_axis(shape: Shape, axis: int) -> int:
    """Give the index of an axis that may count from the end."""
    if not -len(shape) <= axis < len(shape):
        raise MisfitError(f"has axis {axis}, which its bottom lacks")
    return axis % len(shape)
