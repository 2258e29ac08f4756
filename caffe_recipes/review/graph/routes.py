"""The ways of a column's wires: which gaps between rows they turn in, and which lanes they run down.

Distances go from the column's middle. Gap `g` lies below row `g`, and gap -1 above row 0; no box stands in a
gap, so a wire turns there only. Wires of one blob run together from its box and part where they must.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from caffe_recipes.review.graph.boxes import Edge
from caffe_recipes.review.graph.lanes import Cell

Blob = tuple[int, str]

_BESIDE = 11.0  # from a box to the first wire beside it
_TRACK = 8.0
_ASIDE = 12.0
_CLEAR = 6.0
_TURN = 0.5  # from a row to the gap beside it
_FAR = 1e6  # beyond all columns
_BESIDE_A_LANE = 3  # wires in the space between two lanes


@dataclass(frozen=True)
class Hop:
    """A turn: in this gap, the wire goes over to `x`."""

    gap: int
    x: float


@dataclass(frozen=True)
class Route:
    """A wire from `start` to a box: its turns, then down to the box's top, or in from the `side` (-1, 1).

    `source` is the box at its start, in this column or in one to the left of it; `row` is its row, -1 there.
    """

    source: int
    target: int
    blob: str
    start: float
    row: int
    hops: tuple[Hop, ...]
    end: float
    side: int = 0

    @property
    def key(self) -> Blob:
        """Name the blob of the wire."""
        return self.source, self.blob


@dataclass
class Field:
    """A column's boxes on the ground, and the wires that run down it so far: (x, begin, end, blob).

    Begin and end count in rows; a run that turns in the gap below row 3 ends at 3.5.
    """

    cells: Mapping[int, Cell]
    pitch: float
    width: float
    runs: list[tuple[float, float, float, Blob]] = field(default_factory=list)
    by_row: dict[int, list[float]] = field(default_factory=dict)
    sides: list[tuple[int, float, float]] = field(default_factory=list)
    seen: dict[tuple[int, int], Set[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for cell in self.cells.values():
            self.by_row.setdefault(cell.row, []).append(cell.lane * self.pitch)

    def x(self, box: int) -> float:
        """Give the middle of a box."""
        return self.cells[box].lane * self.pitch

    def middles(self, first: int, last: int) -> Set[float]:
        """Give the middles of the boxes in rows first to last."""
        if (first, last) not in self.seen:
            rows = range(first, last + 1)
            self.seen[first, last] = {middle for row in rows for middle in self.by_row.get(row, ())}
        return self.seen[first, last]

    def is_free(self, x: float, first: int, last: int, blob: Blob) -> bool:
        """Whether a wire may run down at `x` through rows first to last, past boxes and other blobs."""
        room = self.width / 2 + _CLEAR
        if any(abs(x - middle) < room for middle in self.middles(first, last)):
            return False
        return not any(
            abs(x - other) < _CLEAR and first - _TURN <= end and begin <= last + _TURN and blob != key
            for other, begin, end, key in self.runs
        )

    def take(self, x: float, first: int, last: float, blob: Blob) -> None:
        """Run a wire down at `x`, from the gap above row `first`."""
        self.runs.append((x, first - _TURN, last, blob))

    def may_enter(self, row: int, x: float, middle: float) -> bool:
        """Whether a wire at `x` may turn in this row, to the side of the box at `middle`."""
        left, right = min(x, middle), max(x, middle)
        boxes = self.by_row[row]
        return (
            not any(left < other < right for other in boxes)
            and all(abs(x - other) >= self.width / 2 + _CLEAR for other in boxes)
            and not any(row == taken and left < end and begin < right for taken, begin, end in self.sides)
        )

    def beside(self, first: int, last: int) -> Iterator[float]:
        """Yield places to run down beside the boxes of these rows, the nearest to each lane, then outside."""
        middles = self.middles(first, last)
        for middle in sorted(middles, key=lambda one: (abs(one), -one)):
            for track in range(_BESIDE_A_LANE):
                away = self.width / 2 + _BESIDE + track * _TRACK
                yield middle + away
                yield middle - away
        right = max(middles, default=0.0) + self.width / 2
        track = _BESIDE_A_LANE
        while True:
            yield right + _BESIDE + track * _TRACK
            track += 1


@dataclass(frozen=True)
class Entry:
    """A blob that comes from a column to the left, down at `x`, for these boxes."""

    key: Blob
    x: float
    targets: tuple[int, ...]


def route_column(
    ground: Field, edges: Sequence[Edge], entries: Sequence[Entry], starts: Mapping[Blob, float]
) -> list[Route]:
    """Find the way of every wire that ends in a column."""
    wanted = [
        (edge.source, edge.target, edge.blob, starts[edge.source, edge.blob], ground.cells[edge.source].row)
        for edge in edges
    ]
    wanted += [(*_named(entry, target), entry.x, -1) for entry in entries for target in entry.targets]
    ends = _ends(
        ground, [(target, start, row, (source, blob)) for source, target, blob, start, row in wanted], starts
    )
    routes = []
    for source, target, blob, start, row in sorted(
        wanted, key=lambda one: (ground.cells[one[1]].row - one[4], one[:3])
    ):
        end, sides = ends[target, (source, blob)]
        routes.append(_route(ground, Route(source, target, blob, start, row, (), end), sides))
    return routes


def _named(entry: Entry, target: int) -> tuple[int, int, str]:
    return entry.key[0], target, entry.key[1]


def find_starts(ground: Field, edges: Sequence[Edge], leaving: Iterable[Blob]) -> dict[Blob, float]:
    """Give where each blob leaves its box: the middle, or spread out in the order of those who read it."""
    readers: dict[int, dict[str, list[float]]] = {}
    for edge in edges:
        readers.setdefault(edge.source, {}).setdefault(edge.blob, []).append(ground.x(edge.target))
    for box, blob in leaving:
        readers.setdefault(box, {}).setdefault(blob, []).append(_FAR)
    starts: dict[Blob, float] = {}
    for box, blobs in readers.items():
        order = sorted(blobs, key=lambda blob: (sum(blobs[blob]) / len(blobs[blob]), blob))
        step = ground.width // len(order)
        for index, blob in enumerate(order):
            x = ground.x(box) + (index - (len(order) - 1) / 2) * step
            starts[box, blob] = x
    return starts


def _ends(
    ground: Field, wanted: Sequence[tuple[int, float, int, Blob]], starts: Mapping[Blob, float]
) -> dict[tuple[int, Blob], tuple[float, bool]]:
    """Give where each wire enters its box's top, and whether it may come from the side instead."""
    into: dict[int, list[tuple[float, int, Blob]]] = {}
    for target, start, row, key in wanted:
        into.setdefault(target, []).append((start, row, key))
    leaving: dict[tuple[int, float], list[Blob]] = {}
    for key, x in starts.items():
        leaving.setdefault((ground.cells[key[0]].row, x), []).append(key)
    ends = {}
    for target, arriving in into.items():
        middle, row = ground.x(target), ground.cells[target].row
        straight = [one for one in arriving if one[0] == middle and one[1] == row - 1]
        if len(arriving) <= 2 and len(straight) == 1:
            for one in arriving:
                is_main = one in straight
                ends[target, one[2]] = (middle if is_main else middle + ground.width / 4, not is_main)
            continue
        order = sorted(arriving)
        step = min(ground.width // len(order), 40.0)
        for index, one in enumerate(order):
            x = middle + (index - (len(order) - 1) / 2) * step
            # Two wires that change places in one gap would meet below the box that one of them leaves.
            is_below_another = any(key != one[2] for key in leaving.get((row - 1, x), ()))
            ends[target, one[2]] = (x + _ASIDE if is_below_another else x, False)
    return ends


def _route(ground: Field, route: Route, may_enter_side: bool) -> Route:
    """Choose the simplest way that is free, and take it: straight, at one end's place, or beside boxes."""
    first, last = route.row + 1, ground.cells[route.target].row - 1
    start, end, key = route.start, route.end, route.key
    if first > last:
        return _with(route, [] if start == end else [Hop(last, end)])
    # Above another box than its own it could meet a wire that comes to that one.
    below = ground.middles(last + 1, last + 1) - {ground.x(route.target)}
    is_above_another = any(abs(start - middle) < ground.width / 2 for middle in below)
    if route.row >= 0 and not is_above_another and ground.is_free(start, first, last, key):
        if start == end:
            ground.take(start, first, last + _TURN, key)
            return _with(route, [])
        return _enter(ground, route, start, [], may_enter_side)
    if not may_enter_side and ground.is_free(end, first, last, key):
        ground.take(end, first, last + _TURN, key)
        return _with(route, [Hop(first - 1, end)])
    places = ground.beside(first, last + 1)
    x = next(place for place in places if ground.is_free(place, first, last, key))
    return _enter(ground, route, x, [Hop(first - 1, x)], may_enter_side)


def _enter(ground: Field, route: Route, x: float, hops: list[Hop], may_enter_side: bool) -> Route:
    """Run down at `x`, and in from the side if that is wanted and no box stands between; else from above."""
    middle, row = ground.x(route.target), ground.cells[route.target].row
    if not may_enter_side or not ground.may_enter(row, x, middle):
        ground.take(x, route.row + 1, row - _TURN, route.key)
        return _with(route, [*hops, Hop(row - 1, route.end)])
    side = 1 if x > middle else -1
    ground.take(x, route.row + 1, row, route.key)
    ground.sides.append((row, min(x, middle), max(x, middle)))
    return Route(route.source, route.target, route.blob, route.start, route.row, tuple(hops), x, side)


def _with(route: Route, hops: list[Hop]) -> Route:
    return Route(route.source, route.target, route.blob, route.start, route.row, tuple(hops), route.end)
