"""Whether a job that goes on with a recipe's run would find something to do, and not be refused by it."""

from __future__ import annotations

from pathlib import Path

from caffe_recipes.chain.folder import describe_changes
from caffe_recipes.chain.status import Standing
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import Recipe


def check_startable(recipe: Recipe, standing: Standing | None) -> None:
    """Raise InputError where a job would find nothing to do, or what it would refuse."""
    if standing is None or standing.run is None or any(job.is_live for job in standing.jobs):
        return
    folder = standing.run.folder
    if standing.state == "finished":
        hint = "move its folder away to train another, or use caffe-recipes run --new"
        raise InputError(folder, "is finished: a job would have nothing to do", hint)
    if standing.lives:
        process = standing.run.process
        what = f"process {process.pid} on {process.node} carries this run on"
        raise InputError(folder, what, "wait for it, or stop it: caffe-recipes cancel")
    launch = standing.run.state.launch
    if launch is not None and not launch.job:  # a job's own run would refuse it, and the job would fail
        what = f"phase {launch.phase} was started on {launch.host}, and nothing tells of its end"
        raise InputError(folder, what, f"{standing.run.go_on} there; stop it once it does, and submit")
    check_unchanged(recipe, standing)


def check_unchanged(recipe: Recipe, standing: Standing | None) -> None:
    """Raise InputError for a recipe that the run, which its job is to go on with, was not started with."""
    run = standing.run if standing is not None else None
    if run is not None and not run.is_complete and (changes := describe_changes(Path(run.path), recipe)):
        hint = "undo that to go on with this run, or move its folder away to train another"
        raise InputError(run.folder, changes, hint)
