"""Rows and lanes of a column: which boxes stand beside which, with the main path straight down.

A lane is a distance from the column's middle, in widths of a box; halves occur where an even number of
branches stands side by side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from caffe_recipes.review.graph.blocks import Block
from caffe_recipes.review.graph.boxes import Edge


@dataclass(frozen=True)
class Cell:
    """Where a box stands in its column."""

    row: int
    lane: float


@dataclass
class _Column:
    """The cells so far."""

    cells: dict[int, Cell]

    def reach(self, rows: range) -> tuple[float, float]:
        """Give the leftmost and rightmost lane in these rows; (0, -1) if they are empty."""
        lanes = [cell.lane for cell in self.cells.values() if cell.row in rows]
        return (min(lanes), max(lanes)) if lanes else (0.0, -1.0)


def place_boxes(
    blocks: Sequence[Block], edges: Sequence[Edge], sources: Collection[int]
) -> tuple[dict[int, Cell], list[int]]:
    """Give each box of a column its cell, and the row that each block begins in; `sources` read no blob."""
    into: dict[int, list[Edge]] = {}
    for edge in edges:
        into.setdefault(edge.target, []).append(edge)
    column, begins, row = _Column({}), [], 0
    for block in blocks:
        begins.append(row)
        members = set(block.core)
        inner = [edge for box in block.core for edge in into.get(box, ()) if edge.source in members]
        depths = _depths(block, inner, sources)
        lanes = _block_lanes(block, inner, depths)
        for box in block.core:
            column.cells[box] = Cell(row + depths[box], lanes[box])
        row += depths[block.neck] + 1
    for block, begin in zip(blocks, begins, strict=True):
        _place_beside(column, block, begin, [edge for box in block.beside for edge in into.get(box, ())])
    return column.cells, begins


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
    step = 0
    while True:
        step += 1
        yield offset + step
        yield -offset - step


def _paths(boxes: Sequence[int], edges: Sequence[Edge]) -> list[list[int]]:
    """Part boxes into chains, the longest first; of two as long, the one that begins first."""
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


def _place_beside(column: _Column, block: Block, begin: int, edges: Sequence[Edge]) -> None:
    """Stand what hangs on a block to its right, below what it hangs on, beyond all that is there."""
    depths: dict[int, int] = {}
    for box in block.beside:
        above = [edge.source for edge in edges if edge.target == box]
        rows = [
            depths[one] if one in depths else column.cells[one].row
            for one in above
            if one in depths or one in column.cells
        ]
        depths[box] = max(rows, default=begin - 1) + 1
    for path in _paths(block.beside, edges):
        _, right = column.reach(_rows(path, depths))
        lane = max(right + 1, 0.0)
        for box in path:
            column.cells[box] = Cell(depths[box], lane)
