"""Follow a run from anywhere: its journal and its trainer's log, read as they grow. Nothing is written.

The run's process may be on another machine, and end without a last event: that is reported, and not waited
for. A run that a Slurm job is to begin or to resume is waited for; the job is asked about now and then.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from rich.console import Console

from caffe_recipes.caffe.logs import LogSummary
from caffe_recipes.cluster.hosts import open_host
from caffe_recipes.errors import ClusterError, InputError, RunFailed
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.context import Connect
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
    Stopped,
    describe_before,
    describe_event,
    describe_run_command,
    is_complete,
)
from caffe_recipes.run.folders import RUNS, sort_runs
from caffe_recipes.run.journal import read_events
from caffe_recipes.run.monitor.files import (
    NOBODY,
    HostFiles,
    LocalFiles,
    Piece,
    Process,
    RunFiles,
    RunSnapshot,
    Wanted,
    find_run,
    load_frozen,
    name_recipe,
)
from caffe_recipes.run.plan import plan_steps
from caffe_recipes.run.submit.submissions import (
    Ask,
    SeenJob,
    describe_job,
    name_seen,
    read_latest,
    see_jobs,
    slurm_beside,
)
from caffe_recipes.run.trainer import find_trainer
from caffe_recipes.run.trainer_log import Progress, measure

# Of a log that has grown without us only the end is read: several displays of 128 ranks.
_MOST_BYTES = 2 << 20


@dataclass
class _Log:
    """The log of the launch under way, read a whole line at a time."""

    name: str = ""
    offset: int = 0
    summary: LogSummary = field(default_factory=LogSummary)

    def take(self, piece: Piece) -> bool:
        """Take what has come; tell whether a loss was in it."""
        known = len(self.summary.losses)
        skipped = piece.data.find(b"\n") + 1 if piece.start > self.offset else 0
        ended = piece.data.rfind(b"\n") + 1
        for line in piece.data[skipped:ended].decode(errors="replace").splitlines():
            self.summary.feed(line)
        self.offset = piece.start + ended
        return len(self.summary.losses) > known


class RunInterrupted(RunFailed):
    """A run that was stopped; its hint is the command that resumes it."""


class ShownRun:
    """A run in the folder `path`, called `given` by the user; what is new of it is shown by `reporter`."""

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
        """Know and show nothing yet; `with_branches` follows what trains beside the main line, too.

        A branch itself, whose lines the whole run shows, starts and ends there.
        """
        self._with_branches, self._is_branch = with_branches, is_branch
        self.path, self.recipe, self.reporter = path, recipe, reporter or Reporter(Console(quiet=True))
        self.state = RunState()
        self.failure: RunFailed | None = None
        self.folder = "/".join(posixpath.normpath(path).split("/")[-2:])
        self.resume_hint = f"{describe_run_command(given, recipe)} resumes it"
        self._journal_bytes = 0  # of whole lines that are read
        self._log = _Log()
        self.launches: list[tuple[str, str]] = []  # phase and log of each
        self.last_failure: RunFailed | None = None  # also one that the run went on after
        self.first_s: float | None = None  # when the journal began
        self.last_s: float | None = None  # when the journal grew last
        self.job_id: int | None = None  # the job that carries the run on, or did
        self.job_ids: tuple[int, ...] = ()
        self.blamed: tuple[str, ...] = ()  # the hosts that the last process had to end launches for
        self._beside: dict[str, ShownRun] = {}  # by phase, what trains beside the main line
        self._asked = 0  # how many files of its own are wanted
        self.lines: list[tuple[float, str]] = []  # what is new and not shown yet, with its time

    @property
    def process(self) -> Process:
        """The process that carries the run on, or did."""
        if self.state.pid is None or self.state.host is None:
            return NOBODY
        return Process(self.state.pid, self.state.host, f"{self.path}/journal.jsonl")

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to be done."""
        return is_complete(self.state, self.recipe)

    @property
    def models(self) -> tuple[str, ...]:
        """The files that a finished run leaves, in its folder, wherever that lies now: one a branch."""
        ends = (step.phase for step in plan_steps(self.recipe) if step.is_end)
        snapshots = (self.state.finished[phase].snapshot for phase in ends)
        return tuple(f"{self.path}/snapshots/{posixpath.basename(snapshot)}" for snapshot in snapshots)

    def wanted(self) -> list[Wanted]:
        """Return what is to be read next: of the journal all that is new, and of the log of a launch.

        Behind that, where they are followed, the same of every branch that trains beside the main line.
        """
        wanted = self._wanted()
        self._asked = len(wanted)
        for phase in self.state.branches if self._with_branches else ():
            if phase in self.state.finished:
                self._beside.pop(phase, None)
            elif phase not in self._beside:
                path, reporter = f"{self.path}/branches/{phase}", self.reporter.beside(phase)
                self._beside[phase] = ShownRun(self.recipe.name, path, self.recipe, reporter, is_branch=True)
        return [*wanted, *(each for branch in self.beside for each in branch.wanted())]

    def _wanted(self) -> list[Wanted]:
        wanted = [Wanted(f"{self.path}/journal.jsonl", self._journal_bytes)]
        launch = self.state.launch
        if launch is None:
            return wanted
        if launch.log != self._log.name:
            self._log = _Log(launch.log, summary=find_trainer(self.recipe).new_log_summary())
        log = f"{self.path}/logs/{posixpath.basename(launch.log)}"
        return [*wanted, Wanted(log, self._log.offset, _MOST_BYTES)]

    def take(self, pieces: Sequence[Piece | None], *, live: bool = True) -> bool:
        """Take what `wanted` has brought, show what is new of it, and tell whether anything is.

        Progress is shown only if `live`.
        """
        left, is_new, due = iter(pieces), False, []
        for run in (self, *self.beside):
            has_news, progress = run.take_own([*islice(left, run._asked)])
            is_new |= has_news
            if live and progress is not None and progress.phase not in self.state.finished:
                due.append((run.reporter, progress))
        self._show_lines()
        for reporter, progress in due:
            reporter.show_progress(progress)
        return is_new

    def take_own(self, pieces: Sequence[Piece | None]) -> tuple[bool, Progress | None]:
        """Take what is of this journal and its log; tell whether anything is new, and how far it has come."""
        journal, *logs = pieces
        launch = self.state.launch
        is_new = journal is not None and self._take_journal(journal)
        if logs and logs[0] is not None and self._log.take(logs[0]):
            return True, self.progress() if self.state.launch == launch else None
        return is_new, None

    def _show_lines(self) -> None:
        """Show what is new, of the branches too, in the order in which it came to pass."""
        runs = (self, *self.beside)
        due = [(time_s, run.reporter, line) for run in runs for time_s, line in run.lines]
        for run in runs:
            run.lines.clear()
        if due and self._log.summary.losses:
            self.reporter.end_progress()
        for _, reporter, line in sorted(due, key=lambda each: each[0]):
            reporter.say(line)

    def progress(self) -> Progress | None:
        """Return where the phase is that trains; None if none does, or its log says nothing yet."""
        launch, steps = self.state.launch, plan_steps(self.recipe)
        names = [step.phase for step in steps]
        if launch is None or launch.log != self._log.name or launch.phase not in names:
            return None
        if not self._log.summary.losses:
            return None
        at = names.index(launch.phase)
        phases = {step.phase: step.last_iter for step in steps}
        later = sum(step.last_iter for step in steps[at + 1 :])
        return measure(self._log.summary, launch.phase, phases, steps[at].images_per_iter, later)

    @property
    def beside(self) -> tuple[ShownRun, ...]:
        """The branches that train beside the main line."""
        return tuple(self._beside.values())

    def show_result(self) -> None:
        """Show the table of a run that is finished."""
        self.reporter.end_progress()
        self.reporter.show_result(self.recipe, self.state)

    def gone(self) -> RunFailed:
        """Return the error of a run whose process has ended without saying so."""
        if self.process == NOBODY:
            return RunFailed(self.folder, "no process carries it on", self.resume_hint)
        what = f"process {self.state.pid} on {self.state.host} is gone"
        return RunFailed(self.folder, what, self.resume_hint)

    def _take_journal(self, piece: Piece) -> bool:
        whole = piece.data[: piece.data.rfind(b"\n") + 1]
        events = read_events(whole.decode(errors="replace"), f"{self.path}/journal.jsonl")
        # What earlier processes did is reported in short.
        starts = [index for index, (_, event) in enumerate(events) if isinstance(event, RunStarted)]
        first = starts[-1] if starts and not self._journal_bytes else 0
        self._journal_bytes += len(whole)
        for index, (time_s, event) in enumerate(events):
            if index >= first:
                self._describe(time_s, event)
            self._keep(time_s, event)
        return bool(events)

    def _keep(self, time_s: float, event: Event) -> None:
        """Fold an event, and keep its launch, job or failure, whoever carried the run on then."""
        if isinstance(event, Launch):
            self.launches.append((event.phase, event.log))
        if isinstance(event, RunStarted):
            self.job_id = int(event.job) if event.job.isdecimal() else None
            self.blamed = ()
            self.job_ids = tuple(dict.fromkeys((*self.job_ids, *([self.job_id] if self.job_id else []))))
        if isinstance(event, Ending | Failed | Replaced) and event.host:
            self.blamed = tuple(dict.fromkeys((*self.blamed, event.host)))
        self.state = event.fold(self.state)
        self.first_s = time_s if self.first_s is None else self.first_s
        self.last_s = time_s
        self.last_failure = self._find_failure(event) or self.last_failure

    def _describe(self, time_s: float, event: Event) -> None:
        """Add the lines of an event that happens to the run as it is."""
        texts: list[str] = []
        if not isinstance(event, Notice):  # a remark resumes nothing
            texts += [] if self.failure is None else [str(self.failure)]  # that was not the end
            self.failure = self._find_failure(event)
        # A branch's start and end are shown once, by the run and by the branch.
        if not (self._is_branch and isinstance(event, RunStarted)) and not self._is_of_branch(event):
            texts.append(describe_event(event, self.recipe, self.folder))
        if isinstance(event, RunStarted) and not self._is_branch:
            texts += describe_before(self.state, self.recipe, self.folder)
        self.lines += [(time_s, text) for text in texts if text]

    def _is_of_branch(self, event: Event) -> bool:
        return isinstance(event, Finish) and event.phase in self._beside

    def _find_failure(self, event: Event) -> RunFailed | None:
        """Return the error that a run ends with, if this event is its last."""
        if isinstance(event, Stopped):
            return RunInterrupted(self.folder, f"interrupted by {event.signal}", self.resume_hint)
        if not isinstance(event, Failed):
            return None
        log = event.log or dict(self.launches).get(event.phase or "")
        hint = f"log: {log}" if log else ""
        if event.phase is not None:
            return RunFailed(f"phase {event.phase}", f"failed: {event.reason}", hint)
        return RunFailed("evaluation" if log else "", event.reason, hint)


# Between two looks at files of this machine, and of another.
HERE_S = 0.3
THERE_S = 1.0
# Without news for so long, another host that the run's process is on is asked whether it lives.
_QUIET_S = 15.0
_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True)
class FollowEnv:
    """How time passes and hosts are reached."""

    connect: Connect = open_host
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


class Watched(Protocol):
    """A run of which files are read, and who carries it on."""

    @property
    def process(self) -> Process:
        """The process that carries the run on, or did."""

    def wanted(self) -> Sequence[Wanted]:
        """Return what is to be read next."""


@dataclass(frozen=True)
class RunsFolder:
    """The folder `path` of all runs in the Caffe root `root`: its files, and the Slurm beside them."""

    files: RunFiles
    root: str
    path: str
    ask: Ask


@contextmanager
def open_runs(root: str, on: str | None, env: FollowEnv, ask: Ask | None = None) -> Iterator[RunsFolder]:
    """Open the runs of a root on a host, or on this machine; raises InputError for a bad host name."""
    files = HostFiles(env.connect(on, "auto")) if on else LocalFiles()
    with closing(files):
        path = posixpath.normpath(posixpath.join(root, RUNS))
        yield RunsFolder(files, root, path, ask or slurm_beside(files))


def check_end(shown: ShownRun, look: RunSnapshot, *, is_final: bool) -> None:
    """Raise how a run has ended whose process is gone, or, if nobody knows of it, has journaled its end."""
    if look.lives is False:
        raise shown.failure or shown.gone()
    if look.lives is None and is_final and (shown.failure or shown.process == NOBODY):
        raise shown.failure or shown.gone()


@dataclass
class FileFollower:
    """What looks at a run: again and again, whatever the connection does."""

    files: RunFiles
    reporter: Reporter
    env: FollowEnv
    once: bool
    _node: str = ""
    _last_news_s: float = field(init=False)
    _asked_s: float = float("-inf")
    _elsewhere: dict[str, RunFiles] = field(default_factory=dict)
    _unreachable: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._last_news_s = self.env.clock()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing new has come for a while."""
        return self.env.clock() - self._last_news_s >= _QUIET_S

    def saw_news(self) -> None:
        """Begin the while anew."""
        self._last_news_s = self.env.clock()

    def look(self, watched: Watched) -> RunSnapshot:
        """Read what is new; over a new connection when one is lost, however long that takes.

        Raises ClusterError if the host could not be reached the first time, or with `once`.
        """
        lives = self._ask_elsewhere(watched.process)  # before the files, as with any look
        reported, pause_s = "", THERE_S
        while True:
            try:
                look = self.files.look(watched.wanted(), watched.process)
            except ClusterError as error:
                if self.once or not self._node:
                    raise
                line = f"{error}; trying again"
                if line != reported:  # once, however often it is tried
                    reported = line
                    self.reporter.end_progress()
                    self.reporter.say(line)
                self.env.pause(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            if reported:
                self.reporter.say(f"{self.files.host}: connected again")
                self.saw_news()
            self._node = look.node
            return look if look.lives is not None else RunSnapshot(look.node, lives, look.pieces)

    def close(self) -> None:
        """Let go of the connections to other hosts."""
        for files in self._elsewhere.values():
            files.close()

    def _ask_elsewhere(self, process: Process) -> bool | None:
        """Tell whether a process lives that is on another host than the files; None if not known, or not due.

        A host that cannot be asked is not asked again.
        """
        now, node = self.env.clock(), process.node
        due = self.once or (self.is_quiet and now - self._asked_s >= _QUIET_S)
        if process == NOBODY or node == self._node or node in self._unreachable or not due:
            return None
        self._asked_s = now
        try:
            if node not in self._elsewhere:
                self._elsewhere[node] = HostFiles(self.env.connect(node, "auto"))
            return self._elsewhere[node].look((), process).lives
        except (InputError, ClusterError) as error:  # a journal may name what is no host
            self._unreachable.add(node)
            self.reporter.end_progress()
            self.reporter.say(f"whether process {process.pid} on {node} lives is not known: {error.what}")
            return None


# Slurm serves many; its users are asked not to ask more often.
_EVERY_S = 10.0


@dataclass
class JobWatch:
    """Looks at what the last submit of a recipe has submitted."""

    runs: RunsFolder
    say: Callable[[str], None]
    clock: Callable[[], float]
    _asked_s: float = float("-inf")
    _seen: tuple[SeenJob, ...] = ()
    _reported: str = ""
    _last: dict[str, tuple[float, str]] = field(default_factory=dict)

    def look(self, recipe: str) -> tuple[SeenJob, ...]:
        """Return the jobs as they were seen last, having looked if that is due; raises InputError."""
        if self.clock() - self._asked_s < _EVERY_S:
            return self._seen
        self._asked_s = self.clock()
        self._seen = see_jobs(read_latest(self.runs.files, self.runs.path, recipe), self.runs.ask)
        latest = next((job for job in self._seen if job.standing != "over"), None)
        if latest is None and self._seen:
            latest = self._seen[-1]
        if latest is not None:
            self._report(latest)
        return self._seen

    def may_resume(self, recipe: str) -> bool:
        """Tell whether a job waits or runs, or may, for all that is known."""
        return any(job.is_live or job.away or job.is_elsewhere for job in self.look(recipe))

    def describe(self, recipe: str) -> str:
        """Say what has become of the jobs, which have all ended."""
        return "; ".join(f"{name_seen(job)} {describe_job(job)}" for job in self.look(recipe)[-1:])

    def _report(self, job: SeenJob) -> None:
        name = job.submission.name
        if not job.away:
            self._last[name] = (time.time(), describe_job(job))
        last_s, last = self._last.get(name, (None, ""))
        line = f"{name_seen(job)} {describe_job(job, last_s, f'it {last}' if last else '')}"
        if line != self._reported:
            self._reported = line
            self.say(line)


def wait_for_run(run: str, jobs: JobWatch, env: FollowEnv, *, once: bool) -> str | None:
    """Return a run's folder, once a job has made it; with `once` None if it is still to be made.

    Raises InputError if there is neither a run nor a job, RunFailed if the job has ended without one.
    """
    while True:
        try:
            return find_run(jobs.runs.files, jobs.runs.root, run)
        except (InputError, ClusterError):  # while a job is waited for, a lost connection is no end
            recipe = name_recipe(run)
            if not jobs.look(recipe):
                raise
        if not jobs.may_resume(recipe):
            raise RunFailed(run, f"has no run: {jobs.describe(recipe)}")
        if once:
            return None
        env.pause(THERE_S)


def check_end_with_jobs(shown: ShownRun, look: RunSnapshot, jobs: JobWatch, *, is_final: bool) -> None:
    """Raise how a run has ended, unless a job goes on with it; ask Slurm of a process in a job, too."""
    recipe = shown.recipe.name
    try:
        check_end(shown, look, is_final=is_final)
    except RunFailed:
        if not jobs.may_resume(recipe) or not _is_latest(shown, jobs):
            raise
        return
    in_job = shown.job_id is not None and look.lives is None and is_final
    if in_job and jobs.look(recipe) and not jobs.may_resume(recipe) and _is_latest(shown, jobs):
        raise shown.failure or shown.gone()


def _is_latest(shown: ShownRun, jobs: JobWatch) -> bool:
    """Tell whether the jobs, which resume the latest run of a recipe, resume this one."""
    runs = sort_runs(jobs.runs.files.names(jobs.runs.path), shown.recipe.name)
    return runs[-1:] == [posixpath.basename(posixpath.normpath(shown.path))]


# No file is as long: nothing of it is read.
_BEYOND = 1 << 62


@dataclass(frozen=True)
class AttachOptions:
    """What the user says of watching besides the run; `root` is a path on the host `on`."""

    root: str = "."
    on: str | None = None
    once: bool = False


def attach(
    run: str,
    options: AttachOptions,
    reporter: Reporter,
    env: FollowEnv | None = None,
    ask: Ask | None = None,
) -> None:
    """Show a run, and follow it until it is finished; with `once` only where it stands.

    `run` is its folder, its name, or its recipe, for its latest run. While a job of the recipe waits
    or runs, that is reported and the run waited for. Raises InputError if there is neither, and RunFailed
    when the run has failed, is interrupted, or its process is gone without a last event.
    """
    env = env or FollowEnv()
    with ExitStack() as stack:
        runs = stack.enter_context(open_runs(options.root, options.on, env, ask))
        stack.callback(reporter.end_progress)
        jobs, files = JobWatch(runs, reporter.say_amid, env.clock), runs.files
        path = wait_for_run(run, jobs, env, once=options.once)
        if path is None:
            return
        shown = ShownRun(run, path, load_frozen(files, path), reporter, with_branches=True)
        follower = stack.enter_context(closing(FileFollower(files, reporter, env, options.once)))
        # Which log there is to be read, and whose process to be asked for, the journal tells first.
        shown.take(follower.look(shown).pieces)
        if shown.state.branches:  # each has a journal, which names its log
            shown.take(follower.look(shown).pieces, live=False)
        while not shown.is_complete:
            process = shown.process
            look = follower.look(shown)
            if shown.take(look.pieces, live=not options.once):
                follower.saw_news()
            if shown.is_complete:
                break
            if shown.process == process:
                check_end_with_jobs(shown, look, jobs, is_final=options.once or follower.is_quiet)
            if options.once:
                break
            env.pause(THERE_S if options.on else HERE_S)
        _show_last(shown, files, reporter)


def _show_last(shown: ShownRun, files: RunFiles, reporter: Reporter) -> None:
    """Show the result of a run that is finished, or where one stands."""
    if not shown.is_complete:
        for progress in filter(None, (each.progress() for each in (shown, *shown.beside))):
            reporter.show_now(progress)
        return
    shown.show_result()
    for model in shown.models:
        if _is_gone(files, model):
            reporter.say(f"{model}: the model is gone; restore it, or train again with --new")


def _is_gone(files: RunFiles, path: str) -> bool:
    """Tell whether there is no such file; one that cannot be looked at may be there."""
    try:
        return files.look([Wanted(path, _BEYOND)]).pieces == (None,)
    except (InputError, ClusterError):
        return False
