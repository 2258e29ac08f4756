"""What a report says about a run: gathered from the run's folder, as values; nothing is rendered here."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import yaml

from caffe_recipes.cluster.hostfile import fold_hosts
from caffe_recipes.errors import CaffeRecipesError, InputError
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.review.inspect.curves import TrainingCurve
from caffe_recipes.review.lint.findings import Finding
from caffe_recipes.run.events import Branched, Event, Failed, Launch, RunStarted, RunState, Stopped
from caffe_recipes.run.failures.explain import ExplainedLine, explain_log
from caffe_recipes.run.folded_events import describe_event, fold_events, is_complete
from caffe_recipes.run.folders import freeze_recipe
from caffe_recipes.run.hidden_texts import TextHider
from caffe_recipes.run.journal import JOURNAL, JournalError, read_events
from caffe_recipes.run.monitor.curves import load_launches_curve
from caffe_recipes.run.monitor.logs import check_below
from caffe_recipes.run.monitor.run_files import LocalFiles, Process, ReadRequest, find_run, load_frozen
from caffe_recipes.run.report.provenance import Origin, find_origins
from caffe_recipes.run.report.timeline import (
    HostRow,
    Incident,
    TimedEvent,
    find_incidents,
    find_spans,
    group_hosts,
)
from caffe_recipes.run.trainer import Training
from caffe_recipes.run.training_plan import plan_steps
from caffe_recipes.wording import describe_count, shorten

_LONGEST_LINE = 500
_SHORT = 200  # characters; no text of an event that is as short is shortened
_MOST_LINES = 2000  # of the journal that are shown
_MOST_EXPLAINED = 10  # logs


@dataclass(frozen=True)
class PhaseResult:
    """What became of a phase; a value is None until it is known. `hosts` is the number of the last launch."""

    step: Training
    epochs: float
    state: str
    attempts: int
    hosts: int
    seconds: float | None = None
    images_per_s: float | None = None
    loss: float | None = None

    @property
    def images_per_s_by_host(self) -> float | None:
        """The images/s of each host, as all ranks train in step."""
        return self.images_per_s / self.hosts if self.images_per_s and self.hosts else None


@dataclass(frozen=True)
class ExplainedFailure:
    """The lines of a launch's log that are explained."""

    log: str
    found: tuple[ExplainedLine, ...]
    fatal: str


@dataclass(frozen=True)
class RunContents:
    """All that a report shows of a run. Times are seconds; `begin_s` is since 1970, others since that.

    `hidden` are the digests of what is left out, and `unread` says what could not be read, a line for each.
    """

    name: str
    path: str
    recipe: AnyRecipe
    state: str
    progress: RunState
    begin_s: float
    seconds: float
    phases: tuple[PhaseResult, ...]
    rows: tuple[HostRow, ...]
    incidents: tuple[Incident, ...]
    incidents_left_out: int
    explained: tuple[ExplainedFailure, ...]
    curve: TrainingCurve | None
    findings: tuple[Finding, ...]
    launches: tuple[Launch, ...]
    lines: tuple[tuple[float, str], ...]
    origins: tuple[Origin, ...]
    hidden: tuple[str, ...]
    unread: tuple[str, ...]

    @property
    def hosts(self) -> str:
        """The hosts that had ranks, folded."""
        return fold_hosts([*dict.fromkeys(host for launch in self.launches for host in launch.hosts)])

    @property
    def recipe_yaml(self) -> str:
        """The recipe as the run keeps it, with all values that are set."""
        return yaml.safe_dump(_without_none(freeze_recipe(self.recipe)), sort_keys=False, allow_unicode=True)

    @property
    def begun(self) -> str:
        """When the run began, in UTC."""
        return f"{datetime.fromtimestamp(self.begin_s, UTC):%Y-%m-%d %H:%M} UTC"


def _without_none(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_none(one) for key, one in value.items() if one is not None}
    return [_without_none(one) for one in value] if isinstance(value, list) else value


@dataclass
class _Reader:
    """Reads the files of one run, and notes what it cannot read."""

    path: str
    root: str
    files: LocalFiles = field(default_factory=LocalFiles)
    unread: list[str] = field(default_factory=list)

    def events(self, path: str) -> list[TimedEvent]:
        """Return the events of a journal, without damaged lines.

        Raises InputError if there is no journal, and JournalError if it is of another format or has no line.
        """
        where = f"{path}/{JOURNAL}"
        piece = self.files.read([ReadRequest(where)]).pieces[0]
        if piece is None:
            raise InputError(path, "has no journal", "give the folder or the name of a run")
        text = piece.data.decode(errors="replace")
        try:
            return self._note_end(read_events(text, where, is_start=True), text)
        except JournalError as error:
            first = error
        found, lost = [], 0
        for number, line in enumerate(io.StringIO(text, newline="\n")):
            try:
                found += read_events(line, where, is_start=number == 0)
            except JournalError:
                if number == 0:
                    raise first from None
                lost += 1
        if not found:
            raise first
        self.unread.append(f"{where}: {describe_count(lost, 'line')} damaged")
        return found

    def _note_end(self, events: list[TimedEvent], text: str) -> list[TimedEvent]:
        if not events:
            raise InputError(f"{self.path}/{JOURNAL}", "has no complete line", "give the folder of a run")
        if not text.endswith("\n"):
            self.unread.append(f"{JOURNAL}: the last line, which is incomplete")
        return events

    def branch_events(self, state: RunState, phases: Sequence[str]) -> Iterator[list[TimedEvent]]:
        """Yield the events of each branch."""
        for phase in state.branches:
            try:
                if phase in phases:  # the journal may name anything
                    yield self.events(f"{self.path}/branches/{phase}")
            except InputError as error:
                self.unread.append(str(error))

    def curve(self, recipe: AnyRecipe, events: Sequence[Event]) -> TrainingCurve | None:
        """Return the curve of the main line; None if there is none, or it cannot be read."""
        branching = {step.phase for step in plan_steps(recipe) if not step.is_main}
        events = [event for event in events if getattr(event, "phase", "") not in branching]
        for event in events:
            if (
                isinstance(event, Launch)
                and not Path(self.path, "logs", posixpath.basename(event.log)).exists()
            ):
                self.unread.append(f"{event.log}: no such file")
        try:
            return load_launches_curve(self.path, recipe, events, self.files, self.root)
        except (CaffeRecipesError, OSError) as error:
            self.unread.append(str(error))
        return None

    def explain(self, log: str, hider: TextHider) -> ExplainedFailure | None:
        """Return what the log of a launch explains about its failure; None if it cannot be read."""
        path = Path(self.path, "logs", posixpath.basename(log))
        if not path.exists():
            return None
        try:
            check_below(self.files, (self.root, self.path), str(path), "a link leads to")
            found = explain_log(path, hider.hide_text)
        except (CaffeRecipesError, OSError) as error:
            self.unread.append(str(error))
            return None
        return ExplainedFailure(log, found.found, found.fatal) if found.found or found.fatal else None


def load_contents(given: str, root: str) -> RunContents:
    """Return what a report shows of a run, given by its folder or name, or by that of its recipe.

    Raises InputError if there is no such run, or if its recipe or its journal cannot be read at all; of
    everything else, what can be read is returned.
    """
    folder = given.rstrip("/") or given
    reader = _Reader(folder if Path(folder, JOURNAL).exists() else find_run(LocalFiles(), root, given), root)
    recipe = load_frozen(reader.files, reader.path)
    events = reader.events(reader.path)
    steps, state = plan_steps(recipe), fold_events(event for _, event in events)
    branches = list(reader.branch_events(state, [step.phase for step in steps]))
    hidden = tuple(text for _, event in events if isinstance(event, RunStarted) for text in event.hidden)
    hider = TextHider([(state.id, hidden)])
    events, *branches = _hide_in_long_texts([events, *branches], hider)
    begin_s = events[0][0]
    every = sorted([*events, *(one for branch in branches for one in branch)], key=lambda one: one[0])
    launches = [event for _, event in every if isinstance(event, Launch)]
    spans = [span for each in (events, *branches) for span in find_spans(each, begin_s)]
    shown = "/".join(posixpath.normpath(reader.path).split("/")[-2:])
    incidents, left_out = find_incidents(every, begin_s, recipe, shown)
    failed = dict.fromkeys(one.log for one in incidents if one.log)
    explained = (reader.explain(log, hider) for log in [*failed][:_MOST_EXPLAINED])
    curve = reader.curve(recipe, [event for _, event in events])
    return RunContents(
        name=posixpath.basename(posixpath.abspath(reader.path)),
        path=reader.path,
        recipe=recipe,
        state=_name_state(state, steps, events, reader),
        progress=state,
        begin_s=begin_s,
        seconds=every[-1][0] - begin_s,
        phases=tuple(_results(recipe, steps, state, launches)),
        rows=tuple(group_hosts(spans)),
        incidents=tuple(incidents),
        incidents_left_out=left_out,
        explained=tuple(filter(None, explained)),
        curve=curve,
        findings=_lint(recipe, reader.unread),
        launches=tuple(launches),
        lines=tuple(_journal_lines(every, begin_s, recipe, shown, hider)),
        origins=tuple(find_origins(reader.path, root, recipe, [event for _, event in every], reader.unread)),
        hidden=hidden,
        unread=tuple(dict.fromkeys(reader.unread)),
    )


def _hide_in_long_texts(lists: Sequence[list[TimedEvent]], hider: TextHider) -> Iterator[list[TimedEvent]]:
    """Leave out what is to be hidden of texts that will be shortened: what is left of one would be shown."""
    for events in lists:
        found = []
        for time_s, event in events:
            texts = {key: text for key, text in vars(event).items() if isinstance(text, str)}
            long = {key: hider.hide_text(text) for key, text in texts.items() if len(text) > _SHORT}
            found.append((time_s, replace(event, **long) if long else event))
        yield found


def _name_state(
    state: RunState, steps: Sequence[Training], events: Sequence[TimedEvent], reader: _Reader
) -> str:
    if is_complete(state, steps):
        return "finished"
    last: Event = next(
        (event for _, event in reversed(events) if not isinstance(event, Branched)), events[-1][1]
    )
    if isinstance(last, Failed):
        return "failed"
    if isinstance(last, Stopped):
        return "interrupted"
    process = Process(state.pid or 0, state.host or "", f"{reader.path}/{JOURNAL}")
    lives = reader.files.read([], process).lives
    if lives is None:
        return "not finished"
    return "running" if lives else "ended unexpectedly"


def _results(
    recipe: AnyRecipe, steps: Sequence[Training], state: RunState, launches: Sequence[Launch]
) -> Iterator[PhaseResult]:
    for step in steps:
        own = [launch for launch in launches if launch.phase == step.phase]
        attempts, hosts = len(own), len(own[-1].hosts) if own else 0
        done = state.finished.get(step.phase)
        epochs = step.images / recipe.train_images
        if done is None:
            word = "not finished" if attempts else "not started"
            yield PhaseResult(step, epochs, word, attempts, hosts, state.spent.get(step.phase))
        else:
            results = done.seconds, done.images_per_s, done.loss
            yield PhaseResult(step, epochs, "finished", attempts, hosts, *results)


def _lint(recipe: AnyRecipe, unread: list[str]) -> tuple[Finding, ...]:
    from caffe_recipes.review.lint.recipe_lint import lint_frozen

    try:
        return tuple(lint_frozen(recipe))
    except (CaffeRecipesError, OSError) as error:
        unread.append(f"lint could not check the recipe: {error}")
        return ()


def _journal_lines(
    events: Sequence[TimedEvent], begin_s: float, recipe: AnyRecipe, folder: str, hider: TextHider
) -> Iterator[tuple[float, str]]:
    lines = ((time_s - begin_s, describe_event(event, recipe, folder)) for time_s, event in events)
    shown = [(at_s, shorten(hider.hide_text(line), _LONGEST_LINE)) for at_s, line in lines if line]
    yield from shown[:_MOST_LINES]
    if len(shown) > _MOST_LINES:
        yield shown[-1][0], f"... and {len(shown) - _MOST_LINES:,} more lines, in the journal"
