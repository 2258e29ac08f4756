"""The paper's times and ours, as text and as values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from caffe_recipes.review.columns import align_columns
from caffe_recipes.review.estimate.paper import TARGETS, Comparison, compare_tables

_EPOCHS = "s/epoch is of the paper's epoch, 1.28 million images; epochs are counted in 1,281,167 images."
_TITLES = {
    "Table VI": "seconds per epoch of 1.28 million images, from its throughput",
    "Table II": "Stampede2, minutes by iterations, from Table V",
    "Table III": "Stampede2 to 74 %, minutes by iterations, from Table V",
    "Table IV": "Stampede2, fastest, minutes by iterations, from Table V",
    "Table VII": "MareNostrum 4 to 74 %, minutes by iterations, from Table VI",
    "Table IX": "very large batches, minutes by iterations, from Table V; row 5, VLAB's, has no time",
    "Table XII": "Stampede2, minutes to an accuracy: 48, 64 and 78 epochs, from Table V",
    "Table XIII": "MareNostrum 4, minutes to an accuracy: 48, 64 and 78 epochs, from Table VI",
    "72 epochs": "minutes of stampede2-64n-72ep's images at the README's 6,303 images/s",
}


def table_values() -> list[dict[str, object]]:
    """Return the comparisons as values for JSON."""
    return [
        {**asdict(each), "difference": each.difference, "percent": each.percent} for each in compare_tables()
    ]


def render_tables() -> str:
    """Write the comparisons, a block for each table."""
    blocks: dict[str, list[Comparison]] = {}
    for each in compare_tables():
        blocks.setdefault(each.table, []).append(each)
    return "\n\n".join([*(_render_table(name, rows) for name, rows in blocks.items()), _EPOCHS])


def _render_table(name: str, rows: Sequence[Comparison]) -> str:
    return "\n".join([f"{name}: {_TITLES[name]}", *_render_block(rows), *_remarks(rows)])


def _remarks(rows: Sequence[Comparison]) -> Iterator[str]:
    yield from (f"  row {each.row}: {each.remark}" for each in rows if each.remark)


def _render_block(rows: Sequence[Comparison]) -> list[str]:
    head = ["row", "batch", "CPUs" if rows[0].table in ("Table VI", "Table VII", "Table XIII") else "nodes"]
    if rows[0].what in dict(TARGETS):
        targets = [part for target, _ in TARGETS for part in (target, "paper", "diff.")]
        return align_columns([(*head, "s/epoch", *targets), *_by_target(rows)], {*head, "s/epoch", *targets})
    if rows[0].iterations is None:
        columns = [*head, rows[0].what, "README" if rows[0].table == "72 epochs" else "paper", "difference"]
        return align_columns([columns, *((*_shape(each), *_times(each)) for each in rows)], {*columns})
    columns = [*head, "iterations", "epochs", "paper's", "s/epoch", "minutes", "paper", "difference", "%"]
    return align_columns([columns, *map(_run_row, rows)], {*columns})


def _run_row(each: Comparison) -> tuple[str, ...]:
    counts = (f"{each.iterations:,}", f"{each.epochs:.1f}", f"{each.printed_epochs:g}", f"{each.epoch_s:.1f}")
    return (*_shape(each), *counts, *_times(each), _signed(each.percent))


def _shape(each: Comparison) -> tuple[str, ...]:
    return (str(each.row), f"{each.batch:,}", f"{each.workers:,}")


def _times(each: Comparison) -> tuple[str, ...]:
    return (f"{each.computed:.1f}", f"{each.printed:g}", _signed(each.difference))


def _signed(value: float) -> str:
    """Write a difference with its sign, which 0.0 has not.

    >>> _signed(0.04), _signed(-0.04), _signed(-0.06)
    ('0.0', '0.0', '-0.1')
    """
    return f"{value:+.1f}" if round(abs(value), 1) else "0.0"


def _by_target(rows: Sequence[Comparison]) -> Iterator[tuple[str, ...]]:
    for start in range(0, len(rows), len(TARGETS)):
        three = rows[start : start + len(TARGETS)]
        times = [text for each in three for text in _times(each)]
        yield (*_shape(three[0]), f"{three[0].epoch_s:.1f}", *times)
