"""Following a run from anywhere, by reading its journal and its trainer's log as they grow; read-only.

The process of the run may be on another machine. If it ends without a final event, that is reported. If a
Slurm job is going to start or resume the run, it is waited for, and Slurm is asked about the job every few
seconds.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from caffe_recipes.cluster.hosts import open_host
from caffe_recipes.errors import ClusterError, InputError, RunFailed
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.context import Connect
from caffe_recipes.run.monitor.followed_run import FollowedRun
from caffe_recipes.run.monitor.leftovers import find_leftovers
from caffe_recipes.run.monitor.run_files import (
    NO_PROCESS,
    HostFiles,
    LocalFiles,
    Process,
    ReadRequest,
    RunFiles,
    RunReading,
    find_run,
    load_frozen,
    name_recipe,
)
from caffe_recipes.run.submit.submissions import (
    Ask,
    SubmittedJob,
    describe_job,
    query_jobs,
    read_submissions,
    slurm_for,
)
from caffe_recipes.run_names import RUNS, sort_runs

# The poll intervals for files on this machine and on another host.
LOCAL_POLL_S = 0.3
REMOTE_POLL_S = 1.0
# After this time without news, the host of the run's process is asked whether the process is alive.
_QUIET_S = 15.0
_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True)
class FollowEnv:
    """Injected clock, sleep and connect functions, and how Slurm is asked; None is by its commands."""

    connect: Connect = open_host
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    ask: Ask | None = None


FOLLOW_ENV = FollowEnv()


@dataclass(frozen=True)
class StatusOptions:
    """Options of `status`; `attach` and `logs` have them too. `root` is a path on the host `on`."""

    root: str = "."
    on: str | None = None


class PolledRun(Protocol):
    """The part of a run that a Follower needs: its process and the files to read."""

    @property
    def process(self) -> Process:
        """The process that ran the run last, alive or not."""

    def requests(self) -> Sequence[ReadRequest]:
        """Return the files to read next."""


@dataclass(frozen=True)
class RunsFolder:
    """The folder `path` of all runs in the Caffe root `root`, with access to its files and to Slurm."""

    files: RunFiles
    root: str
    path: str
    ask: Ask


@contextmanager
def open_runs(options: StatusOptions, env: FollowEnv) -> Iterator[RunsFolder]:
    """Open the runs in a Caffe root on a host, or on this machine; raises InputError for a bad host name."""
    files = HostFiles(env.connect(options.on, "auto")) if options.on else LocalFiles()
    with closing(files):
        path = posixpath.normpath(posixpath.join(options.root, RUNS))
        yield RunsFolder(files, options.root, path, env.ask or slurm_for(files))


@dataclass
class Follower:
    """Polls the files of a run and its process, and reconnects when the connection is lost."""

    files: RunFiles
    say: Callable[[str], None]
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
        """Whether there has been nothing new for a while."""
        return self.env.clock() - self._last_news_s >= _QUIET_S

    def saw_news(self) -> None:
        """Record that there was something new just now."""
        self._last_news_s = self.env.clock()

    def read(self, run: PolledRun) -> RunReading:
        """Read the requested files, reconnecting for as long as it takes if the connection is lost.

        Raises ClusterError if the host cannot be reached the first time, or with `once`.
        """
        lives = self._ask_elsewhere(run.process)  # the process is always checked before its files are read
        reported, pause_s = "", REMOTE_POLL_S
        while True:
            try:
                snapshot = self.files.read(run.requests(), run.process)
            except ClusterError as error:
                if self.once or not self._node:
                    raise
                line = f"{error}; retrying"
                if line != reported:  # the same error is reported only once
                    reported = line
                    self.say(line)
                self.env.pause(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            if reported:
                self.say(f"{self.files.host}: connected again")
                self.saw_news()
            self._node = snapshot.node
            return (
                snapshot if snapshot.lives is not None else RunReading(snapshot.node, lives, snapshot.pieces)
            )

    def check_end(self, shown: FollowedRun, snapshot: RunReading, jobs: JobPoller) -> None:
        """Raise the error that a run has ended with, if it has ended and no job may resume it.

        It has ended if its process has. If that is not known and the run is quiet, it has if its journal has
        a final failure or no process, or if its job is over according to Slurm.
        """
        recipe, is_unknown = shown.recipe.name, snapshot.lives is None and (self.once or self.is_quiet)
        no_process = shown.failure is not None or shown.process == NO_PROCESS
        if snapshot.lives is False or (is_unknown and no_process):
            has_ended = not jobs.may_resume(recipe) or not _is_latest(shown, jobs)
        else:
            in_job = is_unknown and shown.job_id is not None and bool(jobs.poll(recipe))
            has_ended = in_job and not jobs.may_resume(recipe) and _is_latest(shown, jobs)
        if has_ended:
            if shown.failure is None and shown.process != NO_PROCESS:
                left = find_leftovers((shown, *shown.beside), self.files, self.env.connect)
                raise shown.process_gone("; ".join(each.text for each in left.values()))
            raise shown.failure or shown.process_gone()

    def close(self) -> None:
        """Close the connections to other hosts."""
        for files in self._elsewhere.values():
            files.close()

    def _ask_elsewhere(self, process: Process) -> bool | None:
        """Return whether a process on another host than the files is alive; None if not known or not due.

        A host that cannot be reached is not asked again. Nor is one that another user's journal names: ssh
        would offer our keys to it.
        """
        now, node = self.env.clock(), process.node
        due = self.once or (self.is_quiet and now - self._asked_s >= _QUIET_S)
        if process == NO_PROCESS or node == self._node or node in self._unreachable or not due:
            return None
        self._asked_s = now
        try:
            if node not in self._elsewhere:
                if not self.files.is_own(process.held):
                    raise InputError(process.held, "its journal belongs to another user")
                self._elsewhere[node] = HostFiles(self.env.connect(node, "auto"))
            return self._elsewhere[node].read((), process).lives
        except (InputError, ClusterError) as error:  # the name in the journal may not be a valid host
            self._unreachable.add(node)
            self.say(f"cannot tell whether process {process.pid} on {node} is alive: {error.what}")
            return None


# Slurm is not asked more often than this, to keep the load on its controller low.
_EVERY_S = 10.0


@dataclass
class JobPoller:
    """Polls the jobs of a recipe's last submit, and reports their state when it changes."""

    runs: RunsFolder
    say: Callable[[str], None]
    clock: Callable[[], float]
    _asked_s: float = float("-inf")
    _seen: tuple[SubmittedJob, ...] = ()
    _reported: str = ""
    _last: dict[str, tuple[float, str]] = field(default_factory=dict)

    def poll(self, recipe: str) -> tuple[SubmittedJob, ...]:
        """Return the jobs, after asking Slurm again if that is due; raises InputError."""
        if self.clock() - self._asked_s < _EVERY_S:
            return self._seen
        self._asked_s = self.clock()
        submitted = read_submissions(self.runs.files, self.runs.path, recipe)
        self._seen = query_jobs(submitted.latest, self.runs.ask)
        latest = next((job for job in self._seen if job.standing != "over"), None)
        if latest is None and self._seen:
            latest = self._seen[-1]
        if latest is not None:
            self._report(latest)
        return self._seen

    def may_resume(self, recipe: str) -> bool:
        """Return whether a job is, or may be, queued or running."""
        return any(job.is_live or job.away or job.is_elsewhere for job in self.poll(recipe))

    def describe(self, recipe: str) -> str:
        """Return the outcome of the last job, once all have ended."""
        return "; ".join(f"job {job.label} {describe_job(job)}" for job in self.poll(recipe)[-1:])

    def _report(self, job: SubmittedJob) -> None:
        name = job.submission.name
        if not job.away:
            self._last[name] = (time.time(), describe_job(job))
        last_s, last = self._last.get(name, (None, ""))
        line = f"job {job.label} {describe_job(job, last_s, f'it {last}' if last else '')}"
        if line != self._reported:
            self._reported = line
            self.say(line)


def wait_for_run(run: str, jobs: JobPoller, env: FollowEnv, *, once: bool) -> str | None:
    """Return the folder of a run, waiting until a job has created it; with `once` None if it has not yet.

    Raises InputError if there is neither a run nor a job, and RunFailed if the job ended without a run.
    """
    while True:
        try:
            return find_run(jobs.runs.files, jobs.runs.root, run)
        except (InputError, ClusterError):  # a lost connection does not end the wait for a job
            recipe = name_recipe(run)
            if not jobs.poll(recipe):
                raise
        if not jobs.may_resume(recipe):
            raise RunFailed(run, f"has no run: {jobs.describe(recipe)}")
        if once:
            return None
        env.pause(REMOTE_POLL_S)


def _is_latest(shown: FollowedRun, jobs: JobPoller) -> bool:
    """Return whether this is the latest run of its recipe, which is the one that jobs resume."""
    runs = sort_runs(jobs.runs.files.names(jobs.runs.path), shown.recipe.name)
    return runs[-1:] == [posixpath.basename(posixpath.normpath(shown.path))]


# An offset beyond the end of any file, so that no content is read.
_BEYOND = 1 << 62


@dataclass(frozen=True)
class AttachOptions(StatusOptions):
    """Options of `attach`."""

    once: bool = False


class Screen(Protocol):
    """What a followed run is shown on, besides the lines of its reporter."""

    def begin(self) -> None:
        """Prepare for a run that was found."""

    def show(self, run: FollowedRun) -> None:
        """Show the state of the run, which may have changed."""

    def close(self) -> None:
        """Stop showing it."""


def attach(
    run: str,
    options: AttachOptions,
    reporter: Reporter,
    env: FollowEnv = FOLLOW_ENV,
    screen: Screen | None = None,
) -> None:
    """Show a run and follow it until it is finished; with `once` only show its current state.

    `run` is a folder, the name of a run, or a recipe, which stands for its latest run. While a job of the
    recipe is queued or running, its state is reported and the run is waited for. Raises InputError if there
    is neither a run nor a job, and RunFailed if the run failed, was interrupted, or its process has ended
    without a final event.
    """
    with ExitStack() as stack:
        runs = stack.enter_context(open_runs(options, env))
        stack.callback(reporter.end_progress)
        say, files = reporter.say_above_progress, runs.files
        jobs = JobPoller(runs, say, env.clock)
        path = wait_for_run(run, jobs, env, once=options.once)
        if path is None:
            return
        shown = FollowedRun(run, path, load_frozen(files, path), reporter, with_branches=True)
        follower = stack.enter_context(closing(Follower(files, say, env, options.once)))
        with closing(screen) if screen else nullcontext():
            if screen is not None:
                screen.begin()
            _follow(shown, follower, jobs, env, screen)
        _show_end(shown, files, reporter)


def _follow(
    shown: FollowedRun, follower: Follower, jobs: JobPoller, env: FollowEnv, screen: Screen | None
) -> None:
    """Read a run until it is finished, or once; raises the error with which it ends."""
    once = follower.once
    # The journal must be read first, as it names the log to read and the process to check.
    shown.update(follower.read(shown).pieces)
    if shown.state.branches:  # each has its own journal, which names its log
        shown.update(follower.read(shown).pieces, live=False)
    while not shown.is_complete:
        process = shown.process
        snapshot = follower.read(shown)
        if shown.update(snapshot.pieces, live=not once):
            follower.saw_news()
        if shown.is_complete:
            break
        if shown.process == process:
            follower.check_end(shown, snapshot, jobs)
        if once:
            break
        if screen is not None:
            screen.show(shown)
        env.pause(LOCAL_POLL_S if isinstance(follower.files, LocalFiles) else REMOTE_POLL_S)


def _show_end(shown: FollowedRun, files: RunFiles, reporter: Reporter) -> None:
    """Show the result of a finished run, or the progress of an unfinished one."""
    if not shown.is_complete:
        for progress in filter(None, (each.progress() for each in (shown, *shown.beside))):
            reporter.show_progress_line(progress)
        return
    shown.show_result()
    for model in shown.models:
        if _is_missing(files, model):
            reporter.say(f"{model}: the model is missing; restore it, or train again with --new")


def _is_missing(files: RunFiles, path: str) -> bool:
    """Return whether a file does not exist; False if that cannot be checked."""
    try:
        return files.read([ReadRequest(path, _BEYOND)]).pieces == (None,)
    except (InputError, ClusterError):
        return False
