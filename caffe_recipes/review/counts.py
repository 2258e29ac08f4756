"""What each layer of a net costs: learned parameters, statistics, arithmetic, activations; and the totals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shapes import LayerShapes, NetShapes
from caffe_recipes.caffe.shaping.dims import Dim, Shape
from caffe_recipes.review.operations import add_up, multiply_adds, other_operations, size_of

_FLOAT_BYTES = 4

# Their top is their bottom's memory under another shape or name.
_VIEWS = {"Flatten", "Reshape", "Split"}


@dataclass(frozen=True)
class Blob:
    """A blob as one layer reads or makes it; the shape is None where it is unknown."""

    name: str
    shape: Shape | None


@dataclass(frozen=True)
class LayerCount:
    """What one layer costs, for a whole batch; None where a shape that it takes to know is unknown.

    `phase` is the one phase that has the layer, empty if both do. `statistics` are the numbers of a
    BatchNorm: its sums and its factor, which no gradient moves. `frozen` are those of `parameters` that have
    lr_mult 0. Parameters that layers share by name belong to the first of them, which the others name in
    `shares_with`. Activations are the tops in float32, but not those that are made in place or are their
    bottom's memory (Flatten, Reshape, Split).
    """

    name: str
    type: str
    phase: str
    bottoms: tuple[Blob, ...]
    tops: tuple[Blob, ...]
    in_place: bool
    parameters: Dim
    frozen: Dim
    statistics: Dim
    shares_with: str
    multiply_adds: Dim
    other_operations: Dim
    activation_bytes: Dim


@dataclass(frozen=True)
class Totals:
    """Sums over the layers; a sum leaves out what is unknown, and `unknown` names the layers concerned."""

    parameters: int
    frozen: int
    statistics: int
    multiply_adds: int
    other_operations: int
    activation_bytes: int
    unknown: tuple[str, ...]


def count_layers(shapes: NetShapes, phase: int, only: Sequence[str]) -> tuple[LayerCount, ...]:
    """Count each layer of a net as it stands in `phase`; `only` is each layer's one phase, or empty."""
    owners: dict[str, str] = {}
    return tuple(
        _count(layer, phase, where, owners) for layer, where in zip(shapes.layers, only, strict=True)
    )


def total(counts: Iterable[LayerCount]) -> Totals:
    """Add up what layers cost."""
    layers = list(counts)

    def known(values: Iterable[Dim]) -> int:
        return sum(value for value in values if value is not None)

    return Totals(
        known(layer.parameters for layer in layers),
        known(layer.frozen for layer in layers),
        known(layer.statistics for layer in layers),
        known(layer.multiply_adds for layer in layers),
        known(layer.other_operations for layer in layers),
        known(layer.activation_bytes for layer in layers),
        tuple(layer.name for layer in layers if _is_unknown(layer)),
    )


def _is_unknown(layer: LayerCount) -> bool:
    return None in (layer.parameters, layer.multiply_adds, layer.other_operations, layer.activation_bytes)


def _count(found: LayerShapes, phase: int, only: str, owners: dict[str, str]) -> LayerCount:
    layer = found.layer
    own, shared, shares_with = _own_blobs(found, owners)
    sizes = [None] if found.learned is None else [size_of(found.learned[index]) for index in own]
    is_statistic = layer.type == "BatchNorm"
    learned = 0 if is_statistic else add_up(sizes)
    frozen: Dim = 0
    if not is_statistic and found.learned is not None:
        frozen = add_up(size_of(found.learned[index]) for index in own if _is_frozen(layer, index))
    return LayerCount(
        layer.name,
        layer.type,
        only,
        tuple(map(Blob, layer.bottom, found.bottoms)),
        tuple(map(Blob, layer.top, found.tops)),
        bool(layer.top) and set(layer.top) <= set(layer.bottom),
        learned,
        frozen,
        add_up(sizes) if is_statistic else 0,
        shares_with if shared else "",
        multiply_adds(found),
        other_operations(found, phase),
        _activation_bytes(found),
    )


def _own_blobs(found: LayerShapes, owners: dict[str, str]) -> tuple[list[int], bool, str]:
    """Give the blobs that no layer above owns under the same `param` name, and who owns the others."""
    own, shares_with = [], ""
    for index in range(len(found.learned or ())):
        name = found.layer.param[index].name if index < len(found.layer.param) else ""
        if name and name in owners:
            shares_with = owners[name]
            continue
        if name:
            owners[name] = found.layer.name
        own.append(index)
    return own, bool(shares_with), shares_with


def _is_frozen(layer: pb.LayerParameter, index: int) -> bool:
    return index < len(layer.param) and layer.param[index].lr_mult == 0


def _activation_bytes(found: LayerShapes) -> Dim:
    layer = found.layer
    if layer.type in _VIEWS:
        return 0
    made = [shape for name, shape in zip(layer.top, found.tops, strict=True) if name not in layer.bottom]
    count = add_up(size_of(shape) for shape in made)
    return None if count is None else _FLOAT_BYTES * count
