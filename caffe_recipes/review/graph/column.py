"""One column of a picture: its rows, the gaps between them, and how wires go through both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from caffe_recipes.review.graph.blocks import Stage, stage_title
from caffe_recipes.review.graph.boxes import Edge, Graph
from caffe_recipes.review.graph.labels import text_width
from caffe_recipes.review.graph.lanes import Cell, place_boxes
from caffe_recipes.review.graph.routes import Blob, Entry, Field, Route, find_starts, route_column
from caffe_recipes.review.graph.sizes import HEADING, HEADING_HEIGHT, SMALL, box_height
from caffe_recipes.review.graph.tracks import Span, assign_tracks

_BETWEEN_LANES = 52.0
_SHAPE, _TRACK, _ARROW = 19.0, 8.0, 15.0
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
        """Give how far the column reaches to the left."""
        return min(self.sides(stage)[0] for stage in self.stages)

    @property
    def right(self) -> float:
        """Give how far the column reaches to the right."""
        return max(self.sides(stage)[1] for stage in self.stages)

    def settle(self, arrivals: Mapping[Blob, float], exits: Mapping[Blob, float]) -> None:
        """Give every row and gap its height, once it is known where wires come in and go out."""
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
        """Give how far a stage's boxes and wires reach, left and right."""
        members = {box for block in stage.blocks for box in (*block.core, *block.beside)}
        half = self.ground.width / 2
        middles = [self.ground.x(box) for box in members]
        xs = [hop.x for route in self.routes if route.target in members for hop in route.hops]
        labels = [end for key, end in self.labels.items() if key[0] in members]
        left, right = min(x - half for x in middles), max(x + half for x in middles)
        left = min([left, *xs])
        return left, max([right, *xs, *labels, left + _heading_width(stage, self.graph)])

    def points(self, route: Route) -> list[tuple[float, float]]:
        """Give a wire's points, from its box, or from the gutter where it comes in."""
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
        middle = top + self._height(route.target) / 2
        border = left + (self.ground.width if route.side > 0 else 0)
        return [*points, (x, middle), (border, middle)]

    def exit(self, key: Blob) -> tuple[float, float, float]:
        """Give where a blob that leaves the column starts, x and y, and the y at which it turns."""
        row = self.ground.cells[key[0]].row
        return self.starts[key], self._bottom(key[0]), self._turn(row, key)

    def shape_places(self) -> Iterable[tuple[Blob, float, float]]:
        """Give where each blob's shape is written: below its box, and where it comes into the column."""
        for key, x in self.starts.items():
            yield key, x + _LABEL, self._bottom(key[0]) + 12
        for key in self.entering:
            first = min(
                (route for route in self.routes if route.key == key and route.row < 0),
                key=lambda route: (self.ground.cells[route.target].row, abs(route.end), -route.end),
            )
            x = first.hops[0].x if first.hops else first.end
            yield key, x + _LABEL, self.row_tops[0] - 5

    def _height(self, box: int) -> float:
        return box_height(self.graph.boxes[box])

    def _bottom(self, box: int) -> float:
        return self.corners[box][1] + self._height(box)

    def _gap_height(self, gap: int) -> float:
        tracks = self.tracks[gap]
        return _SHAPE + _TRACK * max(tracks.values()) + _ARROW if tracks else _NO_TURN

    def _turn(self, gap: int, key: Blob) -> float:
        top = (
            self.row_tops[0] - self._gap_height(-1)
            if gap < 0
            else self.row_tops[gap] + self.heights.get(gap, 0.0)
        )
        return top + _SHAPE + _TRACK * self.tracks[gap][key] - (_SHAPE - 8 if gap < 0 else 0)

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
    cells, begins = place_boxes(blocks, edges, graph.sources)
    ground = Field(cells, width + _BETWEEN_LANES, width)
    starts = find_starts(ground, edges, leaving)
    entries = [Entry(key, -1e6, tuple(targets)) for key, targets in entering.items()]
    routes = route_column(ground, edges, entries, starts)
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
    """Give the height of each row: that of its tallest box."""
    heights: dict[int, float] = {}
    for box, cell in cells.items():
        heights[cell.row] = max(heights.get(cell.row, 0.0), box_height(graph.boxes[box]))
    return heights
