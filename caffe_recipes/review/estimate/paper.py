"""The paper's tables of times, computed again from what it measured (Tables V and VI), beside its numbers.

Its runs, Tables II, III, IV, VII and IX, are recipes, which hold what it prints of them. Source of all
numbers: arXiv:1711.04291. MareNostrum's "CPUs" are sockets, two to the node.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from caffe_recipes.recipe.arithmetic import total_epochs, total_iterations, training_minutes
from caffe_recipes.recipe.measured import (
    EPOCHS_VI,
    PAPER_IMAGES,
    TABLE_V,
    TABLE_VI,
    How,
    Table,
    find_throughput,
)
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_recipe

_TABLES = ("II", "III", "IV", "VII", "IX")
# Epochs to 75.5, 76 and 76.5 % top-1.
TARGETS = (("75.5 %", 48), ("76 %", 64), ("76.5 %", 78))


@dataclass(frozen=True)
class Comparison:
    """A number of the paper's, ours, and why they differ where they do so by more than 1 %."""

    table: str
    row: int
    what: str
    batch: int
    workers: int
    computed: float
    printed: float
    epoch_s: float | None = None
    iterations: int | None = None
    epochs: float | None = None
    printed_epochs: float | None = None
    how: How | None = None
    remark: str = ""

    @property
    def difference(self) -> float:
        """Ours less the paper's."""
        return self.computed - self.printed

    @property
    def percent(self) -> float:
        """The difference in percent of the paper's number."""
        return 100 * self.difference / self.printed


PROJECTIONS: dict[str, tuple[Table, tuple[tuple[int, int, tuple[int, ...]], ...]]] = {
    "Table XII": (
        TABLE_V,
        (
            (4096, 256, (82, 109, 133)),
            (8192, 256, (68, 90, 110)),
            (8192, 512, (48, 64, 78)),
            (10240, 512, (44, 58, 72)),
            (12288, 512, (41, 55, 67)),
            (12288, 768, (31, 41, 49)),
        ),
    ),
    "Table XIII": (
        TABLE_VI,
        (
            (8192, 512, (68, 90, 110)),
            (9600, 800, (50, 67, 81)),
            (6400, 800, (54, 72, 87)),
            (8192, 1024, (42, 56, 68)),
        ),
    ),
}


def compare_tables() -> tuple[Comparison, ...]:
    """Compute the paper's times again: Table VI, II, III, IV, VII, IX, XII, XIII, and the 72 epochs."""
    return (*_table_vi(), *_runs(), *_projections(), _seventy_two_epochs())


def _table_vi() -> Iterator[Comparison]:
    for row, (batch, sockets, speed, seconds) in enumerate(EPOCHS_VI, 1):
        computed = PAPER_IMAGES / speed
        yield Comparison("Table VI", row, "s/epoch", batch * sockets // 2, sockets, computed, seconds)


def _runs() -> Iterator[Comparison]:
    """Yield the runs that the recipes hold, by their tables and rows; VLAB's have no time."""
    recipes = [load_recipe(name) for name, found in shipped_recipes().items() if found.row]
    timed = [recipe for recipe in recipes if recipe.reported.table in _TABLES and recipe.reported.minutes]
    # The order of the tables is the paper's.
    place = {table: index for index, table in enumerate(_TABLES)}
    for recipe in sorted(timed, key=lambda one: (place[one.reported.table or ""], one.reported.row or 0)):
        yield _compare_run(recipe)


def _compare_run(recipe: Recipe) -> Comparison:
    said, cluster = recipe.reported, recipe.cluster
    table = TABLE_VI if said.cpus else TABLE_V
    found = find_throughput(table, cluster.nodes, cluster.ranks_per_node * cluster.batch_per_rank)
    return Comparison(
        table=f"Table {said.table}",
        row=said.row or 0,
        what="minutes",
        batch=cluster.global_batch,
        workers=said.cpus or cluster.nodes,
        computed=training_minutes(recipe, found.images_per_s),
        printed=said.minutes or math.nan,
        epoch_s=found.epoch_s,
        iterations=total_iterations(recipe),
        epochs=total_epochs(recipe),
        printed_epochs=said.epochs,
        how=found.how,
        remark="; ".join(each.why for each in recipe.differences if each.key == "minutes"),
    )


def _projections() -> Iterator[Comparison]:
    for name, (table, rows) in PROJECTIONS.items():
        for row, (batch, workers, minutes) in enumerate(rows, 1):
            nodes = _nodes_of(table, workers)
            found = find_throughput(table, nodes, batch / nodes)
            for (target, epochs), printed in zip(TARGETS, minutes, strict=True):
                yield Comparison(
                    table=name,
                    row=row,
                    what=target,
                    batch=batch,
                    workers=workers,
                    computed=epochs * found.epoch_s / 60,
                    printed=printed,
                    epoch_s=found.epoch_s,
                    epochs=epochs,
                    how=found.how,
                )


def _seventy_two_epochs() -> Comparison:
    recipe = load_recipe("stampede2-64n-72ep")
    shape, minutes = recipe.cluster, training_minutes(recipe, 6303)
    printed, remark = recipe.reported.minutes or math.nan, "the README rounds to 4 hours"
    return Comparison(
        "72 epochs", 1, "minutes", shape.global_batch, shape.nodes, minutes, printed, remark=remark
    )


def _nodes_of(table: Table, workers: int) -> int:
    """Return the nodes of a row's workers: two CPUs are one."""
    return workers // 2 if table is TABLE_VI else workers
