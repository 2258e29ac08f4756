"""Measurements in training logs of any Caffe, or of TensorFlow under Horovod: as CSV, JSON or a summary."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from caffe_recipes.caffe.log_files import hint_for_log, name_log
from caffe_recipes.caffe.logs import LogEvent, Loss, Rate, TestOutput, TestStarted
from caffe_recipes.caffe.measurements import (
    MOST_OUTPUTS,
    LoggedRun,
    MeasuredLog,
    Measurement,
    is_accuracy,
    read_measurements,
)
from caffe_recipes.errors import InputError
from caffe_recipes.files.bounded_reads import reading
from caffe_recipes.review.text_columns import csv_rows
from caffe_recipes.tensorflow.logs import parse_evaluations, parse_step
from caffe_recipes.units import describe_duration
from caffe_recipes.wording import describe_count

COLUMNS = ("file", *Measurement._fields)


def parse_tensorflow(text: str) -> Sequence[LogEvent]:
    """Return the events in a line of a TensorFlow program; none if it is not a measurement.

    >>> parse_tensorflow("I1120 11:49:33.5 7 resnet_main.py:9] step 20: loss = 7.25, learning_rate = 0.1")
    [Loss(iteration=20, loss=7.25), Rate(iteration=20, rate=0.1)]
    """
    step = parse_step(text)
    if step is not None:
        rate = [] if step.rate is None else [Rate(step.step, step.rate)]
        return [Loss(step.step, step.loss), *rate]
    found = next(iter(parse_evaluations(text).evaluations), None)
    if found is not None:
        values = {"top-1": found.top1, "top-5": found.top5, "loss": found.loss}
        known = [(name, value) for name, value in values.items() if value is not None]
        outputs = [TestOutput(index, name, value) for index, (name, value) in enumerate(known)]
        return [TestStarted(found.step, 0), *outputs]
    return ()


def load_measurements(path: Path, log: MeasuredLog) -> Iterator[list[Measurement]]:
    """Yield a log's measurements, in groups; raises InputError if there are none, or too many, to read."""
    log.parse = parse_tensorflow
    name, hint = name_log(path), hint_for_log(path, "give the log of a training run")
    with reading(name, InputError, hint):
        for rows in read_measurements(path, log):
            if log.excess:
                raise InputError(name, f"has {log.excess}", "give a part of it")
            yield rows
    if log.measurements:
        return
    if not log.lines:
        raise InputError(name, "is empty", hint)
    if log.has_nul:
        raise InputError(name, "is binary, not a log", hint)
    known = "of ranks other than 0" if log.others else ""
    what = f"shows measurements only {known}" if known else "shows no loss, rate or output"
    cut = ", the last one incomplete" if log.is_cut else ""
    raise InputError(name, f"{what}, in {describe_count(log.lines, 'line')}{cut}", hint)


def render_rows(path: Path, rows: Sequence[Measurement]) -> list[str]:
    """Return measurements as rows of CSV, with the columns COLUMNS."""
    return csv_rows((path, *row) for row in rows)


def render_json_rows(path: Path, rows: Sequence[Measurement]) -> Iterator[str]:
    """Yield measurements as JSON objects; a value that is not finite is text, as JSON has no such number."""
    for row in rows:
        value = row.value if math.isfinite(row.value) else str(row.value)
        yield json.dumps({"file": str(path), **row._asdict(), "value": value})


def log_values(path: Path, log: MeasuredLog) -> dict[str, object]:
    """Return the counts of a log that was read, and its runs, for JSON."""
    return {
        "file": str(path),
        "lines": log.lines,
        "measurements": log.measurements,
        "other_ranks": log.others,
        "unknown": log.unknown,
        "unreadable": log.unreadable,
        "incomplete": int(log.is_cut),
        "runs": [asdict(run) for run in log.runs],
    }


def describe_counts(path: Path, log: MeasuredLog) -> Iterator[str]:
    """Yield how many lines of a log there are, and a line for each kind of line that was not read."""
    counts = [describe_count(log.lines, "line"), describe_count(log.measurements, "measurement")]
    if log.others:
        counts.append(f"{log.others:,} of other ranks")
    counts.append(f"{log.unknown:,} not about the training")
    yield f"{path}: {', '.join(counts)}"
    if log.unreadable:
        lines = describe_count(log.unreadable, "line")
        yield f"  not read: {lines} torn or without an iteration, first line {log.first_unreadable:,}"
    if log.is_cut:
        yield "  not read: the last line, which is incomplete"


class LogDigest:
    """The last and best values of each run, collected while its measurements pass by.

    Measurements of outputs after the first MOST_OUTPUTS of all runs are only counted.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, str, int, str], Measurement] = {}
        self._left_out = 0
        self._best: dict[int, Measurement] = {}
        self._span: dict[int, tuple[float, float]] = {}

    def add(self, rows: Sequence[Measurement]) -> None:
        """Add measurements."""
        for row in rows:
            key = row.run, row.phase, row.net, row.output
            if key in self._last or len(self._last) < MOST_OUTPUTS:
                self._last[key] = row
            else:
                self._left_out += 1
            if row.seconds is not None:
                first, _ = self._span.get(row.run, (row.seconds, 0.0))
                self._span[row.run] = first, row.seconds
            if row.phase == "test" and is_accuracy(row.output):
                best = self._best.get(row.run)
                if best is None or row.value > best.value:
                    self._best[row.run] = row

    def render(self, log: MeasuredLog) -> Iterator[str]:
        """Yield the lines about each run, with its last values."""
        for run in log.runs:
            yield from self._render_run(run)
        if self._left_out:
            left_out = describe_count(self._left_out, "measurement")
            yield f"  not shown: {left_out}, of outputs after the first {MOST_OUTPUTS:,}"

    def _render_run(self, run: LoggedRun) -> Iterator[str]:
        yield f"  run {run.number}: {_describe_run(run)}{self._describe_time(run.number)}"
        for (number, phase, net, output), row in self._last.items():
            if number != run.number:
                continue
            where = f"test net {net}" if net else phase
            at = "" if row.iteration is None else f" at {row.iteration:,}"
            best = self._best.get(number)
            is_best = best is not None and (phase, net, output) == (best.phase, best.net, best.output)
            most = f", best {best.value:g} at {best.iteration:,}" if best and is_best else ""
            yield f"    {where} {output}: {row.value:g}{at}{most}"

    def _describe_time(self, number: int) -> str:
        first, last = self._span.get(number, (0.0, 0.0))
        return f", in {describe_duration(last - first)}" if last > first else ""


def _describe_run(run: LoggedRun) -> str:
    parts = [run.net or "no name"]
    if run.first_iter is not None:
        parts.append(f"iterations {run.first_iter:,} to {run.last_iter:,}")
    if run.weights:
        parts.append(f"weights from {run.weights}")
    if run.state:
        parts.append(f"resumed from {run.state}")
    if run.snapshots:
        parts.append(f"{describe_count(run.snapshots, 'snapshot')}, last {run.last_snapshot}")
    if run.fatal:
        parts.append(f"died: {run.fatal}")
    elif run.is_stopped:
        parts.append("stopped early")
    elif run.is_done:
        parts.append("done")
    return ", ".join(parts)
