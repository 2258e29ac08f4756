"""`caffe-recipes status`: the status of runs, here and on other hosts, and of their Slurm jobs; read-only.

A state that cannot be determined is `unknown`, never a failure.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from caffe_recipes.errors import CaffeRecipesError, InputError
from caffe_recipes.limits import MOST_STATUS_RUNS, limit
from caffe_recipes.run.folded_events import is_trained
from caffe_recipes.run.journal import JOURNAL, empty_journal_error
from caffe_recipes.run.monitor.follow import FOLLOW_ENV, FollowEnv, Follower, StatusOptions, open_runs
from caffe_recipes.run.monitor.followed_run import FollowedRun, RunInterrupted
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
    Ask,
    Submission,
    Submissions,
    SubmittedJob,
    query_jobs,
    read_submissions,
    submitted_by_hand,
)
from caffe_recipes.run.trainer_log import PhaseProgress
from caffe_recipes.run_names import SUBMISSIONS, parse_run_name, sort_runs

# How many runs of a recipe are searched for an earlier speed.
_RECENT_RUNS = 10


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
        for recipe in files.names(path, SUBMISSIONS):
            try:
                submitted[recipe] = read_submissions(files, path, recipe)
            except InputError as error:
                damaged.append(StatusEntry(f"{recipe}{SUBMISSIONS}", recipe, unreadable=error))
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
