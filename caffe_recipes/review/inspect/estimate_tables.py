"""Render estimates and sweeps as text and JSON, and recompute the paper's tables of times beside its numbers.

The paper's times are recomputed from its measured throughput (Tables V and VI). The runs in its Tables II,
III, IV, VII and IX are recipes that ship, with the numbers that the paper prints. Source of all numbers:
arXiv:1711.04291. MareNostrum's "CPUs" are sockets, two per node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING

from caffe_recipes.errors import InputError
from caffe_recipes.recipe import accuracy
from caffe_recipes.recipe.estimate import ONE_NODE_PHASE_S, traffic_of
from caffe_recipes.recipe.graph import total_epochs, total_iterations, training_minutes
from caffe_recipes.recipe.pace import (
    EPOCHS_VI,
    PAPER_IMAGES,
    TABLE_V,
    TABLE_VI,
    RunSize,
    find_throughput,
)
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.review.inspect.show import describe_shape
from caffe_recipes.review.inspect.sweep import FIRST_RANKS, explain_rises, group_lines
from caffe_recipes.review.text_columns import align_columns, join_blocks, wrap_line
from caffe_recipes.units import (
    HOURS,
    LONGER,
    SECONDS,
    describe_binary,
    unit_of,
    write_number,
    write_time,
)
from caffe_recipes.wording import describe_count, plural

if TYPE_CHECKING:
    from caffe_recipes.recipe.estimate import Estimate
    from caffe_recipes.recipe.model import Recipe
    from caffe_recipes.recipe.pace import (
        Derivation,
        Pace,
        Table,
    )
    from caffe_recipes.units import Unit


def estimate_values(estimates: Iterable[Estimate], start: datetime) -> list[dict[str, object]]:
    """Return estimates as values for JSON. Raises InputError if one ends after the year 9999."""
    return [
        {
            **asdict(each),
            "pace": _pace_values(each.pace),
            "others": [_pace_values(pace) for pace in each.others],
            "global_batch": each.shape.global_batch,
            "joins_s": each.duration.joins_s,
            "total_s": each.total_s,
            "node_hours": each.node_hours,
            "starts": start.isoformat(),
            "ends": _end(each, start).isoformat(),
        }
        for each in estimates
    ]


def _pace_values(pace: Pace) -> dict[str, object]:
    """Return a pace by its JSON keys; its source keeps the key `said`, which existing readers expect."""
    return {"said" if name == "source" else name: value for name, value in asdict(pace).items()}


def render_estimate(estimate: Estimate, start: datetime, width: int | None = None) -> list[str]:
    """Return one estimate as text: the source of the speed, the parts, the cost, and when the run ends."""
    facts = [*_facts(estimate), ("epoch", f"{write_time(estimate.epoch_s)}, {estimate.images:,} images")]
    after = [*_costs(estimate), ("starts", _clock(start)), ("ends", _clock(_end(estimate, start)))]
    unit = unit_of(estimate.total_s)
    rows = [("part", "iterations", "epochs", unit.name, ""), *_parts(estimate, unit)]
    parts = align_columns(rows, {"iterations", "epochs", unit.name}, width)
    blocks = (align_columns(facts, width=width), parts, align_columns(after, width=width))
    return join_blocks(blocks)


def render_sweep(estimates: Sequence[Estimate], width: int | None = None) -> list[str]:
    """Return a table with a line for each shape; `efficiency` is a node's speed relative to one node alone.

    That column is left out if no two shapes share a batch, or if the speed of one node is unknown. Sources of
    speeds are above the table; if there are several, each row has the number of its source.
    """
    unit = unit_of(median(each.total_s for each in estimates))
    cost = _node_unit(median(each.node_hours for each in estimates))
    columns = ("nodes", "images/rank", "images/iter", "images/s", "efficiency", "speed-up", "s/epoch")
    head = (*columns, f"training {unit.short}", f"total {unit.short}", f"node-{cost.name}", "")
    lines = group_lines(estimates).values()
    shown = [each for line in lines for each in line]
    sources = [*dict.fromkeys(each.pace.source for each in shown)]
    rows = [head, *((*_sweep_row(each, unit, cost), _mark_source(each.pace, sources)) for each in shown)]
    notes = [*_explain_batches(estimates), *(note for line in lines for note in explain_rises(line))]
    hidden = set()
    if estimates[0].pace.scaling is None or all(len(line) == 1 for line in lines):
        hidden.add("efficiency")
    else:
        notes.insert(0, _explain_efficiency(estimates))
    if estimates[0].speedup is None:
        hidden.add("speed-up")
    else:
        notes.insert(0, f"speed-up: over {FIRST_RANKS} ranks, as in the paper's Figures 1 and 2")
    kept = [index for index, name in enumerate(head) if name not in hidden]
    table = align_columns(
        [tuple(row[index] for index in kept) for row in rows],
        {*head} - {""},
        width,
        (head[6], head[2], head[7]),
    )
    several = len(sources) > 1
    above = [f"speed{f' {index}' if several else ''}: {each}" for index, each in enumerate(sources, 1)]
    below = (part for note in _sweep_notes(estimates, notes) for part in wrap_line(note, width, 2))
    return [estimates[0].recipe, *above, *table, *below]


def _mark_source(pace: Pace, sources: Sequence[str]) -> str:
    """Return the number of a speed's source, if there are several, and an asterisk if the speed has notes."""
    number = f"{sources.index(pace.source) + 1} " if len(sources) > 1 else ""
    return f"{number}{'*' if pace.notes else ''}".rstrip()


def _explain_efficiency(estimates: Sequence[Estimate]) -> str:
    """Return what 100% is: the speed of one node alone, which is known if all rows have its images."""
    first, scaling = estimates[0], estimates[0].pace.scaling
    alone = ""
    if scaling and len({each.shape.batch_per_node for each in estimates}) == 1:
        speed = write_number(first.pace.images_per_s / first.shape.nodes / scaling.efficiency, 1)
        alone = f", here {speed} images/s with {describe_count(first.shape.batch_per_node, 'image')}"
    table = f"; in the paper's table {scaling.reference}" if scaling else ""
    return f"efficiency: 100% is the speed of one node alone with as many images per node{alone}{table}"


def _explain_batches(estimates: Sequence[Estimate]) -> Iterator[str]:
    """Yield a note if the images of an iteration change from row to row, unlike those of `rescale`."""
    if len({each.shape.global_batch for each in estimates}) > 1:
        if len({each.shape.batch_per_rank for each in estimates}) == 1:
            yield "images per rank are kept; `rescale` keeps the images per iteration instead"
        yield "learning rates and accuracy at other images per iteration are not considered"


def _facts(estimate: Estimate) -> Iterator[tuple[str, str]]:
    yield "recipe", estimate.recipe
    yield "shape", describe_shape(estimate.shape)
    yield "speed", _pace(estimate.pace)
    yield from (("", note) for note in estimate.pace.notes)
    for other in estimate.others:
        yield "also", _pace(other)
        yield from (("", note) for note in other.notes)
    yield from (("note", note) for note in estimate.notes)


def _parts(estimate: Estimate, unit: Unit) -> Iterator[tuple[str, str, str, str, str]]:
    parts, epochs = estimate.duration, f"{estimate.epochs:,.2f}"
    for phase in estimate.phases:
        yield (phase.name, f"{phase.iterations:,}", f"{phase.epochs:,.2f}", unit.write(phase.training_s), "")
    if len(estimate.phases) > 1:
        iterations = sum(phase.iterations for phase in estimate.phases)
        yield ("training", f"{iterations:,}", epochs, unit.write(parts.training_s), "")
    others = [f"by {way.how} {unit.write(way.seconds)}" for way in estimate.staging[1:]]
    how = "; ".join([*(f"by {way.how}" for way in estimate.staging[:1]), *others])
    staging_s = unit.write(parts.staging_s) if estimate.staging else "?"
    yield ("staging", "", "", staging_s, how or "not included")
    allowance = (
        f"{ONE_NODE_PHASE_S:g} seconds per phase on one node"
        if estimate.shape.nodes == 1
        else "5 minutes for the job, 2 per phase"
    )
    how = f"allowance for starts and snapshots: {allowance}"
    yield ("overhead", "", "", unit.write(parts.joins_s), how)
    how = "on one rank, forward pass only: a third of the training time per image"
    how = how if parts.evaluation_s else "none in the recipe"
    yield ("evaluation", "", "", unit.write(parts.evaluation_s), how)
    yield ("total", "", "", unit.write(estimate.total_s), _in_next(estimate.total_s, unit))


def _in_next(seconds: float, unit: Unit) -> str:
    """Return a time in the next larger unit."""
    units = (SECONDS, *LONGER)
    larger = units[units.index(unit) + 1 :][:1]
    return "".join(f"{seconds / one.seconds:,.2f} {one.short}" for one in larger)


def _costs(estimate: Estimate) -> Iterator[tuple[str, str]]:
    unit = _node_unit(estimate.node_hours)
    yield f"node-{unit.name}", unit.write(estimate.node_hours * 3600)
    traffic = estimate.traffic
    if traffic:
        one, in_all, rate = map(
            describe_binary, (traffic.each_way_bytes, traffic.all_bytes, traffic.bytes_per_s)
        )
        yield "traffic", f"{one} each way per rank per iteration: {in_all} over all ranks, {rate}/s"


def _node_unit(node_hours: float) -> Unit:
    """Return hours as the unit of a cost, or a smaller one below one hour."""
    return unit_of(node_hours * 3600) if node_hours < 1 else HOURS


def _sweep_row(each: Estimate, unit: Unit, cost: Unit) -> tuple[str, ...]:
    scaling = each.pace.scaling
    return (
        f"{each.shape.nodes:,}",
        f"{each.shape.batch_per_rank:,}",
        f"{each.shape.global_batch:,}",
        write_number(each.pace.images_per_s),
        f"{100 * scaling.efficiency:.0f}%" if scaling else "",
        f"{each.speedup:,.1f}" if each.speedup else "",
        SECONDS.write(each.epoch_s),
        unit.write(each.duration.training_s),
        unit.write(each.total_s),
        cost.write(each.node_hours * 3600),
    )


def _sweep_notes(estimates: Sequence[Estimate], line_notes: Sequence[str]) -> Iterator[str]:
    """Yield each caveat of rows with an asterisk once, the notes on the lines, and those of all shapes."""
    caveats = dict.fromkeys(note for each in estimates for note in each.pace.notes)
    shared = (note for note in estimates[0].notes if all(note in each.notes for each in estimates))
    notes = [*(f"* {note}" for note in caveats), *(f"note: {note}" for note in (*line_notes, *shared))]
    if notes:
        yield ""
        yield from notes


def _pace(pace: Pace) -> str:
    return f"{write_number(pace.images_per_s)} images/s: {pace.source}"


def _end(estimate: Estimate, start: datetime) -> datetime:
    try:
        return start + timedelta(seconds=round(estimate.total_s))
    except OverflowError:
        years = write_number(estimate.total_s / LONGER[-1].seconds)
        what = f"takes {years} years: started at {_clock(start)}, it would end after the year 9999"
        raise InputError(estimate.recipe, what, "give a higher speed or an earlier --start") from None


def _clock(time: datetime) -> str:
    return time.isoformat(" ", "minutes")


_WEAK, _EXCHANGE = "Section V-A, weak scaling", "Section V-A, traffic"
_TABLES = ("II", "III", "IV", "VII", "IX")
TARGETS = tuple(
    (f"{one.percent:g}%", one.epochs) for one in accuracy.TARGETS if one.percent in accuracy.PROJECTED
)


@dataclass(frozen=True)
class TableRow:
    """A number from the paper and ours, with a remark if they differ by more than 1%."""

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
    how: Derivation | None = None
    remark: str = ""

    @property
    def difference(self) -> float:
        """Our number minus the paper's."""
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


def compare_tables() -> tuple[TableRow, ...]:
    """Recompute Tables VI, II, III, IV, VII, IX, XII and XIII, the scaling, and the 72-epoch run."""
    return (*_table_vi(), *_runs(), *_projections(), *_weak_scaling(), *_traffic(), _seventy_two_epochs())


def _table_vi() -> Iterator[TableRow]:
    for row, (batch, sockets, speed, seconds) in enumerate(EPOCHS_VI, 1):
        computed = PAPER_IMAGES / speed
        yield TableRow("Table VI", row, "s/epoch", batch * sockets // 2, sockets, computed, seconds)


def _runs() -> Iterator[TableRow]:
    """Yield the runs that ship as recipes, in the order of tables and rows; VLAB's runs have no time."""
    recipes = [load_recipe(name) for name, found in shipped_recipes().items() if found.row]
    timed = [recipe for recipe in recipes if recipe.reported.table in _TABLES and recipe.reported.minutes]
    order = {table: index for index, table in enumerate(_TABLES)}
    for recipe in sorted(timed, key=lambda one: (order[one.reported.table or ""], one.reported.row or 0)):
        yield _compare_run(recipe)


def _compare_run(recipe: Recipe) -> TableRow:
    reported, cluster = recipe.reported, recipe.cluster
    table = TABLE_VI if reported.cpus else TABLE_V
    found = find_throughput(table, cluster.nodes, cluster.ranks_per_node * cluster.batch_per_rank)
    return TableRow(
        table=f"Table {reported.table}",
        row=reported.row or 0,
        what="minutes",
        batch=cluster.global_batch,
        workers=reported.cpus or cluster.nodes,
        computed=training_minutes(recipe, found.images_per_s),
        printed=reported.minutes or math.nan,
        epoch_s=found.epoch_s,
        iterations=total_iterations(recipe),
        epochs=total_epochs(recipe),
        printed_epochs=reported.epochs,
        how=found.how,
        remark="; ".join(each.why for each in recipe.differences if each.key == "minutes"),
    )


def _projections() -> Iterator[TableRow]:
    for name, (table, rows) in PROJECTIONS.items():
        for row, (batch, workers, minutes) in enumerate(rows, 1):
            nodes = _nodes_of(table, workers)
            found = find_throughput(table, nodes, batch / nodes)
            for (target, epochs), printed in zip(TARGETS, minutes, strict=True):
                yield TableRow(
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


# Section V-A: local batch, workers at the start and the end, efficiency in percent, the paper's word for it.
_WEAK_SCALING: tuple[tuple[Table, int, int, int, float, str], ...] = (
    (TABLE_V, 16, 256, 1024, 81, ""),
    (TABLE_V, 32, 256, 1024, 88, ""),
    (TABLE_V, 32, 1, 1536, 81, "above "),
    (TABLE_V, 32, 1, 256, 97, "above "),
    (TABLE_VI, 32, 2, 512, 90, "around "),
)


def _weak_scaling() -> Iterator[TableRow]:
    """Yield the speed of a worker among many, in percent of that among few, with the same local batch."""
    for row, (table, batch, first, last, percent, word) in enumerate(_WEAK_SCALING, 1):
        few, many = (
            find_throughput(table, _nodes_of(table, workers), batch).images_per_s / workers
            for workers in (first, last)
        )
        kind = "CPUs (one node)" if table is TABLE_VI else plural(first, "node")
        remark = f"from {first} {kind} on {table.machine}; printed: {word}{percent}%"
        if (batch, _nodes_of(table, last)) == (table.one_node.batch_per_node, table.one_node.nodes):
            remark += ", from which the speed of one node is derived"
        yield TableRow(
            _WEAK, row, "efficiency %", batch * last, last, 100 * many / few, percent, remark=remark
        )


# Section V-A 1: whose traffic, the nodes that exchange models, and the printed GB.
_TRAFFIC = (("this work", 256, 49), ("IBM [4]", 64, 12), ("Facebook [3]", 32, 6))
_MODEL_BYTES = 98 << 20


def _traffic() -> Iterator[TableRow]:
    """Yield the GB (powers of 1024) that all nodes send and receive in an iteration."""
    for row, (whose, nodes, printed) in enumerate(_TRAFFIC, 1):
        found = traffic_of(_MODEL_BYTES, RunSize(nodes, 1, 32), images_per_s=1.0)
        yield TableRow(_EXCHANGE, row, "GB", 8192, nodes, found.all_bytes / 2**30, printed, remark=whose)


def _seventy_two_epochs() -> TableRow:
    recipe = load_recipe("stampede2-64n-72ep")
    shape, minutes = recipe.cluster, training_minutes(recipe, 6303)
    printed, remark = recipe.reported.minutes or math.nan, "the README rounds to 4 hours"
    return TableRow(
        "72 epochs", 1, "minutes", shape.global_batch, shape.nodes, minutes, printed, remark=remark
    )


def _nodes_of(table: Table, workers: int) -> int:
    """Return the number of nodes of a row's workers: two CPUs are one node."""
    return workers // 2 if table is TABLE_VI else workers


_EPOCHS = "s/epoch is for the paper's epoch of 1.28 million images; epochs are counted in 1,281,167 images."
_TITLES = {
    "Table VI": "seconds per epoch of 1.28 million images, from its throughput",
    "Table II": "Stampede2, minutes by iterations, from Table V",
    "Table III": "Stampede2 to 74%, minutes by iterations, from Table V",
    "Table IV": "Stampede2, fastest, minutes by iterations, from Table V",
    "Table VII": "MareNostrum 4 to 74%, minutes by iterations, from Table VI",
    "Table IX": "very large batches, minutes by iterations, from Table V; row 5 is VLAB's and has no time",
    "Table XII": "Stampede2, minutes to an accuracy: 48, 64 and 78 epochs, from Table V",
    "Table XIII": "MareNostrum 4, minutes to an accuracy: 48, 64 and 78 epochs, from Table VI",
    _WEAK: "a worker's speed among many, in percent of its speed among few, from Tables V and VI",
    _EXCHANGE: "per iteration, 98 MB each way for each node; the GPUs of a node exchange theirs within it",
    "72 epochs": "minutes of stampede2-64n-72ep's images at the README's 6,303 images/s",
}


def table_values() -> list[dict[str, object]]:
    """Return the comparisons as values for JSON."""
    return [
        {**asdict(each), "difference": each.difference, "percent": each.percent} for each in compare_tables()
    ]


def render_tables() -> list[str]:
    """Return the comparisons as text, a block for each table."""
    blocks: dict[str, list[TableRow]] = {}
    for each in compare_tables():
        blocks.setdefault(each.table, []).append(each)
    return join_blocks([*(_render_table(name, rows) for name, rows in blocks.items()), [_EPOCHS]])


def _render_table(name: str, rows: Sequence[TableRow]) -> list[str]:
    return [f"{name}: {_TITLES[name]}", *_render_block(rows), *_remarks(rows)]


def _remarks(rows: Sequence[TableRow]) -> Iterator[str]:
    yield from (f"  row {each.row}: {each.remark}" for each in rows if each.remark)


def _render_block(rows: Sequence[TableRow]) -> list[str]:
    head = ["row", "batch", "CPUs" if rows[0].table in ("Table VI", "Table VII", "Table XIII") else "nodes"]
    columns: list[str]
    if rows[0].what in dict(TARGETS):
        columns = [*head, "s/epoch", *(part for target, _ in TARGETS for part in (target, "paper", "diff."))]
        return align_columns([(*columns, "speed"), *_by_target(rows)], {*columns})
    if rows[0].iterations is None:
        columns = [*head, rows[0].what, "README" if rows[0].table == "72 epochs" else "paper", "difference"]
        return align_columns([columns, *((*_row_shape(each), *_times(each)) for each in rows)], {*columns})
    columns = [*head, "iterations", "epochs", "paper's", "s/epoch", "minutes", "paper", "difference", "%"]
    return align_columns([(*columns, "speed"), *map(_run_row, rows)], {*columns})


def _run_row(each: TableRow) -> tuple[str, ...]:
    counts = (f"{each.iterations:,}", f"{each.epochs:.1f}", f"{each.printed_epochs:g}", f"{each.epoch_s:.1f}")
    return (*_row_shape(each), *counts, *_times(each), _signed(each.percent), _describe_how(each))


def _row_shape(each: TableRow) -> tuple[str, ...]:
    return (str(each.row), f"{each.batch:,}", f"{each.workers:,}")


def _times(each: TableRow) -> tuple[str, ...]:
    return (f"{each.computed:.1f}", f"{each.printed:g}", _signed(each.difference))


def _signed(value: float) -> str:
    """Return a difference with its sign; 0.0 has none.

    >>> _signed(0.04), _signed(-0.04), _signed(-0.06)
    ('0.0', '0.0', '-0.1')
    """
    return f"{value:+.1f}" if round(abs(value), 1) else "0.0"


def _by_target(rows: Sequence[TableRow]) -> Iterator[tuple[str, ...]]:
    for start in range(0, len(rows), len(TARGETS)):
        three = rows[start : start + len(TARGETS)]
        times = [text for each in three for text in _times(each)]
        yield (*_row_shape(three[0]), f"{three[0].epoch_s:.1f}", *times, _describe_how(three[0]))


def _describe_how(row: TableRow) -> str:
    """Return how the speed of a row follows from the table of measurements."""
    return "extrapolated" if row.how == "beyond" else row.how or ""
