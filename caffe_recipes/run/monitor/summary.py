"""A run in numbers: its state, epochs, hours, speed, loss and accuracy; for tables, reports and programs."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from caffe_recipes.caffe.measurements import is_accuracy, is_top5
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.recipe.source import list_family_rows
from caffe_recipes.review.inspect.curves import name_logs
from caffe_recipes.run.monitor.follow import FOLLOW_ENV, FollowEnv, StatusOptions, open_runs
from caffe_recipes.run.monitor.followed_run import FollowedRun
from caffe_recipes.run.monitor.run_files import find_row_runs, find_run
from caffe_recipes.run.monitor.status import StatusEntry, find_status, find_statuses
from caffe_recipes.run.monitor.status_text import elapsed_s
from caffe_recipes.run.trainer import Training
from caffe_recipes.run_names import parse_run_name


@dataclass(frozen=True)
class RunSummary:
    """What a run has reached so far; a value is None until it is known.

    `epochs` were trained by the main phases, and `hours` is the time for which the run ran, without pauses.
    `images_per_s` is the present speed of a running phase, else the average of the finished ones. The
    accuracies are from 0 to 1. `frozen` is the recipe that the run was started with; `error` says why a run
    cannot be read.
    """

    run: str
    recipe: str
    state: str
    epochs: float | None = None
    hours: float | None = None
    images_per_s: float | None = None
    loss: float | None = None
    top1: float | None = None
    top5: float | None = None
    error: str = ""
    frozen: AnyRecipe | None = field(default=None, repr=False)
    path: str = ""


def summarize_runs(
    given: Sequence[str], options: StatusOptions, env: FollowEnv = FOLLOW_ENV
) -> list[RunSummary]:
    """Return summaries of the given runs, in that order, or without any of all runs.

    A run is given as for `attach`; the file of a family stands for the latest run of each row. Runs of one
    name, of several Caffe roots, are named by their paths. Raises InputError for a name that is not that of a
    run, and if the root does not exist.
    """
    now_s, found = time.time(), list[RunSummary]()
    for name in given:
        rows, latest = list_family_rows(name), {"": name}
        if rows is not None:
            with open_runs(options, env) as opened:
                latest = find_row_runs(opened.files, options.root, rows)
        for row, run in latest.items():
            found.append(_find(run, options, env, now_s) if run else RunSummary("", row, "not run"))
    if given:
        return _tell_apart(found)
    return [summarize_run(status, now_s) for status in find_statuses(options, env)]


def _tell_apart(runs: list[RunSummary]) -> list[RunSummary]:
    """Name runs by their paths if two of them have the same name."""
    found = [run for run in runs if run.path]
    paths = [Path(run.path) for run in found]
    if len({run.run for run in found}) == len(set(paths)):
        return runs
    names = dict(zip(paths, name_logs(paths), strict=True))
    return [replace(run, run=names[Path(run.path)]) if run.path else run for run in runs]


def _find(name: str, options: StatusOptions, env: FollowEnv, now_s: float) -> RunSummary:
    """Return the summary of one run; that of a run which exists but cannot be read holds the error."""
    try:
        return summarize_run(find_status(name, options, env), now_s)
    except InputError as error:
        with open_runs(options, env) as runs:
            path = find_run(runs.files, options.root, name)  # raises if there is no such run
        found = posixpath.basename(posixpath.normpath(path))
        recipe = (parse_run_name(found) or (found, 0))[0]
        return replace(summarize_run(StatusEntry(found, recipe, unreadable=error), now_s), path=path)


def summarize_run(status: StatusEntry, now_s: float) -> RunSummary:
    """Return the summary of a run from its status."""
    run, elapsed = status.run, elapsed_s(status, now_s)
    if run is None:
        error = str(status.unreadable) if status.unreadable else ""
        state = "unreadable" if error and status.state == "unknown" else status.state
        return RunSummary(status.name, status.recipe, state, error=error)
    progress, outputs = run.progress(), run.state.outputs or {}
    losses = [finish.loss for finish in run.state.finished.values() if finish.loss is not None]
    top1 = _pick(outputs, is_accuracy)
    return RunSummary(
        status.name,
        status.recipe,
        status.state,
        epochs=_epochs(run),
        hours=None if elapsed is None else elapsed / 3600,
        images_per_s=progress.images_per_s if progress else _average_speed(run),
        loss=progress.loss if progress else losses[-1] if losses else None,
        top1=top1 if top1 is not None or progress is None else progress.test_accuracy,
        top5=_pick(outputs, is_top5),
        frozen=run.recipe,
        path=run.path,
    )


def _pick(outputs: Mapping[str, float], is_wanted: Callable[[str], bool]) -> float | None:
    return next((value for name, value in outputs.items() if is_wanted(name)), None)


def _epochs(run: FollowedRun) -> float:
    """Return the epochs that the main phases have trained, as far as the run could be resumed or is."""
    reached = (step.images_before + images for step in run.steps for images in _trained_images(run, step))
    return max(reached, default=0) / run.recipe.train_images


def _trained_images(run: FollowedRun, step: Training) -> Iterator[int]:
    progress = run.progress()
    if not step.is_main:
        return
    if step.phase in run.state.finished:
        yield step.images
    if progress is not None and progress.phase == step.phase:
        yield progress.iteration * step.images_per_iter
    for checkpoint in run.state.checkpoints.get(step.phase, ())[-1:]:
        yield checkpoint.iteration * step.images_per_iter


def _average_speed(run: FollowedRun) -> float | None:
    """Return the images of the finished phases that have a speed, by the time that these took."""
    images = seconds = 0.0
    for step in run.steps:
        finish = run.state.finished.get(step.phase)
        if finish is not None and finish.images_per_s:
            images += step.images
            seconds += step.images / finish.images_per_s
    return images / seconds if seconds else None
