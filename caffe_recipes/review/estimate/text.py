"""An estimate on a page, several as a table, and both as values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta

from caffe_recipes.errors import InputError
from caffe_recipes.recipe.estimate import Estimate
from caffe_recipes.recipe.pace import Pace, Shape
from caffe_recipes.review.columns import align_columns
from caffe_recipes.review.estimate.sweep import group_lines


def estimate_values(estimates: Iterable[Estimate], start: datetime) -> list[dict[str, object]]:
    """Return estimates as values for JSON; InputError for one that does not end before the year 10000."""
    return [
        {
            **asdict(each),
            "global_batch": each.shape.global_batch,
            "joins_s": each.duration.joins_s,
            "total_s": each.total_s,
            "node_hours": each.node_hours,
            "starts": start.isoformat(),
            "ends": _end(each, start).isoformat(),
        }
        for each in estimates
    ]


def render_estimate(estimate: Estimate, start: datetime) -> str:
    """Write one estimate: what it is taken from, its parts, its cost, and when it ends."""
    facts = [*_facts(estimate), ("epoch", f"{estimate.epoch_s:.1f} s, {estimate.images:,} images")]
    after = [*_costs(estimate), ("starts", _clock(start)), ("ends", _clock(_end(estimate, start)))]
    rows = [("part", "iterations", "epochs", "minutes", ""), *_parts(estimate)]
    parts = align_columns(rows, {"iterations", "epochs", "minutes"})
    return "\n\n".join("\n".join(block) for block in (align_columns(facts), parts, align_columns(after)))


def render_sweep(estimates: Sequence[Estimate]) -> str:
    """Write a line for each shape; `efficiency` is a node's speed, 100 % among the fewest."""
    columns = ("nodes", "images/rank", "images/iter", "images/s", "efficiency", "s/epoch", "training min")
    head = (*columns, "total min", "node-hours", "by")
    rows = [_sweep_row(each, line[0]) for line in group_lines(estimates).values() for each in line]
    table = align_columns([head, *rows], {*head} - {"by"})
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


def _parts(estimate: Estimate) -> Iterator[tuple[str, str, str, str, str]]:
    parts = estimate.duration
    for phase in estimate.phases:
        yield (phase.name, f"{phase.iterations:,}", f"{phase.epochs:.2f}", _minutes(phase.training_s), "")
    if len(estimate.phases) > 1:
        iterations = sum(phase.iterations for phase in estimate.phases)
        yield ("training", f"{iterations:,}", f"{estimate.epochs:.2f}", _minutes(parts.training_s), "")
    first, *others = estimate.staging or [None]
    how = "" if first is None else f"by {first.how}"
    how += "".join(f"; by {way.how} {_minutes(way.seconds)}" for way in others if way)
    yield ("staging", "", "", _minutes(parts.staging_s), how)
    yield ("joins", "", "", _minutes(parts.joins_s), "allowed: 5 minutes for the job, 2 for each phase")
    yield (
        "evaluation",
        "",
        "",
        _minutes(parts.evaluation_s),
        "by one rank, forward only: a third of an image's training",
    )
    yield ("total", "", "", _minutes(estimate.total_s), f"{estimate.total_s / 3600:.2f} h")


def _costs(estimate: Estimate) -> Iterator[tuple[str, str]]:
    yield "node-hours", f"{estimate.node_hours:,.1f}"
    traffic = estimate.traffic
    if traffic:
        one, in_all = f"{traffic.each_way_bytes / 2**20:.0f} MiB", f"{traffic.all_bytes / 2**30:,.1f} GiB"
        rate = f"{traffic.bytes_per_s / 2**30:,.1f} GiB/s"
        yield "traffic", f"{one} each way for each rank: {in_all} an iteration over all, {rate}"


def _sweep_row(each: Estimate, first: Estimate) -> tuple[str, ...]:
    speed, before = (one.pace.images_per_s / one.shape.nodes for one in (each, first))
    return (
        f"{each.shape.nodes:,}",
        f"{each.shape.batch_per_rank:,}",
        f"{each.shape.global_batch:,}",
        f"{each.pace.images_per_s:,.0f}",
        f"{100 * speed / before:.0f} %",
        f"{each.epoch_s:.1f}",
        _minutes(each.duration.training_s),
        _minutes(each.total_s),
        f"{each.node_hours:,.1f}",
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
    images = f"{shape.batch_per_rank} images = {shape.global_batch:,} images an iteration"
    return f"{nodes} x {shape.ranks_per_node} ranks x {images}"


def _pace(pace: Pace) -> str:
    return f"{pace.images_per_s:,.0f} images/s: {pace.said}"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:,.1f}"


def _end(estimate: Estimate, start: datetime) -> datetime:
    try:
        return start + timedelta(seconds=round(estimate.total_s))
    except OverflowError:
        what = f"{start.isoformat()} and {estimate.total_s / 3600:,.0f} hours are beyond the year 9999"
        raise InputError(estimate.recipe, what, "give a higher speed, or another --start") from None


def _clock(time: datetime) -> str:
    return time.isoformat(" ", "minutes")
