"""Place the boxes of one column of a picture in rows and lanes.

The main path goes straight down. A lane is a distance from the middle of the column, in box widths; with an
even number of branches side by side, lanes are halves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caffe_recipes.review.graph.boxes import Block, Edge


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
