"""Dimensions and shapes of blobs, for the shape rules of layer types and for those who count.

An unknown dimension (such as the channels of an LMDB that is not on this machine) is None and fits any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from caffe_recipes.caffe import pb

Dim = int | None
Shape = tuple[Dim, ...]
Shapes = Sequence[Shape]
Image = tuple[Dim, Dim, Dim]
Images = Callable[[str], Image | None]

SCALAR: Shape = ()

MAX_AXES = 32  # kMaxBlobAxes; Caffe aborts at a blob with more
_MAX_COUNT = 2**63 - 1  # LONG_MAX, Intel's limit; lint reports blobs over INT_MAX, BVLC's


class MisfitError(Exception):
    """A layer cannot take its bottoms; the caller adds the layer's name and the bottoms' shapes."""


@dataclass(frozen=True, slots=True)
class LayerShapes:
    """A layer with its shapes, which are None if its type has no rule or if a bottom's shape is None."""

    layer: pb.LayerParameter
    bottoms: tuple[Shape | None, ...]
    tops: tuple[Shape | None, ...]
    learned: tuple[Shape, ...] | None

    @property
    def weights(self) -> Shape:
        """The shape of the first learned blob; empty if there is none."""
        return self.learned[0] if self.learned else ()


def product(dims: Iterable[Dim]) -> Dim:
    """Return the product of dimensions; None if one of them is unknown."""
    known = list(dims)
    return None if None in known else math.prod(dim for dim in known if dim is not None)


def sum_counts(counts: Iterable[Dim]) -> Dim:
    """Return the sum of counts; None if one of them is None."""
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)


def size_of(shape: Shape | None) -> Dim:
    """Return the number of elements of a blob; None if its shape is unknown."""
    return None if shape is None else product(shape)


def sum_sizes(shapes: Iterable[Shape | None]) -> Dim:
    """Return the number of elements of several blobs; None if one of their shapes is unknown."""
    return sum_counts(map(size_of, shapes))


def check_size(shape: Shape) -> None:
    """Raise MisfitError for a blob that Caffe refuses for its size.

    Multiplying more axes could take arbitrarily long. An unknown dimension counts as 1.

    >>> check_size((2**62, None, 2))
    Traceback (most recent call last):
    caffe_recipes.caffe.layer_types.dimensions.MisfitError: has a blob of over 2^63-1 numbers
    """
    if len(shape) > MAX_AXES:
        raise MisfitError(f"has a blob of {len(shape):,} axes, more than Caffe's {MAX_AXES}")
    if abs(product(dim for dim in shape if dim is not None) or 0) > _MAX_COUNT:
        raise MisfitError("has a blob of over 2^63-1 numbers")


def merge(shapes: Shapes) -> Shape:
    """Return the common shape, with unknown dimensions filled in. Raises MisfitError if shapes differ."""
    if len({len(shape) for shape in shapes}) > 1:
        raise MisfitError("needs bottoms of the same shape")
    merged = []
    for dims in zip(*shapes, strict=True):
        known = {dim for dim in dims if dim is not None}
        if len(known) > 1:
            raise MisfitError("needs bottoms of the same shape")
        merged.append(known.pop() if known else None)
    return tuple(merged)


def describe_lack(param: Message, field: str) -> str:
    """Return the words for a number that must be set and positive but is not.

    >>> describe_lack(pb.TileParameter(tiles=0), "tiles"), describe_lack(pb.TileParameter(), "tiles")
    ('has tiles 0', 'has no tiles')
    """
    return f"has {field} 0" if param.HasField(field) else f"has no {field}"


def require(param: Message, field: str) -> None:
    """Raise MisfitError for a number that is not set, or 0."""
    if not getattr(param, field):
        raise MisfitError(describe_lack(param, field))


def canonical_axis(shape: Shape, axis: int) -> int:
    """Return the index, from 0, of an axis that may be counted from the end. Raises MisfitError."""
    if not -len(shape) <= axis < len(shape):
        raise MisfitError(f"has axis {axis}, which its bottom does not have")
    return axis % len(shape)
