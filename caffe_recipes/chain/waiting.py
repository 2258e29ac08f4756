"""Waiting for a run that a job of Slurm's is to begin, or to go on with."""

from __future__ import annotations

import posixpath

from caffe_recipes.chain.eyes import THERE_S, Means, check_end
from caffe_recipes.chain.find_run import find_run, name_recipe, numbered_run
from caffe_recipes.chain.run_files import Look
from caffe_recipes.chain.shown_run import ShownRun
from caffe_recipes.chain.submitting.job_eyes import JobEyes
from caffe_recipes.errors import InputError, RunFailed


def wait_for_run(run: str, root: str, jobs: JobEyes, means: Means, *, once: bool) -> str | None:
    """Return a run's folder, once a job has made it; with `once` None if it is still to be made.

    Raises InputError if there is neither a run nor a job, RunFailed if the job has ended without one.
    """
    while True:
        try:
            return find_run(jobs.files, root, run)
        except InputError:
            recipe = name_recipe(run)
            if not jobs.look(recipe):
                raise
        if not jobs.may_go_on(recipe):
            raise RunFailed(run, f"has no run: {jobs.describe(recipe)}")
        if once:
            return None
        means.pause(THERE_S)


def check_end_with_jobs(shown: ShownRun, look: Look, jobs: JobEyes, *, is_final: bool) -> None:
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
