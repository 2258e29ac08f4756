"""A run's logs as its watcher reads them: all of a launch or one rank's words, and as they grow."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from caffe_recipes.caffe.logs import LONGEST_LINE_BYTES, split_rank
from caffe_recipes.errors import InputError
from caffe_recipes.run.folders import parse_run_name
from caffe_recipes.run.monitor.files import (
    NOBODY,
    Process,
    Wanted,
    find_run,
    load_frozen,
    name_recipe,
)
from caffe_recipes.run.monitor.follow import (
    HERE_S,
    THERE_S,
    FileFollower,
    FollowEnv,
    JobWatch,
    RunsFolder,
    ShownRun,
    check_end_with_jobs,
    open_runs,
    wait_for_run,
)
from caffe_recipes.run.plan import plan_steps
from caffe_recipes.run.submit.submissions import (
    Ask,
    SeenJob,
    Submission,
    describe_job,
    name_seen,
    read_latest,
    see_jobs,
    submitted_by_hand,
)

Write = Callable[[bytes], object]
Say = Callable[[str], None]
# So much of a log is read at a time, whatever has come.
_MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class LogOptions:
    """What the user says of a log besides the run; `root` is a path on the host `on`."""

    root: str = "."
    on: str | None = None
    follow: bool = False
    phase: str | None = None
    rank: int | None = None


def show_log(
    run: str,
    options: LogOptions,
    write: Write,
    say: Say,
    env: FollowEnv | None = None,
    ask: Ask | None = None,
) -> None:
    """Write the log of the phase that trains, or of the last launch.

    `follow` goes on until the run ends, and waits for one that a job is to begin, or to go on with.

    `say` gets the name of the log, and what else is not the log's. Raises InputError for a run, a phase or a
    log that is not there; with `follow` RunFailed as attach does.
    """
    env = env or FollowEnv()
    with ExitStack() as stack:
        runs = stack.enter_context(open_runs(options.root, options.on, env, ask))
        jobs = JobWatch(runs, say if options.follow else _keep_quiet, env.clock)
        path = wait_for_run(run, jobs, env, once=not options.follow)
        if path is None:
            raise _not_begun(run, jobs)
        shown = ShownRun(run, path, load_frozen(runs.files, path))
        _check_wanted(shown, options)
        shown.take(runs.files.look(shown.wanted()).pieces)
        if options.phase in shown.state.branches:
            shown = ShownRun(run, f"{path}/branches/{options.phase}", shown.recipe)
        followed = FileFollower(runs.files, shown.reporter, env, once=not options.follow)
        stack.callback(followed.close)
        lines = _Lines(write, options.rank)
        stack.callback(lines.end)
        follower = _Follower(shown, options, followed, jobs, lines, say)
        follower.begin()
        while follower.step():
            if not follower.is_behind:
                env.pause(THERE_S if options.on else HERE_S)


def _check_wanted(shown: ShownRun, options: LogOptions) -> None:
    """Raise InputError for a rank or a phase that the run does not have."""
    ranks, phases = shown.recipe.cluster.ranks, [step.phase for step in plan_steps(shown.recipe)]
    if options.rank is not None and options.rank >= ranks:
        there = "one rank, 0" if ranks == 1 else f"{ranks} ranks, 0 to {ranks - 1}"
        raise InputError(shown.folder, f"has no rank {options.rank}", f"it has {there}")
    if options.phase is not None and options.phase not in phases:
        raise InputError(shown.folder, f"has no phase {options.phase!r}", f"there are: {', '.join(phases)}")


def show_job_log(
    run: str,
    options: LogOptions,
    write: Write,
    say: Say,
    env: FollowEnv | None = None,
    ask: Ask | None = None,
) -> None:
    """Write what the script of a recipe's job says, as Slurm keeps it; `follow` goes on until Ctrl-C.

    It is the job that runs, else the last that has begun. Raises InputError if nothing was submitted, or its
    output is not there yet.
    """
    env = env or FollowEnv()
    with open_runs(options.root, options.on, env, ask) as runs:
        path, where = _find_output(runs, run, options)
        say(f"==> {path} <==")
        offset = 0
        while True:
            piece = runs.files.look([Wanted(path, offset, _MOST_BYTES, first=True)]).pieces[0]
            if piece is None and not options.follow:
                raise InputError(path, f"no such file: {where} has not begun", "see caffe-recipes status")
            if piece is not None and piece.data:
                offset = piece.start + len(piece.data)
                write(piece.data)
                if len(piece.data) == _MOST_BYTES:
                    continue
            if not options.follow:
                return
            env.pause(THERE_S)


def _keep_quiet(text: str) -> None:
    """Say nothing."""


def _not_begun(run: str, jobs: JobWatch) -> InputError:
    """Return the error of a run that a job is still to begin."""
    seen = next(job for job in jobs.look(name_recipe(run)) if job.standing != "over")
    return InputError(run, f"{name_seen(seen)} {describe_job(seen)}", "wait for its log with -f")


def _find_output(runs: RunsFolder, run: str, options: LogOptions) -> tuple[str, str]:
    """Return the file of the job that runs, else of the last that has begun, and the job in words.

    Of those that have not, the first is meant. A phase leaves the jobs of others out.
    """
    found = parse_run_name(posixpath.basename(run.rstrip("/")))
    names = dict.fromkeys([name_recipe(run), *([found[0]] if found else [])])
    latest = next((group for name in names if (group := read_latest(runs.files, runs.path, name))), ())
    own = _find_own_job(runs, run)
    if own is not None and all(each.job_id != own.job_id for each in latest):
        latest = tuple(sorted((*latest, own), key=lambda each: each.time_s))
    taken = [each for each in latest if each.job_id and options.phase in (None, each.phase)]
    if not taken:
        of = f" for phase {options.phase}" if options.phase else ""
        raise InputError(run, f"no job was submitted{of}", "caffe-recipes submit does that")
    if len(taken) == 1 and taken[0].output:
        return taken[0].output, f"job {taken[0].job_id}"
    seen = [(_output_of(each), each) for each in see_jobs(taken, runs.ask) if _output_of(each)]
    if not seen:
        what = f"where job {taken[-1].job_id} writes is not known: Slurm does not tell"
        raise InputError(run, what, "it is what its sbatch was given as --output")
    pieces = runs.files.look([Wanted(output, most=1) for output, _ in seen]).pieces
    begun = [each for each, piece in zip(seen, pieces, strict=True) if piece is not None]
    running = [each for each in seen if each[1].standing == "running"]
    path, job = [*seen[:1], *begun, *running][-1]
    return path, f"job {job.job_id}"


def _output_of(seen: SeenJob) -> str:
    """Return the file that a job's script writes into; empty where that is not known."""
    return seen.submission.output or (seen.job.stdout if seen.job else "")


def _find_own_job(runs: RunsFolder, run: str) -> Submission | None:
    """Return what stands for the job that carries a run on, or did, whoever submitted it."""
    with suppress(InputError):
        path = find_run(runs.files, runs.root, run)
        shown = ShownRun(run, path, load_frozen(runs.files, path))
        shown.take(runs.files.look(shown.wanted()[:1]).pieces)
        if shown.job_id is not None and shown.last_s is not None:
            return submitted_by_hand(shown.recipe.name, shown.job_id, shown.last_s)
    return None


class _Follower:
    """Reads the logs of a run's launches, one after another."""

    def __init__(
        self,
        shown: ShownRun,
        options: LogOptions,
        follower: FileFollower,
        jobs: JobWatch,
        lines: _Lines,
        say: Say,
    ) -> None:
        self._shown, self._options, self._files, self._lines, self._say = shown, options, follower, lines, say
        self._jobs = jobs
        self._index = -1
        self._offset = 0
        self.is_behind = False  # more of the log lies there than was read at once

    @property
    def process(self) -> Process:
        """Who carries the run on; nobody where nothing is waited for."""
        return self._shown.process if self._options.follow else NOBODY

    def wanted(self) -> list[Wanted]:
        """Return what is to be read: of the journal all that is new, and of the log what comes next."""
        wanted = self._shown.wanted()[:1]
        if self._index >= 0:
            name = posixpath.basename(self._logs()[self._index])
            wanted.append(Wanted(f"{self._shown.path}/logs/{name}", self._offset, _MOST_BYTES, first=True))
        return wanted

    def begin(self) -> None:
        """Read the journal, and begin with the last log; raises InputError if there is none to wait for."""
        self._shown.take(self._files.look(self).pieces)
        if self._logs():
            self._open(len(self._logs()) - 1)
        elif not self._options.follow:
            phase = self._options.phase
            what = f"phase {phase} has not been launched" if phase else "no phase has been launched"
            raise InputError(self._shown.folder, what, "wait for it with -f")

    def step(self) -> bool:
        """Write what is new; tell whether more is to come. Raises RunFailed when the run has ended so."""
        process, is_over = self.process, self._is_over()
        look = self._files.look(self)
        journal, *logs = look.pieces
        is_new = self._shown.take([journal])
        if logs and logs[0] is not None and logs[0].data:
            self._offset = logs[0].start + len(logs[0].data)
            self._lines.feed(logs[0].data)
            is_new = True
        if is_new:
            self._files.saw_news()
        self.is_behind = bool(logs) and logs[0] is not None and len(logs[0].data) == _MOST_BYTES
        if self.is_behind:
            return True
        if not self._options.follow:
            if logs and logs[0] is None:
                raise InputError(self._logs()[self._index], "no such file", "it has been removed since")
            return False
        has_next = self._index + 1 < len(self._logs())
        if is_over and has_next:  # nothing was written after it was known to be over
            self._open(self._index + 1)
        elif is_over and self._is_done():
            return False
        elif not has_next and self.process == process and not self._is_done():
            check_end_with_jobs(self._shown, look, self._jobs, is_final=self._files.is_quiet)
        return True

    def _open(self, index: int) -> None:
        self._lines.end()
        self._index, self._offset = index, 0
        self._say(f"==> {self._logs()[index]} <==")

    def _logs(self) -> list[str]:
        phase = self._options.phase
        return [log for name, log in self._shown.launches if phase in (None, name)]

    def _is_over(self) -> bool:
        """Whether the launch whose log is read has ended, and all of it is written."""
        launch = self._shown.state.launch
        return self._index < 0 or launch is None or launch.log != self._logs()[self._index]

    def _is_done(self) -> bool:
        """Whether no other launch is to come."""
        return self._shown.is_complete or self._options.phase in self._shown.state.finished


class _Lines:
    """Writes a log, or the lines of one rank."""

    def __init__(self, write: Write, rank: int | None) -> None:
        self._write, self._rank = write, rank
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take what has come; a line cut short waits for its end, or for more than any line needs."""
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if len(self._rest) > LONGEST_LINE_BYTES:
            whole, newline, self._rest = whole + newline + self._rest, b"", b""
        if self._rank is None:
            self._write(whole + newline)
            return
        for line in whole.split(b"\n"):
            rank, text = split_rank(line.decode(errors="replace"))
            if rank == self._rank:
                self._write(f"{text}\n".encode())

    def end(self) -> None:
        """Write what no line feed ends."""
        if self._rest:
            self.feed(b"\n")
