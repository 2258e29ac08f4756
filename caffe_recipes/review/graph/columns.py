"""Place the boxes of one column of a picture in rows and lanes, and route the wires between them.

The main path goes straight down. A lane is a distance from the column's middle, in box widths; with an even
number of branches side by side, lanes are halves. Distances x are measured from the column's middle. Gap `g`
is below row `g`, and gap -1 above row 0. No box is in a gap, so wires turn only there. The wires of one blob
run together from its box and part where they must. Wires in a gap are ordered to cross as little as possible.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import combinations, count, islice, permutations
from typing import TYPE_CHECKING

from caffe_recipes.review.graph.boxes import (
    HEADING,
    HEADING_HEIGHT,
    SMALL,
    edges_into,
    stage_title,
    text_width,
)

if TYPE_CHECKING:
    from caffe_recipes.review.graph.boxes import Block, Edge, Graph, Stage


@dataclass(frozen=True)
class Cell:
    """The position of a box in its column."""

    row: int
    lane: float


def place_boxes(
    blocks: Sequence[Block], into: Mapping[int, Sequence[Edge]], sources: Collection[int]
) -> tuple[dict[int, Cell], list[int]]:
    """Return the cell of each box of a column, and the row in which each block begins.

    `into` has the edges that end at each box; those from other columns are ignored. `sources` are the boxes
    that read no blob.
    """
    cells: dict[int, Cell] = {}
    begins, row = [], 0
    for block in blocks:
        begins.append(row)
        members = set(block.core)
        inner = [edge for box in block.core for edge in into.get(box, ()) if edge.source in members]
        depths = _depths(block, inner, sources)
        lanes = _block_lanes(block, inner, depths)
        for box in block.core:
            cells[box] = Cell(row + depths[box], lanes[box])
        row += depths[block.neck] + 1
    for block, begin in zip(blocks, begins, strict=True):
        _place_beside(cells, block, begin, [edge for box in block.beside for edge in into.get(box, ())])
    return cells, begins


def _depths(block: Block, inner: Sequence[Edge], sources: Collection[int]) -> dict[int, int]:
    """Return the row of each box, from the block's top; a source is right above its first reader."""
    depths = dict.fromkeys(block.core, 0)
    for edge in inner:
        depths[edge.target] = max(depths[edge.target], depths[edge.source] + 1)
    depths[block.neck] = max(depths.values())
    first: dict[int, int] = {}
    for edge in inner:
        first[edge.source] = min(first.get(edge.source, depths[edge.target]), depths[edge.target])
    for box in block.core:
        if box in sources and box in first:
            depths[box] = first[box] - 1
    return depths


def _block_lanes(block: Block, edges: Sequence[Edge], depths: dict[int, int]) -> dict[int, float]:
    paths = _paths([box for box in block.core if box != block.neck], edges)
    lanes: dict[int, float] = {block.neck: 0.0}
    if not paths:
        return lanes
    longest = len(paths[0])
    ends = {edge.source for edge in edges if edge.target == block.neck}
    branches = [path for path in paths if path[-1] in ends]
    if len(branches) >= 3 and longest < 2 * max(3, len(branches)):
        major = sorted(branches)
    else:
        major = sorted(path for path in paths if 2 * len(path) > longest)
    taken: list[tuple[float, range]] = []
    for index, path in enumerate(major):
        _assign_lane(path, index - (len(major) - 1) / 2, depths, lanes, taken)
    offset = (len(major) - 1) / 2
    for path in paths:
        if path not in major:
            rows = _rows(path, depths)
            lane = next(
                lane
                for lane in _outward(offset)
                if all(lane != other or _do_not_touch(rows, r) for other, r in taken)
            )
            _assign_lane(path, lane, depths, lanes, taken)
    return lanes


def _assign_lane(
    path: Sequence[int],
    lane: float,
    depths: dict[int, int],
    lanes: dict[int, float],
    taken: list[tuple[float, range]],
) -> None:
    lanes.update(dict.fromkeys(path, lane))
    taken.append((lane, _rows(path, depths)))


def _rows(path: Sequence[int], depths: dict[int, int]) -> range:
    return range(depths[path[0]], depths[path[-1]] + 1)


def _do_not_touch(first: range, second: range) -> bool:
    return first.stop < second.start or second.stop < first.start


def _outward(offset: float) -> Iterable[float]:
    """Yield lanes outwards from an offset, right before left."""
    for step in count(1):
        yield offset + step
        yield -offset - step


def _paths(boxes: Sequence[int], edges: Sequence[Edge]) -> list[list[int]]:
    """Return boxes split into chains, the longest first; of equally long ones, the one that begins first."""
    left, paths = set(boxes), []
    while left:
        length: dict[int, int] = {}
        following: dict[int, int] = {}
        inner = [edge for edge in edges if edge.source in left and edge.target in left]
        by_source: dict[int, list[int]] = {}
        for edge in inner:
            by_source.setdefault(edge.source, []).append(edge.target)
        for box in sorted(left, reverse=True):
            best = max(by_source.get(box, []), key=lambda one: (length[one], -one), default=None)
            length[box] = 1 if best is None else length[best] + 1
            if best is not None:
                following[box] = best
        start = max(left, key=lambda box: (length[box], -box))
        path = [start]
        while path[-1] in following:
            path.append(following[path[-1]])
        paths.append(path)
        left -= set(path)
    return paths


def _place_beside(cells: dict[int, Cell], block: Block, begin: int, edges: Sequence[Edge]) -> None:
    """Place the boxes beside a block's core on its right, below the boxes that they read."""
    depths: dict[int, int] = {}
    for box in block.beside:
        above = [edge.source for edge in edges if edge.target == box]
        rows = [
            depths[one] if one in depths else cells[one].row for one in above if one in depths or one in cells
        ]
        depths[box] = max(rows, default=begin - 1) + 1
    for path in _paths(block.beside, edges):
        beside = _rows(path, depths)
        right = max((cell.lane for cell in cells.values() if cell.row in beside), default=-1.0)
        for box in path:
            cells[box] = Cell(depths[box], max(right + 1, 0.0))


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


_BETWEEN_LANES = 52.0
_SHAPE, _TRACK_HEIGHT, _ARROW = 19.0, 8.0, 15.0
_NO_TURN = 30.0
_BAND_END = 10.0
_LABEL = 4.0  # from a wire to the text of its shape


@dataclass
class ColumnPlan:
    """A planned column; `set_heights` sets its heights. x is measured from its middle, y from the top."""

    graph: Graph
    stages: Sequence[Stage]
    obstacles: Obstacles
    routes: list[Route]
    starts: Mapping[BoxedBlob, float]
    begins: Mapping[int, Stage]
    entering: Sequence[BoxedBlob]
    leaving: Sequence[BoxedBlob]
    labels: Mapping[BoxedBlob, float]
    height: float = 0.0
    arrivals: Mapping[BoxedBlob, float] = field(default_factory=dict)
    row_tops: dict[int, float] = field(default_factory=dict)
    heights: dict[int, float] = field(default_factory=dict)
    tracks: dict[int, dict[BoxedBlob, int]] = field(default_factory=dict)
    corners: dict[int, tuple[float, float]] = field(default_factory=dict)
    bands: list[tuple[Stage, float, float]] = field(default_factory=list)

    @property
    def left(self) -> float:
        """The x of the column's left edge."""
        return min(self.sides(stage)[0] for stage in self.stages)

    @property
    def right(self) -> float:
        """The x of the column's right edge."""
        return max(self.sides(stage)[1] for stage in self.stages)

    def set_heights(self, arrivals: Mapping[BoxedBlob, float], exits: Mapping[BoxedBlob, float]) -> None:
        """Set the height of every row and gap, given the x at which wires enter and leave the column."""
        self.arrivals = arrivals
        rows = range(max(self.heights) + 1)
        spans = self._find_spans(exits)
        self.tracks = {gap: assign_tracks(spans.get(gap, [])) for gap in range(-1, len(rows))}
        y = 0.0
        band_top = y
        stage: Stage | None = None
        for row in rows:
            if row in self.begins:
                if stage is not None:
                    y += _BAND_END
                    self.bands.append((stage, band_top, y - _BAND_END))
                stage, band_top = self.begins[row], y
                y += HEADING_HEIGHT
            if row == 0:
                y += self._gap_height(-1) if self.tracks[-1] else 0
            self.row_tops[row] = y
            y += self.heights.get(row, 0.0) + self._gap_height(row)
        last = len(rows) - 1
        self.height = y if self.tracks[last] else y - self._gap_height(last) + _BAND_END
        if stage is not None:
            self.bands.append((stage, band_top, self.height))
        for box, cell in self.obstacles.cells.items():
            self.corners[box] = (self.obstacles.x(box) - self.obstacles.width / 2, self.row_tops[cell.row])

    def sides(self, stage: Stage) -> tuple[float, float]:
        """Return the x of the left and right edges of a stage's boxes and wires."""
        members = stage.boxes
        half = self.obstacles.width / 2
        middles = [self.obstacles.x(box) for box in members]
        xs = [hop.x for route in self.routes if route.target in members for hop in route.hops]
        labels = [end for key, end in self.labels.items() if key[0] in members]
        left, right = min(x - half for x in middles), max(x + half for x in middles)
        left = min([left, *xs])
        return left, max([right, *xs, *labels, left + _heading_width(stage, self.graph)])

    def points(self, route: Route) -> list[tuple[float, float]]:
        """Return a wire's points, from its box, or from the gutter where it enters the column."""
        points = []
        x = route.start
        if route.row < 0:
            x = self.arrivals[route.key]
        else:
            points.append((x, self._bottom(route.source)))
        for hop in route.hops:
            y = self._turn_y(hop.gap, route.key)
            points += [(x, y), (hop.x, y)]
            x = hop.x
        left, top = self.corners[route.target]
        if not route.side:
            return [*points, (x, top)]
        middle = top + self.graph.boxes[route.target].height / 2
        border = left + (self.obstacles.width if route.side > 0 else 0)
        return [*points, (x, middle), (border, middle)]

    def exit(self, key: BoxedBlob) -> tuple[float, float, float]:
        """Return the x and y at which a blob that leaves the column starts, and the y at which it turns."""
        row = self.obstacles.cells[key[0]].row
        return self.starts[key], self._bottom(key[0]), self._turn_y(row, key)

    def shape_places(self) -> Iterable[tuple[BoxedBlob, float, float]]:
        """Yield the position of each blob's shape: below its box, and where it enters the column."""
        for key, x in self.starts.items():
            yield key, x + _LABEL, self._bottom(key[0]) + 12
        for key in self.entering:
            first = min(
                (route for route in self.routes if route.key == key and route.row < 0),
                key=lambda route: (self.obstacles.cells[route.target].row, abs(route.end), -route.end),
            )
            x = first.hops[0].x if first.hops else first.end
            yield key, x + _LABEL, self.row_tops[0] - 5

    def _bottom(self, box: int) -> float:
        return self.corners[box][1] + self.graph.boxes[box].height

    def _gap_height(self, gap: int) -> float:
        tracks = self.tracks[gap]
        return _SHAPE + _TRACK_HEIGHT * max(tracks.values()) + _ARROW if tracks else _NO_TURN

    def _turn_y(self, gap: int, key: BoxedBlob) -> float:
        top = (
            self.row_tops[0] - self._gap_height(-1)
            if gap < 0
            else self.row_tops[gap] + self.heights.get(gap, 0.0)
        )
        return top + _SHAPE + _TRACK_HEIGHT * self.tracks[gap][key] - (_SHAPE - 8 if gap < 0 else 0)

    def _find_spans(self, exits: Mapping[BoxedBlob, float]) -> dict[int, list[Span]]:
        """Return the spans of each gap, one for each blob."""
        turns: dict[tuple[int, BoxedBlob], tuple[set[float], set[float]]] = {}
        for route in self.routes:
            x = self.arrivals[route.key] if route.row < 0 else route.start
            for hop in route.hops:
                above, below = turns.setdefault((hop.gap, route.key), (set(), set()))
                above.add(x)
                below.add(hop.x)
                x = hop.x
        for key, x in exits.items():
            row = self.obstacles.cells[key[0]].row
            above, below = turns.setdefault((row, key), (set(), set()))
            above.add(self.starts[key])
            below.add(x)
        for route in self.routes:  # a straight wire from the same x belongs to the span
            if not route.hops and route.row >= 0 and (route.row, route.key) in turns:
                turns[route.row, route.key][1].add(route.start)
        spans: dict[int, list[Span]] = {}
        for (gap, key), (above, below) in sorted(turns.items()):
            spans.setdefault(gap, []).append(Span(key, tuple(sorted(above)), tuple(sorted(below))))
        return spans


def plan_column(
    graph: Graph,
    stages: Sequence[Stage],
    edges: Sequence[Edge],
    entering: Mapping[BoxedBlob, Sequence[int]],
    leaving: Sequence[BoxedBlob],
    width: float,
) -> ColumnPlan:
    """Return a column with its boxes placed and its wires routed; `width` is that of every box."""
    blocks = [block for stage in stages for block in stage.blocks]
    cells, begins = place_boxes(blocks, edges_into(edges), graph.sources)
    obstacles = Obstacles(cells, width + _BETWEEN_LANES, width)
    starts = find_starts(obstacles, edges, leaving)
    routes = route_column(obstacles, edges, entering, starts)
    labels = {key: math.ceil(x + _LABEL + text_width(graph.shapes[key], SMALL)) for key, x in starts.items()}
    first_rows: dict[int, Stage] = {}
    index = 0
    for stage in stages:
        first_rows[begins[index]] = stage
        index += len(stage.blocks)
    return ColumnPlan(
        graph,
        stages,
        obstacles,
        routes,
        starts,
        first_rows,
        list(entering),
        leaving,
        labels,
        heights=row_heights(cells, graph),
    )


def _heading_width(stage: Stage, graph: Graph) -> float:
    return math.ceil(text_width(stage_title(stage, graph.boxes), HEADING, is_bold=True))


def row_heights(cells: Mapping[int, Cell], graph: Graph) -> dict[int, float]:
    """Return the height of each row, which is that of its tallest box."""
    heights: dict[int, float] = {}
    for box, cell in cells.items():
        heights[cell.row] = max(heights.get(cell.row, 0.0), graph.boxes[box].height)
    return heights
