"""The order of wires that run side by side through one gap: as few crossings as can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from caffe_recipes.review.graph.routes import Blob

_ROOM = 6.0
_OVERLAP = 100
_FEW, _SOME = 6, 20


@dataclass(frozen=True)
class Span:
    """A wire's run through a gap: where it comes down into it, and where it goes on down, or up and out."""

    key: Blob
    above: tuple[float, ...]
    below: tuple[float, ...]

    @property
    def left(self) -> float:
        """Give its leftmost place."""
        return min(self.above + self.below)

    @property
    def right(self) -> float:
        """Give its rightmost place."""
        return max(self.above + self.below)


def assign_tracks(spans: Sequence[Span]) -> dict[Blob, int]:
    """Give each run its track, 0 uppermost; those that do not touch share one.

    >>> assign_tracks([Span((0, "a"), (0,), (40,)), Span((1, "b"), (30,), (70,))])
    {(1, 'b'): 0, (0, 'a'): 1}
    """
    order = _order(sorted(spans, key=lambda span: (span.left, span.right, span.key)))
    tracks: dict[Blob, int] = {}
    for index, span in enumerate(order):
        above = [tracks[other.key] for other in order[:index] if _touch(span, other)]
        tracks[span.key] = max(above, default=-1) + 1
    return tracks


def _order(spans: Sequence[Span]) -> Sequence[Span]:
    """Put spans in order, from above, with the fewest crossings: the best of few spans, else a good one."""
    if len(spans) > _SOME:
        return spans
    cost = {
        (upper.key, lower.key): _crossings(upper, lower)
        for upper in spans
        for lower in spans
        if upper is not lower
    }

    def crossings(order: Sequence[Span]) -> int:
        return sum(cost[upper.key, lower.key] for upper, lower in combinations(order, 2))

    if len(spans) <= _FEW:
        return min(permutations(spans), key=crossings)
    order: list[Span] = []
    for span in spans:
        places = [[*order[:index], span, *order[index:]] for index in range(len(order) + 1)]
        order = min(places, key=crossings)
    return order


def _touch(first: Span, second: Span) -> bool:
    return first.left < second.right + _ROOM and second.left < first.right + _ROOM


def _crossings(upper: Span, lower: Span) -> int:
    """Count the crossings if one runs above the other; a place that both would go through weighs most."""
    count = sum(upper.left < x < upper.right for x in lower.above)
    count += sum(lower.left < x < lower.right for x in upper.below)
    count += _OVERLAP * sum(abs(x - y) < _ROOM for x in lower.above for y in upper.below)
    return count
