"""Read the measurements in a log: losses, rates and outputs by iteration, in one pass and in bounded memory.

A log may hold several runs. A run begins where a solver starts, or where the iterations go back; it is a
restart if it reads a solverstate, and a join if it starts from a caffemodel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from caffe_recipes.caffe.log_files import read_whole_log
from caffe_recipes.caffe.logs import (
    BatchOutput,
    Done,
    Fatal,
    Finetuning,
    LogEvent,
    Loss,
    MeanLoss,
    MeanOutput,
    Rate,
    Resuming,
    Snapshot,
    Started,
    StoppedEarly,
    TestOutput,
    TestStarted,
    TrainOutput,
    find_displays,
    find_event,
    name_element,
    split_rank,
)

# The solver's own values; those of the TRAIN net have the names of its outputs.
LOSS, RATE = "average loss", "lr"
_TOTAL = "total loss"  # of `caffe test`
_ACCURACIES = ("top-1", "top1", "accuracy", "acc")
_TOP5 = ("top-5", "top5")
# What is held in memory of a log, even if it is not that of a training.
MOST_RUNS = 1000
MOST_OUTPUTS = 10_000  # of an iteration
_LONGEST_TEXT = 4096  # of a path or name, or of the names of a display's outputs
_MOST_SEARCHED = 50  # outputs of a display
# A line that should have been a measurement has one of these words.
_MEASURES = ("] Iteration ", "net output #", "Test score #")


def is_accuracy(output: str) -> bool:
    """Return whether an output is the top-1 accuracy, by the names that such outputs usually have."""
    return output.lower().endswith(_ACCURACIES)


def is_top5(output: str) -> bool:
    """Return whether an output is the top-5 accuracy."""
    return output.lower().endswith(_TOP5)


class Measurement(NamedTuple):
    """One value in a log. `seconds` are since the first time in the file; None if a line has no time.

    `run` counts from 1. `phase` is train or test; in a log of `caffe test` it is batch, whose number is the
    iteration, or mean. `net` is the number of the TEST net.
    """

    run: int
    iteration: int | None
    seconds: float | None
    phase: str
    net: int
    output: str
    value: float


_new = tuple.__new__  # faster than a named tuple's own, whose millions are most of the time


@dataclass
class LoggedRun:
    """One run in a log; the iterations are the first and last whose loss is shown."""

    number: int
    net: str = ""
    weights: str = ""
    state: str = ""
    first_iter: int | None = None
    last_iter: int | None = None
    snapshots: int = 0
    last_snapshot: str = ""
    is_done: bool = False
    is_stopped: bool = False
    fatal: str = ""


_LEAP_DAY = 59  # the days before it in its year


class _LogClock:
    """Turns the times of glog, most without a year, into seconds since the first of them."""

    def __init__(self) -> None:
        self._last = ""  # the day and time that `_base_us` is for
        self._base_us: int | None = None  # of that second, since the first time
        self._first_us: int | None = None
        self._date = ""
        self._days: int | None = None
        self._years_days, self._day, self._is_leap = 0, 0, False  # of the years so far, and of this one
        self._year_before = 365

    def seconds(self, stamp: str, micro: str) -> float | None:
        """Return the seconds; None if there is no such time."""
        base_us = self.base_us(stamp, micro)
        return None if base_us is None else (base_us + float(micro)) / 1e6

    def base_us(self, stamp: str, micro: str) -> int | None:
        """Return the microseconds of a time without its own; a step of over half a year changes the year."""
        if stamp != self._last:
            self._last = stamp
            self._base_us = self._find_base(stamp)
            if self._base_us is not None:
                if self._first_us is None:
                    self._first_us = self._base_us + int(micro)
                self._base_us -= self._first_us
        return self._base_us

    def _find_base(self, stamp: str) -> int | None:
        date = stamp[:-9]
        if self._date != date:
            self._date = date
            self._days = self._count_days(int(date[:-4] or 0), int(date[-4:-2]), int(date[-2:]))
        hour, minute, second = int(stamp[-8:-6]), int(stamp[-5:-3]), int(stamp[-2:])
        if self._days is None or hour > 23 or minute > 59 or second > 60:
            return None
        return (self._days * 86400 + hour * 3600 + minute * 60 + second) * 1_000_000

    def _count_days(self, year: int, month: int, day: int) -> int | None:
        try:
            days = date(year or 2000, month, day).toordinal()
        except ValueError:
            return None
        if year:
            return days
        days -= date(2000, 1, 1).toordinal()
        if days < self._day - 182:
            self._year_before, self._is_leap = 365 + self._is_leap, False
            self._years_days += self._year_before
        elif days > self._day + 182:  # another rank's line from before the new year
            self._years_days -= self._year_before
            self._is_leap = self._year_before == 366
        self._day = days
        # Without a year, a year is a leap year if the log shows its 29 February.
        self._is_leap |= days == _LEAP_DAY
        return self._years_days + days - (days > _LEAP_DAY and not self._is_leap)


Parse = Callable[[str], Sequence[LogEvent]]


def parse_nothing(text: str) -> Sequence[LogEvent]:
    """Return no events: no other program's lines are known."""
    return ()


@dataclass
class MeasuredLog:
    """A log that is being read; only rank 0, or lines without a rank, are measured.

    `lines` counts all lines, `unknown` those that are not about the training, `others` the measurements of
    other ranks, and `unreadable` those that are torn or incomplete, or lack the line with their iteration;
    `first_unreadable` is the number of the first. The last line `is_cut` if it has no line break; a log that
    `has_nul` and no measurement is binary. `parse` knows the lines of other programs.
    """

    parse: Parse = parse_nothing
    lines: int = 0
    unknown: int = 0
    others: int = 0
    unreadable: int = 0
    first_unreadable: int = 0
    measurements: int = 0
    is_cut: bool = False
    has_nul: bool = False
    runs: list[LoggedRun] = field(default_factory=list)
    _clock: _LogClock = field(default_factory=_LogClock)
    _weights: str = ""
    _state: str = ""
    _iteration: int | None = None  # of the outputs that may follow, of one net
    _phase: str = ""
    _net: int = 0
    _index: int = -1
    _counts: dict[str, int] = field(default_factory=dict)
    _names: list[str] = field(default_factory=list)  # of the first outputs of the iteration
    _outputs: tuple[str, ...] = ()  # of the last display whose lines were read one by one

    def read(self, text: str) -> list[Measurement]:
        """Return the measurements in further lines, each of which ends in a line break."""
        rows: list[Measurement] = []
        outputs = self._outputs
        # Where a display has the microseconds and the text of each value, and the value's name.
        counts: dict[str, int] = {}
        elements = [name_element(counts, output) for output in outputs]
        places = [(1, 3, LOSS), *((at, at + 1, name) for at, name in zip(count(4, 2), elements))]
        places.append((5 + 2 * len(outputs), 6 + 2 * len(outputs), RATE))
        for texts in find_displays(text, outputs):
            if texts[0]:
                self._read_display(places, texts, rows)
            elif others := texts[-2].count("\n"):
                self.lines += others
                self.others += others
            else:
                self.lines += 1
                self._read_other(texts[-1], rows)
        self.measurements += len(rows)
        return rows

    def _read_display(
        self, places: Sequence[tuple[int, int, str]], texts: tuple[str, ...], rows: list[Measurement]
    ) -> None:
        """Read a display as `_loss`, `_train_output` and `_rate` read its lines."""
        iteration = int(texts[2])
        number = self._reach(iteration).number
        self._phase, self._counts = "", {}
        base_us = self._clock.base_us(texts[0], texts[1])
        for micro_at, at, name in places:
            seconds = None if base_us is None else (base_us + float(texts[micro_at])) / 1e6
            rows.append(_new(Measurement, (number, iteration, seconds, "train", 0, name, float(texts[at]))))
        self.lines += len(places) + bool(texts[-5])

    @property
    def excess(self) -> str:
        """What the log has too much of to be held in memory, such as `over 1,000 runs`; else empty."""
        if len(self.runs) > MOST_RUNS:
            return f"over {MOST_RUNS:,} runs"
        return f"over {MOST_OUTPUTS:,} outputs in an iteration" if len(self._counts) > MOST_OUTPUTS else ""

    def _read_other(self, line: str, rows: list[Measurement]) -> None:
        """Read a line that is not one of the most common ones."""
        found = find_event(line)
        if found is None:
            self._read_unknown(line, rows)
            return
        kind, rank, texts = found
        if rank:
            self._pass_by(kind, rank, texts)
            return
        year, day, clock, micro, *values = texts
        seconds = self._clock.seconds(f"{year or ''}{day} {clock}", micro) if micro else None
        self._take(kind, values, seconds, rows)

    def _take(
        self, kind: type[LogEvent], values: Sequence[Any], seconds: float | None, rows: list[Measurement]
    ) -> None:
        take = _MEASURED.get(kind)
        if take is None:
            self._note(kind, values)
        elif (row := take(self, values, seconds)) is not None:
            rows.append(row)

    def _pass_by(self, kind: type[LogEvent], rank: int, texts: Sequence[str | None]) -> None:
        """Count a line of another rank, of which only a fatal message is read."""
        if kind is Fatal:
            self._run().fatal = self._run().fatal or f"rank {rank}: {texts[4]}"
        else:
            self.others += kind in _MEASURED and kind is not TestStarted

    def _read_unknown(self, line: str, rows: list[Measurement]) -> None:
        """Read a line that Caffe does not write."""
        rank, text = split_rank(line)
        events = () if rank else self.parse(text)
        for event in events:
            self._take(type(event), tuple(vars(event).values()), None, rows)
        if any(word in text for word in _MEASURES):
            self._lose()
        elif not events:
            self.unknown += 1

    def _lose(self) -> None:
        self.unreadable += 1
        self.first_unreadable = self.first_unreadable or self.lines

    def _note(self, kind: type[LogEvent], values: Sequence[Any]) -> None:
        text = str(values[0])[:_LONGEST_TEXT] if values else ""
        if kind is Finetuning:
            self._weights = text
        elif kind is Resuming:
            self._state = text
        elif kind is Started:
            self._start(text)
        elif kind is Snapshot:
            run = self._run()
            run.snapshots, run.last_snapshot = run.snapshots + 1, text
        elif kind is Done:
            self._run().is_done = True
        elif kind is StoppedEarly:
            self._run().is_stopped = True
        elif kind is Fatal:
            self._run().fatal = self._run().fatal or text

    def _run(self) -> LoggedRun:
        return self.runs[-1] if self.runs else self._begin("")

    def _start(self, net: str) -> None:
        """Begin a run, unless this is another thread of the last one: NVIDIA's Caffe has one for each GPU."""
        last = self.runs[-1] if self.runs else LoggedRun(0, "", is_done=True)
        has_ended = last.is_done or last.is_stopped or last.fatal
        has_begun = last.last_iter is not None or self._iteration is not None
        if last.net != net or has_ended or has_begun or self._weights or self._state:
            self._begin(net)

    def _begin(self, net: str) -> LoggedRun:
        self.runs.append(LoggedRun(len(self.runs) + 1, net, self._weights, self._state))
        self._weights = self._state = ""
        self._iteration, self._phase = None, ""
        return self.runs[-1]

    def _reach(self, iteration: int) -> LoggedRun:
        """Return the run that shows the loss of an iteration next."""
        run = self._run()
        if run.last_iter is not None and iteration < run.last_iter:
            run = self._begin(run.net)
        if run.first_iter is None:
            run.first_iter = iteration
        run.last_iter = iteration
        return run

    def _loss(self, values: Sequence[Any], seconds: float | None) -> Measurement:
        iteration = int(values[0])
        run = self._reach(iteration)
        self._expect(iteration, "train", 0)
        return _new(Measurement, (run.number, iteration, seconds, "train", 0, LOSS, float(values[1])))

    def _rate(self, values: Sequence[Any], seconds: float | None) -> Measurement:
        if self._phase == "train" and sum(map(len, self._names)) <= _LONGEST_TEXT:
            self._outputs = tuple(self._names)
        self._phase = ""
        run = self._run()
        return _new(Measurement, (run.number, int(values[0]), seconds, "train", 0, RATE, float(values[1])))

    def _test(self, values: Sequence[Any], seconds: float | None) -> None:
        self._expect(int(values[0]), "test", int(values[1] or 0))

    def _expect(self, iteration: int, phase: str, net: int) -> None:
        self._run()  # if it began later, it would forget these
        self._iteration, self._phase, self._net, self._index = iteration, phase, net, -1
        self._counts, self._names = {}, []

    def _train_output(self, values: Sequence[Any], seconds: float | None) -> Measurement | None:
        return self._output("train", values, seconds)

    def _test_output(self, values: Sequence[Any], seconds: float | None) -> Measurement | None:
        return self._output("test", values, seconds)

    def _output(self, phase: str, values: Sequence[Any], seconds: float | None) -> Measurement | None:
        index = int(values[0])
        if phase != self._phase or index <= self._index:  # the line with the iteration is lost
            self._phase = ""
            self._lose()
            return None
        self._index = index
        name = name_element(self._counts, values[1])
        if len(self._names) < _MOST_SEARCHED:
            self._names.append(values[1])
        run = self._run()
        return _new(
            Measurement, (run.number, self._iteration, seconds, phase, self._net, name, float(values[2]))
        )

    def _batch(self, values: Sequence[Any], seconds: float | None) -> Measurement:
        batch = int(values[0])
        if (self._phase, self._iteration) != ("batch", batch):
            self._expect(batch, "batch", 0)
        name = name_element(self._counts, values[1])
        return Measurement(self._run().number, batch, seconds, "batch", 0, name, float(values[2]))

    def _mean(self, values: Sequence[Any], seconds: float | None) -> Measurement:
        if self._phase != "mean":
            self._expect(0, "mean", 0)
        name = name_element(self._counts, values[0])
        return Measurement(self._run().number, None, seconds, "mean", 0, name, float(values[1]))

    def _mean_loss(self, values: Sequence[Any], seconds: float | None) -> Measurement:
        return Measurement(self._run().number, None, seconds, "mean", 0, _TOTAL, float(values[0]))


_MEASURED: dict[type[LogEvent], Callable[[MeasuredLog, Sequence[Any], float | None], Measurement | None]] = {
    Loss: MeasuredLog._loss,
    Rate: MeasuredLog._rate,
    TrainOutput: MeasuredLog._train_output,
    TestStarted: MeasuredLog._test,
    TestOutput: MeasuredLog._test_output,
    BatchOutput: MeasuredLog._batch,
    MeanOutput: MeasuredLog._mean,
    MeanLoss: MeasuredLog._mean_loss,
}


def read_measurements(path: Path, log: MeasuredLog) -> Iterator[list[Measurement]]:
    """Yield the measurements in a file, in groups; raises OSError if it cannot be read.

    A last line without a line break is incomplete: its number may lack digits.
    """
    for text, is_whole in read_whole_log(path):
        if not is_whole:
            log.lines, log.is_cut = log.lines + 1, True
            return
        rows = log.read(text)
        log.has_nul |= not rows and "\0" in text
        yield rows
