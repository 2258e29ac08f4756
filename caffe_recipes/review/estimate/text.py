"""An estimate on a page, several as a table, and both as values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from statistics import median

from caffe_recipes.errors import InputError
from caffe_recipes.recipe.estimate import ONE_NODE_PHASE_S, Estimate
from caffe_recipes.recipe.pace import Pace, Shape
from caffe_recipes.review.columns import align_columns
from caffe_recipes.review.estimate.sweep import group_lines
from caffe_recipes.review.estimate.units import LONGER, SECONDS, Unit, unit_of, write_number, write_time


def estimate_values(estimates: Iterable[Estimate], start: datetime) -> list[dict[str, object]]:
    """Return estimates as values for JSON; InputError for one that does not end before the year 10000."""
    return [
        {
            **asdict(each),
            "global_batch": each.shape.global_batch,
            "joins_s": each.joins_s,
            "total_s": each.total_s,
            "node_hours": each.node_hours,
            "starts": start.isoformat(),
            "ends": _end(each, start).isoformat(),
        }
        for each in estimates
    ]


def render_estimate(estimate: Estimate, start: datetime) -> str:
    """Write one estimate: what it is taken from, its parts, its cost, and when it ends."""
    facts = [*_facts(estimate), ("epoch", f"{write_time(estimate.epoch_s)}, {estimate.images:,} images")]
    after = [*_costs(estimate), ("starts", _clock(start)), ("ends", _clock(_end(estimate, start)))]
    unit = unit_of(estimate.total_s)
    rows = [("part", "iterations", "epochs", unit.name, ""), *_parts(estimate, unit)]
    parts = align_columns(rows, {"iterations", "epochs", unit.name})
    return "\n\n".join("\n".join(block) for block in (align_columns(facts), parts, align_columns(after)))


def render_sweep(estimates: Sequence[Estimate]) -> str:
    """Write a line for each shape; `efficiency` is a node's speed, 100 % among the fewest.

    Where no two shapes have a batch in common it would compare nothing, and is left out.
    """
    unit = unit_of(median(each.total_s for each in estimates))
    columns = ("nodes", "images/rank", "images/iter", "images/s", "efficiency", "s/epoch")
    head = (*columns, f"training {unit.short}", f"total {unit.short}", "node-hours", "by")
    lines = group_lines(estimates).values()
    rows = [head, *(_sweep_row(each, line[0], unit) for line in lines for each in line)]
    if all(len(line) == 1 for line in lines):
        at = head.index("efficiency")
        rows = [row[:at] + row[at + 1 :] for row in rows]
    table = align_columns(rows, {*head} - {"by"})
    return "\n".join([estimates[0].recipe, *table, *_sweep_notes(estimates)])


def _facts(estimate: Estimate) -> Iterator[tuple[str, str]]:
    yield "recipe", estimate.recipe
    yield "shape", _shape(estimate.shape)
    yield "pace", _pace(estimate.pace)
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
    yield ("staging", "", "", unit.write(parts.staging_s), how)
    allowed = (
        f"{ONE_NODE_PHASE_S:g} seconds for each phase, on one node"
        if estimate.shape.nodes == 1
        else "5 minutes for the job, 2 for each phase"
    )
    yield ("joins", "", "", unit.write(estimate.joins_s), f"allowed: {allowed}")
    how = "by one rank, forward only: a third of an image's training"
    yield ("evaluation", "", "", unit.write(parts.evaluation_s), how)
    yield ("total", "", "", unit.write(estimate.total_s), _in_next(estimate.total_s, unit))


def _in_next(seconds: float, unit: Unit) -> str:
    """Write a time in the next larger unit too."""
    larger = LONGER[LONGER.index(unit) + 1 :][:1]
    return "".join(f"{seconds / one.seconds:,.2f} {one.short}" for one in larger)


def _costs(estimate: Estimate) -> Iterator[tuple[str, str]]:
    yield "node-hours", write_number(estimate.node_hours, 1)
    traffic = estimate.traffic
    if traffic:
        one, in_all = write_number(traffic.each_way_bytes / 2**20), write_number(traffic.all_bytes / 2**30, 1)
        rate = write_number(traffic.bytes_per_s / 2**30, 1)
        yield "traffic", f"{one} MiB each way for each rank: {in_all} GiB an iteration over all, {rate} GiB/s"


def _sweep_row(each: Estimate, first: Estimate, unit: Unit) -> tuple[str, ...]:
    speed, before = (one.pace.images_per_s / one.shape.nodes for one in (each, first))
    return (
        f"{each.shape.nodes:,}",
        f"{each.shape.batch_per_rank:,}",
        f"{each.shape.global_batch:,}",
        write_number(each.pace.images_per_s),
        f"{100 * speed / before:.0f} %",
        SECONDS.write(each.epoch_s),
        unit.write(each.duration.training_s),
        unit.write(each.total_s),
        write_number(each.node_hours, 1),
        each.pace.said + (" *" if each.pace.notes else ""),
    )


def _sweep_notes(estimates: Sequence[Estimate]) -> Iterator[str]:
    """Yield each doubt once, and what is to be said of every shape."""
    doubts = dict.fromkeys(note for each in estimates for note in each.pace.notes)
    notes = [*doubts, *(note for note in estimates[0].notes if all(note in each.notes for each in estimates))]
    if notes:
        yield ""
        yield from (f"* {note}" for note in notes)


def _shape(shape: Shape) -> str:
    nodes = f"{shape.nodes:,} node{'s' if shape.nodes > 1 else ''}"
    ranks = f"{shape.ranks_per_node} rank{'s' if shape.ranks_per_node > 1 else ''}"
    images = f"{shape.batch_per_rank} images = {shape.global_batch:,} images an iteration"
    return f"{nodes} x {ranks} x {images}"


def _pace(pace: Pace) -> str:
    return f"{write_number(pace.images_per_s)} images/s: {pace.said}"


def _end(estimate: Estimate, start: datetime) -> datetime:
    try:
        return start + timedelta(seconds=round(estimate.total_s))
    except OverflowError:
        years = write_number(estimate.total_s / LONGER[-1].seconds)
        what = f"takes {years} years, and so many from {_clock(start)} on are beyond the year 9999"
        raise InputError(estimate.recipe, what, "give a higher speed, or another --start") from None


def _clock(time: datetime) -> str:
    return time.isoformat(" ", "minutes")
