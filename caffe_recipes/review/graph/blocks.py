"""Divide a graph into blocks, which end at boxes that all data passes through, and stages of one image size.

The core of a graph is everything that its deepest end is computed from. A neck is a box of the core that no
wire of the core bypasses; a block is a neck and the boxes since the previous neck. Thus a residual block ends
at its sum, and an Inception module at its Concat. Boxes beside the core (accuracies, auxiliary classifiers)
belong to the block that they read. A stage is a series of blocks whose necks have the same image size.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from caffe_recipes.review.graph.boxes import Box, Graph

if TYPE_CHECKING:
    from caffe_recipes.review.graph.boxes import Edge

_MOST_SIZES = 2  # a block that reduces the image size has two sizes


@dataclass(frozen=True)
class Block:
    """Boxes of the core, the last of which is `neck`, and the boxes beside the core that read them."""

    core: tuple[int, ...]
    neck: int
    beside: tuple[int, ...]

    @property
    def boxes(self) -> tuple[int, ...]:
        """All boxes of the block."""
        return (*self.core, *self.beside)


@dataclass(frozen=True)
class Stage:
    """Blocks of the same image size, None for vectors; `is_continued` if it began in another column."""

    size: tuple[int, ...] | None
    blocks: tuple[Block, ...]
    is_continued: bool = False

    @property
    def boxes(self) -> set[int]:
        """The boxes of all blocks of the stage."""
        return {box for block in self.blocks for box in block.boxes}


@dataclass(frozen=True)
class Wiring:
    """The edges of a graph that are drawn as wires, and those from distant sources, which are only notes."""

    wires: tuple[Edge, ...]
    distant: tuple[Edge, ...]


def split_wires(graph: Graph) -> Wiring:
    """Split edges into wires and distant edges, such as labels that go past other layers to a loss."""
    sources = graph.sources
    fed_by_layers = {edge.target for edge in graph.edges if edge.source not in sources}
    wires: list[Edge] = []
    distant: list[Edge] = []
    for edge in graph.edges:
        is_distant = edge.source in sources and edge.target in fed_by_layers
        (distant if is_distant else wires).append(edge)
    return Wiring(tuple(wires), tuple(distant))


def edges_into(edges: Iterable[Edge]) -> dict[int, list[Edge]]:
    """Return the edges that end at each box."""
    into: dict[int, list[Edge]] = {}
    for edge in edges:
        into.setdefault(edge.target, []).append(edge)
    return into


def with_notes(graph: Graph, wiring: Wiring) -> Graph:
    """Return the graph with notes in each box on the blobs that it sends to or reads from distant boxes."""
    sends: dict[int, dict[str, int]] = {}
    gets: dict[int, list[str]] = {}
    for edge in wiring.distant:
        sent = sends.setdefault(edge.source, {})
        label = f"{edge.blob} ({edge.shape}) →"
        sent[label] = sent.get(label, 0) + 1
        gets.setdefault(edge.target, [])
        if f"← {edge.blob}" not in gets[edge.target]:
            gets[edge.target].append(f"← {edge.blob}")
    boxes = (replace(box, notes=(*gets.get(box.id, ()), *sends.get(box.id, ()))) for box in graph.boxes)
    return Graph(tuple(boxes), graph.edges)


def find_stages(graph: Graph, wires: Iterable[Edge]) -> tuple[Stage, ...]:
    """Return the stages of a graph, each a series of blocks, from its data to its end."""
    runs = groupby(_blocks(graph, list(wires)), key=lambda block: graph.boxes[block.neck].size)
    return tuple(Stage(size, tuple(blocks)) for size, blocks in runs)


def _blocks(graph: Graph, edges: list[Edge]) -> list[Block]:
    core = _core(graph, edges)
    inner = [edge for edge in edges if edge.source in core and edge.target in core]
    roots = core - {edge.target for edge in inner}
    first_reader = {
        root: min((edge.target for edge in inner if edge.source == root), default=root) for root in roots
    }
    necks = _necks(sorted(core - roots) or sorted(core), inner, first_reader)
    home: dict[int, int] = {}
    members: list[list[int]] = [[] for _ in necks]
    beside_blocks: list[list[int]] = [[] for _ in necks]
    for box in sorted(core):
        home[box] = bisect_left(necks, first_reader.get(box, box))
        members[home[box]].append(box)
    for box, index in sorted(_beside(graph, edges, home).items()):
        beside_blocks[index].append(box)
    return [
        Block(tuple(core_boxes), neck, tuple(beside))
        for core_boxes, neck, beside in zip(members, necks, beside_blocks, strict=True)
    ]


def _core(graph: Graph, edges: list[Edge]) -> set[int]:
    """Return the deepest box, the first of equals, and all boxes that it is computed from."""
    depth = dict.fromkeys((box.id for box in graph.boxes), 0)
    for edge in edges:  # edges are sorted by source, and sources come before targets
        depth[edge.target] = max(depth[edge.target], depth[edge.source] + 1)
    end = max(depth, key=lambda box: (depth[box], -box))
    core = {end}
    for edge in reversed(edges):
        if edge.target in core:
            core.add(edge.source)
    return core


def _necks(order: list[int], inner: list[Edge], first_reader: Mapping[int, int]) -> list[int]:
    """Return the boxes that no wire bypasses, and the last box; the first follows all readers of roots."""
    farthest: dict[int, int] = {}
    for edge in inner:
        farthest[edge.source] = max(edge.target, farthest.get(edge.source, 0))
    reach = max(first_reader.values(), default=0)
    for root in first_reader:
        reach = max(reach, farthest.get(root, 0))
    necks = []
    for box in order:
        if reach <= box:
            necks.append(box)
        reach = max(reach, farthest.get(box, 0))
    return necks if necks and necks[-1] == order[-1] else [*necks, order[-1]]


def _beside(graph: Graph, edges: list[Edge], home: Mapping[int, int]) -> dict[int, int]:
    """Return for each box outside the core the last block that it reads from, or the first block."""
    found: dict[int, int] = {}
    into = edges_into(edges)
    for box in graph.boxes:
        if box.id not in home:
            reads = [edge.source for edge in into.get(box.id, ())]
            found[box.id] = max((home.get(one, found.get(one, 0)) for one in reads), default=-1)
    for box in reversed(graph.boxes):  # a source beside the core goes with its first reader
        if found.get(box.id) == -1:
            readers = [edge.target for edge in edges if edge.source == box.id]
            found[box.id] = max(min((home.get(one, found.get(one, 0)) for one in readers), default=0), 0)
    return found


def show_size(size: tuple[int, ...] | None) -> str:
    """Return an image's height and width as text.

    >>> show_size((56, 56)), show_size(None)
    ('56 × 56', 'vectors')
    """
    return "vectors" if size is None else " × ".join(map(str, size))


def stage_title(stage: Stage, boxes: Sequence[Box]) -> str:
    """Return the title of a stage: its image size, or the largest and the smallest of three or more."""
    sizes = {boxes[box].size for block in stage.blocks for box in block.core}
    by_area = sorted(sizes, key=lambda size: (math.prod(size or (0,)), size or ()), reverse=True)
    name = show_size(stage.size)
    if len(by_area) > _MOST_SIZES:
        name = f"{show_size(by_area[0])} to {show_size(by_area[-1])}"
    return f"{name}, continued" if stage.is_continued else name
