"""The calls of a forward pass: which layers are computed together, in place, and when a blob is freed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.engine.nodes import LayerNode
from caffe_recipes.engine.operators import FRESH, OVERWRITING, STATEFUL
from caffe_recipes.engine.operators.elementwise import scales_channels
from caffe_recipes.engine.operators.operator import Overwriting, TensorShape


@dataclass
class Call:
    """A call in a forward pass: a node, or a BatchNorm fused with the Scale after it.

    `shapes`, if not empty, are the shapes to give the blobs, since a shared one has a different shape in its
    owner. `overwriting`, if given, computes the layer into the bottom at the place `overwritten`. After the
    call, nothing reads the blobs `spent`.
    """

    node: LayerNode
    tops: list[int]
    blobs: list[Tensor]
    weighted: list[tuple[int, float]]
    shapes: tuple[TensorShape, ...] = ()
    overwriting: Overwriting | None = None
    overwritten: int = 0
    spent: list[int] = field(default_factory=list)


def list_calls(nodes: Sequence[LayerNode]) -> list[Call]:
    """Return the calls of a forward pass, in order."""
    calls: list[Call] = []
    for node in nodes:
        before = calls[-1] if calls else None
        follows = before is not None and before.tops == node.bottoms
        is_norm = before is not None and before.node.param.type == "BatchNorm" and not before.shapes
        if before and follows and is_norm and _is_merged(node) and not any(node.detached):
            blobs = before.node.blobs + node.blobs
            calls[-1] = Call(before.node, node.tops, blobs, before.weighted + node.weighted)
        else:
            shapes = () if _has_own_shapes(node) else node.learned
            calls.append(Call(node, node.tops, node.blobs, node.weighted, shapes))
    makers = {index: call for call in calls for index in call.tops}
    for call in calls:
        _choose_overwriting(call, makers)
    for index, last in {index: call for call in calls for index in call.node.bottoms}.items():
        last.spent.append(index)
    return calls


def _choose_overwriting(call: Call, makers: dict[int, Call]) -> None:
    """Let a call overwrite a bottom that nothing else needs, if its layer can.

    No other layer reads it, since Split layers are inserted; it is a tensor of its own, which the layer that
    made it does not need for its gradient; and no loss is in it.
    """
    param = call.node.param
    if param.type not in OVERWRITING or any(call.node.detached):
        return
    for place, index in enumerate(call.node.bottoms):
        maker = makers[index]
        if maker.node.param.type in FRESH and not maker.weighted:
            call.overwriting, call.overwritten = OVERWRITING[param.type](param), place
            return


@dataclass(frozen=True)
class Segment:
    """Calls one after another. If `is_recomputed`, their blobs between `inputs` and `outputs` are not kept.

    `inputs` are the blobs that it reads from before, and `outputs` those that are used after it.
    """

    calls: Sequence[Call]
    is_recomputed: bool = False
    inputs: Sequence[int] = ()
    outputs: Sequence[int] = ()


def divide_calls(calls: Sequence[Call]) -> list[Segment]:
    """Return the calls in segments, most of them recomputed, about as many as each of these has calls.

    These end where few blobs are needed later, as after a residual block. Data, losses and layers that keep a
    state are not recomputed.
    """
    last = {index: place for place, call in enumerate(calls) for index in call.node.bottoms}
    return [_segment(part) if recomputed else Segment(part) for part, recomputed in _parts(calls, last)]


def computes_loss(call: Call) -> bool:
    """Return whether a call computes a loss."""
    return bool(call.weighted) or type_of(call.node.param).loss_weight is not None


def needs_float32(call: Call) -> bool:
    """Return whether a call gets float32 where others get bfloat16: losses, and results such as accuracy."""
    return computes_loss(call) or type_of(call.node.param).is_result


def _parts(calls: Sequence[Call], last: dict[int, int]) -> Iterator[tuple[list[Call], bool]]:
    """Yield the calls of each segment, and whether it is recomputed."""
    length = math.isqrt(len(calls)) + 1
    part: list[Call] = []
    needed: set[int] = set()  # blobs that a layer has computed, and one further on reads
    for place, call in enumerate(calls):
        if call.node.source is not None or computes_loss(call) or call.node.param.type in STATEFUL:
            if part:
                yield part, True
            yield [call], False
            part = []
            continue
        part.append(call)
        needed = {index for index in needed.union(call.tops) if last.get(index, -1) > place}
        if len(part) >= 3 * length or (len(part) >= length and len(needed) <= 1):
            yield part, True
            part = []
    if part:
        yield part, True


def _segment(calls: list[Call]) -> Segment:
    """Return calls as a segment that is recomputed, and so does not overwrite what it reads."""
    made = {index for call in calls for index in call.tops}
    inputs = {index for call in calls for index in call.node.bottoms if index not in made}
    within = {index for call in calls for index in call.spent}
    for call in calls:
        if call.overwriting and call.node.bottoms[call.overwritten] in inputs:
            call.overwriting = None
    return Segment(calls, True, sorted(inputs), sorted(made - within))


def _has_own_shapes(node: LayerNode) -> bool:
    """Return whether all blobs have the shapes that the layer expects; a shared one may not."""
    return all(tuple(blob.shape) == shape for blob, shape in zip(node.blobs, node.learned, strict=True))


def _is_merged(node: LayerNode) -> bool:
    """Return whether a layer can be fused with the BatchNorm before it."""
    return scales_channels(node.param) and _has_own_shapes(node)
