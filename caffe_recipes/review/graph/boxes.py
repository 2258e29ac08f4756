"""Turn a net into a graph of boxes and edges, and divide it into blocks and stages.

A box is a layer with the in-place layers on its top. It has the texts that describe its layers, and the size
that these take in print.

The core of a graph is everything that its deepest end is computed from. A neck is a box of the core that no
wire of the core bypasses; a block is a neck and the boxes since the previous neck. Thus a residual block ends
at its sum, and an Inception module at its Concat. Boxes beside the core (accuracies, auxiliary classifiers)
belong to the block that they read. A stage is a series of blocks whose necks have the same image size.
"""

from __future__ import annotations

import math
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.shapes import select_layers
from caffe_recipes.review.inspect.summary import has_inputs, show_dims
from caffe_recipes.wording import shorten_middle

if TYPE_CHECKING:
    from caffe_recipes.caffe.layer_types.dimensions import LayerShapes, Shape
    from caffe_recipes.review.inspect.summary import LoadedNet

MOST_CHARACTERS = 44
TITLE, SMALL, HEADING = 11.0, 9.0, 13.0
TITLE_LINE, LINE, NOTE_LINE, PHASE_LINE = 15.0, 12.0, 13.0, 14.0
HEADING_HEIGHT = 30.0
PADDING = 7.0
_TEXT_GAP = 12.0

# Widths of DejaVu Sans, the widest of the usual sans-serif fonts, in thousandths of the font's size.
_WIDTHS = {
    **dict.fromkeys("ijl'|", 278),
    **dict.fromkeys(" .,:;!/\\[]()I-", 390),
    **dict.fromkeys("frtJ{}*", 430),
    **dict.fromkeys("mwMW@%→←×", 960),
    **dict.fromkeys("_cksvxyz", 590),
    **dict.fromkeys("ABCDEFGHKLNOPQRSTUVXYZ&<>+=~", 780),
}
_OTHER_WIDTH = 640


def text_width(text: str, size: float, *, is_bold: bool = False) -> float:
    """Return the estimated width of a printed text, in the unit of `size`; too wide rather than too narrow.

    >>> text_width("conv1", 10), text_width("conv1", 10, is_bold=True)
    (31.0, 34.7)
    """
    thousandths = sum(_width(char) for char in text)
    return round(thousandths * size / 1000 * (1.12 if is_bold else 1), 1)


def _width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    if unicodedata.east_asian_width(char) in "WF":
        return 1000
    return _WIDTHS.get(char, _OTHER_WIDTH)


def fit_box(text: str) -> str:
    """Return a text without its middle if it is too long for a box.

    >>> fit_box("conv1"), len(fit_box("x" * 100))
    ('conv1', 44)
    """
    return shorten_middle(text, MOST_CHARACTERS, "…")


def show_image_dims(shape: Shape | None) -> str:
    """Return a blob's shape without the batch, as text.

    >>> [show_image_dims(shape) for shape in ((32, 64, 56, 56), (32,), (32, None), None)]
    ['64×56×56', '1', '?', '?']
    """
    return show_dims(shape and shape[1:], "×")


def describe_layer(layer: pb.LayerParameter) -> str:
    """Return a layer's type and its main parameters as text.

    >>> describe_layer(pb.LayerParameter(type="InnerProduct", inner_product_param={"num_output": 1000}))
    'InnerProduct 1000'
    """
    return fit_box(f"{layer.type} {type_of(layer).details(layer)}".rstrip())


@dataclass(frozen=True)
class LayerLine:
    """A layer in its box; `phase` is the only phase that includes it, empty if as for the box."""

    name: str
    what: str
    phase: str = ""


@dataclass(frozen=True)
class Edge:
    """A blob from the box that produces it to one that reads it; `shape` is that of one image, as text."""

    source: int
    target: int
    blob: str
    shape: str


@dataclass(frozen=True)
class Box:
    """A layer, followed by the in-place layers on its top, in order.

    `phase` is the only phase that includes the box, empty if both do. `size` is the height and width of its
    output, None for vectors and unknown shapes. `notes` name the blobs that come from or go to distant boxes.
    """

    id: int
    lines: tuple[LayerLine, ...]
    kind: str
    phase: str
    size: tuple[int, ...] | None
    notes: tuple[str, ...] = ()

    @property
    def width(self) -> float:
        """The width of the box, set by its longest line."""
        first, *others = self.lines
        widths = [text_width(fit_box(first.name), TITLE, is_bold=True), text_width(first.what, SMALL)]
        for line in others:
            phase = text_width(f"{line.phase} only ", SMALL) if line.phase else 0
            names = text_width(fit_box(line.name), SMALL) + text_width(line.what, SMALL)
            widths.append(names + _TEXT_GAP + phase)
        widths += [text_width(note, SMALL) + _TEXT_GAP for note in self.notes]
        return float(round(max(widths) + 2 * PADDING))

    @property
    def height(self) -> float:
        """The height of the box: name, type, a line for each further layer, notes and phase."""
        lines = LINE * len(self.lines) + NOTE_LINE * len(self.notes) + PHASE_LINE * bool(self.phase)
        return TITLE_LINE + lines + PADDING


@dataclass(frozen=True)
class Graph:
    """Boxes in the order of the net, so that every edge goes from a smaller to a larger id."""

    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]

    @cached_property
    def shapes(self) -> dict[tuple[int, str], str]:
        """The shape of each blob, by the box that produces it and its name."""
        return {(edge.source, edge.blob): edge.shape for edge in self.edges}

    @cached_property
    def sources(self) -> set[int]:
        """The boxes that read no blob."""
        return {box.id for box in self.boxes} - {edge.target for edge in self.edges}


@dataclass
class _Draft:
    layers: list[tuple[pb.LayerParameter, set[int]]]
    shape: Shape | None
    phases: set[int]


@dataclass
class _Builder:
    """The boxes built so far; for each phase, the box that produced each blob, and the blobs already read."""

    phases: Sequence[int]
    drafts: list[_Draft] = field(default_factory=list)
    producers: dict[int, dict[str, tuple[int, Shape | None]]] = field(default_factory=dict)
    read: set[tuple[int, str]] = field(default_factory=set)
    edges: dict[tuple[int, int, str], list[str]] = field(default_factory=dict)

    def add(self, layer: pb.LayerParameter, phases: set[int], found: dict[int, LayerShapes]) -> None:
        """Add the next layer, to the box whose top it changes in place, or in a new box."""
        home = self._find_home(layer, phases)
        if home is not None:
            self.drafts[home].layers.append((layer, phases))
            return
        box = len(self.drafts)
        shapes = [found[phase].tops[0] for phase in sorted(phases) if phase in found and layer.top]
        self.drafts.append(_Draft([(layer, phases)], shapes[0] if shapes else None, phases))
        for phase in sorted(phases):
            for blob in layer.bottom:
                self._connect(phase, blob, box)
            tops = found[phase].tops if phase in found else [None] * len(layer.top)
            self.producers[phase].update(
                {top: (box, shape) for top, shape in zip(layer.top, tops, strict=True)}
            )
            self.read -= {(phase, top) for top in layer.top}

    def _find_home(self, layer: pb.LayerParameter, phases: set[int]) -> int | None:
        """Return the box to which an in-place layer belongs; None if its unchanged blob was already read."""
        if len(layer.top) != 1 or list(layer.top) != list(layer.bottom):
            return None
        homes = {self.producers[phase].get(layer.top[0], (-1, None))[0] for phase in phases}
        if len(homes) != 1 or -1 in homes or any((phase, layer.top[0]) in self.read for phase in phases):
            return None
        return homes.pop()

    def _connect(self, phase: int, blob: str, box: int) -> None:
        """Add the edge of a blob; if this phase does not produce it, the other phase's layer may."""
        for maker in (phase, *self.phases):
            if blob in self.producers[maker]:
                source, shape = self.producers[maker][blob]
                shapes = self.edges.setdefault((source, box, blob), [])
                if show_image_dims(shape) not in shapes:
                    shapes.append(show_image_dims(shape))
                self.read.add((phase, blob))
                return


def build_graph(net: LoadedNet) -> Graph:
    """Return the graph of a net in both phases, or in the phase that the options name.

    Raises PrototxtError if the shapes do not fit in a phase that has data.
    """
    layers = list(net.message.layer)
    phases = [net.phase] if net.options.phase is not None else [pb.TRAIN, pb.TEST]
    included = {
        phase: {id(layer) for layer in select_layers(net.message, phase, net.level, net.stages)}
        for phase in phases
    }
    found: dict[int, dict[int, LayerShapes]] = {}
    for phase in phases:
        if phase == net.phase or has_inputs(net.message, phase, net.level, net.stages):
            found[phase] = {id(one.layer): one for one in net.infer(phase).layers}
    builder = _Builder(phases, producers={phase: {} for phase in phases})
    for layer in layers:
        here = {phase for phase in phases if id(layer) in included[phase]}
        if here:
            shapes = {phase: found[phase][id(layer)] for phase in here if phase in found}
            builder.add(layer, here, shapes)
    return _finish(builder)


def _finish(builder: _Builder) -> Graph:
    edges = [
        Edge(source, target, blob, " | ".join([shape for shape in shapes if shape != "?"] or ["?"]))
        for (source, target, blob), shapes in builder.edges.items()
    ]
    boxes = [
        Box(
            index,
            _lines(draft),
            _kind(draft),
            _only_phase(draft.phases, builder),
            _size(draft),
        )
        for index, draft in enumerate(builder.drafts)
    ]
    return Graph(tuple(boxes), tuple(sorted(edges, key=lambda edge: (edge.source, edge.target, edge.blob))))


def _lines(draft: _Draft) -> tuple[LayerLine, ...]:
    return tuple(
        LayerLine(
            layer.name or "(no name)",
            describe_layer(layer),
            "" if included == draft.phases else pb.Phase.Name(next(iter(included))),
        )
        for layer, included in draft.layers
    )


def _only_phase(included: set[int], builder: _Builder) -> str:
    return pb.Phase.Name(next(iter(included))) if len(included) < len(builder.phases) else ""


def _kind(draft: _Draft) -> str:
    layer = draft.layers[0][0]
    if not layer.bottom:
        return "source"
    return "end" if layer.type.endswith("Loss") else type_of(layer).kind


def _size(draft: _Draft) -> tuple[int, ...] | None:
    size = (draft.shape or ())[2:]
    known = tuple(dim for dim in size if dim is not None)
    return known if len(known) == len(size) and any(dim > 1 for dim in known) else None


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
