"""Where runs stand: local ones, those on other hosts, and those that are in a queue of Slurm's. Only read.

A state that cannot be asked for is unknown, and never a failure.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from caffe_recipes.chain.event_lines import is_trained
from caffe_recipes.chain.eyes import Eyes, Means, open_files
from caffe_recipes.chain.find_run import find_run, load_frozen, name_recipe, numbered_run
from caffe_recipes.chain.folder import RUNS
from caffe_recipes.chain.journal import refuse_empty
from caffe_recipes.chain.report import Reporter
from caffe_recipes.chain.run_files import HostFiles, RunFiles
from caffe_recipes.chain.shown_run import ShownRun
from caffe_recipes.chain.submitting.seen import (
    Ask,
    SeenJob,
    read_submissions,
    see_jobs,
    slurm_beside,
    submitted_by_hand,
)
from caffe_recipes.chain.submitting.submissions import SUFFIX, Submission, Submissions
from caffe_recipes.chain.trainer import Trainer
from caffe_recipes.chain.watch import Progress
from caffe_recipes.errors import CaffeRecipesError, InputError


@dataclass(frozen=True)
class StatusOptions:
    """Where the runs are; `root` is a path on the host `on`."""

    root: str = "."
    on: str | None = None


@dataclass(frozen=True)
class Standing:
    """Where a run stands, and its jobs; without a run only what was submitted of a recipe.

    `lives` tells of the run's process; None where that is not known. `spoilt` is why a run cannot be read.
    `trainer` is the process that a killed run has left training, where that can be seen from here.
    `branches` are what trains beside the main line, each as a run of its own.
    """

    name: str
    recipe: str
    run: ShownRun | None = None
    lives: bool | None = None
    jobs: tuple[SeenJob, ...] = ()
    spoilt: CaffeRecipesError | None = None
    branches: tuple[ShownRun, ...] = ()
    trainer: int | None = None

    @property
    def progress(self) -> Progress | None:
        """Where the phase is that trains, or did when the run was heard of last."""
        return self.run.progress() if self.run else None

    @property
    def state(self) -> str:
        """One word: finished, running, waiting, failed, interrupted, stopped, over or unknown."""
        standings = {job.standing for job in self.jobs}
        if self.run is not None and self.run.is_complete:
            return "finished"
        if self.lives or "running" in standings:
            return "running"
        if "waiting" in standings:
            return "waiting"
        if self.spoilt or "unknown" in standings:
            return "unknown"
        if self.run is None:
            return "over"
        if self.run.failure is not None:
            return "interrupted" if self.run.failure.what.startswith("interrupted by ") else "failed"
        return (
            "stopped" if self.lives is False or self.run.state.pid is None or self.is_job_over else "unknown"
        )

    @property
    def is_job_over(self) -> bool:
        """Whether the run's process was a job's that Slurm says is over."""
        over = [job.job_id for job in self.jobs if job.standing == "over"]
        return self.run is not None and self.run.job_id is not None and self.run.job_id in over

    @property
    def has_process(self) -> bool:
        """Whether the run's process is worth telling of: it may live, as far as is known."""
        if self.run is None or self.run.state.pid is None or self.state not in ("running", "unknown"):
            return False
        # A job that runs may not have begun to carry the run on.
        live = [job.job_id for job in self.jobs if job.is_live]
        return self.lives is not False and (not live or bool(self.lives) or self.run.job_id in live)

    @property
    def is_evaluating(self) -> bool:
        """Whether all phases are finished, and what is left is the evaluation."""
        return self.run is not None and is_trained(self.run.state, self.run.recipe)


def find_standings(
    options: StatusOptions, means: Means | None = None, ask: Ask | None = None
) -> list[Standing]:
    """Return where all runs stand: by recipe, the latest first.

    Raises InputError for a root that is not there, ClusterError for the host.
    """
    with ExitStack() as stack:
        files = open_files(options.on, means or Means())
        stack.callback(files.close)
        ask = ask or slurm_beside(files)
        runs = posixpath.normpath(posixpath.join(options.root, RUNS))
        found = [_read_run(files, f"{runs}/{name}") for name in files.names(runs)]
        submitted = {name: read_submissions(files, runs, name) for name in files.recipes(runs, SUFFIX)}
        if not found and not submitted:
            _check_root(files, options.root)
    return _join(found, submitted, ask)


def find_standing(
    run: str,
    options: StatusOptions,
    means: Means | None = None,
    ask: Ask | None = None,
    *,
    reach: bool = True,
) -> Standing:
    """Return where one run stands, given as attach is; raises InputError if there is neither it nor a job.

    The host of its process is asked, if need be and `reach`, whether that lives.
    """
    means = means or Means()
    with ExitStack() as stack:
        files = open_files(options.on, means)
        stack.callback(files.close)
        ask = ask or slurm_beside(files)
        runs = posixpath.normpath(posixpath.join(options.root, RUNS))
        recipe = name_recipe(run)
        submitted = read_submissions(files, runs, recipe)
        try:
            path = find_run(files, options.root, run)
        except InputError:
            if not submitted.all:
                raise
            return Standing(recipe, recipe, jobs=see_jobs(submitted.latest, ask))
        standing = _read_run(files, path, given=run)
        if standing.spoilt:
            raise standing.spoilt
        if not submitted.all:
            submitted = read_submissions(files, posixpath.dirname(path), standing.recipe)
        is_latest = find_run(files, options.root, standing.recipe) == path
        told = submitted.latest if is_latest or _is_of(standing, submitted.latest) else ()
        standing = _with_jobs(standing, see_jobs((*told, *_by_hand(standing, submitted)), ask))
        is_ours = any(job.submission.is_ours for job in standing.jobs)
        if reach and standing.state == "unknown" and not is_ours and standing.run is not None:
            eyes = Eyes(files, _silent(), means, once=True)
            stack.callback(eyes.close)
            eyes.look(standing.run)  # which host it is, so that the run's own can be another
            return replace(standing, lives=eyes.look(standing.run).lives)
        return standing


def _check_root(files: RunFiles, root: str) -> None:
    """Raise InputError if there is no such folder, in which there are no runs either."""
    if isinstance(files, HostFiles):
        is_there = files.there.run(["test", "-d", root]).returncode == 0
    else:
        is_there = Path(root).is_dir()
    if not is_there:
        where = f"{files.host}:{root}" if files.host else root
        raise InputError(where, "no such folder", "give the one that holds `runs` with --caffe-root")


def _read_run(files: RunFiles, path: str, given: str = "") -> Standing:
    """Read a run's files; what cannot be read is told in the standing."""
    name = posixpath.basename(path)
    found = numbered_run(name)
    recipe = found[0] if found else name
    try:
        shown = ShownRun(given or recipe, path, load_frozen(files, path), _silent())
        shown.take(files.look(shown.wanted()).pieces)
        look = files.look(shown.wanted(), shown.process)
        shown.take(look.pieces, live=False)
        branches = _read_branches(files, shown)
        if shown.last_s is None and files.recipes(f"{path}/snapshots", ".caffemodel"):
            raise refuse_empty(f"{path}/journal.jsonl")
    except CaffeRecipesError as error:
        return Standing(name, recipe, spoilt=error)
    trainer = _find_left(shown) if look.lives is False and not files.host else None
    return Standing(name, shown.recipe.name, shown, look.lives, branches=branches, trainer=trainer)


def _find_left(run: ShownRun) -> int | None:
    """Return the process that a killed run of this machine has left training, if one has outlived it."""
    launch = run.state.launch
    return Trainer(Path(run.path, "logs", posixpath.basename(launch.log))).pid() if launch else None


def _read_branches(files: RunFiles, run: ShownRun) -> tuple[ShownRun, ...]:
    """Read what of a run trains beside its main line, by its journal's word, and may train still."""
    branches = []
    for phase in run.state.branches:
        if phase not in run.state.finished:
            branch = ShownRun(run.recipe.name, f"{run.path}/branches/{phase}", run.recipe, _silent())
            for _ in ("journal", "log"):
                branch.take(files.look(branch.wanted()).pieces, live=False)
            branches.append(branch)
    return tuple(branch for branch in branches if branch.state.launch is not None)


def _join(found: Sequence[Standing], submitted: dict[str, Submissions], ask: Ask) -> list[Standing]:
    """Put jobs to the runs that they carry on, or are to; of Slurm all is asked at once."""
    joined = sorted(found, key=lambda each: (each.recipe, -_number(each.name)))
    by_hand: dict[str, tuple[Submission, ...]] = {}  # of each recipe's latest run
    for each in joined:
        by_hand.setdefault(each.recipe, _by_hand(each, submitted.get(each.recipe, Submissions())))
    groups = {recipe: submissions.latest for recipe, submissions in submitted.items()}
    everything = [each for group in (*groups.values(), *by_hand.values()) for each in group]
    seen = dict(zip(everything, see_jobs(everything, ask), strict=True))
    for recipe, own_jobs in by_hand.items():
        latest = next(index for index, each in enumerate(joined) if each.recipe == recipe)
        joined[latest] = _with_jobs(joined[latest], [seen[each] for each in own_jobs])
    for recipe, group in groups.items():
        jobs = tuple(seen[each] for each in group)
        of_recipe = [index for index, each in enumerate(joined) if each.recipe == recipe]
        own = next((index for index in of_recipe if _is_of(joined[index], group)), None)
        at = own if own is not None else next(iter(of_recipe), None)
        begins_new = at is None or (own is None and joined[at].state == "finished")
        if at is not None and not begins_new:
            joined[at] = _with_jobs(joined[at], jobs)
        elif begins_new and (at is None or any(job.standing != "over" for job in jobs)):
            place = at if at is not None else len(joined)
            joined.insert(place, Standing(recipe, recipe, jobs=jobs))
    return sorted(joined, key=lambda each: each.recipe)


def _by_hand(standing: Standing, submitted: Submissions) -> tuple[Submission, ...]:
    """Return what stands for the job of an unfinished run that a user's own sbatch has submitted."""
    run = standing.run
    if run is None or run.job_id is None or run.is_complete or run.last_s is None:
        return ()
    if any(each.job_id == run.job_id for each in submitted.all):
        return ()
    return (submitted_by_hand(standing.recipe, run.job_id, run.last_s),)


def _with_jobs(standing: Standing, jobs: Sequence[SeenJob]) -> Standing:
    """Return it with more jobs, in the order in which they were heard of.

    Of a run that has told how it ended, a Slurm that gives no answer makes nothing unknown; and once it is
    gone on with, a job that is over matters to nobody.
    """
    has_told = standing.run is not None and standing.run.failure is not None
    everything = (*standing.jobs, *jobs)
    ours = [job for job in everything if job.submission.is_ours]
    others = [job for job in everything if not job.submission.is_ours and not (job.away and has_told)]
    if any(job.is_live for job in ours):
        others = [job for job in others if job.standing != "over"]
    is_later = any(job.submission.time_s > other.submission.time_s for job in ours for other in others)
    return replace(standing, jobs=(*others, *ours) if is_later else (*ours, *others))


def _is_of(standing: Standing, submitted: Sequence[Submission]) -> bool:
    """Tell whether one of the jobs has carried the run on."""
    ids = standing.run.job_ids if standing.run else ()
    return any(each.job_id in ids for each in submitted)


def _number(name: str) -> int:
    found = numbered_run(name)
    return found[1] if found else 0


def _silent() -> Reporter:
    return Reporter(Console(quiet=True))
