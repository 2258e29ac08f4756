"""How fast a recipe trains, and who says so: the user's log, the recipe's source, or the paper's tables.

What the paper measured: the throughput of whole machines by nodes and local batch, and between its points.

Source of all numbers: arXiv:1711.04291, Table V (Stampede2) and Table VI (MareNostrum 4). Batches are a
node's; MareNostrum's "CPUs" are sockets, two to the node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import PurePath
from typing import Literal

from caffe_recipes.caffe.logs import Loss, Started, parse_line
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.graph import images_per_iter, total_images
from caffe_recipes.recipe.model import AnyRecipe, Phase, Recipe
from caffe_recipes.wording import describe_count

# The paper's epoch: Table VI's throughputs times its seconds are 1.28 million images, rounded.
PAPER_IMAGES = 1_280_000
_SOCKETS_PER_NODE = 2

How = Literal["measured", "interpolated", "beyond"]


@dataclass(frozen=True)
class Point:
    """One configuration as it was measured."""

    batch_per_node: int
    nodes: int
    images_per_s: float


@dataclass(frozen=True)
class OneNode:
    """The speed of a node alone, at one local batch: not printed, but derived from a printed efficiency."""

    batch_per_node: int
    images_per_s: float
    derived: str


@dataclass(frozen=True)
class Table:
    """A machine's measurements, and what a node does there alone."""

    name: str
    machine: str
    points: tuple[Point, ...]
    one_node: OneNode


@dataclass(frozen=True)
class Scaling:
    """The speed of each node, as a part of the speed of one alone, and where the latter is from."""

    efficiency: float
    reference: str


@dataclass(frozen=True)
class Throughput:
    """Images a second of all nodes, how they are known, and a note on each doubt."""

    images_per_s: float
    how: How
    scaling: Scaling
    notes: tuple[str, ...] = ()

    @property
    def epoch_s(self) -> float:
        """Seconds of the paper's epoch."""
        return PAPER_IMAGES / self.images_per_s


# Local batch, nodes, seconds per epoch.
EPOCHS_V = (
    (16, 256, 102.0), (32, 256, 85.0), (16, 512, 60.0), (20, 512, 55.0), (24, 512, 51.3), (32, 512, 48.8),
    (16, 768, 38.0), (16, 1024, 31.5), (32, 1024, 24.5), (32, 1536, 16.8),
)  # fmt: skip
# Local batch, CPUs, images per second, seconds per epoch.
EPOCHS_VI = (
    (32, 512, 15170.0, 84.3), (24, 800, 20480.0, 62.5), (16, 800, 19047.0, 67.2), (16, 1024, 24380.0, 52.5),
)  # fmt: skip


def _one_node(among: Point, percent: int, words: str) -> OneNode:
    """Derive the speed of one node from the efficiency that the paper prints for a point."""
    derived = f'derived from "{words} {percent} %" at {among.nodes} nodes'
    return OneNode(among.batch_per_node, among.images_per_s / among.nodes * 100 / percent, derived)


_POINTS_V = tuple(Point(b, n, PAPER_IMAGES / s) for b, n, s in EPOCHS_V)
_POINTS_VI = tuple(Point(b, n // _SOCKETS_PER_NODE, speed) for b, n, speed, _ in EPOCHS_VI)
# Section V-A 1: "above 97%" from 1 to 256 KNL nodes; V-A 2: "around 90%" from 1 to 512 CPUs.
TABLE_V = Table("Table V", "Stampede2's KNL nodes", _POINTS_V, _one_node(_POINTS_V[1], 97, "above"))
TABLE_VI = Table("Table VI", "MareNostrum 4's nodes", _POINTS_VI, _one_node(_POINTS_VI[0], 90, "around"))
# By the profile of the machine, and else by sockets and cores of a socket: Xeon Phi 7250, Xeon 8160.
TABLES = {"stampede2-knl": TABLE_V, "marenostrum4": TABLE_VI}
TABLES_BY_CORES = {(1, 68): TABLE_V, (2, 24): TABLE_VI}


def find_throughput(table: Table, nodes: int, batch_per_node: float) -> Throughput:
    """Return what the table says, or what lies between or beyond its points.

    The points of one local batch are a curve, over nodes, from one node on. Between two of them images/s are
    linear in nodes: a node's speed stays between theirs. Before the first and after the last the curve goes
    on as that of the local batch for which the paper prints an efficiency; and there, an iteration takes
    longer by the same part whenever the nodes are doubled. Between the curves of two local batches the
    seconds of an iteration are linear in the batch; beyond them, those of one node are, and the efficiency is
    the nearest curve's. Left out one after another, Table V's inner points are found again within 9 %, those
    between local batches within 2 %. What is beyond is in `notes`.

    >>> round(find_throughput(TABLE_V, 256, 32).epoch_s), find_throughput(TABLE_V, 720, 16).how
    (85, 'interpolated')
    """
    curves = _curves(table)
    low, high = _neighbours(sorted(curves), batch_per_node)
    inside = min(max(batch_per_node, low), high)

    def alone_s(batch: int) -> float:
        return batch / _speed_alone(table, batch)

    def among_s(batch: int) -> float:
        return alone_s(batch) / _efficiency(table, batch, nodes)

    efficiency = _between(inside, low, high, alone_s) / _between(inside, low, high, among_s)
    speed = batch_per_node / _between(batch_per_node, low, high, alone_s) * efficiency
    used = {batch: curves[batch] for batch in (low, high) if inside in (batch, batch_per_node)}
    notes = tuple(_notes(table, used, nodes, batch_per_node))
    asked = (batch_per_node, nodes)
    exact = next((one for one in table.points if (one.batch_per_node, one.nodes) == asked), None)
    how: How = "measured" if exact else "beyond" if notes else "interpolated"
    one = table.one_node
    reference = f"{one.images_per_s:.1f} images/s with {one.batch_per_node}, {one.derived}"
    images_per_s = exact.images_per_s if exact else nodes * speed
    return Throughput(images_per_s, how, Scaling(efficiency, reference), notes)


def _curves(table: Table) -> dict[int, list[Point]]:
    """Return the points by local batch, each by rising nodes."""
    curves: dict[int, list[Point]] = {}
    for point in sorted(table.points, key=lambda point: point.nodes):
        curves.setdefault(point.batch_per_node, []).append(point)
    return curves


def _neighbours(batches: Sequence[int], batch: float) -> tuple[int, int]:
    """Return the two local batches that a line is drawn through: around it, or the nearest two."""
    if batch in batches:
        return int(batch), int(batch)
    above = [index for index, each in enumerate(batches) if each > batch]
    last = min(max(above[0] if above else len(batches) - 1, 1), len(batches) - 1)
    return batches[max(0, last - 1)], batches[last]


def _between(batch: float, low: int, high: int, seconds: Callable[[int], float]) -> float:
    """Return an iteration's seconds on the line through those of two local batches.

    One local batch alone tells nothing of an iteration's own cost: each image takes as long as there.
    """
    if low == high:
        return seconds(low) * batch / low
    return seconds(low) + (batch - low) / (high - low) * (seconds(high) - seconds(low))


def _speed_alone(table: Table, batch: int) -> float:
    """Return the images/s of one node: a curve's first point is as efficient as the printed curve there."""
    first = _curves(table)[batch][0]
    return first.images_per_s / first.nodes / _printed_efficiency(table, first.nodes)


def _printed_efficiency(table: Table, nodes: int) -> float:
    """Return the efficiency at the local batch for which the paper prints one."""
    points = _curves(table)[table.one_node.batch_per_node]
    end = min(max(nodes, points[0].nodes), points[-1].nodes)
    there = _node_speed(points, end) / table.one_node.images_per_s
    if nodes == end:
        return there
    return 1 / (1 + (1 / there - 1) * math.log(nodes) / math.log(end))


def _efficiency(table: Table, batch: int, nodes: int) -> float:
    """Return the efficiency on the curve of a measured local batch."""
    points = _curves(table)[batch]
    end = min(max(nodes, points[0].nodes), points[-1].nodes)
    there = _node_speed(points, end) / _speed_alone(table, batch)
    return there * _printed_efficiency(table, nodes) / _printed_efficiency(table, end)


def _node_speed(points: Sequence[Point], nodes: int) -> float:
    """Return a node's images/s at a point of a curve or between two."""
    right = next(point for point in points if point.nodes >= nodes)
    if right.nodes == nodes:
        return right.images_per_s / nodes
    left = points[points.index(right) - 1]
    part = (nodes - left.nodes) / (right.nodes - left.nodes)
    return (left.images_per_s + part * (right.images_per_s - left.images_per_s)) / nodes


def _notes(table: Table, used: dict[int, list[Point]], nodes: int, batch: float) -> Iterator[str]:
    """Say where the question lies beyond the points that the answer is drawn through."""
    if not min(used) <= batch <= max(used):
        yield f"beyond {table.name}, whose nearest local batch is {min(used)} images a node"
    for each, points in used.items():
        first, last = points[0].nodes, points[-1].nodes
        if not first <= nodes <= last:
            counts = f"{first} to {last}" if first < last else f"{first}"
            yield f"beyond {table.name}, which has {counts} nodes with {each} images a node: extrapolated"


Kind = Literal["log", "given", "reported", "measured", "minutes"]
# The first that there is counts; but the table goes last where it is asked for what lies beyond it.
KINDS: tuple[Kind, ...] = ("log", "given", "reported", "measured", "minutes")
_PAPER_CROP_PX = 224


@dataclass(frozen=True)
class Pace:
    """Images a second of all ranks, who says so, and a word on each doubt.

    `is_elsewhere`: it is the pace of another machine than the one that is asked for, or may be. `scaling` is
    known where a table has the machine.
    """

    images_per_s: float
    kind: Kind
    source: str
    notes: tuple[str, ...] = ()
    is_elsewhere: bool = False
    scaling: Scaling | None = None


@dataclass(frozen=True)
class Shape:
    """So many nodes, ranks and images, which may be others than the recipe's."""

    nodes: int
    ranks_per_node: int
    batch_per_rank: int

    @property
    def ranks(self) -> int:
        """Number of MPI ranks in all."""
        return self.nodes * self.ranks_per_node

    @property
    def batch_per_node(self) -> int:
        """Images of an iteration on one node, which the paper calls the local batch."""
        return self.ranks_per_node * self.batch_per_rank

    @property
    def global_batch(self) -> int:
        """Images of an iteration over all ranks."""
        return self.ranks * self.batch_per_rank


def shape_of(recipe: Recipe) -> Shape:
    """Return the recipe's own shape."""
    cluster = recipe.cluster
    return Shape(cluster.nodes, cluster.ranks_per_node, cluster.batch_per_rank)


def reported_pace(recipe: AnyRecipe) -> Pace | None:
    """Return what the source says: its rate, else a node's times the nodes, else all images in its minutes.

    >>> from caffe_recipes.recipe.source import load_recipe
    >>> reported_pace(load_recipe("stampede2-64n-72ep")).images_per_s
    6303.0
    """
    reported = recipe.reported
    if reported.images_per_s is not None:
        return Pace(reported.images_per_s, "reported", "the recipe's reported rate")
    if reported.images_per_s_per_node is not None:
        rate = reported.images_per_s_per_node * recipe.cluster.nodes
        return Pace(rate, "reported", "the recipe's reported rate of a node")
    if reported.minutes is not None:
        rate = total_images(recipe) / (60 * reported.minutes)
        return Pace(rate, "minutes", f"all images in the recipe's reported {reported.minutes:g} minutes")
    return None


def node_of(recipe: Recipe) -> tuple[int | None, int | None]:
    """Return a node's sockets, and the cores of each, on the recipe's machine; None where it is silent."""
    return recipe.cluster.sockets_per_node, recipe.cluster.cores_per_socket


def given_pace(images_per_s: float) -> Pace:
    """Return the rate that the user gives."""
    return Pace(images_per_s, "given", "as given")


def measured_pace(
    recipe: Recipe, machine: str | None, shape: Shape, node: tuple[int | None, int | None] | None = None
) -> Pace | None:
    """Return what the paper's table of a machine says of a shape; None without one, or for another net.

    `machine` is a profile's name; one without a table is known by its sockets and the cores of each, `node`,
    by default the recipe's, if at all.
    """
    sockets, cores_of_each = node or node_of(recipe)
    cores = (sockets or 0, cores_of_each or 0)
    table = TABLES.get(machine or "") or TABLES_BY_CORES.get(cores)
    if table is None or recipe.net.builder not in ("resnet50", None):
        return None
    found = find_throughput(table, shape.nodes, shape.batch_per_node)
    notes = list(found.notes)
    if recipe.net.builder is None or recipe.data.crop_size != _PAPER_CROP_PX:
        notes.append(f"{table.name} is of ResNet-50 on crops of {_PAPER_CROP_PX} px")
    between = ", between its points" if found.how == "interpolated" else ""
    alike = "" if machine in TABLES else f", as of nodes with {cores[0]} x {cores[1]} cores"
    source = f"the paper's {table.name}{alike}{between}"
    return Pace(found.images_per_s, "measured", source, tuple(notes), scaling=found.scaling)


def order_paces(paces: Iterable[Pace], by: Kind | None = None) -> list[Pace]:
    """Put first the pace that counts: of the kind that is asked for, else the first of KINDS.

    A measured one with a doubt goes behind them: what a source reports of its own run is nearer. Those of
    other machines go last.
    """

    def rank(pace: Pace) -> tuple[bool, bool, bool, int]:
        doubtful = pace.kind == "measured" and bool(pace.notes)
        return pace.kind != by, pace.is_elsewhere, doubtful, KINDS.index(pace.kind)

    return sorted(paces, key=rank)


def logged_pace(recipe: Recipe, logs: Iterable[tuple[str, Iterable[str]]]) -> Pace:
    """Return the pace of Caffe's logs, each a path and its lines, of a run of the recipe's own shape.

    It is the images between each two loss lines by the seconds between them, tests and snapshots included;
    what lies between two starts of the solver, or goes back in time, counts for nothing. Raises InputError
    if no two loss lines with a time follow one another.
    """
    images, seconds, lines = 0, 0.0, 0
    paths: list[str] = []
    notes: list[str] = []
    for path, text in logs:
        paths.append(path)
        phase, guessed = _phase_of(recipe, path)
        if guessed:
            notes.append(f"{path} is taken for the log of phase {phase.name}")
        steps, found = _steps(text)
        lines += found
        images += sum(iterations for iterations, _ in steps) * images_per_iter(recipe, phase)
        seconds += sum(passed for _, passed in steps)
    if not seconds:
        where, known = (paths[0] if len(paths) == 1 else ""), "no" if not lines else f"{lines}"
        what = f"{known} lines `Iteration N, loss = ...` with a time, too few to compute a rate"

        raise InputError(where, what, "give a log of Caffe's with at least two, one after the other")
    several = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return Pace(images / seconds, "log", f"{paths[0]}{several}", tuple(notes))


def moved_pace(pace: Pace, recipe: Recipe, shape: Shape, tabled: tuple[Pace, Pace] | None = None) -> Pace:
    """Return the pace of the recipe's own shape for another; `measured` knows better.

    `tabled` is what a table has for both, the own shape first: in that proportion. Without it each node is as
    fast, and each image takes as long.
    """
    own = shape_of(recipe)
    if pace.kind == "measured":
        return pace
    if tabled is not None:
        pace = replace(pace, scaling=tabled[1].scaling)
    if shape == own:
        return pace
    nodes = describe_count(own.nodes, "node")
    if tabled is not None:
        of_own, there = tabled
        note = f"known for {nodes} of {own.batch_per_node} images each: in proportion to {there.source}"
        rate = pace.images_per_s * there.images_per_s / of_own.images_per_s
        return replace(pace, images_per_s=rate, notes=(*pace.notes, note, *there.notes))
    notes = []
    if shape.nodes != own.nodes:
        notes.append(f"known for {nodes}: a node is taken to be as fast among others")
    if shape.batch_per_node != own.batch_per_node:
        notes.append(
            f"known for {own.batch_per_node} images a node: an image is taken to take as long with others"
        )
    faster = shape.nodes / own.nodes
    return replace(pace, images_per_s=pace.images_per_s * faster, notes=(*pace.notes, *notes))


def _phase_of(recipe: Recipe, path: str) -> tuple[Phase, bool]:
    """Return the phase that a log is of, as a run names its logs; and whether it matters and is a guess."""
    stem = PurePath(path).name.rpartition("-")[0]
    named = [phase for phase in recipe.phases if phase.name == stem]
    if named:
        return named[0], False
    first = recipe.phases[0]
    return first, len({images_per_iter(recipe, phase) for phase in recipe.phases}) > 1


def _steps(lines: Iterable[str]) -> tuple[Sequence[tuple[int, float]], int]:
    """Return iterations and seconds between each two loss lines, and how many such lines there are."""
    steps, found, before = [], 0, None
    for mark in _marks(lines):
        found += mark is not None
        if before and mark and mark[0] > before[0] and mark[1] > before[1]:
            steps.append((mark[0] - before[0], (mark[1] - before[1]).total_seconds()))
        before = mark
    return steps, found


def _marks(lines: Iterable[str]) -> Iterator[tuple[int, datetime] | None]:
    """Yield iteration and time of each loss line of rank 0; None where a solver starts."""
    for line in lines:
        entry = parse_line(line)
        if entry is None or entry.rank not in (None, 0):
            continue
        if isinstance(entry.event, Loss) and entry.time:
            yield entry.event.iteration, entry.time
        elif isinstance(entry.event, Started):
            yield None
