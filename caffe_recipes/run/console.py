"""The console output of a run: a line per step, progress while training, tables at the start and the end.

On a terminal the progress is a live line with fixed columns. Elsewhere it is a plain line every few seconds,
so that it does not flood a log.
"""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import IO, Any, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import Progress as Bar
from rich.progress import ProgressColumn, Task, TaskID
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from caffe_recipes.recipe.model import AnyRecipe, Reported
from caffe_recipes.run.events import Event, Finish, RunState
from caffe_recipes.run.preflight.findings import CheckResult
from caffe_recipes.run.trainer_log import PhaseProgress
from caffe_recipes.run.training_plan import plan_steps
from caffe_recipes.units import describe_duration, write_clock
from caffe_recipes.wording import escape_commands, one_line, printable

# The shortest time between two progress lines where there is no terminal.
PROGRESS_INTERVAL_S = 5.0
_MARKS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "failed": ("failed", "red"), "-": ("-", "")}
# The widths of the first two columns of a preflight finding.
_MARK, _SUBJECT = 8, 15
# The columns of the progress line that are dropped on a narrow terminal, in this order.
_BAR = "bar"
_DROPPED = ("rate", "speed", _BAR, "phase left", "loss", "test", "run left", "iteration")
_SHORTEST_BAR, _LONGEST_BAR = 6, 20


class SafeConsole(Console):
    """A console that prints only the printable characters of any text, besides its own control codes.

    Nor does it print a text that the log of a job would obey, at the start of a line.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, without unprintable characters and commands."""
        begun = ""  # the line so far, of whose parts each may have a colour
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
                continue
            text = printable(segment.text, keep="\n")
            head, newline, rest = text.partition("\n") if begun.strip() else ("", "", text)
            begun = f"{begun}{text}".rpartition("\n")[2]
            yield segment._replace(text=f"{head}{newline}{escape_commands(rest)}")


class _Stream:
    """A console's stream that discards all output after its first error, in any thread."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._has_failed = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the stream
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], object]) -> None:
        if self._has_failed:
            return
        try:
            action()
        except (OSError, ValueError):  # ValueError: the file is closed
            self._has_failed = True


class _LineColumn(ProgressColumn):
    """The line of a task, already rendered for the width of the terminal."""

    def render(self, task: Task) -> RenderableType:
        return cast("Text", task.fields["line"])


class _Live:
    """The live progress lines of a terminal, one for each phase that is training; thread-safe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Bar | None = None
        self._tasks: dict[str, TaskID] = {}
        self._rates: dict[str, float] = {}
        self._changing = threading.Lock()

    def show(self, progress: PhaseProgress) -> None:
        with self._changing:
            # Caffe prints an iteration's rate after its loss: until then the one before stays.
            known = self._rates.get(progress.phase) if progress.rate is None else progress.rate
            if known is not None:
                self._rates[progress.phase] = known
            line = self._draw(replace(progress, rate=known))
            if self._bar is None:
                column = _LineColumn(table_column=Column(no_wrap=True, overflow="crop"))
                self._bar = Bar(column, console=self._console, transient=True)
            if progress.phase not in self._tasks:
                self._tasks[progress.phase] = self._bar.add_task("", total=None, line=line)
            self._bar.update(self._tasks[progress.phase], line=line)
            self._bar.start()

    def _draw(self, progress: PhaseProgress) -> Text:
        """Return the progress line: the columns that fit, at fixed positions, and a bar."""
        columns = _columns_within(progress, self._console.width)
        width = _bar_width(columns, self._console.width)
        done = width * progress.iteration // max(1, progress.last_iter)
        can_draw = self._console.encoding.startswith("utf")
        line, parts = Text(), {**columns, _BAR: ""}
        for name in [name for name in parts if name in columns]:
            line.append("  " if line else "")
            if name == _BAR:
                line.append(("━" if can_draw else "#") * done, "cyan")
                line.append(("─" if can_draw else "-") * (width - done), "dim")
            else:
                line.append(columns[name], "bold" if name == "phase" else "")
        if progress.waits_for:
            line = _say_at_end(line, progress.waits_for)
        return line

    def end(self, phases: Collection[str]) -> None:
        """Remove the lines of these phases."""
        with self._changing:
            ended = [self._tasks.pop(phase) for phase in phases if phase in self._tasks]
            if self._bar is None:
                return
            if not self._tasks:  # stopping it removes all lines
                self._bar.stop()
                self._bar = None
                return
            for task in ended:
                self._bar.remove_task(task)


class Reporter:
    """Prints the steps and the progress of a run on a console.

    `clock` decides when a plain line of progress is due. If the console fails, for example because the
    terminal was closed, the output is discarded and the run continues.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a reporter, by default for standard output."""
        self._console = console or SafeConsole(highlight=False, soft_wrap=True)
        self._console.file = cast("IO[str]", _Stream(self._console.file))
        self._clock = clock
        self._live = _Live(self._console)
        self._shown: set[str] = set()
        self._label = ""
        self._due = 0.0

    def for_branch(self, phase: str) -> Reporter:
        """Return a reporter for a branch, which has its own thread; its lines start with the phase."""
        other = copy(self)
        other._shown, other._label, other._due = set(), f"{phase}: ", 0.0
        return other

    def observe(self, event: Event, line: str) -> None:
        """Print the line of an event, if it has one."""
        if line:
            self.say(line, names_phase=event.names_phase)

    def say(self, text: str, *, names_phase: bool = False) -> None:
        """Print a line, wrapped between words on a narrow terminal; a branch's begins with its phase."""
        labelled = one_line(text if names_phase else f"{self._label}{text}")
        self._console.print(Text("\n".join(self._wrap(labelled, 2))))

    def say_above_progress(self, text: str) -> None:
        """Print a line while progress may be shown; the progress continues below it."""
        self.end_progress()
        self.say(text)

    def show_findings(self, findings: Sequence[CheckResult]) -> None:
        """Print the findings of the preflight, a row for each; wrapped text stays in its column."""
        indent = _MARK + _SUBJECT
        for finding in findings:
            mark, colour = _MARKS[finding.mark if finding.is_checked else "-"]
            row = self._wrap(f"{' ' * _MARK}{finding.subject:{_SUBJECT}}{one_line(finding.message)}", indent)
            self._console.print(Text.assemble((f"{mark:{_MARK}}", colour), "\n".join(row)[_MARK:]))

    def _wrap(self, text: str, indent: int) -> list[str]:
        """Wrap a line between words to the width of the terminal; a path stays whole, so it can be copied."""
        width = self._console.width
        if not self._console.is_terminal or len(text) <= width or width < 2 * indent:
            return [text]
        begin = len(text) - len(text.lstrip())
        wrapped = textwrap.wrap(
            text[begin:],
            width,
            initial_indent=" " * begin,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return wrapped or [text]

    def show_progress(self, progress: PhaseProgress) -> None:
        """Show the progress of a phase: update its live line, or print a line if one is due."""
        if self._console.is_terminal:
            self._shown.add(progress.phase)
            self._live.show(progress)
        elif self._clock() >= self._due:
            self._due = self._clock() + PROGRESS_INTERVAL_S
            self.show_progress_line(progress)

    def show_progress_line(self, progress: PhaseProgress) -> None:
        """Print the progress of a phase as a plain line."""
        columns = (text for text in _columns_of(progress).values() if text)
        line = f"  {'  '.join(columns)}".rstrip()
        self._console.print(Text(f"{line}  {progress.waits_for}".rstrip()))

    def end_progress(self) -> None:
        """Remove the live line."""
        self._live.end(self._shown)
        self._shown.clear()
        self._due = self._clock() + PROGRESS_INTERVAL_S

    def show_result(self, recipe: AnyRecipe, state: RunState) -> None:
        """Print the table of finished phases, the result of the evaluation, and the paths of the models."""
        self._console.print(_table_of_phases(recipe, state.finished))
        for line in describe_results(recipe, state).values():
            self.say(line)
        finished = [step for step in plan_steps(recipe) if step.phase in state.finished]
        for step in [step for step in finished if step.is_end] or finished[-1:]:
            self.say(f"model: {state.finished[step.phase].snapshot}")


def describe_results(recipe: AnyRecipe, state: RunState) -> dict[str, str]:
    """Return the result of the evaluation as lines, by output, or by phase if there are several models."""
    evaluated = [step for step in plan_steps(recipe) if step.is_evaluated]
    if len(evaluated) < 2:
        outputs = state.outputs or {}
        return dict(zip(outputs, describe_accuracy(recipe.reported, outputs), strict=True))
    accuracies = {
        step.phase: describe_accuracy(step.reported, state.evaluations[step.phase])
        for step in evaluated
        if step.phase in state.evaluations
    }
    return {phase: f"{phase}: {', '.join(lines)}" for phase, lines in accuracies.items()}


def describe_accuracy(source: Reported, outputs: Mapping[str, float]) -> list[str]:
    """Return a line for each output: top-1 and top-5 in percent, with the values that the source reports."""
    reported = {"top-1": source.top1_percent, "top-5": source.top5_percent}
    lines = []
    for name, value in outputs.items():
        percent = reported.get(name.rpartition("/")[2], ...)
        if percent is not ...:
            comparison = f" (reported: {percent}%)" if percent is not None else ""
            lines.append(f"{name}: {100 * value:.2f}%{comparison}")
        else:
            lines.append(f"{name}: {value:.4g}")
    return lines


def _columns_of(progress: PhaseProgress, *, is_narrow: bool = False) -> dict[str, str]:
    """Return the columns of a phase's progress by name, padded to their largest width; the bar is empty.

    Unknown values are blank, so that the columns do not move when they become known. Narrow columns use
    shorter words and, from one hour on, no seconds: all but the rate fit 80 characters.
    """
    names = [*progress.phases] or [progress.phase]
    digits = len(str(max([progress.last_iter, *progress.phases.values()])))
    number = f"{names.index(progress.phase) + 1:{len(str(len(names)))}}/{len(names)}"
    phase_form, run_form = (
        ("left {:>6}", "run {:>6}") if is_narrow else ("phase {:>7} left", "run {:>8} left")
    )
    columns = {
        "phase": f"{progress.phase:{max(map(len, names))}} {number}",
        _BAR: "",
        "iteration": f"{progress.iteration:{digits}}/{progress.last_iter:<{digits}}",
        "rate": _pad("lr {:<10.5g}", progress.rate),
        "loss": _pad("loss {:<7}", progress.loss, write_loss),
        "test": _pad("test {:>6.2%}", progress.test_accuracy),
        "speed": _pad("{:>6,.0f}/s" if is_narrow else "{:>6,.0f} images/s", progress.images_per_s),
        "phase left": _pad(phase_form, progress.phase_left_s, partial(write_clock, is_short=is_narrow)),
        "run left": _pad(run_form, progress.chain_left_s, partial(write_clock, is_short=is_narrow)),
    }
    if progress.test_accuracy is None:  # most runs do not test while they train
        del columns["test"]
    return columns


def _say_at_end(line: Text, text: str) -> Text:
    """Return a line with a text over its blank end, where the speed and the times will be; if it fits."""
    filled = Text.assemble(line[: len(line.plain.rstrip())], f"  {text}")
    if len(filled) > len(line):
        return line
    filled.pad_right(len(line) - len(filled))
    return filled


def _pad(form: str, value: float | None, write: Callable[[float], object] = float) -> str:
    return form.format(write(value)) if value is not None else " " * len(form.format(write(0.0)))


def write_loss(loss: float) -> str:
    """Write a loss in seven characters at most, to four significant digits where these have room.

    >>> [write_loss(loss) for loss in (87.3365, 2.3, 0.009702, 0.00048713, 1.5e-8, float("nan"))]
    ['87.34', '2.300', '0.00970', '0.00049', '1.5e-08', 'nan']
    """
    return next(text for digits in (4, 3, 2, 1) if len(text := f"{loss:#.{digits}g}") <= 7)


def _columns_within(progress: PhaseProgress, width: int) -> dict[str, str]:
    """Return the columns that have room beside a bar: all, all in short words, or as many as fit."""
    columns = _columns_of(progress)
    if _bar_width(columns, width) >= _SHORTEST_BAR:
        return columns
    return _fit(_columns_of(progress, is_narrow=True), width)


def _fit(columns: dict[str, str], width: int) -> dict[str, str]:
    """Return the columns that fit a terminal, with the bar only if it would not be too short.

    >>> columns = {"phase": "init 1/5", "bar": "", "rate": "lr 0.1", "loss": "loss 2"}
    >>> [list(_fit(columns, width)) for width in (36, 24, 16)]
    [['phase', 'bar', 'rate', 'loss'], ['phase', 'bar', 'loss'], ['phase', 'loss']]
    """
    left = dict(columns)
    for name in _DROPPED:
        if _bar_width(left, width) >= (_SHORTEST_BAR if _BAR in left else 0):
            break
        left.pop(name, None)
    return left


def _bar_width(columns: Mapping[str, str], width: int) -> int:
    """Return the width that the other columns leave for a bar."""
    room = width - sum(len(text) for text in columns.values()) - 2 * (len(columns) - 1)
    return min(_LONGEST_BAR, room)


def _table_of_phases(recipe: AnyRecipe, finished: Mapping[str, Finish]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("phase")
    for title in ("iterations", "epochs", "time", "images/s", "loss"):
        table.add_column(title, justify="right")
    images = recipe.train_images
    rows = [(step, finished[step.phase]) for step in plan_steps(recipe) if step.phase in finished]
    for step, done in rows:
        table.add_row(
            step.phase,
            f"{step.last_iter:,}",
            f"{step.images / images:.2f}",
            describe_duration(done.seconds),
            f"{done.images_per_s:,.0f}" if done.images_per_s else "",
            f"{done.loss:.4g}" if done.loss is not None else "",
        )
    iterations = [step.last_iter for step, _ in rows]
    seconds = sum(done.seconds for _, done in rows)
    epochs = f"{sum(step.images for step, _ in rows) / images:.2f}"
    timed = [(step.images, step.images / done.images_per_s) for step, done in rows if done.images_per_s]
    mean = f"{sum(each[0] for each in timed) / sum(each[1] for each in timed):,.0f}" if timed else ""
    table.add_row("all", f"{sum(iterations):,}", epochs, describe_duration(seconds), mean, "")
    return table
