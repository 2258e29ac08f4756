"""A run whose files are read again and again: its state, its logs, and its last failure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from rich.console import Console

from caffe_recipes.caffe.logs import LogSummary, Loss
from caffe_recipes.errors import RunFailed
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.events import (
    Ending,
    Event,
    Failed,
    Finish,
    Launch,
    Notice,
    Replaced,
    RunStarted,
    RunState,
    StateDraft,
    Stopped,
)
from caffe_recipes.run.failures.rank_comparison import MOST_RANKS
from caffe_recipes.run.folded_events import (
    describe_event,
    describe_finished,
    describe_run_command,
    is_complete,
)
from caffe_recipes.run.journal import JOURNAL, read_events
from caffe_recipes.run.monitor.run_files import (
    NO_PROCESS,
    FilePiece,
    Process,
    ReadRequest,
)
from caffe_recipes.run.trainer import Training
from caffe_recipes.run.trainer_log import PhaseProgress, measure_step
from caffe_recipes.run.training_plan import find_trainer, plan_steps
from caffe_recipes.run_names import parse_run_name

# At most this much is read from the end of a log; it holds several displays of 128 ranks.
_MOST_BYTES = 2 << 20


@dataclass
class _Log:
    """The log of the current launch, read one complete line at a time."""

    name: str = ""
    offset: int = 0
    summary: LogSummary = field(default_factory=LogSummary)
    shown_by_rank: dict[int, int] = field(default_factory=dict)

    def feed(self, piece: FilePiece) -> bool:
        """Add the new content of the log; return whether it contained a loss."""
        before = len(self.summary.losses)
        skipped = piece.data.find(b"\n") + 1 if piece.start > self.offset else 0
        ended = piece.data.rfind(b"\n") + 1
        for line in piece.data[skipped:ended].decode(errors="replace").splitlines():
            entry = self.summary.feed(line)
            rank = None if entry is None else entry.rank
            has_room = rank in self.shown_by_rank or len(self.shown_by_rank) < MOST_RANKS
            if entry is not None and rank is not None and isinstance(entry.event, Loss) and has_room:
                self.shown_by_rank[rank] = entry.event.iteration
        self.offset = piece.start + ended
        return len(self.summary.losses) > before


class RunInterrupted(RunFailed):
    """Raised for a run that was stopped; its hint is the command that resumes it."""


class FollowedRun:
    """A run in the folder `path`, which the user named `given`; its new lines are shown by `reporter`."""

    def __init__(
        self,
        given: str,
        path: str,
        recipe: AnyRecipe,
        reporter: Reporter | None = None,
        *,
        with_branches: bool = False,
        is_branch: bool = False,
    ) -> None:
        """Create a run of which nothing has been read yet; `with_branches` follows its branches too.

        `is_branch` is set for a branch: its start and end are shown as lines of the whole run instead.
        """
        self._given, self._with_branches, self._is_branch = given, with_branches, is_branch
        self.path, self.recipe, self.reporter = path, recipe, reporter or Reporter(Console(quiet=True))
        self.steps = plan_steps(recipe)
        self.state = RunState()
        self.failure: RunFailed | None = None
        self.folder = "/".join(posixpath.normpath(path).split("/")[-2:])
        self._journal_bytes = 0  # of the complete lines that were read
        self._log = _Log()
        self.launches: list[tuple[str, str]] = []  # phase and log of each
        self._last_logs: dict[str, str] = {}  # of each phase
        self.last_failure: RunFailed | None = None  # the last one, even if the run was resumed after it
        self.cause: str | None = None  # of that failure, and what must be changed before the run is resumed
        self.change: str | None = None
        self.first_s: float | None = None  # the time of the first event
        self.last_s: float | None = None  # the time of the last event
        self.ran_s = 0.0  # for how long the run had run at the last event
        self._unseen_s = 0.0  # for how long no process followed the current launch
        self.job_id: int | None = None  # the Slurm job that the last process was in
        self.job_ids: dict[int, None] = {}  # of all processes, in order
        self.blamed: dict[str, None] = {}  # the hosts because of which the last process ended launches
        self._beside: dict[str, FollowedRun] = {}  # the branches in progress, by phase
        # What is not shown yet: the time of each line, the line, and whether it names its phase.
        self.lines: list[tuple[float, str, bool]] = []

    @property
    def process(self) -> Process:
        """The process that ran the run last, alive or not."""
        if self.state.pid is None or self.state.host is None:
            return NO_PROCESS
        return Process(self.state.pid, self.state.host, f"{self.path}/{JOURNAL}")

    @property
    def is_renamed(self) -> bool:
        """Whether the folder no longer has the name of a run of its recipe, so that no command resumes it."""
        found = parse_run_name(posixpath.basename(posixpath.normpath(self.path)))
        return not self._is_branch and (found is None or found[0] != self.recipe.name)

    def resume_hint(self, command: str = "run") -> str:
        """Return the hint that a command resumes the run: `run`, or `submit`."""
        if self.is_renamed:
            return f"only a folder named {self.recipe.name}-N is resumed; rename it back"
        return f"{describe_run_command(self._given, self.recipe, command)} resumes it"

    @property
    def is_complete(self) -> bool:
        """Whether all phases are finished and all evaluations done."""
        return is_complete(self.state, self.steps)

    @property
    def models(self) -> tuple[str, ...]:
        """The models of a finished run, one per branch, as paths in the run's folder where that is now."""
        ends = (step.phase for step in self.steps if step.is_end)
        snapshots = (self.state.finished[phase].snapshot for phase in ends)
        return tuple(f"{self.path}/snapshots/{posixpath.basename(snapshot)}" for snapshot in snapshots)

    def requests(self) -> list[ReadRequest]:
        """Return the files to read next: what is new in the journal and in the log of the current launch.

        If branches are followed, the same files of each branch in progress come after these.
        """
        phases = {step.phase for step in self.steps} if self._with_branches else ()
        for phase in self.state.branches:
            if phase not in phases:  # the journal may name anything
                continue
            if phase in self.state.finished:
                self._beside.pop(phase, None)
            elif phase not in self._beside:
                path, reporter = f"{self.path}/branches/{phase}", self.reporter.for_branch(phase)
                self._beside[phase] = FollowedRun(
                    self.recipe.name, path, self.recipe, reporter, is_branch=True
                )
        return [each for run in (self, *self.beside) for each in run._own_requests()]

    def _own_requests(self) -> list[ReadRequest]:
        requests = [ReadRequest(f"{self.path}/{JOURNAL}", self._journal_bytes)]
        launch = self.state.launch
        if launch is None:
            return requests
        if launch.log != self._log.name:
            self._log = _Log(launch.log, summary=find_trainer(self.recipe).new_log_summary())
        log = f"{self.path}/logs/{posixpath.basename(launch.log)}"
        return [*requests, ReadRequest(log, self._log.offset, _MOST_BYTES)]

    def update(self, pieces: Sequence[FilePiece | None], *, live: bool = True) -> bool:
        """Process the content that `requests` asked for and show what is new; return whether anything is.

        Progress is shown only if `live`.
        """
        left, is_new, due = iter(pieces), False, []
        for run in (self, *self.beside):
            has_news, progress = run.update_own([*islice(left, len(run._own_requests()))])
            is_new |= has_news
            if live and progress is not None and progress.phase not in self.state.finished:
                due.append((run.reporter, progress))
        self._show_lines()
        for reporter, progress in due:
            reporter.show_progress(progress)
        return is_new

    def update_own(self, pieces: Sequence[FilePiece | None]) -> tuple[bool, PhaseProgress | None]:
        """Process this run's journal and log; return whether anything is new, and the progress."""
        journal, *logs = pieces
        launch = self.state.launch
        is_new = journal is not None and self._read_journal(journal)
        if logs and logs[0] is not None and self._log.feed(logs[0]):
            return True, self.progress() if self.state.launch == launch else None
        return is_new, None

    def _show_lines(self) -> None:
        """Show the new lines of the run and its branches in the order of their times."""
        runs = (self, *self.beside)
        due = [(run.reporter, *line) for run in runs for line in run.lines]
        for run in runs:
            run.lines.clear()
        if due and self._log.summary.losses:
            self.reporter.end_progress()
        for reporter, _, line, names_phase in sorted(due, key=lambda each: each[1]):
            reporter.say(line, names_phase=names_phase)

    @property
    def step(self) -> Training | None:
        """The training of the current launch; None if there is none, or its log was not asked for yet."""
        launch = self.state.launch
        if launch is None or launch.log != self._log.name:
            return None
        return next((step for step in self.steps if step.phase == launch.phase), None)

    @property
    def summary(self) -> LogSummary:
        """What the log of the current launch shows."""
        return self._log.summary

    @property
    def shown_by_rank(self) -> Mapping[int, int]:
        """The last iteration of each rank in that log, if its lines name their ranks."""
        return self._log.shown_by_rank

    def progress(self) -> PhaseProgress | None:
        """Return the progress of the current phase; None if there is no launch, or no loss in its log yet."""
        step = self.step
        if step is None or not self.summary.losses:
            return None
        return measure_step(self.summary, step.phase, self.steps, self.steps)

    @property
    def beside(self) -> tuple[FollowedRun, ...]:
        """The branches in progress."""
        return tuple(self._beside.values())

    def show_result(self) -> None:
        """Show the result table of a finished run."""
        self.reporter.end_progress()
        self.reporter.show_result(self.recipe, self.state)

    def process_gone(self, left: str = "") -> RunFailed:
        """Return the error for a run whose process has ended without a final event; `left` still trains."""
        if self.process == NO_PROCESS:
            return RunFailed(self.folder, "no process is running it", self.resume_hint())
        what = f"process {self.state.pid} on {self.state.host} has ended unexpectedly"
        what += f", but {left}" if left else ""
        return RunFailed(self.folder, what, self.resume_hint())

    def _read_journal(self, piece: FilePiece) -> bool:
        whole = piece.data[: piece.data.rfind(b"\n") + 1]
        text, where = whole.decode(errors="replace"), f"{self.path}/{JOURNAL}"
        events = read_events(text, where, is_start=self._journal_bytes == 0)
        # The events of earlier processes are only summarized.
        starts = [index for index, (_, event) in enumerate(events) if isinstance(event, RunStarted)]
        first = starts[-1] if starts and not self._journal_bytes else 0
        self._journal_bytes += len(whole)
        draft = StateDraft(self.state)
        for index, (time_s, event) in enumerate(events):
            if index >= first:
                self._describe(time_s, event, draft)
            self._apply(time_s, event, draft)
        self.state = draft.freeze()
        return bool(events)

    def _apply(self, time_s: float, event: Event, draft: StateDraft) -> None:
        """Fold an event into the state, and record its launch, job, blamed host or failure."""
        if isinstance(event, Launch):
            self.launches.append((event.phase, event.log))
            self._last_logs[event.phase] = event.log
        if isinstance(event, RunStarted):
            self.job_id = int(event.job) if event.job.isdecimal() else None
            self.blamed = {}
            if self.job_id:
                self.job_ids[self.job_id] = None
        if isinstance(event, Ending | Failed | Replaced) and event.host:
            self.blamed[event.host] = None
        self.ran_s += self._count_seconds(time_s, event, draft)
        event.fold(draft)
        self.first_s = time_s if self.first_s is None else self.first_s
        self.last_s = time_s
        self.last_failure = self._find_failure(event) or self.last_failure
        if isinstance(event, Failed):
            self.cause, self.change = event.cause, event.change
        elif isinstance(event, Launch | Stopped):
            self.cause = self.change = None

    def _count_seconds(self, time_s: float, event: Event, before: StateDraft) -> float:
        """Return for how long the run ran between the last event and this one.

        It did not run before a process starts or resumes it, except for the launch of a killed run: when this
        ends, its event says for how many seconds it ran.
        """
        since_s = 0.0 if self.last_s is None else max(0.0, time_s - self.last_s)
        launch = before.launch
        if isinstance(event, RunStarted):
            self._unseen_s += since_s if launch is not None else 0.0
            return 0.0
        if launch is None or not isinstance(event, Failed | Finish | Stopped) or not self._unseen_s:
            return since_s
        if isinstance(event, Failed | Finish) and event.phase != launch.phase:
            return since_s
        earlier_s = before.spent.get(launch.phase, 0.0) if isinstance(event, Finish) else 0.0
        seen_s = time_s - launch.time_s - self._unseen_s
        unseen_s, self._unseen_s = self._unseen_s, 0.0
        return since_s + min(max((event.seconds or 0.0) - earlier_s - seen_s, 0.0), unseen_s)

    def _describe(self, time_s: float, event: Event, before: StateDraft) -> None:
        """Add the lines to show for an event, before it is folded into the state."""
        if not isinstance(event, Notice):  # a remark does not mean that the run continues
            if self.failure is not None:  # it is shown as a line once the run continues after it
                self.lines.append((time_s, str(self.failure), False))
            self.failure = self._find_failure(event)
        is_start = isinstance(event, RunStarted)
        # The start of a branch is shown by the whole run only, and its end by the branch only.
        if (is_start and self._is_branch) or self._is_of_branch(event):
            return
        lines = [describe_event(event, self.recipe, self.folder)]
        lines += describe_finished(before.finished, self.recipe, self.folder) if is_start else []
        self.lines += [(time_s, line, event.names_phase) for line in lines if line]

    def _is_of_branch(self, event: Event) -> bool:
        return isinstance(event, Finish) and event.phase in self._beside

    def _find_failure(self, event: Event) -> RunFailed | None:
        """Return the error that a run ends with if this is its last event; None if it does not end."""
        if isinstance(event, Stopped):
            return RunInterrupted(self.folder, f"interrupted by {event.signal}", self.resume_hint())
        if not isinstance(event, Failed):
            return None
        return event.error(event.log or self._last_logs.get(event.phase or ""))
