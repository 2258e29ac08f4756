"""Parse Caffe's log: lines become events, and events become a summary of the training so far.

A line may begin with a launcher's label of its rank. Since glog 0.6, its time includes the year. Lines that
are not about the training (the net's dump, other programs' output) are not events. Of a line that another
rank's has torn, only the other one is read, since a number before it may lack its last digits.

The lines are those of src/caffe/solver.cpp and sgd_solver.cpp in Intel, BVLC and NVIDIA Caffe. BVLC Caffe has
the speed between an iteration and its loss. NVIDIA Caffe has the epochs, too, the device before most texts,
and further values after the rate. Both may write several spaces where ours writes one. Caffe of 2013 tests
without naming the net or its outputs, and some forks append to the loss how long the training still takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import lru_cache
from typing import Any, ClassVar, get_args


@dataclass(frozen=True)
class Started:
    """The solver starts to train the net of this name."""

    net: str


@dataclass(frozen=True)
class Rate:
    """The learning rate of the update at an iteration."""

    iteration: int
    rate: float


@dataclass(frozen=True)
class Loss:
    """The mean loss of the last `average_loss` iterations."""

    iteration: int
    loss: float


@dataclass(frozen=True)
class TrainOutput:
    """One output value of the TRAIN net, at the iteration of the previous Loss."""

    index: int
    name: str
    value: float


@dataclass(frozen=True)
class Waited:
    """What caffe-torch has waited for since the last display, as shares of the time."""

    iteration: int
    what: str


@dataclass(frozen=True)
class TestStarted:
    """A TEST net is about to run."""

    iteration: int
    net: int


@dataclass(frozen=True)
class TestOutput:
    """One output of the TEST net of the previous TestStarted: a mean over `test_iter` batches."""

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
    """The caffemodel and the solverstate have been written."""


@dataclass(frozen=True)
class Finetuning:
    """Training starts from the weights of a caffemodel, which Caffe has not read yet."""

    path: str


@dataclass(frozen=True)
class Resuming:
    """Training resumes from a solverstate."""

    path: str


@dataclass(frozen=True)
class IgnoredLayer:
    """A layer of the caffemodel that is not in the net, so its blobs are not used."""

    name: str


@dataclass(frozen=True)
class Done:
    """The solver has reached max_iter."""


@dataclass(frozen=True)
class StoppedEarly:
    """The solver has stopped because of a signal; Caffe returns 0 nevertheless."""


@dataclass(frozen=True)
class BatchOutput:
    """One output value of one batch of `caffe test`."""

    batch: int
    name: str
    value: float


@dataclass(frozen=True)
class MeanOutput:
    """The mean of one output over all batches of `caffe test`."""

    name: str
    value: float


@dataclass(frozen=True)
class MeanLoss:
    """The weighted sum of the mean losses of `caffe test`."""

    loss: float


@dataclass(frozen=True)
class Fatal:
    """The message with which the process dies."""

    text: str


@dataclass(frozen=True)
class Complaint:
    """An error message of protobuf, after which Caffe may continue."""

    text: str


LogEvent = (
    Started | Rate | Loss | Waited | TrainOutput | TestStarted | TestOutput | Snapshot | SolverState
    | SnapshotEnded | Finetuning | Resuming | IgnoredLayer | Done | StoppedEarly | BatchOutput | MeanOutput
    | MeanLoss | Fatal | Complaint
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """The event of one line, with its rank and time, each of which is None if the line has none."""

    event: LogEvent
    rank: int | None = None
    time: datetime | None = None


# -log of the smallest float32: what Caffe prints when every image's probability is 0.
SATURATED_LOSS = 87.3365

# The label of another rank may come first, if the rest of that rank's line never followed.
RANK_LABEL = re.compile(
    r"(?:\[\d{1,18}\] ?)*\[(\d{1,18})\] ?| *(\d{1,9}): |\[[^],\s]{1,99},(\d{1,18})\]<std(?:out|err)>: ?"
)
_LABEL = re.compile(r"\[\d{1,18}\] ")
# What glog writes before the source line, with the label of a rank where another rank's line was torn.
_GLOG = r"([IWEF])(\d{4})?(\d{4}) (\d\d:\d\d:\d\d)\.(\d{6}) +\d+ "
INFO_LINE = re.compile(r"I\d{4,8} [\d:.]+ +\d+ \S+\] ")  # a line for information, without its label
_GLOG_LINE = re.compile(rf"{_GLOG}\S+\] (.*)")
_TORN = re.compile(rf"(?:\[\d{{1,18}}\] ?|(?<!\d)\d{{1,9}}: )?{_GLOG}\S+\] ")
_MOST_COLONS = 6  # of a line that is whole, except where a name has some

_COUNT = r"(\d{1,18})"
_NUMBER = r"([-+]?(?:\d++\.?\d*+(?:e[-+]?\d++|)|nan|inf))"
# A loss is followed by its weight and their product, which have no colon unless another line has torn them.
_WEIGHT = r"(?: \(\* [^(:\n]*\)|)"
_VALUE = rf"(\S+|.+) = {_NUMBER}{_WEIGHT}"
_LOSS = rf"Iteration {_COUNT}(?: \([^():\n]*\)|), (?:\S+ep, |)loss = {_NUMBER}"
_RATE = rf"Iteration {_COUNT}, lr = {_NUMBER}"
_TRAIN_OUTPUT = rf"Train net output #{_COUNT}: {_VALUE}"
# Two thirds of the lines of a long log, which say nothing about a failure; the label is that of any launcher.
ROUTINE_LINE = re.compile(
    rf"(?:{RANK_LABEL.pattern})?{INFO_LINE.pattern} *(?:Train net output #|Iteration {_COUNT}, lr = )"
)
_PLACE = r"\S++ ++(?:[\[(][\d.]{1,19}[\])] ++|)"

_MORE = r"(?:, .*)?"

# What follows the source line. In NVIDIA Caffe, the rank and device come between them: `[0.1]` of a TRAIN
# net, `(0.1)` of a TEST net.
_PATTERNS: list[tuple[str, type[LogEvent]]] = [
    (rf"{_LOSS}{_MORE}", Loss),
    (rf"{_RATE}{_MORE}", Rate),
    (rf"Iteration {_COUNT}, waited (.+)", Waited),
    (_TRAIN_OUTPUT, TrainOutput),
    (rf"Test net output (?:mAP )?#{_COUNT}: {_VALUE}", TestOutput),
    (rf"(?=Test score #{_COUNT})Test (score) #\d+: {_NUMBER}", TestOutput),
    (rf"Iteration {_COUNT}, Testing net(?: \(#{_COUNT}\))?", TestStarted),
    (r"Solving (.*?)(?: Learning Rate Policy: \S+)?", Started),
    (r"Snapshotting to (?:(?:binary proto|HDF5) file )?(.+)", Snapshot),
    (r"Snapshotting solver state to (?:(?:binary proto|HDF5) file )?(.+)", SolverState),
    (r"Snapshot end", SnapshotEnded),
    (r"Finetuning from (.+)", Finetuning),
    (r"Resuming from (.+)", Resuming),
    (r"Ignoring source layer (.+)", IgnoredLayer),
    (r"Optimization Done(?:\.| in \S.*)", Done),
    (r"Optimization stopped early\.", StoppedEarly),
]
# Those of `caffe test`, after `caffe.cpp:N] `.
_TEST_PATTERNS: list[tuple[str, type[LogEvent]]] = [
    (rf"Batch {_COUNT}, {_VALUE}", BatchOutput),
    (rf"Loss: {_NUMBER}", MeanLoss),
    (_VALUE, MeanOutput),
]
# Only a number may be missing: that of the TEST net.
_CONVERT: dict[object, Callable[[Any], Any]] = {
    "int": lambda text: int(text or 0),
    "float": float,
    "str": str,
}
_CONVERTERS: dict[object, list[Callable[[Any], Any]]] = {
    kind: [_CONVERT[each.type] for each in fields(kind)] for kind in get_args(LogEvent)
}

_STAMP = (2, 3, 4, 5)  # the groups of the year, day, time and microseconds


def _compile() -> tuple[re.Pattern[str], list[tuple[type[LogEvent], tuple[int, ...]]]]:
    """Return one pattern for all lines with events, and by its last group the event and all its groups.

    The last group to close is the one around the pattern of the event.
    """
    kinds: list[tuple[type[LogEvent], tuple[int, ...]]] = [(Done, ())] * 6

    def join(patterns: list[tuple[str, type[LogEvent]]]) -> str:
        for _, kind in patterns:
            first, count = len(kinds) + 1, len(fields(kind))
            kinds.extend([(kind, (*_STAMP, *range(first, first + count)))] * (count + 1))
        return "|".join(f"({pattern})" for pattern, _ in patterns)

    solver = rf"{_PLACE}(?:{join(_PATTERNS)})"
    return re.compile(rf"{_GLOG}(?:{solver}|caffe\.cpp:\d+\] (?:{join(_TEST_PATTERNS)}))"), kinds


_EVENT_LINE, _KINDS = _compile()


def find_displays(text: str, names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Search lines, each of which ends in a line break, for displays of a TRAIN net with these outputs.

    A display is what rank 0 prints of an iteration, within a second: the loss, each output, in caffe-torch
    what it has waited for, and the rate. Most of a long log are such displays, and one search is several
    times as fast as `find_event` for each line. Return a tuple for each display, for successive lines of
    other ranks with a loss, an output or a rate, and for any other line. The last text of a tuple is the
    other line, the one before it are the lines of other ranks. The texts before these are empty, or of a
    display: the time, the microseconds, the iteration and the loss; the microseconds and the value of each
    output; "waited" or nothing; and the microseconds and the rate.
    """
    return _compile_displays(names, ", waited " in text).findall(text)


@lru_cache(maxsize=8)
def _compile_displays(names: tuple[str, ...], has_waited: bool) -> re.Pattern[str]:
    second, place = r"I(\d{4}(?:\d{4}|) \d\d:\d\d:\d\d)", rf"\.(\d{{6}}) ++\d++ {_PLACE}"
    more = r"(?:, [^:\n]*|)"
    lines = [
        f"{second}{place}{_LOSS}{more}",
        *(
            rf"I\1{place}Train net output #{at}: {re.escape(name)} = {_NUMBER}{_WEIGHT}"
            for at, name in enumerate(names)
        ),
        rf"I\1{place}Iteration \3, lr = {_NUMBER}{more}",
    ]
    rank_0 = r"(?:\[0\] |)"
    waited = rf"(?:{rank_0}I\1\.\d{{6}} ++\d++ \S++ ++Iteration \3, (waited) [^:\n]++\n|)"
    *before, rate = (f"{rank_0}{line}\n" for line in lines)
    display = "".join([*before, waited if has_waited else "()", rate])
    common = f"{_LOSS}|{_RATE}|{_TRAIN_OUTPUT.replace('|.+', '')}"
    other = rf"(?:\[[1-9]\d{{0,16}}\] |0{{0,4}}[1-9]\d{{0,4}}: ){second}{place}(?:{common})\n"
    other = re.sub(r"(?<!\\)\((?=\[|\\[dS])", "(?:", other)  # without its groups
    return re.compile(rf"{display}|((?:{other})++)|(.*)\n")


# Fatal messages that are not written by glog: those of protobuf, glog's signal handler and caffe-torch.
_FATAL = re.compile(r"\[libprotobuf FATAL \S+\] (.+)|\*\*\* (SIG\w+) .*|caffe-torch: (.+)")
_COMPLAINT = re.compile(r"\[libprotobuf ERROR \S+\] (.+)")


Found = tuple[type[LogEvent], int | None, tuple[str | None, ...]]


def find_event(line: str) -> Found | None:
    """Return the class of a line's event, its rank and its texts; None if it is not an event.

    The texts are those of the time, as glog writes it: a year or None, `1120`, `11:49:33` and the
    microseconds, which are all None if the line has no time; then the fields of the event. This is
    `parse_line` without its objects, which take longer to build than the line to read.
    """
    rank: int | None = None
    match = None if line.count(":") > _MOST_COLONS else _EVENT_LINE.fullmatch(line)
    if match is None:
        rank, line = split_rank(line.rstrip("\r\n").lstrip(" \t"))  # logs in documents are indented
        if line.count(":") > _MOST_COLONS - 2 and not line.startswith("F"):
            rank, line = _drop_torn(rank, line)
        match = _EVENT_LINE.fullmatch(line)
    if match is not None and match[1] != "F":
        kind, groups = _KINDS[match.lastindex or 0]
        return kind, rank, match.group(*groups)
    fatal = _GLOG_LINE.fullmatch(line)
    if fatal and fatal[1] == "F":
        return Fatal, rank, fatal.groups()[1:]
    other = _without_glog(line)
    return (type(other), rank, (None, None, None, None, other.text)) if other else None


def _drop_torn(rank: int | None, line: str) -> tuple[int | None, str]:
    """Drop the start of a line that another line of glog has torn; return the rank and text of that one."""
    starts = [found.start() for found in _TORN.finditer(line, 1)]
    if not starts:
        return rank, line
    own, text = split_rank(line[starts[-1] :])
    return rank if own is None else own, text


def parse_line(line: str, year: int = 2000) -> Entry | None:
    """Parse one line of a log; return None if it is not an event. A time without a year gets `year`.

    >>> parse_line("[0] I1120 11:49:33.597681  6374 sgd_solver.cpp:219] Iteration 0, lr = 0.001").event
    Rate(iteration=0, rate=0.001)
    """
    found = find_event(line)
    if found is None:
        return None
    kind, rank, texts = found
    values = [convert(text) for convert, text in zip(_CONVERTERS[kind], texts[4:], strict=True)]
    return Entry(kind(*values), rank, _time(year, texts[:4]))


def _without_glog(line: str) -> Fatal | Complaint | None:
    """Parse a line that was not written by glog; return None if it is not an event."""
    fatal, complaint = _FATAL.fullmatch(line), _COMPLAINT.fullmatch(line)
    if fatal:
        return Fatal(next(filter(None, fatal.groups())))
    return Complaint(complaint[1]) if complaint else None


def split_rank(line: str) -> tuple[int | None, str]:
    """Split a line into its rank and its text; the rank is None if the line has no label.

    The label is the `[rank] ` of `mpiexec -l`, the `rank: ` of `srun --label`, or the `[job,rank]<stderr>:`
    of Open MPI's `mpirun --tag-output`. mpiexec also appends a label to output that does not end in a line
    break; it is removed.

    >>> split_rank("[0] [1] no route"), split_rank("[1] no route[0] "), split_rank("no route")
    ((1, 'no route'), (1, 'no route'), (None, 'no route'))
    >>> split_rank("07: no route")
    (7, 'no route')
    >>> split_rank("[1,3]<stderr>:no route")
    (3, 'no route')
    """
    match = RANK_LABEL.match(line)
    if not match:
        return None, line
    end = len(line)
    while line.endswith("] ", match.end(), end):
        start = line.rfind("[", match.end(), end)
        if start < 0 or not _LABEL.fullmatch(line, start, end):
            break
        end = start
    return int(match[match.lastindex or 0]), line[match.end() : end]


def _time(year: int, stamp: tuple[str | None, ...]) -> datetime | None:
    own_year, day, clock, microsecond = stamp
    if not (day and clock and microsecond):
        return None
    second = _second(int(own_year or year), day, clock)
    return second and second.replace(microsecond=int(microsecond))


@lru_cache(maxsize=64)  # all ranks print a display in about the same second
def _second(year: int, day: str, clock: str) -> datetime | None:
    try:
        return datetime(year, int(day[:2]), int(day[2:]), int(clock[:2]), int(clock[3:5]), int(clock[6:]))
    except ValueError:
        return None


def name_element(counts: dict[str, int], output: str) -> str:
    """Return the name of the next element of an output, which `counts` has counted: `name`, `name#1`, ...

    >>> counts: dict[str, int] = {}
    >>> [name_element(counts, output) for output in ("loss", "top-1", "top-1", "top-1")]
    ['loss', 'top-1', 'top-1#1', 'top-1#2']
    """
    count = counts[output] = counts.get(output, -1) + 1
    return f"{output}#{count}" if count else output


class Outputs(dict[str, float]):
    """The values of outputs by name; an output may have several elements."""

    def __init__(self) -> None:
        """Start without outputs."""
        super().__init__()
        self._counts: dict[str, int] = {}

    def add(self, name: str, value: float) -> None:
        """Add the next element of an output."""
        self[name_element(self._counts, name)] = value


@dataclass(frozen=True)
class Test:
    """The mean outputs of one test of a TEST net, by name."""

    iteration: int
    net: int
    outputs: Outputs


@dataclass
class LogSummary:
    """The training so far, according to its log.

    `times` is when each iteration's loss was printed, from which images/s can be computed. Only rank 0 is
    recorded, except in `fatal`: the first fatal message of any rank, preceded by the last `complaint` before
    it, which often explains it. Each line that must be read, however long the log is, contains one of the
    strings in VITAL: those lines say why a launch ended, which layers it ignored, and what it wrote.
    """

    VITAL: ClassVar[tuple[str, ...]] = (
        *("Ignoring source layer", "Snapshot", "Optimization ", "Check fail", "libprotobuf", "*** SIG"),
        "caffe-torch: ",
    )

    net: str | None = None
    losses: dict[int, float] = field(default_factory=dict)
    rates: dict[int, float] = field(default_factory=dict)
    outputs: dict[int, Outputs] = field(default_factory=dict)
    times: dict[int, datetime] = field(default_factory=dict)
    tests: list[Test] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)
    solverstates: list[str] = field(default_factory=list)
    whole_snapshots: list[str] = field(default_factory=list)
    batches: dict[int, Outputs] = field(default_factory=dict)
    mean_outputs: Outputs = field(default_factory=Outputs)
    waited: str | None = None
    done: bool = False
    stopped_early: bool = False
    ignored: dict[str, None] = field(default_factory=dict)  # the names of layers, in order
    fatal: str | None = None
    complaint: str | None = None

    def feed(self, line: str, year: int = 2000) -> Entry | None:
        """Add a line; return its entry, or None if it is not an event."""
        entry = parse_line(line, year)
        if entry is None:
            return None
        if isinstance(entry.event, Complaint):
            self.complaint = entry.event.text
        elif isinstance(entry.event, Fatal):
            before = f"{self.complaint}; then: " if self.complaint else ""
            self.fatal = self.fatal or f"{before}{entry.event.text}"
        elif entry.rank in (None, 0):
            self._apply(entry.event, entry.time)
        return entry

    def _apply(self, event: LogEvent, time: datetime | None) -> None:
        match event:
            case Loss(iteration, loss):
                self.losses[iteration], self.outputs[iteration] = loss, Outputs()
                if time:
                    self.times[iteration] = time
            case Rate(iteration, rate):
                self.rates[iteration] = rate
            case Waited(_, what):
                self.waited = what
            case TrainOutput(_, name, value) if self.outputs:
                self.outputs[next(reversed(self.outputs))].add(name, value)
            case TestStarted(iteration, net):
                self.tests.append(Test(iteration, net, Outputs()))
            case TestOutput(_, name, value) if self.tests:
                self.tests[-1].outputs.add(name, value)
            case BatchOutput(batch, name, value):
                self.batches.setdefault(batch, Outputs()).add(name, value)
            case MeanOutput(name, value):
                self.mean_outputs.add(name, value)
            case Snapshot(path):
                self.snapshots.append(path)
            case SolverState(path):
                self.solverstates.append(path)
            case SnapshotEnded() if self.snapshots:
                self.whole_snapshots.append(self.snapshots[-1])
            case Started(net):
                self.net = net
            case IgnoredLayer(name):
                self.ignored[name] = None
            case Done():
                self.done = True
            case StoppedEarly():
                self.stopped_early = True


def summarize_log(lines: Iterable[str], year: int = 2000) -> LogSummary:
    """Return the summary of a complete log."""
    summary = LogSummary()
    for line in lines:
        summary.feed(line, year)
    return summary
