"""The curves of trainings: losses, rates and accuracies from logs, over iterations, epochs or hours.

A curve has a piece for each run in its logs, in the order in which they trained. What a restart trains again
is not shown twice. However long a log is, a piece keeps a bounded number of points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal

from caffe_recipes.caffe.log_files import name_log
from caffe_recipes.caffe.measurements import LOSS, RATE, LoggedRun, MeasuredLog, Measurement, is_accuracy
from caffe_recipes.errors import InputError
from caffe_recipes.review.inspect.training_logs import load_measurements
from caffe_recipes.review.text_columns import csv_row

XAxis = Literal["iterations", "epochs", "hours"]
X_AXES: tuple[XAxis, ...] = ("iterations", "epochs", "hours")
_MOST_POINTS = 20_000  # of a series; of more, every second one is dropped
_MOST_SERIES = 200  # of a piece


@dataclass
class Series:
    """The values of one output: iterations, seconds (NaN if not known) and values."""

    iterations: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    _stride: int = 1
    _seen: int = 0

    def add(self, row: Measurement) -> None:
        """Add a measurement, unless every n-th one is enough."""
        self._seen += 1
        if (self._seen - 1) % self._stride:
            return
        self.iterations.append(row.iteration or 0)
        self.seconds.append(math.nan if row.seconds is None else row.seconds)
        self.values.append(row.value)
        if len(self.values) > _MOST_POINTS:
            self._stride *= 2
            for values in (self.iterations, self.seconds, self.values):
                del values[1::2]


Key = tuple[str, int, str]  # phase, TEST net, output


@dataclass
class Piece:
    """The measurements of one run in a log.

    Its training begins at `begins_iter` and `begins_epochs` of the whole curve, and its log at `begins_s`.
    Iterations from `until_iter` on are trained again by a later piece.
    """

    run: LoggedRun
    series: dict[Key, Series] = field(default_factory=dict)
    name: str = ""
    begins_iter: int = 0
    begins_epochs: float = 0.0
    begins_s: float = 0.0
    epochs_per_iter: float | None = None
    images_per_iter: float | None = None
    is_restart: bool = False
    until_iter: float = math.inf

    def add(self, row: Measurement) -> None:
        """Add a measurement."""
        key = row.phase, row.net, row.output
        if key not in self.series and len(self.series) < _MOST_SERIES:
            self.series[key] = Series()
        if series := self.series.get(key):
            series.add(row)

    def x_at(self, axis: XAxis, iteration: int, seconds: float) -> float:
        """Return the place of an iteration, printed at some seconds of the log, on an axis."""
        if axis == "iterations":
            return self.begins_iter + iteration
        if axis == "hours":
            return (self.begins_s + seconds) / 3600
        return self.begins_epochs + iteration * (self.epochs_per_iter or math.nan)

    def values(self, key: Key) -> Iterator[tuple[int, float, float]]:
        """Yield the iterations, seconds and values of an output, without what is trained again."""
        series = self.series.get(key, Series())
        for row in zip(series.iterations, series.seconds, series.values, strict=True):
            if row[0] < self.until_iter:
                yield row

    def displays(self) -> Iterator[tuple[int, float, int, float]]:
        """Yield the iteration and time of each display of the loss, and its distance from the one before."""
        rows = ((iteration, seconds) for iteration, seconds, _ in self.values(LOSS_KEY))
        for (before, before_s), (iteration, seconds) in pairwise(rows):
            if seconds > before_s and iteration > before:
                yield iteration, seconds, iteration - before, seconds - before_s

    def speeds(self) -> Iterator[tuple[int, float, float]]:
        """Yield the iteration and time of each display, and the images/s since the one before, if known."""
        if self.images_per_iter is not None:
            for iteration, seconds, count, took_s in self.displays():
                yield iteration, seconds, count * self.images_per_iter / took_s

    def points(self, key: Key, axis: XAxis) -> tuple[list[float], list[float]]:
        """Return the places and values of an output, without what is trained again."""
        points = [
            (self.x_at(axis, iteration, seconds), value) for iteration, seconds, value in self.values(key)
        ]
        return [x for x, _ in points], [y for _, y in points]


@dataclass(frozen=True)
class CurveMark:
    """A place where something changed: the join of two phases, a restart, or the end of a warm-up."""

    x: float
    what: Literal["join", "restart", "warm-up"]
    name: str = ""


@dataclass
class TrainingCurve:
    """The training of one model; the published results are those of its recipe, where it has any.

    `began_s` is when it began, in seconds since 1970, or 0 if that is not known.
    """

    name: str
    pieces: list[Piece]
    published_top1: float | None = None
    published_loss: float | None = None
    began_s: float = 0.0

    def measured(self) -> list[Key]:
        """Return what all pieces measured, in the order of the first appearance."""
        return list(dict.fromkeys(key for piece in self.pieces for key in piece.series))

    def points(self, key: Key, axis: XAxis) -> tuple[list[float], list[float]]:
        """Return the places and values of an output in all pieces."""
        parts = [piece.points(key, axis) for piece in self.pieces]
        return [x for xs, _ in parts for x in xs], [y for _, ys in parts for y in ys]

    def marks(self, axis: XAxis) -> Iterator[CurveMark]:
        """Yield where pieces join or restart, and where their warm-up ends."""
        for index, piece in enumerate(self.pieces):
            xs, rates = piece.points(("train", 0, RATE), axis)
            start = _first_x(piece, axis)
            if index and start is not None:
                yield CurveMark(start, "restart" if piece.is_restart else "join", piece.name)
            peak = warmup_end(rates)
            if peak and not piece.is_restart:
                yield CurveMark(xs[peak], "warm-up")


def _first_x(piece: Piece, axis: XAxis) -> float | None:
    return next((x for key in piece.series for x in piece.points(key, axis)[0][:1]), None)


def warmup_end(rates: Sequence[float]) -> int:
    """Return the index of the last rate of a warm-up, in which the rates rise from the first one; 0 if none.

    >>> warmup_end([0.1, 0.2, 0.3, 0.25, 0.2]), warmup_end([0.3, 0.2, 0.3]), warmup_end([0.1, 0.1, 0.1])
    (2, 0, 0)
    """
    end = 0
    while end + 1 < len(rates) and rates[end + 1] > rates[end]:
        end += 1
    return end if end >= 2 else 0


def running_means(values: Sequence[float]) -> list[float]:
    """Return the running means over about a fiftieth of the values; those that are not finite do not count.

    >>> running_means([1.0, 3.0])
    [1.0, 3.0]
    """
    half = len(values) // 100
    sums, counts = [0.0], [0]
    for value in values:
        is_finite = math.isfinite(value)
        sums.append(sums[-1] + (value if is_finite else 0.0))
        counts.append(counts[-1] + is_finite)
    means = []
    for at in range(len(values)):
        low, high = max(0, at - half), min(len(values), at + half + 1)
        count = counts[high] - counts[low]
        means.append((sums[high] - sums[low]) / count if count and math.isfinite(values[at]) else math.nan)
    return means


def load_pieces(path: Path) -> list[Piece]:
    """Return a piece for each run in a log that measured anything; raises InputError as for `parse-log`."""
    log, pieces = MeasuredLog(), dict[int, Piece]()
    for rows in load_measurements(path, log):
        for row in rows:
            if row.phase not in ("train", "test"):
                continue
            piece = pieces.get(row.run)
            if piece is None:
                piece = pieces[row.run] = Piece(log.runs[row.run - 1])
            piece.add(row)
    if not pieces:
        raise InputError(path, "shows no training", "give the log of a training run, not of an evaluation")
    return list(pieces.values())


def leave_out_retrained(pieces: Sequence[Piece]) -> None:
    """End each piece at the lowest iteration from which a later restart of its phase trains again."""
    until = math.inf
    for piece in reversed(pieces):
        piece.until_iter = until
        first = math.inf if piece.run.first_iter is None else piece.run.first_iter
        until = min(until, first) if piece.is_restart else math.inf


def name_logs(paths: Sequence[Path]) -> list[str]:
    """Return a name for each log: as much of the end of its path as tells it from the others.

    >>> name_logs([Path("first/train.log"), Path("second/train.log")]), name_logs([Path("first/train.log")])
    (['first/train.log', 'second/train.log'], ['train.log'])
    """
    paths = [Path(name_log(path)) for path in paths]
    names = [path.name for path in paths]
    for count in range(2, max((len(path.parts) for path in paths), default=0) + 1):
        if len(set(names)) == len(set(paths)):
            break
        names = ["/".join(path.parts[-count:]) for path in paths]
    return names


def load_log_curves(path: Path, epochs_per_iter: float | None, name: str = "") -> list[TrainingCurve]:
    """Return the curves of a log: what starts from weights or a solverstate continues the run before it.

    They have the given name, or that of the file.
    """
    name = name or path.name
    curves: list[TrainingCurve] = []
    for piece in load_pieces(path):
        piece.epochs_per_iter = epochs_per_iter
        before = curves[-1].pieces[-1] if curves else None
        is_restart = bool(piece.run.state) or (piece.run.first_iter or 0) > 0
        if before is None or not (is_restart or piece.run.weights):
            curves.append(TrainingCurve(name, [piece]))
            continue
        piece.is_restart, piece.begins_iter = is_restart, before.begins_iter
        if not is_restart:
            piece.begins_iter += before.run.last_iter or 0
        piece.name = piece.run.net
        piece.begins_epochs = piece.begins_iter * (epochs_per_iter or 0.0)
        curves[-1].pieces.append(piece)
    for curve in curves:
        leave_out_retrained(curve.pieces)
    if len(curves) > 1:
        for number, curve in enumerate(curves, 1):
            curve.name = f"{name} run {number}"
    return curves


def best_axis(curves: Sequence[TrainingCurve]) -> XAxis:
    """Return epochs if all curves know them, else iterations."""
    is_known = all(piece.epochs_per_iter is not None for curve in curves for piece in curve.pieces)
    return "epochs" if is_known else "iterations"


def check_axis(curves: Sequence[TrainingCurve], axis: XAxis) -> None:
    """Raise InputError if a curve cannot be drawn over an axis."""
    for curve in curves:
        if axis == "epochs" and any(piece.epochs_per_iter is None for piece in curve.pieces):
            hint = "give --images, --batch and --ranks, or --x iterations"
            raise InputError(curve.name, "does not say how many iterations are an epoch", hint)
        if axis == "hours" and not any(
            math.isfinite(x) for key in curve.measured() for x in curve.points(key, axis)[0]
        ):
            raise InputError(curve.name, "has no times", "give --x iterations")


def is_test_loss(key: Key) -> bool:
    """Return whether an output is the loss of a TEST net.

    >>> is_test_loss(("test", 0, "loss3/loss3")), is_test_loss(("test", 0, "loss3/top-1"))
    (True, False)
    """
    return key[0] == "test" and key[2].lower().rstrip("0123456789").endswith("loss")


def is_top1(key: Key) -> bool:
    """Return whether an output is a top-1 accuracy."""
    return is_accuracy(key[2])


def render_curves_csv(curves: Sequence[TrainingCurve]) -> Iterator[str]:
    """Yield the points of curves as rows of CSV: with the place on every axis that is known."""
    yield csv_row(("curve", "piece", *X_AXES, "phase", "net", "output", "value"))
    for curve in curves:
        for number, piece in enumerate(curve.pieces, 1):
            for key in piece.series:
                for iteration, seconds, value in piece.values(key):
                    xs = (piece.x_at(axis, iteration, seconds) for axis in X_AXES)
                    places = (f"{x:.10g}" if math.isfinite(x) else "" for x in xs)
                    name = piece.name or str(number)
                    yield csv_row((curve.name, name, *places, *key, value))


EVALUATION = "evaluation"  # the phase of what was measured after a run had trained
LOSS_KEY: Key = ("train", 0, LOSS)
RATE_KEY: Key = ("train", 0, RATE)
