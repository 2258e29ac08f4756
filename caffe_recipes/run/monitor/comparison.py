"""Runs beside each other, with the keys in which their recipes differ: `runs`, and `diff` of two runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from caffe_recipes.errors import InputError
from caffe_recipes.review.diff.changes import Comparison
from caffe_recipes.review.diff.recipe_diff import compare_values, find_differing, value_text
from caffe_recipes.review.text_columns import align_columns, csv_row
from caffe_recipes.run.monitor.follow import StatusOptions
from caffe_recipes.run.monitor.summary import RunSummary, summarize_runs
from caffe_recipes.wording import did_you_mean, one_line, shorten

COLUMNS = ("run", "recipe", "state", "epochs", "hours", "images_per_s", "loss", "top1", "top5")
_WIDEST_VALUE = 40  # of a recipe's key in a table
_MOST_KEYS = 8  # of recipes in a table; those of unrelated recipes differ in dozens
_FORMS = {
    "epochs": "{:.4g}",
    "hours": "{:.2f}",
    "images_per_s": "{:,.0f}",
    "loss": "{:.4g}",
    "top1": "{:.2%}",
    "top5": "{:.2%}",
}
_HEADINGS = {"images_per_s": "images/s", "top1": "top-1", "top5": "top-5"}


@dataclass(frozen=True)
class RunComparison:
    """Runs, and the keys in which their recipes differ, each with its value for every run."""

    runs: tuple[RunSummary, ...]
    differing: dict[str, tuple[Any, ...]]

    def values(self, index: int) -> dict[str, Any]:
        """Return the values of a run by column."""
        own = {name: getattr(self.runs[index], name) for name in COLUMNS}
        return own | {key: values[index] for key, values in self.differing.items()}


def compare_runs(runs: Sequence[RunSummary]) -> RunComparison:
    """Return the comparison of runs; a run that cannot be read has no values."""
    readable = [index for index, run in enumerate(runs) if run.frozen is not None]
    found = find_differing([recipe for run in runs if (recipe := run.frozen) is not None])
    differing = {}
    for key, values in found.items():
        by_run = dict(zip(readable, values, strict=True))
        differing[key] = tuple(by_run.get(index) for index in range(len(runs)))
    return RunComparison(tuple(runs), differing)


def sort_comparison(compared: RunComparison, key: str, *, reverse: bool = False) -> RunComparison:
    """Return the runs by a column, the smallest first; those without a value are last in either order.

    Raises InputError if there is no such column.
    """
    key = {shown: name for name, shown in _HEADINGS.items()}.get(key, key)
    known = [*COLUMNS, *compared.differing]
    if key not in known:
        hint = did_you_mean(key, known, f"the columns are {', '.join(COLUMNS)} and the recipes' keys")
        raise InputError("--sort", f"no column '{shorten(key)}'", hint)
    cells = [compared.values(index)[key] for index in range(len(compared.runs))]
    order = [index for index, value in enumerate(cells) if value is not None]
    order.sort(key=lambda index: _sort_key(cells[index]), reverse=reverse)
    order += [index for index, value in enumerate(cells) if value is None]
    differing = {name: tuple(values[index] for index in order) for name, values in compared.differing.items()}
    return RunComparison(tuple(compared.runs[index] for index in order), differing)


def _sort_key(value: object) -> tuple[bool, float, str]:
    is_number = isinstance(value, int | float)
    return not is_number, float(value) if isinstance(value, int | float) else 0.0, value_text(value)  # type: ignore[arg-type]


def render_runs(compared: RunComparison, shown: str | None = None) -> list[str]:
    """Return the comparison as a table, without columns that are empty for all runs, and errors below it.

    Of many keys in which recipes differ, only `shown`, by which the runs are sorted, has a column.
    """
    rows = [compared.values(index) for index in range(len(compared.runs))]
    keys = [*compared.differing]
    if len(keys) > _MOST_KEYS:
        keys = [key for key in keys if key == shown]
    names = [name for name in [*COLUMNS, *keys] if any(row[name] is not None for row in rows)]
    table = [[_HEADINGS.get(name, name) for name in names]]
    table += [[_cell(name, row[name]) for name in names] for row in rows]
    notes = [run.error for run in compared.runs if run.error]
    if left := len(compared.differing) - len(keys):
        others = "other keys" if keys else "keys"
        notes.append(f"the recipes differ in {left} {others}, too many for a table: use --csv, or diff two")
    return [*align_columns(table, {_HEADINGS.get(name, name) for name in _FORMS}), *notes]


def _cell(name: str, value: Any) -> str:  # noqa: ANN401 - any value of a recipe
    if value is None:
        return ""
    if name in COLUMNS:
        return _FORMS[name].format(value) if name in _FORMS else one_line(value)
    return one_line(shorten(value_text(value).strip('"'), _WIDEST_VALUE))


def render_runs_csv(compared: RunComparison) -> list[str]:
    """Return the comparison as rows of CSV; accuracies are from 0 to 1."""
    rows = [compared.values(index) for index in range(len(compared.runs))]
    cells = [[json.dumps(v) if isinstance(v, list | dict) else v for v in row.values()] for row in rows]
    return [csv_row([*COLUMNS, *compared.differing]), *map(csv_row, cells)]


def render_json(compared: RunComparison) -> str:
    """Return the comparison as a JSON list of runs; `recipe_values` has the keys that differ."""
    found = [
        {name: getattr(run, name) for name in (*COLUMNS, "error")}
        | {"recipe_values": {key: values[index] for key, values in compared.differing.items()}}
        for index, run in enumerate(compared.runs)
    ]
    return json.dumps(found, indent=1)


def compare_two_runs(old: str, new: str, root: str) -> tuple[Comparison, tuple[RunSummary, RunSummary]]:
    """Return the comparison of two runs' recipes, by all values, and both summaries.

    Raises InputError for a run that cannot be read.
    """
    before, after = summarize_runs([old, new], StatusOptions(root))
    sides = []
    for run in (before, after):
        if run.frozen is None:
            raise InputError("", run.error or f"{run.run} has not started; nothing to compare")
        sides.append((run.run, run.frozen))
    return compare_values(*sides), (before, after)


def render_results(before: RunSummary, after: RunSummary) -> list[str]:
    """Return the results of two runs as a table, those that neither has left out."""
    rows = [["", before.run, after.run]]
    for name in COLUMNS[2:]:
        values = getattr(before, name), getattr(after, name)
        if any(value is not None for value in values):
            rows.append([_HEADINGS.get(name, name), *(_cell(name, value) or "-" for value in values)])
    return align_columns(rows)


def results_json(*runs: RunSummary) -> list[dict[str, Any]]:
    """Return the results of runs as JSON values."""
    return [{name: getattr(run, name) for name in COLUMNS} for run in runs]
