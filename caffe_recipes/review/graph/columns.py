"""One column of a picture: its rows, the gaps between them, and how wires go through both.

Rows and lanes of a column: which boxes stand beside which, with the main path straight down.

A lane is a distance from the column's middle, in widths of a box; halves occur where an even number of
branches stands side by side.

The order of wires that run side by side through one gap: as few crossings as can be.

The ways of a column's wires: which gaps between rows they turn in, and which lanes they run down.

Distances go from the column's middle. Gap `g` lies below row `g`, and gap -1 above row 0; no box stands in a
gap, so a wire turns there only. Wires of one blob run together from its box and part where they must.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import combinations, count, permutations
from typing import TYPE_CHECKING

from caffe_recipes.review.graph.blocks import edges_into, stage_title
from caffe_recipes.review.graph.boxes import (
    HEADING,
    HEADING_HEIGHT,
    SMALL,
    text_width,
)

if TYPE_CHECKING:
    from caffe_recipes.review.graph.blocks import Block, Stage
    from caffe_recipes.review.graph.boxes import (
        Edge,
        Graph,
    )


@dataclass(frozen=True)
class Cell:
    """Where a box stands in its column."""

    row: int
    lane: float


def place_boxes(
    blocks: Sequence[Block], into: Mapping[int, Sequence[Edge]], sources: Collection[int]
) -> tuple[dict[int, Cell], list[int]]:
    """Return each box of a column its cell, and the row that each block begins in.

    `into` has the edges that end in each box; those from other columns do not count. `sources` read no blob.
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
    """Count rows from the block's top; a source stands right above its first reader."""
    depths = dict.fromkeys(block.core, 0)
    for edge in inner:
        depths[edge.target] = max(depths[edge.target], depths[edge.source] + 1)
    depths[block.neck] = max(depths.values())
    for box in block.core:
        readers = [depths[edge.target] for edge in inner if edge.source == box]
        if box in sources and readers:
            depths[box] = min(readers) - 1
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
        _settle(path, index - (len(major) - 1) / 2, depths, lanes, taken)
    offset = (len(major) - 1) / 2
    for path in paths:
        if path not in major:
            rows = _rows(path, depths)
            lane = next(
                lane
                for lane in _outward(offset)
                if all(lane != other or _apart(rows, r) for other, r in taken)
            )
            _settle(path, lane, depths, lanes, taken)
    return lanes


def _settle(
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


def _apart(first: range, second: range) -> bool:
    return first.stop < second.start or second.stop < first.start


def _outward(offset: float) -> Iterable[float]:
    """Yield lanes from the middle outwards, right before left."""
    for step in count(1):
        yield offset + step
        yield -offset - step


def _paths(boxes: Sequence[int], edges: Sequence[Edge]) -> list[list[int]]:
    """Split boxes into chains, the longest first; of equal ones, the one that begins first."""
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
    """Place the boxes beside a block to its right, below the boxes that they read."""
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
    hops: tuple[Hop, ...] = ()
    end: float = 0.0
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
        """Return the middle of a box."""
        return self.cells[box].lane * self.pitch

    def middles(self, first: int, last: int) -> Set[float]:
        """Return the middles of the boxes in rows first to last."""
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
        """Draw a wire down at `x`, from the gap above row `first`."""
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
        for track in count(_BESIDE_A_LANE):
            yield right + _BESIDE + track * _TRACK


def route_column(
    ground: Field,
    edges: Sequence[Edge],
    entering: Mapping[Blob, Sequence[int]],
    starts: Mapping[Blob, float],
) -> list[Route]:
    """Find the way of every wire that ends in a column; those of blobs `entering` it come from the left."""
    cells = ground.cells
    wanted = [
        Route(edge.source, edge.target, edge.blob, starts[edge.source, edge.blob], cells[edge.source].row)
        for edge in edges
    ]
    wanted += [
        Route(source, target, blob, -_FAR, -1)
        for (source, blob), targets in entering.items()
        for target in targets
    ]
    ends = _ends(ground, wanted, starts)
    wanted.sort(key=lambda one: (cells[one.target].row - one.row, one.source, one.target, one.blob))
    return [_route(ground, route, *ends[route.target, route.key]) for route in wanted]


def find_starts(ground: Field, edges: Sequence[Edge], leaving: Iterable[Blob]) -> dict[Blob, float]:
    """Return where each blob leaves its box: the middle, or spread out in the order of those who read it."""
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
    ground: Field, wanted: Sequence[Route], starts: Mapping[Blob, float]
) -> dict[tuple[int, Blob], tuple[float, bool]]:
    """Return where each wire enters its box's top, and whether it may come from the side instead."""
    into: dict[int, list[Route]] = {}
    for route in wanted:
        into.setdefault(route.target, []).append(route)
    leaving: dict[tuple[int, float], list[Blob]] = {}
    for key, x in starts.items():
        leaving.setdefault((ground.cells[key[0]].row, x), []).append(key)
    ends = {}
    for target, arriving in into.items():
        middle, row = ground.x(target), ground.cells[target].row
        straight = [one for one in arriving if one.start == middle and one.row == row - 1]
        if len(arriving) <= 2 and len(straight) == 1:
            for one in arriving:
                is_main = one in straight
                ends[target, one.key] = (middle if is_main else middle + ground.width / 4, not is_main)
            continue
        order = sorted(arriving, key=lambda one: (one.start, one.row, one.key))
        step = min(ground.width // len(order), 40.0)
        for index, one in enumerate(order):
            x = middle + (index - (len(order) - 1) / 2) * step
            # Two wires that change places in one gap would meet below the box that one of them leaves.
            is_below_another = any(key != one.key for key in leaving.get((row - 1, x), ()))
            ends[target, one.key] = (x + _ASIDE if is_below_another else x, False)
    return ends


def _route(ground: Field, wanted: Route, end: float, may_enter_side: bool) -> Route:
    """Choose the simplest way that is free, and take it: straight, at one end's place, or beside boxes."""
    route = replace(wanted, end=end)
    first, last = route.row + 1, ground.cells[route.target].row - 1
    start, key = route.start, route.key
    if first > last:
        return route if start == end else replace(route, hops=(Hop(last, end),))
    # Above another box than its own it could meet a wire that comes to that one.
    below = ground.middles(last + 1, last + 1) - {ground.x(route.target)}
    is_above_another = any(abs(start - middle) < ground.width / 2 for middle in below)
    if route.row >= 0 and not is_above_another and ground.is_free(start, first, last, key):
        if start == end:
            ground.take(start, first, last + _TURN, key)
            return route
        return _enter(ground, route, start, may_enter_side)
    if not may_enter_side and ground.is_free(end, first, last, key):
        ground.take(end, first, last + _TURN, key)
        return replace(route, hops=(Hop(first - 1, end),))
    places = ground.beside(first, last + 1)
    x = next(place for place in places if ground.is_free(place, first, last, key))
    return _enter(ground, replace(route, hops=(Hop(first - 1, x),)), x, may_enter_side)


def _enter(ground: Field, route: Route, x: float, may_enter_side: bool) -> Route:
    """Run down at `x`, and in from the side if that is wanted and no box stands between; else from above."""
    middle, row = ground.x(route.target), ground.cells[route.target].row
    if not may_enter_side or not ground.may_enter(row, x, middle):
        ground.take(x, route.row + 1, row - _TURN, route.key)
        return replace(route, hops=(*route.hops, Hop(row - 1, route.end)))
    side = 1 if x > middle else -1
    ground.take(x, route.row + 1, row, route.key)
    ground.sides.append((row, min(x, middle), max(x, middle)))
    return replace(route, end=x, side=side)


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
        """Return its leftmost place."""
        return min(self.above + self.below)

    @property
    def right(self) -> float:
        """Return its rightmost place."""
        return max(self.above + self.below)


def assign_tracks(spans: Sequence[Span]) -> dict[Blob, int]:
    """Return each run its track, 0 uppermost; those that do not touch share one.

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
    above = sum(upper.left < x < upper.right for x in lower.above)
    below = sum(lower.left < x < lower.right for x in upper.below)
    overlaps = sum(abs(x - y) < _ROOM for x in lower.above for y in upper.below)
    return above + below + _OVERLAP * overlaps


_BETWEEN_LANES = 52.0
_SHAPE, _TRACK_HEIGHT, _ARROW = 19.0, 8.0, 15.0
_NO_TURN = 30.0
_BAND_END = 10.0
_LABEL = 4.0  # from a wire to its shape


@dataclass
class ColumnPlan:
    """A column; `settle` gives it its heights. x counts from its middle, y from the top."""

    graph: Graph
    stages: Sequence[Stage]
    ground: Field
    routes: list[Route]
    starts: Mapping[Blob, float]
    begins: Mapping[int, Stage]
    entering: Sequence[Blob]
    leaving: Sequence[Blob]
    labels: Mapping[Blob, float]
    height: float = 0.0
    arrivals: Mapping[Blob, float] = field(default_factory=dict)
    row_tops: dict[int, float] = field(default_factory=dict)
    heights: dict[int, float] = field(default_factory=dict)
    tracks: dict[int, dict[Blob, int]] = field(default_factory=dict)
    corners: dict[int, tuple[float, float]] = field(default_factory=dict)
    bands: list[tuple[Stage, float, float]] = field(default_factory=list)

    @property
    def left(self) -> float:
        """Return how far the column reaches to the left."""
        return min(self.sides(stage)[0] for stage in self.stages)

    @property
    def right(self) -> float:
        """Return how far the column reaches to the right."""
        return max(self.sides(stage)[1] for stage in self.stages)

    def settle(self, arrivals: Mapping[Blob, float], exits: Mapping[Blob, float]) -> None:
        """Return every row and gap its height, once it is known where wires come in and go out."""
        self.arrivals = arrivals
        rows = range(max(self.heights) + 1)
        spans = self._spans(exits)
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
        for box, cell in self.ground.cells.items():
            self.corners[box] = (self.ground.x(box) - self.ground.width / 2, self.row_tops[cell.row])

    def sides(self, stage: Stage) -> tuple[float, float]:
        """Return how far a stage's boxes and wires reach, left and right."""
        members = stage.boxes
        half = self.ground.width / 2
        middles = [self.ground.x(box) for box in members]
        xs = [hop.x for route in self.routes if route.target in members for hop in route.hops]
        labels = [end for key, end in self.labels.items() if key[0] in members]
        left, right = min(x - half for x in middles), max(x + half for x in middles)
        left = min([left, *xs])
        return left, max([right, *xs, *labels, left + _heading_width(stage, self.graph)])

    def points(self, route: Route) -> list[tuple[float, float]]:
        """Return a wire's points, from its box, or from the gutter where it comes in."""
        points = []
        x = route.start
        if route.row < 0:
            x = self.arrivals[route.key]
        else:
            points.append((x, self._bottom(route.source)))
        for hop in route.hops:
            y = self._turn(hop.gap, route.key)
            points += [(x, y), (hop.x, y)]
            x = hop.x
        left, top = self.corners[route.target]
        if not route.side:
            return [*points, (x, top)]
        middle = top + self.graph.boxes[route.target].height / 2
        border = left + (self.ground.width if route.side > 0 else 0)
        return [*points, (x, middle), (border, middle)]

    def exit(self, key: Blob) -> tuple[float, float, float]:
        """Return where a blob that leaves the column starts, x and y, and the y at which it turns."""
        row = self.ground.cells[key[0]].row
        return self.starts[key], self._bottom(key[0]), self._turn(row, key)

    def shape_places(self) -> Iterable[tuple[Blob, float, float]]:
        """Return where each blob's shape is written: below its box, and where it comes into the column."""
        for key, x in self.starts.items():
            yield key, x + _LABEL, self._bottom(key[0]) + 12
        for key in self.entering:
            first = min(
                (route for route in self.routes if route.key == key and route.row < 0),
                key=lambda route: (self.ground.cells[route.target].row, abs(route.end), -route.end),
            )
            x = first.hops[0].x if first.hops else first.end
            yield key, x + _LABEL, self.row_tops[0] - 5

    def _bottom(self, box: int) -> float:
        return self.corners[box][1] + self.graph.boxes[box].height

    def _gap_height(self, gap: int) -> float:
        tracks = self.tracks[gap]
        return _SHAPE + _TRACK_HEIGHT * max(tracks.values()) + _ARROW if tracks else _NO_TURN

    def _turn(self, gap: int, key: Blob) -> float:
        top = (
            self.row_tops[0] - self._gap_height(-1)
            if gap < 0
            else self.row_tops[gap] + self.heights.get(gap, 0.0)
        )
        return top + _SHAPE + _TRACK_HEIGHT * self.tracks[gap][key] - (_SHAPE - 8 if gap < 0 else 0)

    def _spans(self, exits: Mapping[Blob, float]) -> dict[int, list[Span]]:
        """Gather the turns of each gap by blob."""
        turns: dict[tuple[int, Blob], tuple[set[float], set[float]]] = {}
        for route in self.routes:
            x = self.arrivals[route.key] if route.row < 0 else route.start
            for hop in route.hops:
                above, below = turns.setdefault((hop.gap, route.key), (set(), set()))
                above.add(x)
                below.add(hop.x)
                x = hop.x
        for key, x in exits.items():
            row = self.ground.cells[key[0]].row
            above, below = turns.setdefault((row, key), (set(), set()))
            above.add(self.starts[key])
            below.add(x)
        for route in self.routes:  # what goes straight on from the same place is part of the bundle
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
    entering: Mapping[Blob, Sequence[int]],
    leaving: Sequence[Blob],
    width: float,
) -> ColumnPlan:
    """Place a column's boxes and find its wires' ways; `width` is that of every box."""
    blocks = [block for stage in stages for block in stage.blocks]
    cells, begins = place_boxes(blocks, edges_into(edges), graph.sources)
    ground = Field(cells, width + _BETWEEN_LANES, width)
    starts = find_starts(ground, edges, leaving)
    routes = route_column(ground, edges, entering, starts)
    labels = {key: math.ceil(x + _LABEL + text_width(graph.shapes[key], SMALL)) for key, x in starts.items()}
    first_rows: dict[int, Stage] = {}
    index = 0
    for stage in stages:
        first_rows[begins[index]] = stage
        index += len(stage.blocks)
    return ColumnPlan(
        graph,
        stages,
        ground,
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
    """Return the height of each row: that of its tallest box."""
    heights: dict[int, float] = {}
    for box, cell in cells.items():
        heights[cell.row] = max(heights.get(cell.row, 0.0), graph.boxes[box].height)
    return heights
