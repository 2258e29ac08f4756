"""Route the wires between the boxes of one column of a picture.

A gap is below a row, gap -1 above row 0. No box is in a gap, so wires turn only there. The wires of one blob
run together from its box and part where they must. Wires in a gap are ordered to cross as little as possible.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import combinations, count, islice, permutations
from typing import TYPE_CHECKING

from caffe_recipes.review.graph.placement import Cell

if TYPE_CHECKING:
    from caffe_recipes.review.graph.boxes import Edge


BoxedBlob = tuple[int, str]

_BESIDE = 11.0  # from a box to the first wire beside it
_TRACK = 8.0  # between parallel wires
_ASIDE = 12.0  # shift of a wire that would meet another
_CLEAR = 6.0  # from a wire to boxes and to wires of other blobs
_TURN = 0.5  # rows from a row to the gap below it
_FAR = 1e6  # an x beyond all columns
_MOST_PLACES = 64  # that are tried for a wire
_BESIDE_A_LANE = 3  # wires that fit between two lanes


@dataclass(frozen=True)
class Hop:
    """A turn of a wire: in this gap, it goes sideways to `x`."""

    gap: int
    x: float


@dataclass(frozen=True)
class Route:
    """A wire from `start` to a box: its turns, then down to the box's top, or in from the `side` (-1 or 1).

    `source` is the box at its start, in this column or one to the left; `row` is its row, -1 if to the left.
    """

    source: int
    target: int
    blob: str
    start: float
    row: int
    hops: tuple[Hop, ...] = ()
    end: float = 0.0
    side: int = 0

    @property
    def key(self) -> BoxedBlob:
        """The blob of the wire."""
        return self.source, self.blob


@dataclass
class Obstacles:
    """The boxes of a column, and the wires routed so far, which a new wire must avoid.

    `runs` are vertical wires, as (x, begin, end, blob), by x // _CLEAR. Begin and end are in rows; a run that
    turns in the gap below row 3 ends at 3.5.
    """

    cells: Mapping[int, Cell]
    pitch: float
    width: float
    runs: dict[int, list[tuple[float, float, float, BoxedBlob]]] = field(default_factory=dict)
    by_row: dict[int, list[float]] = field(default_factory=dict)
    sides: list[tuple[int, float, float]] = field(default_factory=list)
    seen: dict[tuple[int, int], Sequence[float]] = field(default_factory=dict)
    right: float = 0.0  # of all boxes and runs

    def __post_init__(self) -> None:
        for cell in self.cells.values():
            self.by_row.setdefault(cell.row, []).append(cell.lane * self.pitch)
            self.right = max(self.right, cell.lane * self.pitch + self.width / 2 + _BESIDE)

    def x(self, box: int) -> float:
        """Return the x of a box's middle."""
        return self.cells[box].lane * self.pitch

    def middles(self, first: int, last: int) -> Sequence[float]:
        """Return the x of the middles of the boxes in rows `first` to `last`, each once, sorted."""
        if (first, last) not in self.seen:
            rows = range(first, last + 1)
            found = {middle for row in rows for middle in self.by_row.get(row, ())}
            self.seen[first, last] = sorted(found)
        return self.seen[first, last]

    def is_free(self, x: float, first: int, last: int, blob: BoxedBlob) -> bool:
        """Return whether a wire at `x` through rows `first` to `last` is clear of boxes and other blobs."""
        room = self.width / 2 + _CLEAR
        middles = self.middles(first, last)
        if bisect_right(middles, x - room) < bisect_left(middles, x + room):
            return False
        near = int(x // _CLEAR)
        return not any(
            abs(x - other) < _CLEAR and first - _TURN <= end and begin <= last + _TURN and blob != key
            for strip in (near - 1, near, near + 1)
            for other, begin, end, key in self.runs.get(strip, ())
        )

    def add_run(self, x: float, first: int, last: float, blob: BoxedBlob) -> None:
        """Record a vertical wire at `x`, from the gap above row `first`."""
        self.right = max(self.right, x)
        self.runs.setdefault(int(x // _CLEAR), []).append((x, first - _TURN, last, blob))

    def may_enter(self, row: int, x: float, middle: float) -> bool:
        """Return whether a wire at `x` may turn in this row to enter the side of the box at `middle`."""
        left, right = min(x, middle), max(x, middle)
        boxes = self.by_row[row]
        return (
            not any(left < other < right for other in boxes)
            and all(abs(x - other) >= self.width / 2 + _CLEAR for other in boxes)
            and not any(row == taken and left < end and begin < right for taken, begin, end in self.sides)
        )

    def beside(self, first: int, last: int) -> Iterator[float]:
        """Yield x positions for a wire past the boxes of these rows: beside each lane, then outside all.

        After _MOST_PLACES it is one where no wire is, so that many wires do not each try all of them.
        """
        yield from islice(self._beside(first, last), _MOST_PLACES)
        yield self.right + _TRACK

    def _beside(self, first: int, last: int) -> Iterator[float]:
        middles = self.middles(first, last)
        for middle in sorted(middles, key=lambda one: (abs(one), -one)):
            for track in range(_BESIDE_A_LANE):
                away = self.width / 2 + _BESIDE + track * _TRACK
                yield middle + away
                yield middle - away
        right = max(middles, default=0.0) + self.width / 2
        for track in count(_BESIDE_A_LANE):
            yield right + _BESIDE + track * _TRACK


def route_column(
    obstacles: Obstacles,
    edges: Sequence[Edge],
    entering: Mapping[BoxedBlob, Sequence[int]],
    starts: Mapping[BoxedBlob, float],
) -> list[Route]:
    """Return the routes of all wires that end in a column; blobs `entering` it come from the left."""
    cells = obstacles.cells
    wanted = [
        Route(edge.source, edge.target, edge.blob, starts[edge.source, edge.blob], cells[edge.source].row)
        for edge in edges
    ]
    wanted += [
        Route(source, target, blob, -_FAR, -1)
        for (source, blob), targets in entering.items()
        for target in targets
    ]
    ends = _find_ends(obstacles, wanted, starts)
    wanted.sort(key=lambda one: (cells[one.target].row - one.row, one.source, one.target, one.blob))
    return [_route(obstacles, route, *ends[route.target, route.key]) for route in wanted]


def find_starts(
    obstacles: Obstacles, edges: Sequence[Edge], leaving: Iterable[BoxedBlob]
) -> dict[BoxedBlob, float]:
    """Return the x at which each blob leaves its box: the middle, or spread out in the readers' order."""
    readers: dict[int, dict[str, list[float]]] = {}
    for edge in edges:
        readers.setdefault(edge.source, {}).setdefault(edge.blob, []).append(obstacles.x(edge.target))
    for box, blob in leaving:
        readers.setdefault(box, {}).setdefault(blob, []).append(_FAR)
    starts: dict[BoxedBlob, float] = {}
    for box, blobs in readers.items():
        order = sorted(blobs, key=lambda blob: (sum(blobs[blob]) / len(blobs[blob]), blob))
        step = obstacles.width // len(order)
        for index, blob in enumerate(order):
            x = obstacles.x(box) + (index - (len(order) - 1) / 2) * step
            starts[box, blob] = x
    return starts


def _find_ends(
    obstacles: Obstacles, wanted: Sequence[Route], starts: Mapping[BoxedBlob, float]
) -> dict[tuple[int, BoxedBlob], tuple[float, bool]]:
    """Return the x at which each wire enters its box's top, and whether it may enter at the side instead."""
    into: dict[int, list[Route]] = {}
    for route in wanted:
        into.setdefault(route.target, []).append(route)
    leaving: dict[tuple[int, float], list[BoxedBlob]] = {}
    for key, x in starts.items():
        leaving.setdefault((obstacles.cells[key[0]].row, x), []).append(key)
    ends = {}
    for target, arriving in into.items():
        middle, row = obstacles.x(target), obstacles.cells[target].row
        straight = [one for one in arriving if one.start == middle and one.row == row - 1]
        if len(arriving) <= 2 and len(straight) == 1:
            for one in arriving:
                is_main = one in straight
                ends[target, one.key] = (middle if is_main else middle + obstacles.width / 4, not is_main)
            continue
        order = sorted(arriving, key=lambda one: (one.start, one.row, one.key))
        step = min(obstacles.width // len(order), 40.0)
        for index, one in enumerate(order):
            x = middle + (index - (len(order) - 1) / 2) * step
            # Two wires that swap positions in one gap would meet below the box that one of them leaves.
            is_below_another = any(key != one.key for key in leaving.get((row - 1, x), ()))
            ends[target, one.key] = (x + _ASIDE if is_below_another else x, False)
    return ends


def _route(obstacles: Obstacles, wanted: Route, end: float, may_enter_side: bool) -> Route:
    """Return and record the simplest free route: straight, at the x of one end, or beside boxes."""
    route = replace(wanted, end=end)
    first, last = route.row + 1, obstacles.cells[route.target].row - 1
    start, key = route.start, route.key
    if first > last:
        return route if start == end else replace(route, hops=(Hop(last, end),))
    # Above a box other than its target, it could meet a wire that ends at that box.
    below = set(obstacles.middles(last + 1, last + 1)) - {obstacles.x(route.target)}
    is_above_another = any(abs(start - middle) < obstacles.width / 2 for middle in below)
    if route.row >= 0 and not is_above_another and obstacles.is_free(start, first, last, key):
        if start == end:
            obstacles.add_run(start, first, last + _TURN, key)
            return route
        return _enter(obstacles, route, start, may_enter_side)
    if not may_enter_side and obstacles.is_free(end, first, last, key):
        obstacles.add_run(end, first, last + _TURN, key)
        return replace(route, hops=(Hop(first - 1, end),))
    places = obstacles.beside(first, last + 1)
    x = next(place for place in places if obstacles.is_free(place, first, last, key))
    return _enter(obstacles, replace(route, hops=(Hop(first - 1, x),)), x, may_enter_side)


def _enter(obstacles: Obstacles, route: Route, x: float, may_enter_side: bool) -> Route:
    """Return and record a route down at `x`, into the side if allowed and free, otherwise from above."""
    middle, row = obstacles.x(route.target), obstacles.cells[route.target].row
    if not may_enter_side or not obstacles.may_enter(row, x, middle):
        obstacles.add_run(x, route.row + 1, row - _TURN, route.key)
        return replace(route, hops=(*route.hops, Hop(row - 1, route.end)))
    side = 1 if x > middle else -1
    obstacles.add_run(x, route.row + 1, row, route.key)
    obstacles.sides.append((row, min(x, middle), max(x, middle)))
    return replace(route, end=x, side=side)


_ROOM = 6.0
_OVERLAP = 100
_FEW, _SOME = 6, 20


@dataclass(frozen=True)
class Span:
    """A wire in a gap: the x positions at which it enters from above and leaves below, or upwards."""

    key: BoxedBlob
    above: tuple[float, ...]
    below: tuple[float, ...]

    @property
    def left(self) -> float:
        """The leftmost x."""
        return min(self.above + self.below)

    @property
    def right(self) -> float:
        """The rightmost x."""
        return max(self.above + self.below)


def assign_tracks(spans: Sequence[Span]) -> dict[BoxedBlob, int]:
    """Return the track of each span, 0 at the top; spans that do not touch may share one.

    >>> assign_tracks([Span((0, "a"), (0,), (40,)), Span((1, "b"), (30,), (70,))])
    {(1, 'b'): 0, (0, 'a'): 1}
    """
    ordered = sorted(spans, key=lambda span: (span.left, span.right, span.key))
    if len(spans) > _SOME:
        return _assign_many(ordered)
    order = _order(ordered)
    tracks: dict[BoxedBlob, int] = {}
    for index, span in enumerate(order):
        above = [tracks[other.key] for other in order[:index] if _touch(span, other)]
        tracks[span.key] = max(above, default=-1) + 1
    return tracks


def _assign_many(spans: Sequence[Span]) -> dict[BoxedBlob, int]:
    """Return tracks of spans sorted by their left end, each below all earlier ones that it touches."""
    tracks: dict[BoxedBlob, int] = {}
    touching: list[tuple[int, float]] = []  # a heap of negated tracks and right ends; the lowest is first
    for span in spans:
        left, right = span.left, span.right
        while touching and touching[0][1] + _ROOM <= left:  # nor does it touch any later span
            heappop(touching)
        tracks[span.key] = 1 - touching[0][0] if touching else 0
        heappush(touching, (-tracks[span.key], right))
    return tracks


def _order(spans: Sequence[Span]) -> Sequence[Span]:
    """Return spans ordered from the top to cross little: the best order of a few spans, else a good one."""
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
    """Return the crossings if `upper` is above `lower`; a position that both would use weighs most."""
    above = sum(upper.left < x < upper.right for x in lower.above)
    below = sum(lower.left < x < lower.right for x in upper.below)
    overlaps = sum(abs(x - y) < _ROOM for x in lower.above for y in upper.below)
    return above + below + _OVERLAP * overlaps
