"""What trains already: nothing is tried beside it, which would cost it time, and perhaps its memory."""

from __future__ import annotations

from pathlib import Path

from caffe_recipes.chain.journal import RunState, branch_launches
from caffe_recipes.chain.lock import RecipeLock
from caffe_recipes.chain.trainer import Trainer


def describe_launch(root: Path, state: RunState) -> str:
    """Say that a run's launch, which it is to go on with, lives on this machine; else nothing."""
    own = (state.launch,) if state.launch else ()
    lives = any(Trainer(root / each.log).is_running() for each in (*own, *branch_launches(root, state)))
    return "a launch of this run is under way" if lives else ""


def describe_work(root: Path, recipe_name: str, state: RunState) -> str:
    """Say that another carries the recipe on, or what a killed run has left behind; else nothing."""
    lock = RecipeLock(root, recipe_name)
    if lock.is_carried():
        return "another run of this recipe is at work here"
    left = "the mpiexec of a killed run is still at work" if lock.is_trained() else ""
    return describe_launch(root, state) or left
