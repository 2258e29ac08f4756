"""What a run says: a line per step, progress while it trains, tables at the beginning and the end.

On a terminal the progress is one live line; elsewhere it is a plain line now and then, which no log of a CI
drowns in.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from typing import IO, Any, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from caffe_recipes.recipe.graph import find_evaluated, find_leaves, images_of
from caffe_recipes.recipe.model import Recipe, Reported
from caffe_recipes.run.events import Finish, RunState
from caffe_recipes.run.preflight.findings import CheckResult
from caffe_recipes.run.trainer_log import Progress
from caffe_recipes.units import describe_duration
from caffe_recipes.wording import printable

# A log without a terminal gets a line of progress no more often than this.
EVERY_S = 5.0
_MARKS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "failed": ("failed", "red")}
# Columns of a terminal that has room for a bar.
_WIDE, _BAR = 110, 20


class SafeConsole(Console):
    """A console that shows only what is printable of any text; colours and the cursor are its own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, and clean each piece of text."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text, keep="\n")
            yield segment._replace(text=text)


class _Stream:
    """A console's stream that falls silent at its first error, in whatever thread writes to it."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._is_gone = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the stream has
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._unless_gone(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._unless_gone(self._stream.flush)

    def _unless_gone(self, do: Callable[[], object]) -> None:
        if self._is_gone:
            return
        try:
            do()
        except (OSError, ValueError):  # ValueError is a closed file's
            self._is_gone = True


class _Live:
    """The live lines of a terminal, one for each phase that trains; several threads may have them changed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Bar | None = None
        self._tasks: dict[str, TaskID] = {}
        self._changing = threading.Lock()

    def show(self, progress: Progress) -> None:
        with self._changing:
            has_bar = self._console.width >= _WIDE
            if self._bar is None:
                # A narrow terminal loses the end of the line, which matters least, and the bar before it.
                line = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="crop"))
                columns = (BarColumn(_BAR), line) if has_bar else (line,)
                self._bar = Bar(*columns, console=self._console, transient=True)
            if progress.phase not in self._tasks:
                self._tasks[progress.phase] = self._bar.add_task("", total=progress.last_iter)
            self._bar.start()
            parts = _shorten(_describe(progress), self._console.width - (_BAR + 1 if has_bar else 0))
            description = escape("  ".join(parts))
            self._bar.update(
                self._tasks[progress.phase], completed=progress.iteration, description=description
            )

    def end(self, phases: Collection[str]) -> None:
        """Take the lines of these phases away."""
        with self._changing:
            ended = [self._tasks.pop(phase) for phase in phases if phase in self._tasks]
            if self._bar is None:
                return
            if not self._tasks:  # stopped, it shows the last of it, and takes all away
                self._bar.stop()
                self._bar = None
                return
            for task in ended:
                self._bar.remove_task(task)


class Reporter:
    """Writes to a console; the clock says when a plain line of progress is due.

    Falls silent once the console is gone, as a closed terminal is: a run goes on without it.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Write to standard output by default."""
        self._console = console or SafeConsole(highlight=False, soft_wrap=True)
        self._console.file = cast("IO[str]", _Stream(self._console.file))
        self._clock = clock
        self._live = _Live(self._console)
        self._shown: set[str] = set()
        self._label = ""
        self._due = 0.0

    def beside(self, phase: str) -> Reporter:
        """Return one for a phase that trains beside others, in a thread of its own: its lines name it."""
        other = copy(self)
        other._shown, other._label, other._due = set(), f"{phase}: ", 0.0
        return other

    def say(self, text: str) -> None:
        """Write one line."""
        named = text if text.startswith(self._label) else f"{self._label}{text}"
        self._console.print(Text(named))

    def say_amid(self, text: str) -> None:
        """Write one line where progress may be shown, which begins anew below it."""
        self.end_progress()
        self.say(text)

    def show_findings(self, findings: Sequence[CheckResult]) -> None:
        """Write what the preflight saw, a line each."""
        for finding in findings:
            mark = Text(*_MARKS[finding.mark])
            mark.pad_right(8 - len(mark))
            self._console.print(mark + Text(f"{finding.subject:15}{printable(finding.message)}"))

    def show_progress(self, progress: Progress) -> None:
        """Write where a phase is: into the live line, or as a line of its own if one is due."""
        if self._console.is_terminal:
            self._shown.add(progress.phase)
            self._live.show(progress)
        elif self._clock() >= self._due:
            self._due = self._clock() + EVERY_S
            self.show_now(progress)

    def show_now(self, progress: Progress) -> None:
        """Write where a phase is, as a line of its own."""
        self._console.print(Text(f"  {'  '.join(_describe(progress))}"))

    def end_progress(self) -> None:
        """Take the live line away."""
        self._live.end(self._shown)
        self._shown.clear()
        self._due = self._clock() + EVERY_S

    def show_result(self, recipe: Recipe, state: RunState) -> None:
        """Write the table of finished phases, what the evaluation gave, and where the models lie."""
        self._console.print(_table_of_phases(recipe, state.finished))
        for line in describe_results(recipe, state):
            self.say(line)
        ends = [leaf.name for leaf in find_leaves(recipe) if leaf.name in state.finished]
        last = [phase.name for phase in recipe.phases if phase.name in state.finished][-1]
        for name in ends or [last]:
            self.say(f"model: {state.finished[name].snapshot}")


def describe_results(recipe: Recipe, state: RunState) -> list[str]:
    """Write what the evaluation gave; where several models are evaluated, a line for each."""
    evaluated = find_evaluated(recipe)
    if len(evaluated) < 2:
        return describe_accuracy(recipe.reported, state.outputs or {})
    return [
        f"{phase.name}: {', '.join(describe_accuracy(phase.reported, state.evaluations[phase.name]))}"
        for phase in evaluated
        if phase.name in state.evaluations
    ]


def describe_accuracy(source: Reported, outputs: Mapping[str, float]) -> list[str]:
    """Write top-1 and top-5 in percent, beside what the source reports."""
    reported = {"top-1": source.top1_percent, "top-5": source.top5_percent}
    lines = []
    for name, value in outputs.items():
        there = reported.get(name.rpartition("/")[2], ...)
        if there is not ...:
            beside = f" (reported: {there} %)" if there is not None else ""
            lines.append(f"{name}: {100 * value:.2f} %{beside}")
        else:
            lines.append(f"{name}: {value:.4g}")
    return lines


def _shorten(parts: list[str], width: int) -> list[str]:
    """Leave out what a narrow terminal has no room for: rate, then speed; where that is too little, the end.

    >>> _shorten(["init", "0/9", "lr 0.1", "loss 2", "9 images/s", "1 s left"], 40)
    ['init', '0/9', 'loss 2', '9 images/s', '1 s left']
    >>> _shorten(["init", "0/9", "lr 0.1", "loss 2", "9 images/s", "1 s left"], 20)
    ['init', '0/9', 'lr 0.1']
    """
    without_rate = [part for part in parts if not part.startswith("lr ")]
    without_speed = [part for part in without_rate if not part.endswith(" images/s")]
    shorter = (parts[:count] for count in range(len(parts) - 1, 0, -1))
    tried = (parts, without_rate, without_speed, *shorter)
    return next((each for each in tried if len("  ".join(each)) <= width), parts[:1])


def _describe(progress: Progress) -> list[str]:
    parts = [progress.phase, f"{progress.iteration}/{progress.last_iter}"]
    if progress.rate is not None:
        parts.append(f"lr {progress.rate:.5g}")
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4g}")
    return [*parts, *progress.timing]


def _table_of_phases(recipe: Recipe, finished: Mapping[str, Finish]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("phase")
    for title in ("iterations", "epochs", "time", "images/s", "loss"):
        table.add_column(title, justify="right")
    images = recipe.data.train.images
    rows = [(phase, finished[phase.name]) for phase in recipe.phases if phase.name in finished]
    for phase, done in rows:
        table.add_row(
            phase.name,
            f"{phase.last_iter:,}",
            f"{images_of(recipe, phase) / images:.2f}",
            describe_duration(done.seconds),
            f"{done.images_per_s:,.0f}" if done.images_per_s else "",
            f"{done.loss:.4g}" if done.loss is not None else "",
        )
    iterations = [phase.last_iter for phase, _ in rows]
    seconds = sum(done.seconds for _, done in rows)
    epochs = f"{sum(images_of(recipe, phase) for phase, _ in rows) / images:.2f}"
    table.add_row("all", f"{sum(iterations):,}", epochs, describe_duration(seconds), "", "")
    return table
