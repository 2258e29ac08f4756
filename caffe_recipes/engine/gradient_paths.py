"""Which layers of a net get a gradient, and whether it can pass through them."""

from __future__ import annotations

from collections.abc import Sequence

from caffe_recipes.caffe.layer_types import bottoms_without_backward, type_of
from caffe_recipes.engine.nodes import LayerNode
from caffe_recipes.engine.operators.loss import OverwrittenLoss
from caffe_recipes.engine.operators.operator import layer_error


def find_overwritten(nodes: Sequence[LayerNode]) -> dict[int, OverwrittenLoss]:
    """Return the losses that also get a gradient from a later layer, by the index of their blob."""
    under_loss: set[int] = set()
    found: dict[int, OverwrittenLoss] = {}
    for node in reversed(nodes):
        for index, weight in node.weighted:
            if index in under_loss:
                found[index] = OverwrittenLoss(weight)
        if node.weighted or not under_loss.isdisjoint(node.tops):
            detached = node.detached or [False] * len(node.bottoms)
            under_loss |= {
                index for index, is_detached in zip(node.bottoms, detached, strict=True) if not is_detached
            }
    return found


def check_backward(nodes: Sequence[LayerNode]) -> None:
    """Raise InputError if a gradient must pass through a layer that has no backward pass."""
    needed: set[int] = set()
    backward: list[tuple[LayerNode, list[bool]]] = []
    for node in nodes:
        reached = [index in needed for index in node.bottoms]
        count = len(node.learned)
        rates = [spec.lr_mult for spec in node.param.param[:count]]
        if any(reached) or any(rates) or len(rates) < count:
            # A view of several bottoms passes each on, as Gather does with labels.
            is_exchange = len(reached) > 1 and type_of(node.param).is_view
            needed.update(top for i, top in enumerate(node.tops) if not is_exchange or reached[i])
            backward.append((node, list(node.param.propagate_down) or reached))
    under_loss: set[int] = set()
    for node, goes_down in reversed(backward):
        if not node.weighted and under_loss.isdisjoint(node.tops):
            continue
        closed = [b for b in bottoms_without_backward(node.param) if goes_down[b]]
        if closed:
            # Name the bottom by index: its name may be a Split layer's, which the user did not write.
            what = f"has no backward pass to bottom[{closed[0]}], but the loss needs its gradient"
            raise layer_error(node.param, what, "write propagate_down: false for this bottom")
        under_loss |= {index for index, is_down in zip(node.bottoms, goes_down, strict=True) if is_down}
