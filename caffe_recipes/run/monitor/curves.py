"""The curve of a run: its journal says which logs are its launches', and where each begins."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from caffe_recipes.caffe.measurements import MeasuredLog, Measurement
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.review.inspect.curves import (
    EVALUATION,
    Piece,
    TrainingCurve,
    leave_out_retrained,
    load_pieces,
)
from caffe_recipes.review.inspect.training_logs import load_measurements
from caffe_recipes.run.events import Branched, Evaluated, Event, Launch
from caffe_recipes.run.folders import RECIPE_JSON
from caffe_recipes.run.journal import JOURNAL, read_events
from caffe_recipes.run.monitor.logs import check_below
from caffe_recipes.run.monitor.run_files import LocalFiles, ReadRequest, find_run, load_frozen
from caffe_recipes.run.trainer import Training
from caffe_recipes.run.training_plan import plan_steps
from caffe_recipes.run_names import RUNS


def is_run(name: str, root: str) -> bool:
    """Return whether a name is that of a run, or a folder that is one or what is left of one."""
    return any(
        os.path.exists(posixpath.join(folder, file))  # noqa: PTH110 - Path.exists raises if a name is too long
        for folder in (name, posixpath.join(root, RUNS, name))
        for file in (JOURNAL, RECIPE_JSON)
    )


def load_run_curve(given: str, root: str) -> TrainingCurve:
    """Return the curve of a run's main line, whose branches are left out.

    `given` is the folder of the run, or its name; a folder may lack a journal of its own, or a `recipe.json`.
    Raises InputError if the run does not exist, cannot be read or has measured nothing yet, and JournalError
    if its journal is damaged.
    """
    return next(load_run_curves(given, root))


def load_run_curves(given: str, root: str) -> Iterator[TrainingCurve]:
    """Yield the curve of a run's main line, then that of each branch; raises errors as load_run_curve."""
    files = LocalFiles()
    main, *branches = _load_parts(given, root, files)
    curve = load_launches_curve(*main, files, root)
    if curve is None:
        raise _without_loss(main[0])
    yield curve
    for folder, recipe, own in branches:
        evaluated = [event for event in main[2] if isinstance(event, Evaluated)]
        branch = load_launches_curve(folder, recipe, [*own, *evaluated], files, root)
        if branch is not None:
            yield branch


def find_run_logs(given: str, root: str) -> list[Path]:
    """Return the logs of a run's launches and evaluations, in their order, then those of each branch.

    Raises InputError if the run does not exist, cannot be read or has none, and JournalError as for curves.
    """
    files, logs = LocalFiles(), list[Path]()
    parts = _load_parts(given, root, files)
    for folder, _, events in parts:
        found = (
            _find_log(folder, event, files, root) for event in events if isinstance(event, Launch | Evaluated)
        )
        logs += dict.fromkeys(log for log in found if log is not None)
    if not logs:
        raise InputError(parts[0][0], "has no log yet", "wait for its first launch; `status` shows its state")
    return logs


def find_measured_logs(given: str, root: str) -> list[Path]:
    """Return those of a run's logs that show a measurement; raises errors as load_run_curve."""
    logs = [log for log in find_run_logs(given, root) if _is_measured(log)]
    if not logs:
        raise _without_loss(given)
    return logs


def _is_measured(log: Path) -> bool:
    try:
        return any(load_measurements(log, MeasuredLog()))
    except InputError:  # it ended before its first loss
        return False


def _load_parts(given: str, root: str, files: LocalFiles) -> list[tuple[str, AnyRecipe, list[Event]]]:
    """Return the folder, the recipe and the events of a run, and of each of its branches."""
    path = given if Path(given, RECIPE_JSON).exists() else find_run(files, root, given)
    recipe = load_frozen(files, path)
    events = _read_journal(path, files)
    if events is None:
        raise InputError(path, "has no journal", "give the folder of a run, or its logs")
    phases = {step.phase for step in plan_steps(recipe)}  # the journal may name anything
    begun = dict.fromkeys(event.phase for event in events if isinstance(event, Branched))
    folders = [f"{path}/branches/{phase}" for phase in begun if phase in phases]
    # The run may have died before a branch had a journal.
    return [(path, recipe, events), *((each, recipe, _read_journal(each, files) or []) for each in folders)]


def _find_log(path: str, launch: Launch | Evaluated, files: LocalFiles, root: str) -> Path | None:
    """Return the log of a launch or evaluation of the run in the folder `path`; None if it does not exist."""
    log = Path(path, "logs", posixpath.basename(launch.log))
    if not log.exists():
        return None
    check_below(files, (root, path), str(log), "a link leads to")
    return log


def _without_loss(path: str) -> InputError:
    hint = "wait for its first loss, which `caffe-recipes attach` shows; if it is finished, restore its logs"
    return InputError(path, "shows no loss", hint)


def _read_journal(path: str, files: LocalFiles) -> list[Event] | None:
    """Return the events of a run or branch; None if it has no journal."""
    journal = files.read([ReadRequest(f"{path}/{JOURNAL}")]).pieces[0]
    if journal is None:
        return None
    events = read_events(journal.data.decode(errors="replace"), f"{path}/{JOURNAL}", is_start=True)
    return [event for _, event in events]


def load_launches_curve(
    path: str, recipe: AnyRecipe, events: Sequence[Event], files: LocalFiles, root: str
) -> TrainingCurve | None:
    """Return the curve of the launches among some events of the run in the folder `path`.

    Where a model was evaluated, its phase ends with the results. None is returned if no launch shows a loss.
    """
    launches = [event for event in events if isinstance(event, Launch)]
    pieces = list(_load_launches(path, recipe, launches, files, root))
    if not pieces:
        return None
    for before, piece in pairwise(pieces):
        piece.is_restart = piece.name == before.name
    leave_out_retrained(pieces)
    for event in events:
        if isinstance(event, Evaluated):
            _add_evaluation(pieces, event)
    reported = recipe.reported
    top1 = reported.top1_percent / 100 if reported.top1_percent else None
    name = posixpath.basename(posixpath.abspath(path))  # also of `..`
    return TrainingCurve(name, pieces, top1, reported.loss, launches[0].time_s)


def _load_launches(
    path: str, recipe: AnyRecipe, launches: list[Launch], files: LocalFiles, root: str
) -> Iterator[Piece]:
    """Yield the pieces of the launches that have measured anything."""
    steps = {step.phase: step for step in plan_steps(recipe)}
    for launch in launches:
        step = steps.get(launch.phase)
        log = None if step is None else _find_log(path, launch, files, root)
        if step is None or log is None:
            continue
        try:
            pieces = load_pieces(log)
        except InputError:  # it ended before its first loss
            continue
        for piece in pieces:
            _place(piece, recipe, step)
            piece.begins_s = launch.time_s - launches[0].time_s
            yield piece


def _add_evaluation(pieces: list[Piece], event: Evaluated) -> None:
    """Add the results of an evaluation where the training of its phase ends."""
    piece = next((piece for piece in reversed(pieces) if piece.name == event.phase), None)
    if piece is None:
        return
    last = max((series.iterations[-1], series.seconds[-1]) for series in piece.series.values())
    for output, value in event.outputs.items():
        piece.add(Measurement(1, last[0], last[1], EVALUATION, 0, output, value))


def _place(piece: Piece, recipe: AnyRecipe, step: Training) -> None:
    images = recipe.train_images
    piece.name, piece.images_per_iter = step.phase, step.images_per_iter
    piece.begins_iter = round(step.images_before / step.images_per_iter)
    piece.begins_epochs = step.images_before / images
    piece.epochs_per_iter = step.images_per_iter / images
