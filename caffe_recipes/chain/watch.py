"""Watching a trainer by its log: what has come since, how fast it goes, how long is left, what went wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from caffe_recipes.caffe.logs import LogSummary

# -log of the smallest float32: what Caffe prints when every image's probability is 0.
SATURATED_LOSS = 87.3365
# Speed over so many displays: smooth, yet quick to show that something slows down.
_RECENT = 5


@dataclass(frozen=True)
class Progress:
    """Where a phase is; a value is None until the log tells it."""

    phase: str
    iteration: int
    max_iter: int
    rate: float | None
    loss: float | None
    images_per_s: float | None
    phase_left_s: float | None
    chain_left_s: float | None


class LogTail:
    """A growing log, read a whole line at a time."""

    def __init__(self, path: Path) -> None:
        """Begin at the beginning; the file may still be missing."""
        self.path = path
        self.summary = LogSummary()
        self.last_line = ""
        self._offset = 0

    def read(self, *, to_end: bool = False) -> None:
        """Take the whole lines that have come, and with `to_end` a last one cut short."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return
        if not to_end:
            new = new[: new.rfind(b"\n") + 1]
        self._offset += len(new)
        for line in new.decode(errors="replace").splitlines():
            self.summary.feed(line)
            self.last_line = line.strip() or self.last_line


def images_per_s(summary: LogSummary, images_per_iter: int, displays: int | None = None) -> float | None:
    """Return the speed over the last so many displays, or all: images between two of them by their times."""
    times = sorted(summary.times.items())[-displays if displays else None :]
    if len(times) < 2:
        return None
    (first, begun), (last, ended) = times[0], times[-1]
    seconds = (ended - begun).total_seconds()
    return (last - first) * images_per_iter / seconds if seconds > 0 else None


def measure(
    summary: LogSummary, phase: str, max_iter: int, images_per_iter: int, later_iterations: int
) -> Progress:
    """Return a phase's progress; what is left of the chain is reckoned at the speed of now."""
    iteration = max(summary.losses, default=0)
    speed = images_per_s(summary, images_per_iter, _RECENT)
    left = (max_iter - iteration) * images_per_iter / speed if speed else None
    later = later_iterations * images_per_iter / speed if speed else None
    return Progress(
        phase,
        iteration,
        max_iter,
        summary.rates.get(iteration, last_value(summary.rates.values())),
        last_value(summary.losses.values()),
        speed,
        left,
        None if left is None or later is None else left + later,
    )


def last_value(values: Iterable[float]) -> float | None:
    """Return the last of some values; None of none."""
    return next(reversed(tuple(values)), None)


def find_divergence(summary: LogSummary) -> str | None:
    """Say that the loss is lost: not finite, or saturated at two displays on end. Caffe would exit 0."""
    lost = next(((at, loss) for at, loss in summary.losses.items() if not math.isfinite(loss)), None)
    if lost:
        return f"the loss is {lost[1]} at iteration {lost[0]}"
    for (_, before), (at, loss) in pairwise(summary.losses.items()):
        if min(before, loss) >= SATURATED_LOSS:
            return f"the loss is stuck at {loss} at iteration {at}"
    return None


def find_failure(tail: LogTail, max_iter: int) -> str | None:
    """Say why a trainer that has ended did not train to the end; its exit code says nothing."""
    summary = tail.summary
    if summary.fatal:
        return summary.fatal
    if summary.stopped_early:
        return "it was stopped early by a signal"
    diverged = find_divergence(summary)
    if diverged:
        return diverged
    if not summary.done:
        at = max(summary.losses, default=None)
        reached = "before the first iteration" if at is None else f"after iteration {at} of {max_iter}"
        return f"it ended {reached}" + (f", saying: {tail.last_line[:300]}" if tail.last_line else "")
    return None
