"""The charts of a report: the curves of runs as points that a page can draw, few enough for any run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from caffe_recipes.caffe.measurements import is_top5
from caffe_recipes.review.inspect.curves import (
    LOSS_KEY,
    RATE_KEY,
    X_AXES,
    Piece,
    TrainingCurve,
    is_test_loss,
    is_top1,
    running_means,
)

# A series of more points shows the least and the greatest value of each of half so many groups.
MOST_POINTS = 3000
_MOST_SERIES = 12  # of a chart
_MOST_SLOW = 5
_SLOW = 2  # times the median


class ChartPoint(NamedTuple):
    """A value and its place on each axis, NaN where that is not known."""

    iterations: float
    epochs: float
    hours: float
    value: float


@dataclass(frozen=True)
class SlowDisplay:
    """A display of the loss that came late: `times` the median of its phase."""

    phase: str
    iteration: int
    seconds: float
    times: float


def thin(points: Sequence[ChartPoint], most: int = MOST_POINTS) -> list[ChartPoint]:
    """Return at most so many points, with the first, the last, and the least and greatest of each group.

    >>> [point.value for point in thin([ChartPoint(i, i, i, 9 if i == 5 else 0) for i in range(100)], 6)]
    [0, 9, 0, 0]
    """
    if len(points) <= most:
        return list(points)
    groups = most // 2 - 1
    kept = {0, len(points) - 1}
    for group in range(groups):
        indices = range(len(points) * group // groups, len(points) * (group + 1) // groups)
        finite = [index for index in indices if math.isfinite(points[index].value)]
        if finite:
            kept.add(min(finite, key=lambda index: points[index].value))
            kept.add(max(finite, key=lambda index: points[index].value))
    return [points[index] for index in sorted(kept)]


def _point(piece: Piece, iteration: int, seconds: float, value: float) -> ChartPoint:
    place = piece.x_at
    return ChartPoint(
        place("iterations", iteration, seconds),
        place("epochs", iteration, seconds),
        place("hours", iteration, seconds),
        value,
    )


def _points_of(curve: TrainingCurve, key: tuple[str, int, str]) -> list[ChartPoint]:
    return [
        _point(piece, iteration, seconds, value)
        for piece in curve.pieces
        for iteration, seconds, value in piece.values(key)
    ]


def _speed_points(curve: TrainingCurve) -> list[ChartPoint]:
    return [_point(piece, *speed) for piece in curve.pieces for speed in piece.speeds()]


def find_slow(curve: TrainingCurve) -> tuple[int | None, list[SlowDisplay]]:
    """Return how many displays took over twice the median of their phase, and the slowest of them.

    The number is None if no phase shows the times of enough displays to compare them.
    """
    slow, is_known = list[SlowDisplay](), False
    for piece in curve.pieces:
        each = [(iteration, took_s / count) for iteration, _, count, took_s in piece.displays()]
        if len(each) < 4:
            continue
        is_known = True
        typical_s = median(seconds for _, seconds in each)
        slow += [
            SlowDisplay(piece.name, iteration, seconds, seconds / typical_s)
            for iteration, seconds in each
            if seconds > _SLOW * typical_s
        ]
    worst = sorted(slow, key=lambda one: -one.times)[:_MOST_SLOW]
    return len(slow) if is_known else None, worst


def _number(value: float, digits: int = 5) -> float | None:
    """Return a number with some significant digits; None, which JSON has, if it is not finite."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _series(run: int, label: str, points: Sequence[ChartPoint], *, kind: str = "line") -> dict[str, object]:
    """Return a series for the page; `kind` is line, raw (drawn faintly) or dots (a line with its points)."""
    kept = thin(points)
    return {
        "run": run,
        "label": label,
        "kind": kind,
        "measured": len(points),
        "iterations": [_number(point.iterations, 9) for point in kept],
        "epochs": [_number(point.epochs, 6) for point in kept],
        "hours": [_number(point.hours, 7) for point in kept],
        "values": [_number(point.value) for point in kept],
    }


def _with_means(run: int, label: str, points: Sequence[ChartPoint]) -> Iterator[dict[str, object]]:
    """Yield a noisy series and its running means, or only the series if it is too short for them."""
    means = running_means([point.value for point in points])
    pairs = zip(means, points, strict=True)
    if all(math.isclose(mean, point.value, abs_tol=1e-9) or math.isnan(mean) for mean, point in pairs):
        yield _series(run, label, points)
        return
    yield _series(run, f"{label}, as logged", points, kind="raw")
    smoothed = [
        ChartPoint(point.iterations, point.epochs, point.hours, mean)
        for point, mean in zip(points, means, strict=True)
    ]
    yield _series(run, f"{label}, smoothed", smoothed)


def _loss_series(curve: TrainingCurve, run: int) -> Iterator[dict[str, object]]:
    yield from _with_means(run, "train", _points_of(curve, LOSS_KEY))
    for key in filter(is_test_loss, curve.measured()):
        yield _series(run, f"test {key[2]}", _points_of(curve, key), kind="dots")


def _accuracy_series(curve: TrainingCurve, run: int) -> Iterator[dict[str, object]]:
    for key in curve.measured():
        if is_top1(key) or is_top5(key[2]):
            kind = "line" if key[0] == "train" else "dots"
            yield _series(run, f"{key[0]} {key[2]}", _points_of(curve, key), kind=kind)


def _rate_series(curve: TrainingCurve, run: int) -> Iterator[dict[str, object]]:
    yield _series(run, "learning rate", _points_of(curve, RATE_KEY))


def _speed_series(curve: TrainingCurve, run: int) -> Iterator[dict[str, object]]:
    yield from _with_means(run, "images/s", _speed_points(curve))


def _marks(curve: TrainingCurve, run: int) -> list[dict[str, object]]:
    """Return where pieces join or restart and warm-ups end, on each axis."""
    by_axis = [list(curve.marks(axis)) for axis in X_AXES]
    return [
        {
            "run": run,
            "what": marks[0].what,
            "name": marks[0].name,
            **{axis: _number(mark.x, 9) for axis, mark in zip(X_AXES, marks, strict=True)},
        }
        for marks in zip(*by_axis, strict=False)
    ]


Make = Callable[[TrainingCurve, int], Iterator[dict[str, object]]]


def build_charts(curves: Sequence[TrainingCurve | None]) -> list[dict[str, object]]:
    """Return the charts of a page, for the curve of each run."""
    shown = [(curve, run) for run, curve in enumerate(curves) if curve is not None]
    marks = [mark for curve, run in shown for mark in _marks(curve, run)]
    top1 = [(curve.published_top1, run) for curve, run in shown]
    losses = [(curve.published_loss, run) for curve, run in shown]
    kinds: list[tuple[str, str, Make, Sequence[tuple[float | None, int]]]] = [
        ("loss", "Loss", _loss_series, losses),
        ("accuracy", "Accuracy", _accuracy_series, top1),
        ("rate", "Learning rate", _rate_series, ()),
        ("speed", "Throughput (images/s)", _speed_series, ()),
    ]
    charts: list[dict[str, object]] = []
    for name, title, make, published in kinds:
        series = [one for curve, run in shown for one in [*make(curve, run)][:_MOST_SERIES] if one["values"]]
        lines = [{"run": run, "value": value} for value, run in published if value]
        if series:
            charts.append({"id": name, "title": title, "series": series, "marks": marks, "published": lines})
    return charts
