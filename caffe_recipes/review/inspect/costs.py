"""Count what each layer of a net costs, and the totals: parameters, statistics, arithmetic, activations.

Arithmetic is counted for one forward pass of a whole batch, in two kinds: multiply-adds with learned matrices
(convolutions, inner products, recurrent layers), which papers report and which take most of the time; and
other operations, one for each number that a layer adds, multiplies, compares or normalizes. Layer types that
are not listed (ReLU, Dropout, losses, ...) count as none. Adding a bias is not counted, because the bias is
the initial value of a sum that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.layer_types.dimensions import (
    Dim,
    LayerShapes,
    product,
    size_of,
    sum_counts,
    sum_sizes,
)
from caffe_recipes.caffe.layer_types.normalization import statistic_blobs, unlearned_blobs

if TYPE_CHECKING:
    from caffe_recipes.caffe.layer_types.dimensions import Shape
    from caffe_recipes.caffe.shapes import NetShapes

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class BlobCost:
    """A blob that a layer reads or produces; the shape is None if unknown."""

    name: str
    shape: Shape | None


@dataclass(frozen=True)
class LayerCount:
    """The costs of one layer for a whole batch; None if a shape that they depend on is unknown.

    `phase` is the only phase that includes the layer, empty if both do. `statistics` counts the numbers of a
    batch norm that its passes update, and no gradient: sums and their factor, or averages. `frozen` counts
    the `parameters` that nothing updates, as with lr_mult 0. Parameters that layers share by name are counted
    for the first of these layers; the others name it in `shares_with`. Activations are the tops in float32,
    except those that are computed in place or use the memory of their bottom (Flatten, Reshape, Split).
    `kernel` is as Caffe's summarize.py shows it.
    """

    name: str
    type: str
    phase: str
    bottoms: tuple[BlobCost, ...]
    tops: tuple[BlobCost, ...]
    in_place: bool
    parameters: Dim
    frozen: Dim
    statistics: Dim
    shares_with: str
    multiply_adds: Dim
    other_operations: Dim
    activation_bytes: Dim
    kernel: str


@dataclass(frozen=True)
class Totals:
    """Sums over the layers, leaving out unknown values; `unknown` names the layers that have any."""

    parameters: int
    frozen: int
    statistics: int
    multiply_adds: int
    other_operations: int
    activation_bytes: int
    unknown: tuple[str, ...]


def count_layers(shapes: NetShapes, phase: int, only_phases: Sequence[str]) -> tuple[LayerCount, ...]:
    """Return the costs of each layer in `phase`; `only_phases` has the only phase of each layer, or ''."""
    owners: dict[str, str] = {}
    return tuple(
        _count(layer, phase, only_phase, owners)
        for layer, only_phase in zip(shapes.layers, only_phases, strict=True)
    )


def total(counts: Iterable[LayerCount]) -> Totals:
    """Return the total costs of layers."""
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


def _count(found: LayerShapes, phase: int, only_phase: str, owners: dict[str, str]) -> LayerCount:
    layer, entry = found.layer, type_of(found.layer)
    own, shares_with = _split_shared_blobs(found, owners)
    parameters, frozen, statistics = _count_blobs(found, own)
    return LayerCount(
        layer.name,
        layer.type,
        only_phase,
        tuple(map(BlobCost, layer.bottom, found.bottoms)),
        tuple(map(BlobCost, layer.top, found.tops)),
        bool(layer.top) and set(layer.top) <= set(layer.bottom),
        parameters,
        frozen,
        statistics,
        shares_with,
        None if found.learned is None else entry.multiply_adds(found, phase),
        None if found.learned is None else entry.operations(found, phase),
        _activation_bytes(found),
        entry.kernel(layer),
    )


def _split_shared_blobs(found: LayerShapes, owners: dict[str, str]) -> tuple[list[int], str]:
    """Return the indices of the blobs that a layer owns, and the layer that it shares others with, or ''."""
    own, shares_with = [], ""
    for index in range(len(found.learned or ())):
        name = found.layer.param[index].name if index < len(found.layer.param) else ""
        if name and name in owners:
            shares_with = owners[name]
            continue
        if name:
            owners[name] = found.layer.name
        own.append(index)
    return own, shares_with


def _count_blobs(found: LayerShapes, own: Sequence[int]) -> tuple[Dim, Dim, Dim]:
    """Return how many numbers the blobs at the indices `own` have: parameters, frozen ones, statistics."""
    layer = found.layer
    if found.learned is None:
        return (0, 0, None) if layer.type == "BatchNorm" else (None, 0, 0)
    sizes = {index: size_of(found.learned[index]) for index in own}
    running, rates = statistic_blobs(layer), [spec.lr_mult for spec in layer.param]
    learned = [index for index in own if index not in running]
    unlearned = {*unlearned_blobs(layer), *(index for index, rate in enumerate(rates) if rate == 0)}
    return (
        sum_counts(sizes[index] for index in learned),
        sum_counts(sizes[index] for index in learned if index in unlearned),
        sum_counts(sizes[index] for index in own if index in running),
    )


def _activation_bytes(found: LayerShapes) -> Dim:
    layer = found.layer
    if type_of(layer).is_view:
        return 0
    made = [shape for name, shape in zip(layer.top, found.tops, strict=True) if name not in layer.bottom]
    return product([sum_sizes(made), _FLOAT_BYTES])
