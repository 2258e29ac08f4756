"""`caffe-recipes status`: the status of runs, here and on other hosts, and of their Slurm jobs; read-only.

A state that cannot be determined is `unknown`, never a failure. The status is rendered as a line, as a table,
in detail, or as JSON.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from caffe_recipes.errors import CaffeRecipesError, InputError
from caffe_recipes.limits import MOST_STATUS_RUNS, limit
from caffe_recipes.run.console import describe_results
from caffe_recipes.run.events import is_trained
from caffe_recipes.run.folders import parse_run_name, sort_runs
from caffe_recipes.run.journal import JOURNAL, empty_journal_error
from caffe_recipes.run.monitor.follow import (
    FOLLOW_ENV,
    FollowedRun,
    FollowEnv,
    Follower,
    RunInterrupted,
    StatusOptions,
    open_runs,
)
from caffe_recipes.run.monitor.leftovers import Leftovers, find_leftovers
from caffe_recipes.run.monitor.run_files import (
    HostFiles,
    RunFiles,
    find_run,
    load_frozen,
    name_recipe,
)
from caffe_recipes.run.process import TrainerProcess
from caffe_recipes.run.submit.submissions import (
    SUFFIX,
    Ask,
    Submission,
    Submissions,
    SubmittedJob,
    describe_job,
    query_jobs,
    read_submissions,
    submitted_by_hand,
)
from caffe_recipes.run.trainer_log import PhaseProgress, next_display
from caffe_recipes.run.training_plan import find_step
from caffe_recipes.units import write_clock
from caffe_recipes.wording import one_line, shorten

# How many runs of a recipe are searched for an earlier speed, and below which share of it a run is slow.
_RECENT_RUNS = 10
_SLOW = 0.8


@dataclass(frozen=True)
class StatusEntry:
    """The status of a run and its jobs; `run` is None for a recipe that was only submitted.

    `lives` says whether the run's process is alive; None if that is not known. `unreadable` is the error of a
    run, or of a file of submissions, that cannot be read. `left` is what is left of a killed run, such as its
    launcher on this machine, or ranks. `later` is the latest run of the recipe if this is an earlier one,
    which cannot be resumed. `earlier` is the name and speed, in images/s, of the last run that finished the
    current phase, if any.
    """

    name: str
    recipe: str
    run: FollowedRun | None = None
    lives: bool | None = None
    jobs: tuple[SubmittedJob, ...] = ()
    unreadable: CaffeRecipesError | None = None
    left: Leftovers | None = None
    later: str = ""
    earlier: tuple[str, float] | None = None

    @property
    def branches(self) -> tuple[FollowedRun, ...]:
        """The branches that are training, each as a run of its own."""
        beside = self.run.beside if self.run else ()
        return tuple(branch for branch in beside if branch.state.launch is not None)

    @property
    def progress(self) -> PhaseProgress | None:
        """The progress of the current phase, as of the last time that its files were read."""
        return self.run.progress() if self.run else None

    @property
    def state(self) -> str:
        """One word: finished, running, waiting, failed, interrupted, unattended, stopped, over or unknown.

        Of an unattended run, ranks train that no process follows, since it was killed.
        """
        states = {job.standing for job in self.jobs}
        if self.run is not None and self.run.is_complete:
            return "finished"
        if self.lives or "running" in states:
            return "running"
        if "waiting" in states:
            return "waiting"
        if self.unreadable or "unknown" in states:
            return "unknown"
        if self.run is None:
            return "over"
        if self.left and self.left.trains:
            return "unattended"
        if self.run.failure is not None:
            return "interrupted" if isinstance(self.run.failure, RunInterrupted) else "failed"
        return (
            "stopped" if self.lives is False or self.run.state.pid is None or self.is_job_over else "unknown"
        )

    @property
    def is_job_over(self) -> bool:
        """Whether the run's process was in a job that is over according to Slurm."""
        over = [job.job_id for job in self.jobs if job.standing == "over"]
        return self.run is not None and self.run.job_id is not None and self.run.job_id in over

    @property
    def has_process(self) -> bool:
        """Whether the run's process should be reported, because it may be alive."""
        if self.run is None or self.run.state.pid is None or self.state not in ("running", "unknown"):
            return False
        # A running job may not have started its run yet.
        live = [job.job_id for job in self.jobs if job.is_live]
        return self.lives is not False and (not live or bool(self.lives) or self.run.job_id in live)

    @property
    def is_renamed(self) -> bool:
        """Whether the run's folder was renamed, so that no command resumes it."""
        return self.run is not None and self.run.is_renamed

    @property
    def is_evaluating(self) -> bool:
        """Whether all phases are finished and only the evaluation remains."""
        return self.run is not None and is_trained(self.run.state, self.run.steps)


def find_statuses(options: StatusOptions, env: FollowEnv = FOLLOW_ENV) -> list[StatusEntry]:
    """Return the status of all runs, sorted by recipe, the latest run first.

    Raises InputError if the root does not exist, and ClusterError if the host fails.
    """
    with open_runs(options, env) as runs:
        files, path = runs.files, runs.path
        read = _read_runs(files, path)
        found = _with_leftovers(read, files, env)
        submitted, damaged = dict[str, Submissions](), list[StatusEntry]()
        for recipe in files.names(path, SUFFIX):
            try:
                submitted[recipe] = read_submissions(files, path, recipe)
            except InputError as error:
                damaged.append(StatusEntry(f"{recipe}{SUFFIX}", recipe, unreadable=error))
        if not found and not submitted and not damaged:
            _check_root(files, options.root)
        return sorted([*_join(found, submitted, files, runs.ask), *damaged], key=lambda each: each.recipe)


def find_status(
    run: str, options: StatusOptions, env: FollowEnv = FOLLOW_ENV, *, reach: bool = True
) -> StatusEntry:
    """Return the status of one run, given as for `attach`; raises InputError if there is no run and no job.

    With `reach`, the host of its process is asked whether the process is alive if that is not known.
    """
    with ExitStack() as stack:
        runs = stack.enter_context(open_runs(options, env))
        files, recipe = runs.files, name_recipe(run)
        submitted = read_submissions(files, runs.path, recipe)
        try:
            path = find_run(files, options.root, run)
        except InputError:
            if not submitted.all:
                raise
            return StatusEntry(recipe, recipe, jobs=query_jobs(submitted.latest, runs.ask))
        status = _read_run(files, path, given=run)
        if status.unreadable:
            raise status.unreadable
        if not submitted.all:
            submitted = read_submissions(files, posixpath.dirname(path), status.recipe)
        newest = sort_runs(files.names(posixpath.dirname(path)), status.recipe)[-1:]
        is_latest = newest == [status.name]
        status = replace(
            status,
            later="" if is_latest else "".join(newest),
            earlier=_find_earlier(files, runs.path, status),
        )
        latest = submitted.latest if is_latest or _is_of(status, submitted.latest) else ()
        status = _with_jobs(status, query_jobs((*latest, *_by_hand(status, submitted, files)), runs.ask))
        is_ours = any(job.submission.is_ours for job in status.jobs)
        if reach and status.state == "unknown" and not is_ours and status.run is not None:
            follower = Follower(files, status.run.reporter.say, env, once=True)
            stack.callback(follower.close)
            # The first read finds the name of the files' host; the second asks the process's host if another.
            follower.read(status.run)
            status = replace(status, lives=follower.read(status.run).lives)
        (status,) = _with_leftovers([status], files, env) if reach else [status]
        return status


def _find_earlier(files: RunFiles, runs: str, status: StatusEntry) -> tuple[str, float] | None:
    """Return the name and speed of the last earlier run that finished the phase which this run trains."""
    progress = status.progress
    if progress is None:
        return None
    names = sort_runs(files.names(runs), status.recipe)
    earlier = names[: names.index(status.name)] if status.name in names else []
    for name in reversed(earlier[-_RECENT_RUNS:]):
        other = _read_run(files, f"{runs}/{name}").run
        finish = other.state.finished.get(progress.phase) if other else None
        if finish is not None and finish.images_per_s:
            return name, finish.images_per_s
    return None


def _check_root(files: RunFiles, root: str) -> None:
    """Raise InputError if the Caffe root does not exist."""
    if isinstance(files, HostFiles):
        exists = files.remote.run(["test", "-d", root]).returncode == 0
    else:
        exists = Path(root).is_dir()
    if not exists:
        where = f"{files.host}:{root}" if files.host else root
        raise InputError(where, "no such folder", "give the one that contains `runs` with --caffe-root")


def _read_runs(files: RunFiles, runs: str) -> list[StatusEntry]:
    """Return the status of each run, the latest of each recipe first, while they are within the limits."""
    names = sorted(files.names(runs), key=lambda name: -(parse_run_name(name) or ("", 0))[1])
    found, left_bytes = list[StatusEntry](), limit("journal-bytes")
    for name in names:
        if len(found) < MOST_STATUS_RUNS and left_bytes > 0:
            found.append(_read_run(files, f"{runs}/{name}"))
            left_bytes -= _size_of(found[-1], "" if files.host else f"{runs}/{name}/{JOURNAL}")
            continue
        recipe = (parse_run_name(name) or (name, 0))[0]
        what = f"is not read, since there are over {MOST_STATUS_RUNS:,} runs, or their journals are long"
        error = InputError(f"{runs}/{name}", what, f"give it alone: caffe-recipes status {name}")
        found.append(StatusEntry(name, recipe, unreadable=error))
    return found


def _size_of(status: StatusEntry, journal: str) -> int:
    """Return the bytes of the journal that were read; `journal` is its path if it is on this machine."""
    if journal:
        with suppress(OSError):
            return Path(journal).stat().st_size
    return status.run.requests()[0].start if status.run else 0


def _read_run(files: RunFiles, path: str, given: str = "") -> StatusEntry:
    """Return the status of a run from its files; an error is kept in the status."""
    name = posixpath.basename(path)
    found = parse_run_name(name)
    recipe = found[0] if found else name
    try:
        shown = FollowedRun(given or recipe, path, load_frozen(files, path), with_branches=True)
        shown.update(files.read(shown.requests()).pieces)
        snapshot = files.read(shown.requests(), shown.process)
        shown.update(snapshot.pieces, live=False)
        if shown.beside:  # each has its own journal, which names its log
            shown.update(files.read(shown.requests()).pieces, live=False)
        if shown.last_s is None:
            raise empty_journal_error(f"{path}/{JOURNAL}")
    except CaffeRecipesError as error:
        return StatusEntry(name, recipe, unreadable=error)
    left = _find_orphan(shown) if snapshot.lives is False and not files.host else None
    return StatusEntry(name, shown.recipe.name, shown, snapshot.lives, left=left)


def _find_orphan(run: FollowedRun) -> Leftovers | None:
    """Return the launcher that has outlived its run on this machine; None without one."""
    launch = run.state.launch
    pid = TrainerProcess(Path(run.path, "logs", posixpath.basename(launch.log))).pid() if launch else None
    return None if pid is None else Leftovers(f"process {pid} of a killed run is still training", True)


def _with_leftovers(statuses: Sequence[StatusEntry], files: RunFiles, env: FollowEnv) -> list[StatusEntry]:
    """Return the statuses with the ranks that are left of killed runs; all hosts are asked at once."""
    killed = [each.run for each in statuses if each.run and each.lives is False and not each.run.is_complete]
    found = find_leftovers((each for run in killed for each in (run, *run.beside)), files, env.connect)
    return [replace(each, left=_join_leftovers(each, found)) for each in statuses]


def _join_leftovers(status: StatusEntry, found: Mapping[str, Leftovers]) -> Leftovers | None:
    """Return all that is left of a run and its branches; None if nothing is."""
    runs = (status.run, *status.run.beside) if status.run else ()
    left = [*filter(None, [status.left]), *(found[run.path] for run in runs if run.path in found)]
    if not left:
        return None
    return Leftovers("; ".join(each.text for each in left), any(each.trains for each in left))


def _join(
    found: Sequence[StatusEntry], submitted: dict[str, Submissions], files: RunFiles, ask: Ask
) -> list[StatusEntry]:
    """Add the jobs to the runs that they started, resumed, or are going to; Slurm is asked once for all."""
    joined = sorted(found, key=lambda each: (each.recipe, -_number(each)))
    for index, (newer, older) in enumerate(pairwise(joined), start=1):
        if newer.recipe == older.recipe:
            later = joined[index - 1].later or ("" if newer.is_renamed else newer.name)
            joined[index] = replace(older, later=later)
    by_hand: dict[str, tuple[Submission, ...]] = {}  # for the latest run of each recipe
    for each in joined:
        by_hand.setdefault(each.recipe, _by_hand(each, submitted.get(each.recipe, Submissions()), files))
    groups = {recipe: submissions.latest for recipe, submissions in submitted.items()}
    everything = [each for group in (*groups.values(), *by_hand.values()) for each in group]
    seen = dict(zip(everything, query_jobs(everything, ask), strict=True))
    for recipe, own_jobs in by_hand.items():
        latest = next(index for index, each in enumerate(joined) if each.recipe == recipe)
        joined[latest] = _with_jobs(joined[latest], [seen[each] for each in own_jobs])
    for recipe, group in groups.items():
        jobs = tuple(seen[each] for each in group)
        of_recipe = [index for index, each in enumerate(joined) if each.recipe == recipe]
        own = next((index for index in of_recipe if _is_of(joined[index], group)), None)
        resumable = (index for index in of_recipe if not joined[index].is_renamed)
        at = own if own is not None else next(resumable, None)
        begins_new = at is None or (own is None and joined[at].state == "finished")
        if at is not None and not begins_new:
            joined[at] = _with_jobs(joined[at], jobs)
        elif begins_new and (at is None or any(job.standing != "over" for job in jobs)):
            place = at if at is not None else len(joined)
            joined.insert(place, StatusEntry(recipe, recipe, jobs=jobs))
    return sorted(joined, key=lambda each: each.recipe)


def _by_hand(status: StatusEntry, submitted: Submissions, files: RunFiles) -> tuple[Submission, ...]:
    """Return a submission for the job of an unfinished run if the user submitted that with sbatch."""
    run = status.run
    if run is None or run.job_id is None or run.is_complete or run.last_s is None:
        return ()
    if any(each.job_id == run.job_id for each in submitted.all):
        return ()
    by_hand = submitted_by_hand(status.recipe, run.job_id, run.last_s)
    return (replace(by_hand, is_foreign=not files.is_own(f"{run.path}/{JOURNAL}")),)


def _with_jobs(status: StatusEntry, jobs: Sequence[SubmittedJob]) -> StatusEntry:
    """Return a status with more jobs, in the order of their submission.

    If the end of the run is journaled, jobs by sbatch that Slurm gives no answer for are dropped, so that
    they do not make the state unknown. Those that are over are dropped once another job is going to resume
    the run.
    """
    has_ended = status.run is not None and status.run.failure is not None
    everything = (*status.jobs, *jobs)
    ours = [job for job in everything if job.submission.is_ours]
    others = [job for job in everything if not job.submission.is_ours and not (job.away and has_ended)]
    if any(job.is_live for job in ours):
        others = [job for job in others if job.standing != "over"]
    is_later = any(job.submission.time_s > other.submission.time_s for job in ours for other in others)
    return replace(status, jobs=(*others, *ours) if is_later else (*ours, *others))


def _is_of(status: StatusEntry, submitted: Sequence[Submission]) -> bool:
    """Return whether the run was started or resumed by one of the jobs."""
    ids = status.run.job_ids if status.run else ()
    return any(each.job_id in ids for each in submitted)


def _number(status: StatusEntry) -> int:
    found = parse_run_name(status.name)
    return found[1] if found and not status.is_renamed else 0


def summarize_status(status: StatusEntry) -> str:
    """Return one line about a run, to follow its name and its state."""
    run = status.run
    if status.unreadable is not None:
        return str(status.unreadable)
    jobs = [f"job {job.label} {_describe_seen(status, job)}" for job in _shown_jobs(status)]
    if run is None:
        return "; ".join(jobs)
    if status.state == "finished":
        between = "; " if len(run.state.evaluations) > 1 else ", "
        return between.join(describe_results(run.recipe, run.state).values()) or "all phases are finished"
    if status.state in ("running", "unknown"):
        branches = [f"in parallel {_describe_work(branch, status)}" for branch in status.branches]
        return "; ".join([_describe_work(run, status), *branches, *(jobs or [_describe_process(status)])])
    if status.state == "waiting":
        return "; ".join(jobs)
    if run.failure is None:
        return "; ".join([*jobs, *_describe_left(status), _resume_hint(run, status)])
    failure = run.failure
    if isinstance(failure, RunInterrupted):
        failure = failure.reworded(hint=_resume_hint(run, status))
    return "; ".join([*jobs, str(failure)])


# The columns of the table of runs, and those that are dropped on a narrow terminal, in this order.
_COLUMNS = ("run", "state", "phase", "reached", "started", "elapsed", "left", "result")
_DROPPED = ("started", "reached", "elapsed", "left", "phase")
_NUMBERS = ("reached", "elapsed", "left")
# The width to keep for the result before other columns are dropped.
_RESULT_WIDTH = 13
_STYLES = {
    "finished": "green",
    "running": "cyan",
    "waiting": "blue",
    "failed": "red",
    "interrupted": "yellow",
    "stopped": "yellow",
    "unattended": "magenta",
    "unknown": "magenta",
}


def status_table(
    statuses: Sequence[StatusEntry], now_s: float, width: int | None = None
) -> list[list[tuple[str, str]]]:
    """Return a header and a line for each run, the newest first, as pieces of text with their styles.

    With `width` the lines fit a terminal: less important columns are dropped, and a long result is truncated.
    """
    newest = sorted(statuses, key=lambda each: -(_started_s(each) or now_s))
    rows = [_COLUMNS, *(_row(each, now_s) for each in newest)]
    widths = {name: max(len(row[index]) for row in rows) for index, name in enumerate(_COLUMNS)}
    shown = [
        name for name in _COLUMNS if name == "result" or any(row[_COLUMNS.index(name)] for row in rows[1:])
    ]
    for name in _DROPPED if width is not None else ():
        if sum(widths[each] + 2 for each in shown[:-1]) + min(_RESULT_WIDTH, widths["result"]) <= (
            width or 0
        ):
            break
        shown = [each for each in shown if each != name]
    lines = []
    for number, row in enumerate(rows):
        pieces: list[tuple[str, str]] = []
        for name in shown[:-1]:
            text, wide = row[_COLUMNS.index(name)], widths[name]
            padded = text.rjust(wide) if name in _NUMBERS else text.ljust(wide)
            style = "bold" if number == 0 else _STYLES.get(text, "") if name == "state" else ""
            pieces += [(padded, style), ("  ", "")]
        room = len(row[-1]) if width is None else max(0, width - sum(len(text) for text, _ in pieces))
        pieces.append((shorten(row[-1], room), "" if number else "bold"))
        lines.append(pieces)
    return lines


def _row(status: StatusEntry, now_s: float) -> tuple[str, ...]:
    """Return the cells of a run's line in the table."""
    run, progress = status.run, status.progress
    started_s, left_s = _started_s(status), _left_s(status)
    elapsed_s = _elapsed_s(status, now_s)
    reached = ""
    if progress is not None and status.state == "running":
        reached = f"{progress.iteration}/{progress.last_iter}"
    elif run is not None and status.state != "finished":
        reached = _reached(run, progress)
    cells = (
        status.name,
        status.state,
        _phase_of(run),
        reached,
        _local_time(started_s) if started_s is not None else "",
        write_clock(elapsed_s) if elapsed_s is not None else "",
        write_clock(left_s) if left_s is not None else "",
        _result(status),
    )
    return tuple(map(one_line, cells))


def _phase_of(run: FollowedRun | None) -> str:
    """Return the number and name of the current phase, or of the next one; "" once all are finished."""
    if run is None or run.is_complete:
        return ""
    names = [step.phase for step in run.steps]
    launched = run.state.launch.phase if run.state.launch else None
    left = [launched] if launched in names else [name for name in names if name not in run.state.finished]
    return f"{names.index(left[0]) + 1}/{len(names)} {left[0]}" if left and left[0] else "evaluation"


def _reached(run: FollowedRun, progress: PhaseProgress | None) -> str:
    """Return the checkpoint that an unfinished phase resumes from, else the iteration that it reached."""
    newest = [kept[-1].iteration for phase, kept in run.state.checkpoints.items() if kept]
    if newest:
        return f"checkpoint {newest[-1]}"
    return f"{progress.iteration}/{progress.last_iter}" if progress is not None else ""


def _started_s(status: StatusEntry) -> float | None:
    """Return the time at which a run was started, or its first job was submitted."""
    if status.run is not None:
        return status.run.first_s
    return min((job.submission.time_s for job in status.jobs if job.submission.time_s), default=None)


def _elapsed_s(status: StatusEntry, now_s: float) -> float | None:
    """Return for how many seconds a run has run, without pauses, until now or its last known event."""
    run = status.run
    if run is None or run.last_s is None:
        return None
    is_running = status.state == "running" and status.has_process
    return run.ran_s + (max(0.0, now_s - run.last_s) if is_running else 0.0)


def _left_s(status: StatusEntry) -> float | None:
    progress = status.progress
    return progress.chain_left_s if progress is not None and status.state == "running" else None


def _result(status: StatusEntry) -> str:
    """Return the most important fact about a run: its accuracy, its loss, or why it is not running."""
    run, progress = status.run, status.progress
    if run is not None and status.state == "finished":
        found = describe_results(run.recipe, run.state)
        first = next(iter(found.values()), "all phases finished")
        return next((line for name, line in found.items() if "top-1" in name), first)
    if run is not None and status.state == "running":
        if progress is not None and progress.loss is not None:
            return f"loss {progress.loss:#.4g}"
        return "evaluating" if status.is_evaluating else "preparing"
    if run is not None and status.state == "failed" and run.failure is not None:
        return run.failure.without_hint
    if status.state == "unattended" and status.left is not None:
        return status.left.text
    if status.state in ("interrupted", "stopped"):
        again = "renamed; not resumed" if status.is_renamed else "run again to resume"
        return f"superseded by {status.later}" if status.later else again
    return summarize_status(status)


def status_details(status: StatusEntry, now_s: float) -> Iterator[tuple[str, str]]:
    """Yield everything that is known about a run, as pairs of a label and a text."""
    run, progress = status.run, status.progress
    yield "state", status.state
    if (started_s := _started_s(status)) is not None:
        yield "started", _local_time(started_s)
    if (elapsed_s := _elapsed_s(status, now_s)) is not None:
        yield "elapsed", write_clock(elapsed_s)
    if run is not None and status.state in ("running", "unknown"):
        yield "phase", _describe_phase(run, status)
    elif run is not None and status.state != "finished":
        yield "phase", "  ".join(filter(None, (_phase_of(run), _reached(run, progress))))
    if run is not None and status.state in ("running", "unknown"):
        for branch in status.branches:
            yield "branch", _describe_phase(branch, status)
    if run is not None and progress is not None:
        yield from _describe_rate(run, progress, status.earlier)
    for finish in run.state.finished.values() if run else ():
        loss = f", loss {finish.loss:.4g}" if finish.loss is not None else ""
        yield finish.phase, f"{finish.describe()}{loss}"
    for line in describe_results(run.recipe, run.state).values() if run else ():
        yield "result", line
    for job in status.jobs:
        yield "job", f"{job.label} {_describe_seen(status, job)}"
    if run is not None:
        for line in _describe_left(status):
            yield "trainer", line
        if status.has_process:
            yield "process", _describe_process(status).removeprefix("process ")
        failure = _describe_failure(run)
        if failure and status.state != "finished":
            name = "stopped" if isinstance(run.last_failure, RunInterrupted) else "failure"
            yield "before" if _is_past(status) else name, failure
            if run.cause:
                yield "cause", run.cause
        if run.launches:
            yield "log", run.launches[-1][1]
        for branch in status.branches:
            yield "log", branch.launches[-1][1]
        if status.state == "finished":
            for model in run.models:
                yield "model", model
        elif status.state in ("failed", "interrupted", "unattended", "stopped"):
            yield "next", _resume_hint(run, status)


def status_as_json(status: StatusEntry) -> dict[str, Any]:
    """Return the status of a run as JSON values; the keys name the units, and times are in UTC."""
    run, progress = status.run, status.progress
    return {
        "run": status.name if run or status.unreadable else None,
        "recipe": status.recipe,
        "state": status.state,
        "said": summarize_status(status),
        "time": _utc(run.last_s) if run and run.last_s is not None else None,
        "progress": progress.as_json() | {"s_per_iter": _iteration_s(run, progress)}
        if run and progress
        else None,
        "beside": [
            {"phase": phase, "log": log, "progress": progress.as_json() if progress else None}
            for branch in status.branches
            for (phase, log), progress in [(branch.launches[-1], branch.progress())]
        ],
        "phases": [asdict(finish) for finish in run.state.finished.values()] if run else [],
        "outputs": dict(run.state.outputs) if run and run.state.outputs else None,
        "evaluations": {phase: dict(each) for phase, each in run.state.evaluations.items()} if run else {},
        "process": {"pid": run.state.pid, "host": run.state.host, "lives": status.lives}
        if run and run.state.pid is not None
        else None,
        "jobs": [
            {
                "job": job.job_id,
                "name": job.submission.name,
                "phase": job.submission.phase,
                "state": job.job.state.value if job.job else None,
                "standing": job.standing,
                "said": _describe_seen(status, job),
            }
            for job in status.jobs
        ],
        "failure": _describe_failure(run) if run else None,
        "log": run.launches[-1][1] if run and run.launches else None,
    }


def _resume_hint(run: FollowedRun, status: StatusEntry) -> str:
    """Return the hint that resumes a run the way it was started: on this machine, or in a job."""
    if status.later:
        return f"superseded by {status.later}; only the latest run of a recipe is resumed"
    resumes = run.resume_hint("submit" if status.jobs else "run")
    return f"first, {run.change}; then {resumes}" if run.change else resumes


def _describe_left(status: StatusEntry) -> list[str]:
    """Return a line about what is left of a killed run, if anything; a resumed run adopts or ends it."""
    return [status.left.text] if status.left else []


def _is_past(status: StatusEntry) -> bool:
    """Return whether the run has been resumed after its last failure, or a job is about to resume it."""
    run = status.run
    return run is not None and (run.failure is None or status.state in ("running", "waiting"))


def _describe_failure(run: FollowedRun) -> str | None:
    """Return the last failure of the run, without the hint that resumes it; None without a failure."""
    failure = run.last_failure
    if failure is None:
        return None
    return failure.what if isinstance(failure, RunInterrupted) else str(failure)


def _describe_work(run: FollowedRun, status: StatusEntry) -> str:
    """Return what a run or a branch is doing, in a few words."""
    progress = run.progress()
    if progress is None:
        return _describe_phase(run, status)
    place = f"{progress.phase} {progress.iteration:,}/{progress.last_iter:,}"
    return ", ".join([place, *progress.timing, *filter(None, [progress.waits_for])])


def _describe_phase(run: FollowedRun, status: StatusEntry) -> str:
    progress = run.progress()
    if run.state.launch is None:
        return "evaluating" if status.is_evaluating else "preparing"
    name = run.state.launch.phase
    names = [step.phase for step in run.steps]
    place = f" ({names.index(name) + 1} of {len(names)})" if name in names else ""
    if progress is None:
        step = find_step(run.recipe, name) if name in names else None
        at = step and next_display(run.state.launch.resumed or 0, step.display_iter, step.last_iter)
        return f"{name}{place}: no iteration yet" + (f"; first loss at iteration {at:,}" if at else "")
    loss = f", loss {progress.loss:.4g}" if progress.loss is not None else ""
    rate = f", lr {progress.rate:.5g}" if progress.rate is not None else ""
    waits = f"; {progress.waits_for}" if progress.waits_for else ""
    return f"{name}{place}: iteration {progress.iteration:,} of {progress.last_iter:,}{rate}{loss}{waits}"


def _describe_rate(
    run: FollowedRun, progress: PhaseProgress, earlier: tuple[str, float] | None
) -> Iterator[tuple[str, str]]:
    iteration_s = _iteration_s(run, progress)
    if progress.images_per_s is not None and iteration_s is not None:
        speed = f"{progress.images_per_s:,.0f} images/s, {iteration_s:.3g} s per iteration"
        is_slow = earlier is not None and progress.images_per_s < _SLOW * earlier[1]
        yield (
            "rate",
            f"{speed}; {earlier[0]} had {earlier[1]:,.0f} images/s" if earlier and is_slow else speed,
        )
    if progress.waited is not None:
        yield "waited", progress.waited
    if progress.phase_left_s is not None and progress.chain_left_s is not None:
        phase, chain = write_clock(progress.phase_left_s), write_clock(progress.chain_left_s)
        yield "left", f"phase {phase}, run {chain}"


def _iteration_s(run: FollowedRun, progress: PhaseProgress) -> float | None:
    """Return the seconds per iteration; None if the speed is not known."""
    if not progress.images_per_s:
        return None
    return find_step(run.recipe, progress.phase).images_per_iter / progress.images_per_s


def _describe_process(status: StatusEntry) -> str:
    run = status.run
    if run is None or run.state.pid is None:
        return "no process"
    name = f"process {run.state.pid} on {run.state.host}"
    if status.lives is not None:
        return name if status.lives else f"{name}, which has ended"
    if status.state in ("running", "finished"):
        return name
    seen = f", last seen at {_local_time(run.last_s)}" if run.last_s is not None else ""
    return f"{name}{seen}; cannot tell whether it is alive"


def _shown_jobs(status: StatusEntry) -> list[SubmittedJob]:
    """Return the job to show on a line: the first that is not over, else the last."""
    live = [job for job in status.jobs if job.standing != "over"]
    return live[:1] or list(status.jobs[-1:])


def _describe_seen(status: StatusEntry, job: SubmittedJob) -> str:
    """Return the state of a job, or since when it is not known because Slurm gives no answer."""
    run = status.run
    if run is not None and run.last_s is not None and run.last_s > job.submission.time_s:
        return describe_job(job, run.last_s, "the last event of the run")
    return describe_job(job)


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _local_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")
