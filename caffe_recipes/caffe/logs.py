"""Caffe's log: from lines to events, and from events to what a run has done so far.

A line may begin with the `[rank] ` of `mpiexec -l`; the time in it has a year since glog 0.6. Lines that say
nothing of the training (the net's dump, other programs' output, two ranks in one line) are no events.

What a line of Caffe's log can tell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Started:
    """The solver begins with a net of this name."""

    net: str


@dataclass(frozen=True)
class Rate:
    """The learning rate of an iteration's update."""

    iteration: int
    rate: float


@dataclass(frozen=True)
class Loss:
    """The mean loss of the last `average_loss` iterations."""

    iteration: int
    loss: float


@dataclass(frozen=True)
class TrainOutput:
    """One value of the TRAIN net, of the iteration whose Loss came last."""

    index: int
    name: str
    value: float


@dataclass(frozen=True)
class TestStarted:
    """A TEST net is about to run."""

    iteration: int
    net: int


@dataclass(frozen=True)
class TestOutput:
    """One mean over `test_iter` batches of the TEST net that started last."""

    index: int
    name: str
    value: float


@dataclass(frozen=True)
class Snapshot:
    """A caffemodel is about to be written."""

    path: str


@dataclass(frozen=True)
class SolverState:
    """A solverstate is about to be written."""

    path: str


@dataclass(frozen=True)
class SnapshotEnded:
    """Caffemodel and solverstate are written."""


@dataclass(frozen=True)
class Finetuning:
    """Training starts from the weights of a caffemodel, though Caffe may yet find it empty."""

    path: str


@dataclass(frozen=True)
class Resuming:
    """Training goes on from a solverstate."""

    path: str


@dataclass(frozen=True)
class IgnoredLayer:
    """A layer of the weights that the net has not: what it has learned, if anything, is lost."""

    name: str


@dataclass(frozen=True)
class Done:
    """The solver has reached max_iter."""


@dataclass(frozen=True)
class StoppedEarly:
    """The solver has stopped at a signal, and will return 0 all the same."""


@dataclass(frozen=True)
class BatchOutput:
    """One value of one batch of `caffe test`."""

    batch: int
    name: str
    value: float


@dataclass(frozen=True)
class MeanOutput:
    """One mean over all batches of `caffe test`."""

    name: str
    value: float


@dataclass(frozen=True)
class MeanLoss:
    """The weighted sum of the mean losses of `caffe test`."""

    loss: float


@dataclass(frozen=True)
class Fatal:
    """Why the process is about to die."""

    text: str


@dataclass(frozen=True)
class Complaint:
    """What protobuf could not read or write; Caffe may go on without it."""

    text: str


Event = (
    Started | Rate | Loss | TrainOutput | TestStarted | TestOutput | Snapshot | SolverState | SnapshotEnded
    | Finetuning | Resuming | IgnoredLayer | Done | StoppedEarly | BatchOutput | MeanOutput | MeanLoss | Fatal
    | Complaint
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One line that is an event, with its rank and time where it has them."""

    event: Event
    rank: int | None = None
    time: datetime | None = None


# So much of a log is held at a time, and of a line; a program that floods its log costs no more.
_PIECE_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 16

# The label of a rank whose line never came may stand before.
_RANK = re.compile(r"(?:\[\d{1,18}\] ?)*\[(\d{1,18})\] ?| *(\d{1,9}): ")
_STUCK = re.compile(r"(?:\[\d{1,18}\] )+$")
_GLOG = re.compile(r"([IWEF])(\d{4})?(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6}) +\d+ (\S+\] (.*))")

_COUNT = r"(\d{1,18})"
_NUMBER = r"([-+]?(?:nan|inf|\d+\.?\d*(?:e[-+]?\d+)?))"
_VALUE = rf"(.+) = {_NUMBER}(?: \(\* .*\))?"  # a loss is followed by its weight and their product

_PATTERNS: list[tuple[str, type[Event]]] = [
    (rf"\S+ Iteration {_COUNT}, loss = {_NUMBER}", Loss),
    (rf"\S+ Iteration {_COUNT}, lr = {_NUMBER}", Rate),
    (rf"\S+     Train net output #{_COUNT}: {_VALUE}", TrainOutput),
    (rf"\S+     Test net output #{_COUNT}: {_VALUE}", TestOutput),
    (rf"\S+ Iteration {_COUNT}, Testing net \(#{_COUNT}\)", TestStarted),
    (r"\S+ Solving (.*)", Started),
    (r"\S+ Snapshotting to (?:binary proto|HDF5) file (.+)", Snapshot),
    (r"\S+ Snapshotting solver state to (?:binary proto|HDF5) file (.+)", SolverState),
    (r"\S+ Snapshot end", SnapshotEnded),
    (r"\S+ Finetuning from (.+)", Finetuning),
    (r"\S+ Resuming from (.+)", Resuming),
    (r"\S+ Ignoring source layer (.+)", IgnoredLayer),
    (r"\S+ Optimization Done\.", Done),
    (r"\S+ Optimization stopped early\.", StoppedEarly),
    (rf"caffe\.cpp:\d+\] Batch {_COUNT}, {_VALUE}", BatchOutput),
    (rf"caffe\.cpp:\d+\] Loss: {_NUMBER}", MeanLoss),
    (rf"caffe\.cpp:\d+\] {_VALUE}", MeanOutput),
]
_CONVERT: dict[object, Callable[[str], Any]] = {"int": int, "float": float, "str": str}

# Few lines of a log are events; one of these words is in each that is one, so that the others cost little.
_WORDS = re.compile(
    r"Iteration|net output|Solving |Snapshot|Finetuning|Resuming|Ignoring|Optimization|caffe\.cpp"
)
# What a process says last without glog: protobuf, glog's handler of signals, and caffe-torch.
_LAST_WORDS = re.compile(r"\[libprotobuf FATAL \S+\] (.+)|\*\*\* (SIG\w+) .*|caffe-torch: (.+)")
_COMPLAINT = re.compile(r"\[libprotobuf ERROR \S+\] (.+)")


def parse_line(line: str, year: int = 2000) -> Entry | None:
    """Read one line of a log; None if it is no event. A time without a year is taken to be of `year`.

    >>> parse_line("[0] I1120 11:49:33.597681  6374 sgd_solver.cpp:219] Iteration 0, lr = 0.001").event
    Rate(iteration=0, rate=0.001)
    """
    rank, line = split_rank(line.rstrip("\r\n"))
    match = _GLOG.fullmatch(line)
    if not match:
        spoken = _without_glog(line)
        return Entry(spoken, rank) if spoken else None
    severity, stamp_year, *stamp, place_and_text, text = match.groups()
    time = _time(int(stamp_year or year), stamp)
    event = Fatal(text) if severity == "F" else _event(place_and_text)
    return Entry(event, rank, time) if event else None


def _event(text: str) -> Event | None:
    """Read `file.cpp:line] text`."""
    if not _WORDS.search(text):
        return None
    for pattern, kind in _PATTERNS:
        match = re.fullmatch(pattern, text)
        if match:
            values = zip(fields(kind), match.groups(), strict=True)
            return kind(*(_CONVERT[field.type](value) for field, value in values))
    return None


def _without_glog(line: str) -> Event | None:
    """Read what is written past glog."""
    last, complaint = _LAST_WORDS.fullmatch(line), _COMPLAINT.fullmatch(line)
    if last:
        return Fatal(next(filter(None, last.groups())))
    return Complaint(complaint[1]) if complaint else None


def split_rank(line: str) -> tuple[int | None, str]:
    """Take the `[rank] ` of `mpiexec -l` off a line, which puts another where a write ends without its line.

    And the `rank: ` of `srun --label`.

    >>> split_rank("[0] [1] no route"), split_rank("[1] no route[0] "), split_rank("no route")
    ((1, 'no route'), (1, 'no route'), (None, 'no route'))
    >>> split_rank("07: no route")
    (7, 'no route')
    """
    match = _RANK.match(line)
    if not match:
        return None, line
    rest = line[match.end() :]
    return int(match[1] or match[2]), _STUCK.sub("", rest) if rest.endswith("] ") else rest


def _time(year: int, stamp: list[str]) -> datetime | None:
    month, day, hour, minute, second, microsecond = map(int, stamp)
    try:
        return datetime(year, month, day, hour, minute, second, microsecond)
    except ValueError:
        return None


@dataclass(frozen=True)
class Test:
    """What one run of a TEST net gave: mean outputs by name."""

    iteration: int
    net: int
    outputs: dict[str, float]


@dataclass
class LogSummary:
    """What a log tells of a run so far. Further elements of an output are named `name#1`, `name#2`.

    `times` are when each iteration's loss was printed: images/s is the images between two of them, by their
    difference. Of several ranks only rank 0 counts, but `fatal` is the first reason to die of any, behind the
    last `complaint` before it, which often tells why.
    """

    net: str | None = None
    finetuned_from: str | None = None
    resumed_from: str | None = None
    losses: dict[int, float] = field(default_factory=dict)
    rates: dict[int, float] = field(default_factory=dict)
    outputs: dict[int, dict[str, float]] = field(default_factory=dict)
    times: dict[int, datetime] = field(default_factory=dict)
    tests: list[Test] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)
    solverstates: list[str] = field(default_factory=list)
    whole_snapshots: list[str] = field(default_factory=list)
    batches: dict[int, dict[str, float]] = field(default_factory=dict)
    mean_outputs: dict[str, float] = field(default_factory=dict)
    mean_loss: float | None = None
    done: bool = False
    stopped_early: bool = False
    ignored: list[str] = field(default_factory=list)
    fatal: str | None = None
    complaint: str | None = None

    def feed(self, line: str, year: int = 2000) -> Entry | None:
        """Take one more line; give its event, if it is one."""
        entry = parse_line(line, year)
        if entry is None:
            return None
        if isinstance(entry.event, Complaint):
            self.complaint = entry.event.text
        elif isinstance(entry.event, Fatal):
            before = f"{self.complaint}; then: " if self.complaint else ""
            self.fatal = self.fatal or f"{before}{entry.event.text}"
        elif entry.rank in (None, 0):
            self._take(entry.event, entry.time)
        return entry

    def _take(self, event: Event, time: datetime | None) -> None:
        match event:
            case Loss(iteration, loss):
                self.losses[iteration], self.outputs[iteration] = loss, {}
                if time:
                    self.times[iteration] = time
            case Rate(iteration, rate):
                self.rates[iteration] = rate
            case TrainOutput(_, name, value) if self.outputs:
                _put(self.outputs[next(reversed(self.outputs))], name, value)
            case TestStarted(iteration, net):
                self.tests.append(Test(iteration, net, {}))
            case TestOutput(_, name, value) if self.tests:
                _put(self.tests[-1].outputs, name, value)
            case BatchOutput(batch, name, value):
                _put(self.batches.setdefault(batch, {}), name, value)
            case MeanOutput(name, value):
                _put(self.mean_outputs, name, value)
            case MeanLoss(loss):
                self.mean_loss = loss
            case Snapshot(path):
                self.snapshots.append(path)
            case SolverState(path):
                self.solverstates.append(path)
            case SnapshotEnded() if self.snapshots:
                self.whole_snapshots.append(self.snapshots[-1])
            case Started(net):
                self.net = net
            case Finetuning(path):
                self.finetuned_from = path
            case Resuming(path):
                self.resumed_from = path
            case IgnoredLayer(name) if name not in self.ignored:
                self.ignored.append(name)
            case Done():
                self.done = True
            case StoppedEarly():
                self.stopped_early = True


class LogFile:
    """A growing log, read by bounded pieces, whatever is written into it. `offset` is how far it is read."""

    def __init__(self, path: Path) -> None:
        """Begin at the beginning; the file may still be missing."""
        self.path = path
        self.offset = 0
        self._begun = b""  # of a line whose end is still to come

    def unread_bytes(self) -> int:
        """Return how much has come since; raises OSError for a file that cannot be read."""
        try:
            return max(0, self.path.stat().st_size - self.offset)
        except FileNotFoundError:
            return 0

    def read(self, most_bytes: int | None = None, *, to_end: bool = False) -> Iterator[list[str]]:
        """Yield the whole lines that have come, some at a time, and with `to_end` a last one cut short.

        At most `most_bytes` are read, and nothing that comes meanwhile: a flood has no end. Of a line, the
        first LONGEST_LINE_BYTES are given. Raises OSError for a file that cannot be read.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            left = os.fstat(file.fileno()).st_size - self.offset
            left = left if most_bytes is None else min(left, most_bytes)
            file.seek(self.offset)
            while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
                left -= len(piece)
                self.offset += len(piece)
                if lines := self._split(piece):
                    yield lines
        if to_end and self._begun:
            last, self._begun = self._begun, b""
            yield _decode(last)

    def _split(self, piece: bytes) -> list[str]:
        first, *others = piece.split(b"\n")
        first = (self._begun + first)[:LONGEST_LINE_BYTES]
        if not others:
            self._begun = first
            return []
        self._begun = others.pop()[:LONGEST_LINE_BYTES]
        lines = [first, *(line[:LONGEST_LINE_BYTES] for line in others)]
        return _decode(b"\n".join(lines) + b"\n")


def _decode(lines: bytes) -> list[str]:
    return lines.decode(errors="replace").splitlines()


def read_log(lines: Iterable[str], year: int = 2000) -> LogSummary:
    """Fold the lines of a whole log."""
    summary = LogSummary()
    for line in lines:
        summary.feed(line, year)
    return summary


def _put(outputs: dict[str, float], name: str, value: float) -> None:
    if name not in outputs:
        outputs[name] = value
        return
    # A blob's values come one after the other, thousands of them at times: the last key tells the next.
    stem, _, number = next(reversed(outputs)).rpartition("#")
    if stem == name and number.isdigit():
        taken = int(number) + 1
    else:
        taken = sum(key == name or key.startswith(f"{name}#") for key in outputs)
    outputs[f"{name}#{taken}"] = value
