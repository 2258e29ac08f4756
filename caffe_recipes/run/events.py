"""The lines that a run's journal comes down to, for who watches the run without being it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from caffe_recipes.recipe.graph import find_evaluated
from caffe_recipes.recipe.model import Phase, Recipe
from caffe_recipes.review.naming import shipped_names
from caffe_recipes.run.journal import RunState
from caffe_recipes.run.plan import fetched_snapshot
from caffe_recipes.units import describe_bytes, describe_duration, describe_names

Said = Mapping[str, Any]
_RESUMES = re.compile(r"--snapshot=.*_iter_([0-9]+)\.solverstate", re.DOTALL)


def describe_event(said: Said, recipe: Recipe, folder: str) -> str | None:
    """Write one event as a run does when it comes to pass; None for what a run says nothing of.

    Events of later versions, and those without what is to be said of them, are None too.
    """
    try:
        describe = _LINES.get(said["event"])
        return describe(said, recipe, folder) if describe else None
    except (KeyError, TypeError, ValueError):
        return None


def describe_before(state: RunState, recipe: Recipe, folder: str) -> list[str]:
    """Write what was finished, or left behind, before the process that carries the run on now."""
    lines = [
        f"{phase.name}: finished before; {fetched_snapshot(phase, folder)}"
        for phase in recipe.phases
        if phase.name in state.finished
    ]
    left = [f"{state.launch.phase}: going on with the trainer of a killed run"] if state.launch else []
    return lines + left


def describe_run_command(given: str, recipe: Recipe) -> str:
    """Write what goes on with a run; `given` is what its watcher called it.

    Of a recipe of the user's own the name is known, but not where its YAML is.
    """
    if given.endswith((".yaml", ".yml")) or recipe.name in shipped_names():
        name = given if given.endswith((".yaml", ".yml")) else recipe.name
        return f"`caffe-recipes run {shlex.quote(name)}`"
    return "`caffe-recipes run` with its recipe"


def is_complete(state: RunState, recipe: Recipe) -> bool:
    """Tell whether nothing is left to be done."""
    return is_trained(state, recipe) and next_evaluated(state, recipe) is None


def next_evaluated(state: RunState, recipe: Recipe) -> Phase | None:
    """Return the phase whose model is evaluated next; None if all have been."""
    return next((phase for phase in find_evaluated(recipe) if phase.name not in state.evaluations), None)


def is_trained(state: RunState, recipe: Recipe) -> bool:
    """Tell whether all phases are finished."""
    return all(phase.name in state.finished for phase in recipe.phases)


def _started(said: Said, recipe: Recipe, folder: str) -> str:
    since = datetime.fromisoformat(said["time"]).astimezone().strftime("%Y-%m-%d %H:%M")
    return f"{folder}: process {said['pid']} on {said['host']}, since {since}"


def _placed(said: Said, recipe: Recipe, folder: str) -> str:
    return f"placed {len(said['files'])} prototxts in {', '.join(recipe.prototxt_dirs)}"


def _built(said: Said, recipe: Recipe, folder: str) -> str:
    return f"built {', '.join(said['lmdbs'])}"


def _staged(said: Said, recipe: Recipe, folder: str) -> str:
    return f"staged {describe_bytes(said['bytes'])} to {said['lmdb']} on {describe_names(said['hosts'])}"


def _launched(said: Said, recipe: Recipe, folder: str) -> str:
    phase = recipe.phase(said["phase"])
    resumed = _resumed_iteration(said.get("arguments", ()))
    if resumed is not None:
        left = phase.last_iter - resumed
        return f"{phase.name}: {left:,} iterations from the checkpoint at {resumed:,}"
    start = recipe.starts_from(phase)
    weights = fetched_snapshot(start, folder, phase.weights_iter) if isinstance(start, Phase) else start
    from_what = weights or "the nets' fillers"
    return f"{phase.name}: {phase.last_iter:,} iterations from {from_what}"


def _resumed_iteration(arguments: Sequence[str]) -> int | None:
    """Return the iteration of the checkpoint that a trainer was told to resume from; None without one."""
    found = [_RESUMES.fullmatch(argument) for argument in arguments]
    return next((int(match[1]) for match in found if match), None)


def _branched(said: Said, recipe: Recipe, folder: str) -> str:
    log = f"{folder}/branches/{said['phase']}/logs"
    return f"{said['phase']}: a branch, on {describe_names(said['hosts'])}; log: {log}"


def _finished(said: Said, recipe: Recipe, folder: str) -> str:
    speed = f", {said['images_per_s']:,.0f} images/s" if said["images_per_s"] else ""
    return f"{said['phase']}: finished in {describe_duration(said['seconds'])}{speed}; {said['snapshot']}"


def _checkpointed(said: Said, recipe: Recipe, folder: str) -> str:
    return f"{said['phase']}: checkpoint at iteration {said['iteration']:,}"


def _ending(said: Said, recipe: Recipe, folder: str) -> str:
    host = f"{said['host']}: " if said["host"] else ""
    return f"{said['phase']}: {host}{said['reason']}; ending the launch on every host"


def _retrying(said: Said, recipe: Recipe, folder: str) -> str:
    return f"trying again ({said['number']} of {said['retries']})"


def _replaced(said: Said, recipe: Recipe, folder: str) -> str:
    return f"{said['spare']} takes the place of {said['host']}"


def _restored(said: Said, recipe: Recipe, folder: str) -> str:
    return f"{said['snapshot']}: was damaged; fetched again from {said['host']}"


_LINES: Mapping[str, Callable[[Said, Recipe, str], str]] = {
    "started": _started,
    "placed": _placed,
    "built": _built,
    "staged": _staged,
    "launched": _launched,
    "branched": _branched,
    "finished": _finished,
    "checkpointed": _checkpointed,
    "ending": _ending,
    "retrying": _retrying,
    "replaced": _replaced,
    "restored": _restored,
}
