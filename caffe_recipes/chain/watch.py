"""Watching a trainer by its log: what has come since, how fast it goes, how long is left, what went wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from caffe_recipes.caffe.log_events import Complaint, Fatal
from caffe_recipes.caffe.logs import Entry, LogSummary, split_rank
from caffe_recipes.chain.plan import Training
from caffe_recipes.chain.snapshots import learned_ignored
from caffe_recipes.cluster.rank_ends import RankEnds

# -log of the smallest float32: what Caffe prints when every image's probability is 0.
SATURATED_LOSS = 87.3365
# Hydra's word on a rank that a signal has ended; its advice after it tells nothing.
_EXIT_STRING = re.compile(r"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: (.+)")
# Hydra does not notice that the srun which was to start its proxies has ended, and waits for ever.
_NO_STEP = re.compile(r"srun: (?:error|fatal): (Unable to (?:confirm allocation|create step).*)")
# What glog prints of a training that goes well; no reason for its end.
_INFO = re.compile(r"I[0-9]{4,8} [0-9:.]+ +[0-9]+ \S+\] ")
_NUMBERS = re.compile(r"\d+")
# Speed over so many displays: smooth, yet quick to show that something slows down.
_RECENT = 5


@dataclass(frozen=True)
class Progress:
    """Where a phase is; a value is None until the log tells it."""

    phase: str
    iteration: int
    last_iter: int
    rate: float | None
    loss: float | None
    images_per_s: float | None
    phase_left_s: float | None
    chain_left_s: float | None


class LogTail:
    """A growing log, read a whole line at a time.

    `signs` counts its signs of life: what tells of training or testing, and before that each line that says
    something new. What some library repeats while nothing goes on is none. `no_step` is why Slurm has started
    no ranks; "" where it has. `last_words` are the last that are no report of a training that goes well.
    """

    def __init__(self, path: Path, hear: Callable[[list[str]], None] | None = None) -> None:
        """Begin at the beginning; the file may still be missing. `hear` is told all lines."""
        self.path = path
        self.lines = self.signs = 0
        self._hear = hear
        self.summary = LogSummary()
        self.last_line = self.last_words = ""
        self.exit_string = self.no_step = ""
        self.ends = RankEnds()
        self._offset = 0
        self._heard: set[str] = set()

    @property
    def has_begun(self) -> bool:
        """Tell whether iterations, or batches of a test, have come."""
        return bool(self.summary.losses or self.summary.batches)

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
        lines = new.decode(errors="replace").splitlines()
        self.lines += len(lines)
        if self._hear is not None and lines:
            self._hear(lines)
        for line in lines:
            self.signs += self._is_sign(line, self.summary.feed(line))
            said = split_rank(line)[1].strip()
            self.last_line = said or self.last_line
            self.last_words = said if said and not _INFO.match(said) else self.last_words
            self.ends.feed(line.strip())
            ended = _EXIT_STRING.fullmatch(line.strip())
            self.exit_string = ended[1] if ended else self.exit_string
            refused = None if self.has_begun else _NO_STEP.fullmatch(split_rank(line)[1].strip())
            self.no_step = self.no_step or (f"srun: {refused[1][:300]}" if refused else "")

    def _is_sign(self, line: str, entry: Entry | None) -> bool:
        if entry is not None and not isinstance(entry.event, Complaint | Fatal):
            return True
        if self.has_begun:
            self._heard.clear()
            return False
        # Ranks, times and counters make nothing new of a line.
        said = _NUMBERS.sub("", split_rank(line)[1])
        is_new = bool(said) and said not in self._heard
        self._heard.add(said)
        return is_new


def images_per_s(summary: LogSummary, images_per_iter: int, displays: int | None = None) -> float | None:
    """Return the speed over the last so many displays, or all: images between two of them by their times."""
    times = sorted(summary.times.items())[-displays if displays else None :]
    if len(times) < 2:
        return None
    (first, begun), (last, ended) = times[0], times[-1]
    seconds = (ended - begun).total_seconds()
    return (last - first) * images_per_iter / seconds if seconds > 0 else None


def measure(
    summary: LogSummary, phase: str, last_iter: int, images_per_iter: int, later_iterations: int
) -> Progress:
    """Return a phase's progress; what is left of the chain is reckoned at the speed of now.

    Caffe prints an iteration's rate a moment after its loss: until then there is none.
    """
    iteration = min(max(summary.losses, default=0), last_iter)
    speed = images_per_s(summary, images_per_iter, _RECENT)
    left = (last_iter - iteration) * images_per_iter / speed if speed else None
    later = later_iterations * images_per_iter / speed if speed else None
    return Progress(
        phase,
        iteration,
        last_iter,
        summary.rates.get(iteration),
        last_value(summary.losses.values()),
        speed,
        left,
        None if left is None or later is None else left + later,
    )


def last_value(values: Iterable[float]) -> float | None:
    """Return the last of some values; None of none."""
    return next(reversed(tuple(values)), None)


def losses_until(summary: LogSummary, last_iter: int) -> dict[int, float]:
    """Return the losses up to an iteration: of what a stopped Caffe trains beyond it nothing is kept."""
    return {iteration: loss for iteration, loss in summary.losses.items() if iteration <= last_iter}


def has_passed(summary: LogSummary, snapshot: str, iteration: int) -> bool:
    """Tell whether the snapshot of an iteration is whole: the log says so, or speaks of what comes after it.

    Caffe trains on when a snapshot has ended, and not all say that it has.
    """
    return snapshot in summary.whole_snapshots or max(summary.losses, default=-1) >= iteration


def find_divergence(losses: Mapping[int, float]) -> str | None:
    """Say that the loss is lost: not finite, or saturated at two displays on end. Caffe would exit 0."""
    lost = next(((at, loss) for at, loss in losses.items() if not math.isfinite(loss)), None)
    if lost:
        return f"the loss is {lost[1]} at iteration {lost[0]}"
    for (_, before), (at, loss) in pairwise(losses.items()):
        if min(before, loss) >= SATURATED_LOSS:
            return f"the loss is stuck at {loss} at iteration {at}"
    return None


def find_ignored(tail: LogTail, training: Training, root: Path) -> str | None:
    """Say which learned layer of its weights Caffe has left out: it trains on without a word of it."""
    if training.weights is None or not tail.summary.ignored:
        return None
    ignored = learned_ignored(tail.summary.ignored, root / training.weights)
    return (
        f"Caffe ignored layer '{ignored[0]}' of {training.weights}, which the net lacks" if ignored else None
    )


def find_failure(tail: LogTail, training: Training) -> str | None:
    """Say why a trainer that has ended did not train to the end; its exit code says nothing."""
    summary, last = tail.summary, training.last_iter
    is_passed = training.is_stopped and has_passed(summary, training.snapshot, last)
    if summary.fatal and not (is_passed or summary.done):  # what dies after its work was done
        return summary.fatal
    if tail.no_step and not summary.done:
        return tail.no_step
    if summary.stopped_early and not is_passed:
        return "it was stopped early by a signal"
    diverged = find_divergence(losses_until(summary, last))
    if diverged:
        return diverged
    if is_passed or (summary.done and not training.is_stopped):
        return None
    at = max(summary.losses, default=None)
    reached = "before the first iteration" if at is None else f"after iteration {at} of {last}"
    if tail.ends.said:
        return f"{tail.ends.said} {reached}"
    return f"it ended {reached}" + describe_last_words(tail, ", saying: ")


def describe_last_words(tail: LogTail, before: str) -> str:
    """Return what was said last, behind `before`, and protobuf's complaint; "" where nothing was said."""
    said, complaint = tail.exit_string or tail.last_words[:300], tail.summary.complaint
    if complaint and complaint[:100] not in said:
        said = f"{said}; protobuf complained: {complaint[:300]}"
    return f"{before}{said}" if said else ""
