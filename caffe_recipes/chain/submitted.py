"""What a job's environment tells of the recipe that was submitted: an edit since is not trained silently."""

from __future__ import annotations

from collections.abc import Mapping

from caffe_recipes.chain.folder import digest_recipe
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import Recipe

_SUBMITTED = "CAFFE_RECIPES_SUBMITTED"


def note_submitted(recipe: Recipe, job: str) -> dict[str, str]:
    """Return what a job of that name is to have in its environment."""
    return {_SUBMITTED: f"{job} {digest_recipe(recipe)}"}


def check_submitted(recipe: Recipe, environment: Mapping[str, str]) -> None:
    """Raise InputError in a job that was submitted with another recipe than this one.

    A job that is submitted inside of another inherits what that was told, which says nothing of its own.
    """
    job, _, digest = environment.get(_SUBMITTED, "").partition(" ")
    if job and job == environment.get("SLURM_JOB_NAME") and digest != digest_recipe(recipe):
        what = "the recipe has changed since it was submitted"
        raise InputError(recipe.name, what, "submit it again, or undo that")
