"""Lay out a picture: the boxes, wires and stage backgrounds, in pixels from the top left."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

from caffe_recipes.review.graph.boxes import (
    HEADING,
    HEADING_HEIGHT,
    Stage,
    edges_into,
    find_stages,
    show_size,
    split_wires,
    stage_title,
    text_width,
    with_notes,
)
from caffe_recipes.review.graph.columns import plan_column, row_heights
from caffe_recipes.review.graph.placement import place_boxes
from caffe_recipes.review.graph.wires import BoxedBlob

if TYPE_CHECKING:
    from caffe_recipes.review.graph.boxes import Box, Edge, Graph, Wiring
    from caffe_recipes.review.graph.columns import ColumnPlan
    from caffe_recipes.review.graph.wires import Route

Point = tuple[float, float]

_SHORTEST_COLUMN, _LONGEST_COLUMN = 900.0, 2700.0
_GUTTER, _TRACK = 22.0, 8.0
_ROUGH_GAP, _PAGE_MARGIN, _HEADING_IN = 38.0, 30.0, 10.0


@dataclass(frozen=True)
class PlacedBox:
    """A box, with the corners of its rectangle."""

    box: Box
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Wire:
    """An edge as a line, from the border of its source to the border of its target."""

    edge: Edge
    points: tuple[Point, ...]


@dataclass(frozen=True)
class ShapeText:
    """The shape of a blob, written beside its wire."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Band:
    """The background of a stage in one column, and its title."""

    title: str
    title_x: float
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Layout:
    """The whole picture below its title; `width` is that of the page."""

    boxes: tuple[PlacedBox, ...]
    wires: tuple[Wire, ...]
    shapes: tuple[ShapeText, ...]
    bands: tuple[Band, ...]
    width: float
    height: float


def lay_out(graph: Graph) -> tuple[Layout, Wiring]:
    """Return the layout of a graph, with boxes in columns of stages and wires between, and its wiring."""
    wiring = split_wires(graph)
    graph = with_notes(graph, wiring)
    stages = find_stages(graph, wiring.wires)
    # A wire down to the first box of a stage passes beside the heading.
    heading = max(text_width(show_size(stage.size), HEADING, is_bold=True) for stage in stages)
    # With a multiple of 4, every position is a whole number, and sums are exact.
    width = 4.0 * math.ceil(max(*(box.width for box in graph.boxes), 2 * heading + 8) / 4)
    columns = _pack(graph, stages, wiring.wires)
    return _Page(graph, wiring, columns, width).finish(), wiring


def _pack(graph: Graph, stages: Sequence[Stage], edges: Sequence[Edge]) -> list[list[Stage]]:
    """Return the stages of each column: short ones below each other, and long ones continued in the next."""
    into = edges_into(edges)
    rough = {block.neck: 0.0 for stage in stages for block in stage.blocks}
    for stage in stages:
        for block in stage.blocks:
            cells, _ = place_boxes([block], into, graph.sources)
            rows = row_heights(cells, graph)
            core_rows = {cells[box].row for box in block.core}
            rough[block.neck] = sum(rows[row] + _ROUGH_GAP for row in core_rows)
    lengths = [sum(rough[block.neck] for block in stage.blocks) for stage in stages]
    most = min(max(*lengths, _SHORTEST_COLUMN), _LONGEST_COLUMN)
    columns: list[list[Stage]] = [[]]
    room = most
    for stage, length in zip(stages, lengths, strict=True):
        if length > room and columns[-1] and length <= most:
            columns.append([])
            room = most
        part: list[int] = []
        for index, block in enumerate(stage.blocks):
            if rough[block.neck] > room and (part or columns[-1]):
                if part:
                    columns[-1].append(_slice_stage(stage, part))
                columns.append([])
                part, room = [], most
            part.append(index)
            room -= rough[block.neck]
        columns[-1].append(_slice_stage(stage, part))
    return columns


def _slice_stage(stage: Stage, indices: Sequence[int]) -> Stage:
    return Stage(stage.size, tuple(stage.blocks[index] for index in indices), indices[0] > 0)


class _Page:
    """The columns of a page, planned one by one and then moved into place."""

    def __init__(self, graph: Graph, wiring: Wiring, columns: list[list[Stage]], width: float) -> None:
        self.graph, self.width = graph, width
        self.home = {
            box: index for index, stages in enumerate(columns) for stage in stages for box in stage.boxes
        }
        self.edges = {(edge.source, edge.target, edge.blob): edge for edge in wiring.wires}
        # The wires in the gutter right of each column: a blob, and the column that it goes down or up in.
        gutters: list[dict[tuple[BoxedBlob, int], None]] = [{} for _ in columns]
        own: list[list[Edge]] = [[] for _ in columns]
        entering: list[dict[BoxedBlob, list[int]]] = [{} for _ in columns]
        leaving: list[dict[BoxedBlob, None]] = [{} for _ in columns]
        for edge in wiring.wires:
            source, target = self.home[edge.source], self.home[edge.target]
            if source == target:
                own[source].append(edge)
                continue
            key = (edge.source, edge.blob)
            entering[target].setdefault(key, []).append(edge.target)
            leaving[source][key] = None
            gutters[source][key, source] = None
            if target != source + 1:
                gutters[target - 1][key, target] = None
        parts = zip(columns, own, entering, map(list, leaving), strict=True)
        self.plans = [plan_column(graph, *part, width) for part in parts]
        self.gutters = [list(gutter) for gutter in gutters]
        self.axes, self.gutter_starts, self.page_width = self._place_columns()
        self.bottoms: dict[BoxedBlob, int] = {}

    def _place_columns(self) -> tuple[list[float], list[float], float]:
        """Return the x of each column's middle and of each gutter's first wire, and the page's width."""
        x, axes, starts = _PAGE_MARGIN, [], []
        for plan, gutter in zip(self.plans, self.gutters, strict=True):
            axes.append(x - plan.left)
            x += plan.right - plan.left
            starts.append(x + _GUTTER)
            x += 2 * _GUTTER + _TRACK * len(gutter) if gutter else _GUTTER
        return axes, starts, x - _GUTTER + _PAGE_MARGIN

    def _gutter_x(self, column: int, key: BoxedBlob, bound: int) -> float:
        return self.gutter_starts[column] + _TRACK * self.gutters[column].index((key, bound))

    def finish(self) -> Layout:
        boxes: list[PlacedBox] = []
        bands: list[Band] = []
        for index, plan in enumerate(self.plans):
            into = {key: self._arrival_x(index, key) - self.axes[index] for key in plan.entering}
            out = {key: self._gutter_x(index, key, index) - self.axes[index] for key in plan.leaving}
            plan.set_heights(into, out)
            axis = self.axes[index]
            for box, (x, y) in plan.corners.items():
                placed = self.graph.boxes[box]
                boxes.append(PlacedBox(placed, axis + x, y, self.width, placed.height))
            for stage, top, bottom in plan.bands:
                left, right = plan.sides(stage)
                left, right = left - 10, right + 10
                title = stage_title(stage, self.graph.boxes)
                bands.append(
                    Band(title, axis + left + _HEADING_IN, axis + left, top, right - left, bottom - top)
                )
        boxes.sort(key=lambda placed: placed.box.id)
        lowest = max(plan.height for plan in self.plans)
        wires = [
            self._wire(index, route, lowest) for index, plan in enumerate(self.plans) for route in plan.routes
        ]
        shapes = [text for index, plan in enumerate(self.plans) for text in self._shapes(index, plan)]
        vertical = sorted({line for wire in wires for line in _vertical_segments(wire)})
        bands = [_with_heading(band, vertical) for band in bands]
        height = lowest + _TRACK * (len(self.bottoms) + 1)
        return Layout(tuple(boxes), tuple(wires), tuple(shapes), tuple(bands), self.page_width, height)

    def _arrival_x(self, column: int, key: BoxedBlob) -> float:
        """Return the x at which a blob reaches a column: its track in the gutter on the left."""
        source = self.home[key[0]]
        return self._gutter_x(column - 1, key, source if source == column - 1 else column)

    def _wire(self, index: int, route: Route, lowest: float) -> Wire:
        plan, axis = self.plans[index], self.axes[index]
        points: list[Point] = [(axis + x, y) for x, y in plan.points(route)]
        if route.row < 0:
            points = self._from_other_column(index, route, lowest) + points
        edge = self.edges[route.source, route.target, route.blob]
        return Wire(edge, _straighten(points))

    def _from_other_column(self, index: int, route: Route, lowest: float) -> list[Point]:
        """Return the points of a wire from a box in another column to the gutter left of this one."""
        source = self.home[route.source]
        start = self.plans[source]
        x, y, turn = start.exit(route.key)
        out = self._gutter_x(source, route.key, source)
        axis = self.axes[source]
        points = [(axis + x, y), (axis + x, turn), (out, turn)]
        if source != index - 1:
            track = self.bottoms.setdefault(route.key, len(self.bottoms))
            below = lowest + _TRACK * (track + 1)
            points += [(out, below), (self._arrival_x(index, route.key), below)]
        return points

    def _shapes(self, index: int, plan: ColumnPlan) -> list[ShapeText]:
        return [
            ShapeText(self.axes[index] + x, y, self.graph.shapes[key]) for key, x, y in plan.shape_places()
        ]


def _vertical_segments(wire: Wire) -> Iterator[tuple[float, float, float]]:
    """Yield the vertical segments of a wire: x, top and bottom."""
    for (x, y), (to_x, to_y) in pairwise(wire.points):
        if x == to_x:
            yield x, min(y, to_y), max(y, to_y)


def _with_heading(band: Band, vertical: Sequence[tuple[float, float, float]]) -> Band:
    """Return the band with its heading moved right of the wires that would cross it, if there is room."""
    first = bisect_left(vertical, band.x - 4, key=itemgetter(0))
    last = bisect_right(vertical, band.x + band.width + 4, key=itemgetter(0))
    passing = sorted(
        {x for x, top, end in vertical[first:last] if top < band.y + HEADING_HEIGHT and end > band.y}
    )
    width = text_width(band.title, HEADING, is_bold=True)
    for start in (band.title_x, *(x + _HEADING_IN for x in passing if x > band.x)):
        is_free = not any(start - 4 < x < start + width + 4 for x in passing)
        if is_free and start + width < band.x + band.width:
            return replace(band, title_x=start)
    return band


def _straighten(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points without duplicates, and without points on the line between two others."""
    kept: list[Point] = []
    for point in points:
        if kept and kept[-1] == point:
            continue
        if len(kept) >= 2 and (
            kept[-2][0] == kept[-1][0] == point[0] or kept[-2][1] == kept[-1][1] == point[1]
        ):
            kept[-1] = point
        else:
            kept.append(point)
    return tuple(kept)
