"""Find the speed of a recipe in images/s: from the user's log, the recipe's source, or the paper's tables.

The tables give the throughput of whole machines by nodes and local batch; `find_throughput` interpolates
between their points.

Source of all numbers: arXiv:1711.04291, Table V (Stampede2) and Table VI (MareNostrum 4). Batches are per
node; MareNostrum's "CPUs" are sockets, two per node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Literal

from caffe_recipes.errors import InputError
from caffe_recipes.recipe.graph import images_per_iter, total_images
from caffe_recipes.recipe.model import AnyRecipe, Phase, Recipe
from caffe_recipes.wording import describe_count, join_names

# The paper's epoch: Table VI's throughputs times its seconds are 1.28 million images, rounded.
PAPER_IMAGES = 1_280_000
_SOCKETS_PER_NODE = 2

Derivation = Literal["measured", "interpolated", "beyond"]


@dataclass(frozen=True)
class MeasuredPoint:
    """One measured configuration."""

    batch_per_node: int
    nodes: int
    images_per_s: float


@dataclass(frozen=True)
class OneNode:
    """The speed of a single node at one local batch, derived from an efficiency printed for some nodes."""

    batch_per_node: int
    images_per_s: float
    nodes: int
    derived: str


@dataclass(frozen=True)
class Table:
    """The measurements on a machine, and the speed of a single node."""

    name: str
    machine: str
    points: tuple[MeasuredPoint, ...]
    one_node: OneNode


@dataclass(frozen=True)
class Scaling:
    """The speed per node relative to that of a single node, and where the latter comes from."""

    efficiency: float
    reference: str


@dataclass(frozen=True)
class Throughput:
    """Images per second of all nodes, how they were determined, and notes on their reliability."""

    images_per_s: float
    how: Derivation
    scaling: Scaling
    notes: tuple[str, ...] = ()

    @property
    def epoch_s(self) -> float:
        """Seconds per epoch of the paper."""
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


def _one_node(among: MeasuredPoint, percent: int, words: str) -> OneNode:
    """Derive the speed of one node from the efficiency that the paper prints for a point."""
    derived = f'derived from "{words} {percent}%" at {among.nodes} nodes'
    return OneNode(
        among.batch_per_node, among.images_per_s / among.nodes * 100 / percent, among.nodes, derived
    )


_POINTS_V = tuple(MeasuredPoint(b, n, PAPER_IMAGES / s) for b, n, s in EPOCHS_V)
_POINTS_VI = tuple(MeasuredPoint(b, n // _SOCKETS_PER_NODE, speed) for b, n, speed, _ in EPOCHS_VI)
# Section V-A 1: "above 97%" from 1 to 256 KNL nodes; V-A 2: "around 90%" from 1 to 512 CPUs.
TABLE_V = Table("Table V", "Stampede2", _POINTS_V, _one_node(_POINTS_V[1], 97, "above"))
TABLE_VI = Table("Table VI", "MareNostrum 4", _POINTS_VI, _one_node(_POINTS_VI[0], 90, "around"))
# By the machine's profile, or else by sockets and cores per socket: Xeon Phi 7250, Xeon 8160.
TABLES = {"stampede2-knl": TABLE_V, "marenostrum4": TABLE_VI}
TABLES_BY_CORES = {(1, 68): TABLE_V, (2, 24): TABLE_VI}


def find_throughput(table: Table, nodes: int, batch_per_node: float) -> Throughput:
    """Return the throughput from a table, interpolated between its points or extrapolated beyond them.

    The points of one local batch form a curve over the nodes, starting at one node. Between two points,
    images/s is linear in the nodes. Before the first and after the last point, the curve has the shape of the
    curve of the local batch for which the paper prints an efficiency, on which each doubling of the nodes
    makes an iteration longer by the same share. Between the curves of two local batches, the seconds per
    iteration are linear in the batch; beyond them, those of one node are linear, and the efficiency is that
    of the nearest curve. If Table V's inner points are left out one by one, they are predicted within 9%,
    those between local batches within 2%. `notes` say what is extrapolated.

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
    how: Derivation = "measured" if exact else "beyond" if notes else "interpolated"
    one = table.one_node
    reference = f"{one.images_per_s:.1f} images/s with {one.batch_per_node} images per node, {one.derived}"
    images_per_s = exact.images_per_s if exact else nodes * speed
    return Throughput(images_per_s, how, Scaling(efficiency, reference), notes)


def _curves(table: Table) -> dict[int, list[MeasuredPoint]]:
    """Return the points by local batch, sorted by nodes."""
    curves: dict[int, list[MeasuredPoint]] = {}
    for point in sorted(table.points, key=lambda point: point.nodes):
        curves.setdefault(point.batch_per_node, []).append(point)
    return curves


def _neighbours(batches: Sequence[int], batch: float) -> tuple[int, int]:
    """Return the two measured local batches to draw a line through: around `batch`, else the nearest."""
    if batch in batches:
        return int(batch), int(batch)
    above = [index for index, each in enumerate(batches) if each > batch]
    last = min(max(above[0] if above else len(batches) - 1, 1), len(batches) - 1)
    return batches[max(0, last - 1)], batches[last]


def _between(batch: float, low: int, high: int, seconds: Callable[[int], float]) -> float:
    """Return the seconds per iteration on the line through two local batches.

    With a single local batch the fixed cost of an iteration is unknown, so the time per image is constant.
    """
    if low == high:
        return seconds(low) * batch / low
    return seconds(low) + (batch - low) / (high - low) * (seconds(high) - seconds(low))


def _speed_alone(table: Table, batch: int) -> float:
    """Return the images/s of one node, assuming the printed curve's efficiency at the curve's first point."""
    first = _curves(table)[batch][0]
    return first.images_per_s / first.nodes / _printed_efficiency(table, first.nodes)


def _printed_efficiency(table: Table, nodes: int) -> float:
    """Return the efficiency on the curve of the local batch for which the paper prints one."""
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


def _node_speed(points: Sequence[MeasuredPoint], nodes: int) -> float:
    """Return the images/s per node at a point of a curve, or between two."""
    right = next(point for point in points if point.nodes >= nodes)
    if right.nodes == nodes:
        return right.images_per_s / nodes
    left = points[points.index(right) - 1]
    part = (nodes - left.nodes) / (right.nodes - left.nodes)
    return (left.images_per_s + part * (right.images_per_s - left.images_per_s)) / nodes


def _notes(table: Table, used: dict[int, list[MeasuredPoint]], nodes: int, batch: float) -> Iterator[str]:
    """Yield notes on what is extrapolated beyond the measured points."""
    if not min(used) <= batch <= max(used):
        yield f"outside {table.name}: its nearest local batch is {min(used)} images per node"
    for each, points in used.items():
        first, last = points[0].nodes, points[-1].nodes
        if not first <= nodes <= last:
            counts = f"{first} to {last}" if first < last else f"{first}"
            yield f"outside {table.name}, which has {counts} nodes with {each} images per node: extrapolated"


PaceKind = Literal["log", "given", "reported", "measured", "minutes"]
# The first known one counts, except that the table comes last if it is extrapolated.
KINDS: tuple[PaceKind, ...] = ("log", "given", "reported", "measured", "minutes")
_PAPER_CROP_PX = 224


@dataclass(frozen=True)
class Pace:
    """A training speed in images per second of all ranks, its source, and notes on its reliability.

    `is_elsewhere` means that it is, or may be, the speed of another machine than the requested one. `scaling`
    is known if a table has the machine.
    """

    images_per_s: float
    kind: PaceKind
    source: str
    notes: tuple[str, ...] = ()
    is_elsewhere: bool = False
    scaling: Scaling | None = None


@dataclass(frozen=True)
class RunSize:
    """Numbers of nodes, ranks per node and images per rank, which may differ from the recipe's."""

    nodes: int
    ranks_per_node: int
    batch_per_rank: int

    @property
    def ranks(self) -> int:
        """Total number of MPI ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def batch_per_node(self) -> int:
        """Images per iteration on one node, which the paper calls the local batch."""
        return self.ranks_per_node * self.batch_per_rank

    @property
    def global_batch(self) -> int:
        """Images per iteration over all ranks."""
        return self.ranks * self.batch_per_rank


def shape_of(recipe: Recipe) -> RunSize:
    """Return the shape that the recipe gives."""
    cluster = recipe.cluster
    return RunSize(cluster.nodes, cluster.ranks_per_node, cluster.batch_per_rank)


def reported_pace(recipe: AnyRecipe) -> Pace | None:
    """Return the speed that the source reports: in total, else per node, else from its minutes; else None.

    >>> from caffe_recipes.recipe.source import load_recipe
    >>> reported_pace(load_recipe("stampede2-64n-72ep")).images_per_s
    6303.0
    """
    reported = recipe.reported
    if reported.images_per_s is not None:
        return Pace(reported.images_per_s, "reported", "the recipe's reported images/s")
    if reported.images_per_s_per_node is not None:
        rate = reported.images_per_s_per_node * recipe.cluster.nodes
        return Pace(rate, "reported", "the recipe's reported images/s per node")
    if reported.minutes is not None:
        rate = total_images(recipe) / (60 * reported.minutes)
        return Pace(rate, "minutes", f"computed from the recipe's reported {reported.minutes:g} minutes")
    return None


def node_of(recipe: Recipe) -> tuple[int | None, int | None]:
    """Return the sockets per node and the cores per socket of the recipe's machine; None if unknown."""
    return recipe.cluster.sockets_per_node, recipe.cluster.cores_per_socket


def given_pace(images_per_s: float) -> Pace:
    """Return the speed that the user gave."""
    return Pace(images_per_s, "given", "as given")


def measured_pace(
    recipe: Recipe, machine: str | None, shape: RunSize, node: tuple[int | None, int | None] | None = None
) -> Pace | None:
    """Return the speed from the paper's table of a machine; None without a table, or for another net.

    `machine` is the name of a profile. A machine without its own table is matched by `node`: its sockets and
    cores per socket, by default the recipe's.
    """
    sockets, cores_of_each = node or node_of(recipe)
    cores = (sockets or 0, cores_of_each or 0)
    table = TABLES.get(machine or "") or TABLES_BY_CORES.get(cores)
    if table is None or recipe.net.builder not in ("resnet50", None):
        return None
    found = find_throughput(table, shape.nodes, shape.batch_per_node)
    notes = list(found.notes)
    if recipe.net.builder is None or recipe.data.crop_size != _PAPER_CROP_PX:
        notes.append(f"{table.name} is for ResNet-50 on crops of {_PAPER_CROP_PX} px")
    between = ", interpolated" if found.how == "interpolated" else ""
    alike = "" if machine in TABLES else f" (nodes with {cores[0]} x {cores[1]} cores)"
    source = f"the paper's {table.name}{alike}{between}"
    return Pace(found.images_per_s, "measured", source, tuple(notes), scaling=found.scaling)


def order_paces(paces: Iterable[Pace], by: PaceKind | None = None) -> list[Pace]:
    """Return the speeds in order of preference: the requested kind first, then in the order of KINDS.

    A measured speed with notes comes after the others, since a source's report of its own run is closer.
    Speeds of other machines come last.
    """

    def rank(pace: Pace) -> tuple[bool, bool, bool, int]:
        doubtful = pace.kind == "measured" and bool(pace.notes)
        return pace.kind != by, pace.is_elsewhere, doubtful, KINDS.index(pace.kind)

    return sorted(paces, key=rank)


_MOST_OUTPUTS = 1000  # whose names are remembered


def logged_pace(
    recipe: Recipe, logs: Iterable[tuple[str, Iterable[str]]], outputs: Collection[str] = ()
) -> Pace:
    """Return the speed from Caffe's logs, given as paths and lines, of a run with the recipe's own shape.

    `outputs` are the names of the outputs of the recipe's nets, if they are known.

    It is the images between consecutive loss lines divided by the seconds between them, including tests and
    snapshots. Intervals across a start of the solver, or back in time, do not count. A log of a net with
    another name is noted. Raises InputError if there are no two consecutive loss lines with a time, and for a
    log with an output that is not one of `outputs`: it is the log of another net.
    """
    images, seconds, lines = 0, 0.0, 0
    paths: list[str] = []
    notes: list[str] = []
    for path, text in logs:
        paths.append(path)
        phase, guessed = _phase_of(recipe, path)
        if guessed:
            notes.append(f"assumes that {path} is the log of phase {phase.name}")
        steps, found, nets, printed = _steps(text)
        others = sorted(printed - {*outputs}) if outputs else ()
        if others:
            what = f"is the log of another net: it prints {join_names(others[:3])}"
            own = f"{recipe.net.name} has the outputs {join_names(sorted(outputs)[:6])}"
            raise InputError(path, f"{what}, and {own}", f"give a log of {recipe.name}")
        notes += [
            f"{path} is the log of the net {net}, which need not train as fast as {recipe.net.name}"
            for net in sorted(nets - {"", recipe.net.name})
        ]
        lines += found
        images += sum(iterations for iterations, _ in steps) * images_per_iter(recipe, phase)
        seconds += sum(passed for _, passed in steps)
    if not seconds:
        where, known = (
            (paths[0] if len(paths) == 1 else ""),
            describe_count(lines, "line") if lines else "no lines",
        )
        what = f"{known} `Iteration N, loss = ...` with a time, too few to compute the speed"
        raise InputError(where, what, "give a Caffe log with at least two consecutive ones")
    several = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return Pace(images / seconds, "log", f"{paths[0]}{several}", tuple(notes))


def moved_pace(pace: Pace, recipe: Recipe, shape: RunSize, tabled: tuple[Pace, Pace] | None = None) -> Pace:
    """Scale a speed of the recipe's own shape to another; a `measured` one is returned unchanged.

    `tabled` holds a table's speeds for both shapes, the own one first, which give the proportion. Without it,
    the speed per node and the time per image are assumed to stay the same.
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
        note = f"known for {nodes} with {own.batch_per_node} images each, scaled by {there.source}"
        rate = pace.images_per_s * there.images_per_s / of_own.images_per_s
        return replace(pace, images_per_s=rate, notes=(*pace.notes, note, *there.notes))
    notes = []
    if shape.nodes != own.nodes:
        notes.append(f"known for {nodes}; assumes that the speed per node does not change")
    if shape.batch_per_node != own.batch_per_node:
        notes.append(
            f"known for {own.batch_per_node} images per node; assumes that the time per image does not change"
        )
    faster = shape.nodes / own.nodes
    return replace(pace, images_per_s=pace.images_per_s * faster, notes=(*pace.notes, *notes))


def _phase_of(recipe: Recipe, path: str) -> tuple[Phase, bool]:
    """Return the phase of a log, by a run's log names, and whether it is a guess that affects the result."""
    stem = PurePath(path).name.rpartition("-")[0]
    named = [phase for phase in recipe.phases if phase.name == stem]
    if named:
        return named[0], False
    first = recipe.phases[0]
    return first, len({images_per_iter(recipe, phase) for phase in recipe.phases}) > 1


def _steps(lines: Iterable[str]) -> tuple[Sequence[tuple[int, float]], int, set[str], set[str]]:
    """Return iterations and seconds between consecutive loss lines, the number of lines, nets and outputs."""
    # Slow, and most paces are not logged.
    from caffe_recipes.caffe.logs import Loss, Started, TestOutput, TrainOutput, parse_line

    steps, found, before = [], 0, None
    nets, outputs = set[str](), set[str]()
    for line in lines:
        entry = parse_line(line)
        if entry is None or entry.rank not in (None, 0):
            continue
        if isinstance(entry.event, Loss) and entry.time:
            mark = (entry.event.iteration, entry.time)
            found += 1
            if before and mark[0] > before[0] and mark[1] > before[1]:
                steps.append((mark[0] - before[0], (mark[1] - before[1]).total_seconds()))
            before = mark
        elif isinstance(entry.event, Started):
            nets.add(entry.event.net)
            before = None
        elif isinstance(entry.event, TrainOutput | TestOutput) and len(outputs) < _MOST_OUTPUTS:
            outputs.add(entry.event.name)
    return steps, found, nets, outputs
