"""Plan a column of a picture: its boxes, the wires between them, and its heights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from caffe_recipes.review.graph.boxes import (
    HEADING,
    HEADING_HEIGHT,
    SMALL,
    edges_into,
    stage_title,
    text_width,
)
from caffe_recipes.review.graph.placement import Cell, place_boxes
from caffe_recipes.review.graph.wires import (
    BoxedBlob,
    Obstacles,
    Route,
    Span,
    assign_tracks,
    find_starts,
    route_column,
)

if TYPE_CHECKING:
    from caffe_recipes.review.graph.boxes import Edge, Graph, Stage


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
