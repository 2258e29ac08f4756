"""What the paper measured: the throughput of whole machines by nodes and local batch, and between its points.

Source of all numbers: arXiv:1711.04291, Table V (Stampede2) and Table VI (MareNostrum 4). Batches are a
node's; MareNostrum's "CPUs" are sockets, two to the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

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
    line goes on. Both are said in `notes`.

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
