"""Fold the events of a run into its state, and say what is finished and how to go on."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.recipe.shipped import RECIPE_SUFFIXES
from caffe_recipes.review.naming import shipped_names
from caffe_recipes.run.events import Event, RunState, StateDraft
from caffe_recipes.run.trainer import Training
from caffe_recipes.run.training_plan import plan_steps


def fold_events(events: Iterable[Event], state: RunState | None = None) -> RunState:
    """Return the state after these events, starting from a state or from a new run."""
    draft = StateDraft(state or RunState())
    for event in events:
        event.fold(draft)
    return draft.freeze()


def describe_event(event: Event, recipe: AnyRecipe, folder: str) -> str:
    """Return the line that the run printed for a journaled event; empty if it printed none."""
    try:
        return event.line(recipe, folder)
    except (KeyError, TypeError, ValueError):  # the event belongs to another recipe
        return ""


def describe_finished(finished: Collection[str], recipe: AnyRecipe, folder: str) -> list[str]:
    """Return a line for each phase that was finished before the current process started."""
    return [
        f"{step.phase}: already finished; {step.fetched}"
        for step in plan_steps(recipe, folder)
        if step.phase in finished
    ]


def describe_run_command(given: str, recipe: AnyRecipe, command: str = "run") -> str:
    """Return the command that resumes a run; `given` is the name or YAML file that the user gave.

    If the recipe is not a shipped one and `given` is not its YAML file, that is looked for in this folder.
    """
    if not given.endswith(RECIPE_SUFFIXES):
        beside = (name for end in RECIPE_SUFFIXES if Path(name := f"{recipe.name}{end}").is_file())
        given = recipe.name if recipe.name in shipped_names() else next(beside, "")
    if not given:
        return f"`caffe-recipes {command}` with its recipe"
    return f"`caffe-recipes {command} {shlex.quote(given)}`"


def is_complete(state: RunState, steps: Sequence[Training]) -> bool:
    """Return whether all steps of a recipe are finished and all evaluations done."""
    tested = (step.phase for step in steps if step.is_evaluated)
    return is_trained(state, steps) and all(phase in state.evaluations for phase in tested)


def is_trained(state: RunState, steps: Sequence[Training]) -> bool:
    """Return whether these steps are finished."""
    return all(step.phase in state.finished for step in steps)
