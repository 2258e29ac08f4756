"""Watch a trainer by its log: progress, speed, time left, and errors.

The watchdog detects what no launcher notices: a broken link, or a rank that blocks all others.

Training is synchronous: as long as iterations are logged, every host works, whatever ssh reports. So a host
is considered lost only if both its pulses and the log have stopped.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from caffe_recipes.caffe.log_files import LogFile
from caffe_recipes.caffe.logs import (
    INFO_LINE,
    SATURATED_LOSS,
    Complaint,
    Entry,
    Fatal,
    LogSummary,
    split_rank,
)
from caffe_recipes.caffe.measurements import is_accuracy
from caffe_recipes.cluster.launchers.launcher import describe_signal
from caffe_recipes.cluster.launchers.srun import NO_STEP, STEP_WAITS
from caffe_recipes.cluster.rank_exits import RankExitReader
from caffe_recipes.cluster.ranks import Pulse, Silence, Straggler, find_straggler, find_unstarted
from caffe_recipes.run.failures.signatures import FailureReader
from caffe_recipes.run.trainer import Training
from caffe_recipes.units import describe_duration, write_clock
from caffe_recipes.wording import shorten_without

_NUMBERS = re.compile(r"\d+")
# If there is more unread than this, as when resuming, only both ends of it are read in full, and of the rest
# only lines with one of the VITAL words of the launchers or the trainer.
_MOST_BYTES = 64 << 20
_END_BYTES = 8 << 20
_FATAL = re.compile(r"^(?:\[\d+\] ?)?F\d{4} ", re.MULTILINE)  # a fatal line of glog
# The most distinct lines to remember before the first iteration.
_MOST_SEEN = 10_000
# Displays over which the speed is averaged: smooth, yet quick to show a slowdown.
_RECENT = 5


@dataclass(frozen=True)
class PhaseProgress:
    """The progress of a phase. A value is None until the log shows it.

    `phases` are all phases of the run, with their last iterations. `waited` is what the trainer waited for
    lately, as shares of the time, if its log reports it. `next_iter` is the iteration whose loss the log
    shows next, which gives the speed; None if the speed is known already, or if no loss is to follow.
    `test_accuracy` is that of the last test, from 0 to 1.
    """

    phase: str
    iteration: int
    last_iter: int
    rate: float | None
    loss: float | None
    images_per_s: float | None
    phase_left_s: float | None
    chain_left_s: float | None
    phases: Mapping[str, int] = field(default_factory=dict)
    waited: str | None = None
    next_iter: int | None = None
    test_accuracy: float | None = None

    @property
    def waits_for(self) -> str:
        """What the speed is computed from, as text; "" unless that is still to come."""
        return "" if self.next_iter is None else f"next loss at iteration {self.next_iter:,}"

    @property
    def timing(self) -> list[str]:
        """The speed and the remaining time as text, as far as they are known."""
        parts = [] if self.images_per_s is None else [f"{self.images_per_s:,.0f} images/s"]
        if self.phase_left_s is not None and self.chain_left_s is not None:
            phase, chain = write_clock(self.phase_left_s), write_clock(self.chain_left_s)
            parts.append(f"phase {phase} left, run {chain} left")
        return parts

    def as_json(self) -> dict[str, Any]:
        """Return the values of this phase by name."""
        return {name: value for name, value in asdict(self).items() if name not in ("phases", "next_iter")}


class LogTail:
    """A growing log, read line by line.

    `signs` counts the signs of progress: lines about training or testing, and before the first of these every
    new line, but not what a library repeats while nothing happens. `no_step` is why Slurm could not start the
    ranks, or "", and `step_waits` what srun says while it waits for the nodes. `last_words` is the last line
    that is not about normal training, and `failures` finds among these what explains a failure. What is kept
    of a line does not end within one of the `secrets`.
    """

    def __init__(self, path: Path, summary: LogSummary | None = None, secrets: Collection[str] = ()) -> None:
        """Start at the beginning of a file, which need not exist yet; lines are fed into `summary`."""
        self.path = path
        self._secrets = secrets
        self.lines = self.signs = 0
        self.summary = summary or LogSummary()
        self.last_line = self.last_words = ""
        self.no_step = self.step_waits = ""
        self.ends = RankExitReader()
        self.failures = FailureReader()
        self._file = LogFile(path)
        self._seen: set[int] = set()

    @property
    def has_begun(self) -> bool:
        """Whether the log shows an iteration, or a batch of a test."""
        return bool(self.summary.losses or self.summary.batches)

    def read(self, *, to_end: bool = False) -> None:
        """Read the new complete lines, and with `to_end` also an incomplete last one."""
        unread = self._file.unread_bytes()
        if unread > _MOST_BYTES:
            for lines in self._file.read(_END_BYTES):
                self._process(lines)
            for lines in self._file.read(unread - 2 * _END_BYTES):
                has_vital = self._is_vital("\n".join(lines))
                vital = [line for line in lines if self._is_vital(line)] if has_vital else []
                self.lines += len(lines) - len(vital)
                self._process(vital)
        for lines in self._file.read(to_end=to_end):
            self._process(lines)

    def _is_vital(self, text: str) -> bool:
        words = (*self.ends.VITAL, *self.summary.VITAL)
        return any(word in text for word in words) or _FATAL.search(text) is not None

    def _process(self, lines: list[str]) -> None:
        self.lines += len(lines)
        for line in lines:
            self.signs += self._is_sign(line, self.summary.feed(line))
            text = split_rank(line)[1].strip()
            if not text:
                continue
            self.last_line = self.shorten(text, 200)
            if INFO_LINE.match(text):  # not the reason why a trainer ended
                continue
            self.ends.feed(line.strip())
            if self.ends.is_over:
                continue
            self.last_words = self.shorten(text)
            self.failures.feed(text)
            refused = None if self.has_begun else NO_STEP.fullmatch(text)
            self.no_step = self.no_step or (f"srun: {self.shorten(refused[1])}" if refused else "")
            if waiting := None if self.has_begun else STEP_WAITS.fullmatch(text):
                self.step_waits = self.shorten(waiting[1] or "")

    def shorten(self, text: str, most: int = 300) -> str:
        """Return the beginning of a text of the log."""
        return shorten_without(text, most, self._secrets)

    def _is_sign(self, line: str, entry: Entry | None) -> bool:
        if entry is not None and not isinstance(entry.event, Complaint | Fatal):
            return True
        if self.has_begun:
            self._seen.clear()
            return False
        # Lines that differ only in ranks, times or counters are not new.
        text = _NUMBERS.sub("", split_rank(line)[1])
        is_new = bool(text) and hash(text) not in self._seen
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen.add(hash(text))
        return is_new


def images_per_s(
    summaries: Iterable[LogSummary], images_per_iter: int, displays: int | None = None
) -> float | None:
    """Return the mean speed of some launches, from the times of their last `displays` displays, or of all.

    The time between two launches, when nothing trains, is not counted. None if it is unknown.
    """
    iterations, seconds = 0, 0.0
    for summary in summaries:
        times = sorted(summary.times.items())[-displays if displays else None :]
        if len(times) > 1:
            (first, begun), (last, ended) = times[0], times[-1]
            iterations += last - first
            seconds += (ended - begun).total_seconds()
    return iterations * images_per_iter / seconds if seconds > 0 else None


def measure(
    summary: LogSummary,
    phase: str,
    phases: Mapping[str, int],
    images_per_iter: int,
    later_iterations: int,
    display_iter: int = 0,
) -> PhaseProgress:
    """Return the progress of a phase; the remaining time of the run is estimated at the current speed.

    `phases` are all phases of the run with their last iterations. The learning rate is None at first, since
    Caffe prints it shortly after the loss.
    """
    last_iter = phases[phase]
    iteration = min(max(summary.losses, default=0), last_iter)
    speed = images_per_s([summary], images_per_iter, _RECENT)
    left = (last_iter - iteration) * images_per_iter / speed if speed else None
    later = later_iterations * images_per_iter / speed if speed else None
    return PhaseProgress(
        phase,
        iteration,
        last_iter,
        summary.rates.get(iteration),
        last_value(summary.losses.values()),
        speed,
        left,
        None if left is None or later is None else left + later,
        phases,
        summary.waited,
        next_display(iteration + 1, display_iter, last_iter) if speed is None else None,
        last_value(value for _, value in accuracies(summary)),
    )


def accuracies(summary: LogSummary) -> Iterator[tuple[int, float]]:
    """Yield the iteration and the accuracy of each test, by the names that such outputs usually have."""
    for test in summary.tests:
        found = [value for name, value in test.outputs.items() if is_accuracy(name)]
        if found:
            yield test.iteration, found[-1]


def next_display(iteration: int, display_iter: int, last_iter: int) -> int | None:
    """Return the first iteration from `iteration` on whose loss the log shows; None if there is none.

    >>> next_display(1, 20, 203), next_display(40, 20, 203), next_display(201, 20, 203), next_display(1, 0, 9)
    (20, 40, None, None)
    """
    at = math.ceil(iteration / display_iter) * display_iter if display_iter else last_iter + 1
    return at if at <= last_iter else None


def measure_step(
    summary: LogSummary, phase: str, steps: Sequence[Training], whole: Sequence[Training]
) -> PhaseProgress:
    """Return the progress of one of the `steps` that are trained in turn; `whole` are all of the recipe."""
    at = [step.phase for step in steps].index(phase)
    later = sum(step.last_iter for step in steps[at + 1 :])
    phases = {step.phase: step.last_iter for step in whole}
    return measure(summary, phase, phases, steps[at].images_per_iter, later, steps[at].display_iter)


def last_value(values: Iterable[float]) -> float | None:
    """Return the last of some values; None if there are none."""
    return next(reversed(tuple(values)), None)


def losses_until(summary: LogSummary, last_iter: int) -> dict[int, float]:
    """Return the losses up to an iteration; what Caffe trains beyond it until it stops does not count."""
    return {iteration: loss for iteration, loss in summary.losses.items() if iteration <= last_iter}


def has_passed(summary: LogSummary, snapshot: str, iteration: int) -> bool:
    """Return whether the snapshot of an iteration is complete: the log says so, or training has continued.

    Not every Caffe logs the end of a snapshot, but all continue only after it.
    """
    return snapshot in summary.whole_snapshots or max(summary.losses, default=-1) >= iteration


def is_ending(tail: LogTail, training: Training) -> bool:
    """Return whether training is over, so that its ranks may end at different times.

    Those of some programs end while rank 0 still writes the last snapshot. Where a rank was killed or has
    reported an error, this is not a normal end.
    """
    summary = tail.summary
    if tail.ends.cause or summary.fatal:
        return False
    if training.is_stopped:
        return has_passed(summary, training.snapshot, training.last_iter)
    return summary.done or training.snapshot in (*summary.snapshots, *summary.solverstates)


def find_divergence(losses: Mapping[int, float]) -> str | None:
    """Return how training has diverged: a loss that is not finite, or saturated twice in a row.

    Caffe exits with 0.
    """
    lost = next(((at, loss) for at, loss in losses.items() if not math.isfinite(loss)), None)
    if lost:
        return f"the loss is {lost[1]} at iteration {lost[0]}"
    for (_, before), (at, loss) in pairwise(losses.items()):
        if min(before, loss) >= SATURATED_LOSS:
            return f"the loss is stuck at {loss} at iteration {at}"
    return None


# How close, relatively, the loss and the accuracy of a net that learns nothing are to those of guessing.
_NEAR_LOSS, _NEAR_ACCURACY = 0.02, 0.2


def find_guessing(summary: LogSummary, classes: int, epoch_iter: float) -> str | None:
    """Return how a net seems to be guessing: an epoch of losses, or two tests, are no better than chance.

    Guessing has the loss ln(classes) and the accuracy 1 / classes.
    """
    last, recent, is_epoch = max(summary.losses, default=0), list[float](), False
    for at, loss in reversed(summary.losses.items()):
        recent.append(loss)
        is_epoch = last - at >= epoch_iter
        if is_epoch:
            break
    chance = math.log(classes)
    if is_epoch and chance and all(abs(loss - chance) <= _NEAR_LOSS * chance for loss in recent):
        what = f"the loss has stayed at ln({classes}) = {chance:.4g} for an epoch"
        return f"{what}: the net is only guessing; check labels, base_lr and mean"
    right = [value for at, value in accuracies(summary) if at >= epoch_iter][-2:]
    if classes > 1 and len(right) == 2 and max(right) <= (1 + _NEAR_ACCURACY) / classes:
        what = f"the accuracy is {100 * right[-1]:.3g}% after an epoch"
        return f"{what}, no better than guessing among {classes} classes; check labels, base_lr and mean"
    return None


_ITERATION = re.compile(r"_iter_(\d{1,18})(?:\.|$)")


def find_unread(summary: LogSummary, display_iter: int, first_iter: int = 0) -> str | None:
    """Return how a log shows snapshots, but not the losses before them, so that no divergence can be seen.

    `first_iter` is where the launch began, and `display_iter` the interval of the losses; 0 if not known.
    """
    marks = (_ITERATION.search(path) for path in reversed(summary.snapshots))
    written = next((int(mark[1]) for mark in marks if mark), 0)
    shown = max(summary.losses, default=-1)
    if not display_iter or written - first_iter < display_iter or shown >= written - display_iter:
        return None
    since = f"no loss since iteration {shown:,}" if summary.losses else "no loss"
    return (
        f"the log shows a snapshot at iteration {written:,}, but {since}: this program's lines are not known"
        " here, so the run does not notice a loss that diverges; look for it in the log"
    )


def find_failure(tail: LogTail, training: Training, killed_by: int | None = None) -> str | None:
    """Return why a trainer that has ended did not train to the end; None if it did.

    Exit codes do not count. `killed_by` is the signal that killed its launcher, which then reports nothing.
    """
    summary, last = tail.summary, training.last_iter
    is_passed = training.is_stopped and has_passed(summary, training.snapshot, last)
    if summary.fatal and not (is_passed or summary.done):  # it may also die after its work was done
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
    if killed_by is not None:
        return f"the launcher was killed by {describe_signal(killed_by)} {reached}"
    if tail.ends.cause:
        return f"{tail.ends.cause} {reached}"
    if tail.ends.is_over:
        return f"the run ended it {reached}"
    return f"it ended {reached}" + describe_last_words(tail, ", saying: ")


def describe_last_words(tail: LogTail, before: str) -> str:
    """Return `before` and the last words of a log with any complaint of protobuf; "" if it has neither."""
    words, complaint = tail.ends.exit_string or tail.last_words, tail.summary.complaint
    if complaint and complaint[:100] not in words:
        words = f"{words}; protobuf reported: {tail.shorten(complaint)}"
    return f"{before}{words}" if words else ""


# A host without a pulse for this long is lost, unless the log makes progress.
SILENT_S = 20.0
# Loading nets, LMDBs and, from a busy file system, the program itself takes this long at most.
START_STALL_S = 900.0
STALL_S = 600.0
# A trainer has this long to exit after its last line: MPI_Finalize can hang, though the model is written.
DONE_S = 60.0
# After shorter pauses of the log, the states of the ranks mean nothing.
BLOCKED_S = 15.0
# A pause of the log may be this many times its longest before, since a test takes longer than a display.
_PACES = 20
# The most that counts as silence between two checks.
_GAP_S = 5.0


class PulseSource(Protocol):
    """A source of the hosts' pulses: `PulseMonitor`, or a stand-in for tests."""

    def silent(self, patience_s: float) -> Sequence[Silence]:
        """Return the hosts that have sent no pulse for more than `patience_s` seconds."""

    def histories(self) -> Mapping[str, Sequence[Pulse]]:
        """Return the last pulses of every host, the newest last."""


@dataclass(frozen=True)
class Trouble:
    """The reason to end a launch, and the host that causes it, if known; `is_lost` if it is unreachable.

    If it `is_spoilt`, its snapshots are discarded even if it has trained to the end.
    """

    what: str
    host: str | None = None
    is_lost: bool = False
    is_spoilt: bool = False

    def __str__(self) -> str:
        return f"{self.host}: {self.what}" if self.host else self.what


class LogPace:
    """The pace of a log: how long it has shown no progress, and its longest pause since the first iteration.

    `stall_s` overrides the limit that is derived from the pace.
    """

    def __init__(self, stall_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Start measuring the silence now."""
        self._stall_s, self._clock = stall_s, clock
        self._lines = self._signs = 0
        self._has_begun = False
        self._looked_at = clock()
        self.quiet_s = self.longest_s = 0.0

    def look(self, tail: LogTail) -> str | None:
        """Update the silence; return a message if the log has stalled."""
        now = self._clock()
        # Time in which this process itself was stopped or busy does not count as silence of the log.
        self.quiet_s += min(now - self._looked_at, _GAP_S)
        self._looked_at = now
        if tail.signs != self._signs:
            if self._has_begun:  # the time for loading says nothing about iterations
                self.longest_s = max(self.longest_s, self.quiet_s)
            self._lines, self._signs, self._has_begun = tail.lines, tail.signs, tail.has_begun
            self.quiet_s = 0.0
        if self.quiet_s < self._patience_s(tail):
            return None
        if tail.lines == self._lines:
            return f"no output in the log for {describe_duration(self.quiet_s)}"
        last = f"and its last line is: {tail.last_line}"
        return f"no progress in the log for {describe_duration(self.quiet_s)}, {last}"

    def _patience_s(self, tail: LogTail) -> float:
        if self._stall_s is not None:
            patience_s = self._stall_s
        else:
            patience_s = max(STALL_S, _PACES * self.longest_s) if tail.has_begun else START_STALL_S
        return min(patience_s, DONE_S) if tail.summary.done else patience_s


# A step that was ended releases its nodes within seconds, or not at all.
STEP_WAIT_S = 120.0


class StepWait:
    """How long srun has waited for nodes that other steps hold; `message` is what it says, with these steps.

    `find_holders` describes the steps; "" if none is known.
    """

    def __init__(self, find_holders: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        """Start before the first line of the log."""
        self._find_holders, self._clock = find_holders, clock
        self._since: float | None = None
        self.message = ""

    def look(self, tail: LogTail) -> Trouble | None:
        """Update `message`; return the reason to end the launch once srun has waited for STEP_WAIT_S."""
        now = self._clock()
        if not tail.step_waits or tail.has_begun:
            self._since = None
            return None
        if self._since is None:
            self._since, holders = now, self._find_holders()
            self.message = f"{tail.step_waits}; {holders}" if holders else tail.step_waits
        if now - self._since < STEP_WAIT_S:
            return None
        return Trouble(f"no rank has started for {describe_duration(now - self._since)}: {self.message}")


class Watchdog:
    """Watches the log's pace and the hosts. `stall_s` overrides the limit that is derived from the pace."""

    def __init__(
        self, pulses: PulseSource, stall_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start measuring the silence now."""
        self._pulses, self._pace = pulses, LogPace(stall_s, clock)
        self.suspect: Straggler | None = None

    def look(self, tail: LogTail, *, is_ending: bool = False) -> Trouble | None:
        """Return what is wrong if the launch must be ended; a mere suspicion is stored in `suspect`.

        When training `is_ending`, a rank that has ended is named only once the log stalls.
        """
        stalled = self._pace.look(tail)
        quiet_s, longest_s = self._pace.quiet_s, self._pace.longest_s
        patience_s = max(SILENT_S, min(2 * longest_s, STALL_S))
        for silence in self._pulses.silent(patience_s):
            if quiet_s > patience_s:
                why = f" ({silence.reason})" if silence.reason else ""
                what = f"no heartbeat for {describe_duration(silence.seconds)}{why}"
                return Trouble(what, silence.host, is_lost=True)
        # During progress no rank is blocked.
        is_blocked = quiet_s > max(BLOCKED_S, 2 * longest_s)
        # If a host reboots between the start of its ranks and its next pulse, its ranks seem never to have
        # started.
        if is_blocked or not tail.has_begun:
            words = () if tail.has_begun else tail.ends.not_started
            unstarted = find_unstarted(self._pulses.histories(), words)
            if unstarted is not None:
                return Trouble(unstarted.reason, unstarted.host)
        is_ending = is_ending and stalled is None
        straggler = find_straggler(self._pulses.histories(), is_ending=is_ending) if is_blocked else None
        self.suspect = straggler
        if straggler is not None and straggler.is_certain:
            return Trouble(f"blocks the others: {straggler.reason}", straggler.host)
        if stalled is None:
            return None
        if straggler is not None:
            return Trouble(f"{stalled}; {straggler.reason}", straggler.host)
        return Trouble(stalled)
