"""How fast a recipe trains, and who says so: the user's log, the recipe's source, or the paper's tables.

What the paper measured: the throughput of whole machines by nodes and local batch, and between its points.

Source of all numbers: arXiv:1711.04291, Table V (Stampede2) and Table VI (MareNostrum 4). Batches are a
node's; MareNostrum's "CPUs" are sockets, two to the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import PurePath
from typing import Literal

from caffe_recipes.caffe.logs import Loss, Started, parse_line
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.graph import images_per_iter, total_images
from caffe_recipes.recipe.model import Phase, Recipe
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
class Table:
    """A machine's measurements."""

    name: str
    machine: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Throughput:
    """Images a second of all nodes, how they are known, and a word on it for each doubt."""

    images_per_s: float
    how: How
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

TABLE_V = Table(
    "Table V", "Stampede2's KNL nodes", tuple(Point(b, n, PAPER_IMAGES / s) for b, n, s in EPOCHS_V)
)
TABLE_VI = Table(
    "Table VI",
    "MareNostrum 4's nodes",
    tuple(Point(b, n // _SOCKETS_PER_NODE, speed) for b, n, speed, _ in EPOCHS_VI),
)
# By the profile of the machine, and else by sockets and cores of a socket: Xeon Phi 7250, Xeon 8160.
TABLES = {"stampede2-knl": TABLE_V, "marenostrum4": TABLE_VI}
TABLES_BY_CORES = {(1, 68): TABLE_V, (2, 24): TABLE_VI}


def find_throughput(table: Table, nodes: int, batch_per_node: float) -> Throughput:
    """Return what the table says, or what lies between or beyond its points.

    Between node counts of one local batch, images/s are linear in nodes. Between local batches, the seconds
    of an iteration are: so much for the iteration (communication), and so much for each image. Left out one
    after another, Table V's inner points are found again within 9 %, those between local batches within 2 %.
    Beyond the measured node counts a node is as fast as at the nearest of them; beyond the local batches the
    line goes on. Both are in `notes`.

    >>> round(find_throughput(TABLE_V, 256, 32).epoch_s), find_throughput(TABLE_V, 720, 16).how
    (85, 'interpolated')
    """
    lines = _choose_lines(table, nodes)
    batches = sorted(lines)
    low, high = _neighbours(batches, batch_per_node)
    times = {batch: _iteration_s(lines[batch], nodes) for batch in (low, high)}
    part = (batch_per_node - low) / (high - low) if high != low else 0.0
    seconds = times[low] + part * (times[high] - times[low])
    notes = tuple(_notes(table, {batch: lines[batch] for batch in (low, high)}, nodes, batch_per_node))
    if low == high:
        # One line tells nothing of an iteration's own cost: each image takes as long as there.
        seconds = times[low] * batch_per_node / low
    images_per_s = nodes * batch_per_node / seconds
    exact = any((point.batch_per_node, point.nodes) == (batch_per_node, nodes) for point in table.points)
    how: How = "measured" if exact else "beyond" if notes else "interpolated"
    return Throughput(images_per_s, how, notes)


def _choose_lines(table: Table, nodes: int) -> dict[int, list[Point]]:
    """Return the points by local batch: of the batches measured around so many nodes, if that are two.

    Else with those that were measured at several node counts, else all.
    """
    lines: dict[int, list[Point]] = {}
    for point in sorted(table.points, key=lambda point: point.nodes):
        lines.setdefault(point.batch_per_node, []).append(point)
    around = {batch: points for batch, points in lines.items() if _holds(points, nodes)}
    if len(around) >= 2:
        return around
    longer = {batch: points for batch, points in lines.items() if len(points) > 1 or batch in around}
    return longer if len(longer) >= 2 else lines


def _neighbours(batches: Sequence[int], batch: float) -> tuple[int, int]:
    """Return the two local batches that a line is drawn through: around it, or the nearest two."""
    if batch in batches:
        return int(batch), int(batch)
    above = [index for index, each in enumerate(batches) if each > batch]
    last = min(max(above[0] if above else len(batches) - 1, 1), len(batches) - 1)
    return batches[max(0, last - 1)], batches[last]


def _iteration_s(points: Sequence[Point], nodes: int) -> float:
    """Return the seconds of an iteration at a measured local batch."""
    first, last = points[0], points[-1]
    if nodes <= first.nodes or nodes >= last.nodes:
        end = first if nodes <= first.nodes else last
        return end.batch_per_node * end.nodes / end.images_per_s
    for left, right in pairwise(points):
        if left.nodes <= nodes <= right.nodes:
            part = (nodes - left.nodes) / (right.nodes - left.nodes)
            speed = left.images_per_s + part * (right.images_per_s - left.images_per_s)
            return left.batch_per_node * nodes / speed
    raise AssertionError("the points are sorted")


def _holds(points: Sequence[Point], nodes: int) -> bool:
    return points[0].nodes <= nodes <= points[-1].nodes


def _notes(table: Table, used: dict[int, list[Point]], nodes: int, batch: float) -> Iterator[str]:
    """Say where the question lies beyond the points that the answer is drawn through."""
    low, high = min(used), max(used)
    if not low <= batch <= high:
        nearest = low if batch < low else high
        yield f"beyond {table.name}, whose nearest local batch is {nearest} images a node"
    for each, points in used.items():
        first, last = points[0].nodes, points[-1].nodes
        if not first <= nodes <= last:
            counts = f"{first} to {last}" if first < last else f"{first}"
            yield (
                f"beyond {table.name}, which has {counts} nodes with {each} images a node: "
                "a node is taken to be as fast as there"
            )


Kind = Literal["log", "given", "reported", "measured", "minutes"]
# The first that there is counts; but the table goes last where it is asked for what lies beyond it.
KINDS: tuple[Kind, ...] = ("log", "given", "reported", "measured", "minutes")
_PAPER_CROP_PX = 224


@dataclass(frozen=True)
class Pace:
    """Images a second of all ranks, who says so, and a word on each doubt.

    `is_elsewhere`: it is the pace of another machine than the one that is asked for, or may be.
    """

    images_per_s: float
    kind: Kind
    source: str
    notes: tuple[str, ...] = ()
    is_elsewhere: bool = False


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


def reported_pace(recipe: Recipe) -> Pace | None:
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
    return Pace(found.images_per_s, "measured", source, tuple(notes))


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
        what = f"{known} lines `Iteration N, loss = ...` with a time, none that tells a pace"
        raise InputError(where, what, "give a log of Caffe's with at least two, one after the other")
    several = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return Pace(images / seconds, "log", f"{paths[0]}{several}", tuple(notes))


def moved_pace(pace: Pace, recipe: Recipe, shape: Shape, tabled: tuple[Pace, Pace] | None = None) -> Pace:
    """Return the pace of the recipe's own shape for another; `measured` knows better.

    `tabled` is what a table has for both, the own shape first: in that proportion. Without it each node is as
    fast, and each image takes as long.
    """
    own = shape_of(recipe)
    if pace.kind == "measured" or shape == own:
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
