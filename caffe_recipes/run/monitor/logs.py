"""`caffe-recipes logs`: the logs of a run, of all ranks or of one, printed once or followed as they grow."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from caffe_recipes.caffe.log_files import LONGEST_LINE_BYTES
from caffe_recipes.caffe.logs import split_rank
from caffe_recipes.cluster.commands import Say
from caffe_recipes.errors import InputError
from caffe_recipes.run.failures.signatures import FailureReader
from caffe_recipes.run.monitor.follow import (
    FOLLOW_ENV,
    LOCAL_POLL_S,
    REMOTE_POLL_S,
    FollowEnv,
    Follower,
    JobPoller,
    RunsFolder,
    StatusOptions,
    open_runs,
    wait_for_run,
)
from caffe_recipes.run.monitor.followed_run import FollowedRun
from caffe_recipes.run.monitor.run_files import (
    HAS_JOURNAL,
    NO_PROCESS,
    Process,
    ReadRequest,
    RunFiles,
    find_run,
    load_frozen,
    name_recipe,
)
from caffe_recipes.run.submit.submissions import (
    Submission,
    SubmittedJob,
    describe_job,
    query_jobs,
    read_submissions,
    submitted_by_hand,
)
from caffe_recipes.run_names import SUBMISSIONS, parse_run_name

Write = Callable[[bytes], object]
# At most this much of a log is read at a time.
_MOST_BYTES = 4 << 20
_LINE = re.compile(rb"[^\n]*\n")


@dataclass(frozen=True)
class LogOptions(StatusOptions):
    """Options of `logs`."""

    follow: bool = False
    phase: str | None = None
    rank: int | None = None


def show_log(
    run: str,
    options: LogOptions,
    write: Write,
    say: Say,
    env: FollowEnv = FOLLOW_ENV,
) -> None:
    """Write the log of the current launch of a run, or of its last one.

    `follow` continues until the run ends, and waits for a run that a job is going to start or resume. `say`
    gets the name of the log and everything else that is not part of it. Raises InputError if the run, the
    phase or the log does not exist, and with `follow` RunFailed as `attach` does.
    """
    with ExitStack() as stack:
        runs = stack.enter_context(open_runs(options, env))
        jobs = JobPoller(runs, say if options.follow else _keep_quiet, env.clock)
        path = wait_for_run(run, jobs, env, once=not options.follow)
        if path is None:
            raise _not_started(run, jobs)
        shown = FollowedRun(run, path, load_frozen(runs.files, path))
        _check_wanted(shown, options)
        shown.update(runs.files.read(shown.requests()).pieces)
        if options.phase in shown.state.branches:
            shown = FollowedRun(run, f"{path}/branches/{options.phase}", shown.recipe)
        files = Follower(runs.files, _keep_quiet, env, once=not options.follow)
        stack.callback(files.close)
        writer = _LogWriter(write, options.rank, say)
        stack.callback(writer.end)
        follower = _LogFollower(shown, runs.root, options, files, jobs, writer, say)
        follower.begin()
        while follower.step():
            if not follower.is_behind:
                env.pause(REMOTE_POLL_S if options.on else LOCAL_POLL_S)


def _check_wanted(shown: FollowedRun, options: LogOptions) -> None:
    """Raise InputError if the run does not have the requested rank or phase."""
    ranks, phases = shown.recipe.cluster.ranks, [step.phase for step in shown.steps]
    if options.rank is not None and options.rank >= ranks:
        valid = "only rank 0" if ranks == 1 else f"{ranks} ranks, 0 to {ranks - 1}"
        raise InputError(shown.folder, f"has no rank {options.rank}", f"it has {valid}")
    if options.phase is not None and options.phase not in phases:
        hint = f"the phases are {', '.join(phases)}; evaluations are in {shown.folder}/logs/evaluation-*.log"
        raise InputError(shown.folder, f"has no phase {options.phase!r}", hint)


def show_job_log(
    run: str,
    options: LogOptions,
    write: Write,
    say: Say,
    env: FollowEnv = FOLLOW_ENV,
) -> None:
    """Write the Slurm output file of a recipe's job; `follow` continues until Ctrl-C.

    The job is the running one, else the last that has started. Raises InputError if no job was submitted, or
    if there is no output yet.
    """
    with open_runs(options, env) as runs:
        path, where, is_own = _find_output(runs, run, options)
        say(f"==> {path} <==")
        offset = 0
        while True:
            if not is_own:
                check_below(runs.files, [runs.root], path, "another user's journal names")
            piece = runs.files.read([ReadRequest(path, offset, _MOST_BYTES, from_start=True)]).pieces[0]
            if piece is None and not options.follow:
                raise InputError(path, f"no such file: {where} has not started", "see caffe-recipes status")
            if piece is not None and piece.data:
                offset = piece.start + len(piece.data)
                write(piece.data)
                if len(piece.data) == _MOST_BYTES:
                    continue
            if not options.follow:
                return
            env.pause(REMOTE_POLL_S)


def _keep_quiet(text: str) -> None:
    """Print nothing."""


def _not_started(run: str, jobs: JobPoller) -> InputError:
    """Return the error for a run that a job has not started yet."""
    seen = next(job for job in jobs.poll(name_recipe(run)) if job.standing != "over")
    return InputError(run, f"job {seen.label} {describe_job(seen)}", "wait for its log with -f")


def check_below(files: RunFiles, folders: Sequence[str], path: str, what_names: str) -> None:
    """Raise InputError for a file in none of the folders: another user can lead us to any of ours."""
    target = files.resolve(path)
    for folder in map(files.resolve, folders):
        if folder and target and posixpath.commonpath((folder, target)) == folder:
            return
    what = f"is not shown: {what_names} it, and it is not in the Caffe root"
    raise InputError(path, what, "read it yourself if you trust its owner")


def _find_output(runs: RunsFolder, run: str, options: LogOptions) -> tuple[str, str, bool]:
    """Return the output file of a job, the name of the job for messages, and if only our journals name it.

    It is the running job, else the last that has started, else the first. With `options.phase` only the jobs
    of that phase are considered.
    """
    found = parse_run_name(posixpath.basename(run.rstrip("/")))
    names = dict.fromkeys([name_recipe(run), *([found[0]] if found else [])])
    groups = {name: read_submissions(runs.files, runs.path, name).latest for name in names}
    name, latest = next(((name, group) for name, group in groups.items() if group), ("", ()))
    own, journals = _find_own_job(runs, run), [f"{runs.path}/{name}{SUBMISSIONS}"] if latest else []
    if own is not None and all(each.job_id != own[0].job_id for each in latest):
        journals.append(own[1])
        latest = tuple(sorted((*latest, own[0]), key=lambda each: each.time_s))
    taken = [each for each in latest if each.job_id and options.phase in (None, each.phase)]
    if not taken:
        of = f" for phase {options.phase}" if options.phase else ""
        raise InputError(run, f"no job was submitted{of}", "submit one with caffe-recipes submit")
    is_own = all(map(runs.files.is_own, journals))
    if len(taken) == 1 and taken[0].output:
        return taken[0].output, f"job {taken[0].job_id}", is_own
    seen = [(_output_of(each), each) for each in query_jobs(taken, runs.ask) if _output_of(each)]
    if not seen:
        what = f"the output file of job {taken[-1].job_id} is not known to Slurm"
        raise InputError(run, what, "it is the --output of the job's sbatch command")
    pieces = runs.files.read([ReadRequest(output, max_bytes=1) for output, _ in seen]).pieces
    started = [each for each, piece in zip(seen, pieces, strict=True) if piece is not None]
    running = [each for each in seen if each[1].standing == "running"]
    path, job = [*seen[:1], *started, *running][-1]
    return path, f"job {job.job_id}", is_own


def _output_of(seen: SubmittedJob) -> str:
    """Return the output file of a job's script; empty if it is not known."""
    return seen.submission.output or (seen.job.stdout if seen.job else "")


def _find_own_job(runs: RunsFolder, run: str) -> tuple[Submission, str] | None:
    """Return a submission for the job that a run is, or was last, executed in, and the journal that names it.

    It does not matter who submitted the job.
    """
    with suppress(InputError):
        path = find_run(runs.files, runs.root, run)
        shown = FollowedRun(run, path, load_frozen(runs.files, path))
        shown.update(runs.files.read(shown.requests()[:1]).pieces)
        if shown.job_id is not None and shown.last_s is not None:
            job = submitted_by_hand(shown.recipe.name, shown.job_id, shown.last_s)
            return job, f"{path}{HAS_JOURNAL}"
    return None


class _LogFollower:
    """Reads the logs of a run's launches, one after another."""

    def __init__(
        self,
        shown: FollowedRun,
        root: str,
        options: LogOptions,
        files: Follower,
        jobs: JobPoller,
        writer: _LogWriter,
        say: Say,
    ) -> None:
        self._shown, self._options, self._files, self._jobs = shown, options, files, jobs
        self._root = root
        self._writer, self._say = writer, say
        self._index = -1
        self._offset = 0
        self.is_behind = False  # there is more of the log than was read at once

    @property
    def process(self) -> Process:
        """The process of the run; NO_PROCESS without `follow`, as nothing is waited for."""
        return self._shown.process if self._options.follow else NO_PROCESS

    def requests(self) -> list[ReadRequest]:
        """Return the files to read next: what is new in the journal, and the next part of the log."""
        requests = self._shown.requests()[:1]
        if self._index >= 0:
            requests.append(ReadRequest(self._log_path(), self._offset, _MOST_BYTES, from_start=True))
        return requests

    def begin(self) -> None:
        """Read the journal and open the last log; raises InputError if there is none and no `follow`."""
        self._shown.update(self._files.read(self).pieces)
        if self._logs():
            self._open(len(self._logs()) - 1)
        elif not self._options.follow:
            phase = self._options.phase
            what = f"phase {phase} has not been launched" if phase else "no phase has been launched"
            raise InputError(self._shown.folder, what, "wait for it with -f")

    def step(self) -> bool:
        """Write what is new; return whether more is to come. Raises RunFailed if the run has failed."""
        process, is_over = self.process, self._is_over()
        snapshot = self._files.read(self)
        journal, *logs = snapshot.pieces
        is_new = self._shown.update([journal])
        if logs and logs[0] is not None and logs[0].data:
            check_below(
                self._files.files, (self._root, self._shown.path), self._log_path(), "a link leads to"
            )
            self._offset = logs[0].start + len(logs[0].data)
            self._writer.feed(logs[0].data)
            is_new = True
        if is_new:
            self._files.saw_news()
        self.is_behind = bool(logs) and logs[0] is not None and len(logs[0].data) == _MOST_BYTES
        if self.is_behind:
            return True
        if not self._options.follow:
            if logs and logs[0] is None:
                raise InputError(self._logs()[self._index], "no such file", "it was removed after the launch")
            return False
        has_next = self._index + 1 < len(self._logs())
        if is_over and has_next:  # the launch had ended before the log was read, so the log is complete
            self._open(self._index + 1)
        elif is_over and self._is_done():
            return False
        elif not has_next and self.process == process and not self._is_done():
            self._files.check_end(self._shown, snapshot, self._jobs)
        return True

    def _open(self, index: int) -> None:
        self._writer.end()
        self._index, self._offset = index, 0
        self._say(f"==> {self._logs()[index]} <==")

    def _log_path(self) -> str:
        return f"{self._shown.path}/logs/{posixpath.basename(self._logs()[self._index])}"

    def _logs(self) -> list[str]:
        phase = self._options.phase
        return [log for name, log in self._shown.launches if phase in (None, name)]

    def _is_over(self) -> bool:
        """Return whether the launch whose log is being read has ended."""
        launch = self._shown.state.launch
        return self._index < 0 or launch is None or launch.log != self._logs()[self._index]

    def _is_done(self) -> bool:
        """Return whether no further launch is expected."""
        return self._shown.is_complete or self._options.phase in self._shown.state.finished


class _LogWriter:
    """Writes a log, or only the lines of one rank; `say` gets what explains a failure, beneath its line."""

    def __init__(self, write: Write, rank: int | None, say: Say) -> None:
        self._write, self._rank, self._say = write, rank, say
        self._rest = b""
        self._failures = FailureReader()

    def feed(self, data: bytes) -> None:
        """Write new content, holding back an incomplete line until it is complete or too long for a line."""
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if len(self._rest) > LONGEST_LINE_BYTES:
            whole, newline, self._rest = whole + newline + self._rest, b"", b""
        if self._rank is None:
            self._write_explained(whole + newline)
            return
        for line in whole.split(b"\n"):
            rank, text = split_rank(line.decode(errors="replace"))
            if rank == self._rank:
                self._write_explained(f"{text}\n".encode())

    def _write_explained(self, data: bytes) -> None:
        written = 0
        for match in _LINE.finditer(data):
            known = self._failures.feed(split_rank(match[0].decode(errors="replace"))[1].strip())
            if known is not None:
                self._write(data[written : match.end()])
                written = match.end()
                for line in known.as_lines():
                    self._say(line)
        if written < len(data):
            self._write(data[written:])

    def end(self) -> None:
        """End a log: write its last line if it does not end with a line feed."""
        if self._rest:
            self.feed(b"\n")
        self._failures = FailureReader()
