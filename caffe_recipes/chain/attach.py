"""Watching a run from anywhere: its journal and its trainer's log, read as they grow. Nothing is written.

The run's own process may be on another machine, and end without a word: that is told, and not waited for.
"""

from __future__ import annotations

import posixpath
from contextlib import ExitStack
from dataclasses import dataclass

from caffe_recipes.chain.eyes import HERE_S, THERE_S, Eyes, check_end, open_files
from caffe_recipes.chain.eyes import Means as Means
from caffe_recipes.chain.find_run import find_run, load_frozen, name_recipe, numbered_run
from caffe_recipes.chain.folder import RUNS
from caffe_recipes.chain.report import Reporter
from caffe_recipes.chain.run_files import Look, RunFiles, Wanted
from caffe_recipes.chain.shown_run import ShownRun
from caffe_recipes.chain.submitting.job_eyes import JobEyes
from caffe_recipes.chain.submitting.seen import Ask, slurm_beside
from caffe_recipes.errors import InputError, RunFailed

# No file is as long: nothing of it is read.
_BEYOND = 1 << 62


@dataclass(frozen=True)
class AttachOptions:
    """What the user says of watching besides the run; `root` is a path on the host `on`."""

    root: str = "."
    on: str | None = None
    once: bool = False


def attach(
    run: str, options: AttachOptions, reporter: Reporter, means: Means | None = None, ask: Ask | None = None
) -> None:
    """Show a run, and follow it until it is finished; with `once` only where it stands.

    `run` is its folder, its name, or its recipe, whose latest run is meant. While a job of the recipe waits
    or runs, that is told and the run waited for. Raises InputError if there is neither, and RunFailed when
    the run has failed, is interrupted, or its process is gone without a word.
    """
    means = means or Means()
    with ExitStack() as stack:
        files = open_files(options.on, means)
        stack.callback(files.close)
        stack.callback(reporter.end_progress)
        runs = posixpath.normpath(posixpath.join(options.root, RUNS))
        jobs = JobEyes(files, runs, ask or slurm_beside(files), reporter, means.clock)
        path = _find(run, options, files, jobs, means)
        if path is None:
            return
        shown = ShownRun(run, path, load_frozen(files, path), reporter)
        eyes = Eyes(files, reporter, means, options.once)
        stack.callback(eyes.close)
        # Which log there is to be read, and whose process to be asked for, the journal tells first.
        shown.take(eyes.look(shown).pieces)
        while not shown.is_complete:
            process = shown.process
            look = eyes.look(shown)
            if shown.take(look.pieces, live=not options.once):
                eyes.saw_news()
            if shown.is_complete:
                break
            if shown.process == process:
                _check_end(shown, look, jobs, is_final=options.once or eyes.is_quiet)
            if options.once:
                break
            means.pause(THERE_S if options.on else HERE_S)
        if shown.is_complete:
            shown.show_result()
            if _is_gone(files, shown.model):
                reporter.say(f"{shown.model}: the model is gone; restore it, or train again with --new")
        elif progress := shown.progress():
            reporter.show_now(progress)


def _find(run: str, options: AttachOptions, files: RunFiles, jobs: JobEyes, means: Means) -> str | None:
    """Return a run's folder, once a job has made it; None with `once` if it is still to be made."""
    while True:
        try:
            return find_run(files, options.root, run)
        except InputError:
            recipe = name_recipe(run)
            if not jobs.look(recipe):
                raise
        if not jobs.may_go_on(recipe):
            raise RunFailed(run, f"has no run: {jobs.describe(recipe)}")
        if options.once:
            return None
        means.pause(THERE_S)


def _check_end(shown: ShownRun, look: Look, jobs: JobEyes, *, is_final: bool) -> None:
    """Raise how a run has ended, unless a job goes on with it; ask Slurm of a process in a job, too."""
    recipe = shown.recipe.name
    try:
        check_end(shown, look, is_final=is_final)
    except RunFailed:
        if not jobs.may_go_on(recipe) or not _is_latest(shown, jobs):
            raise
        return
    in_job = shown.job_id is not None and look.lives is None and is_final
    if in_job and jobs.look(recipe) and not jobs.may_go_on(recipe) and _is_latest(shown, jobs):
        raise shown.failure or shown.gone()


def _is_latest(shown: ShownRun, jobs: JobEyes) -> bool:
    """Tell whether the jobs, which go on with the latest run of a recipe, go on with this one."""
    name = posixpath.basename(posixpath.normpath(shown.path))
    numbers = [found[1] for each in jobs.files.names(jobs.runs) if (found := _of_recipe(each, shown))]
    return numbered_run(name) == (shown.recipe.name, max(numbers, default=0))


def _of_recipe(name: str, shown: ShownRun) -> tuple[str, int] | None:
    found = numbered_run(name)
    return found if found and found[0] == shown.recipe.name else None


def _is_gone(files: RunFiles, path: str) -> bool:
    """Tell whether there is no such file; one that cannot be looked at may be there."""
    try:
        return files.look([Wanted(path, _BEYOND)]).pieces == (None,)
    except InputError:
        return False
