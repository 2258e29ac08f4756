"""A run of which nothing is left to be done: read, looked after, and shown again."""

from __future__ import annotations

from pathlib import Path

from caffe_recipes.chain.folder import describe_changes, run_folders
from caffe_recipes.chain.journal import JournalError, RunState, load_journal
from caffe_recipes.chain.plan import find_trained
from caffe_recipes.chain.report import Reporter
from caffe_recipes.chain.setting import Options
from caffe_recipes.chain.snapshots import verify_kept
from caffe_recipes.recipe.graph import find_evaluated, find_leaves
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.phases import Phase


def is_finished(recipe: Recipe, phases: tuple[Phase, ...], state: RunState) -> bool:
    """Tell whether these phases, the recipe's first ones, are finished, and if all are, evaluated."""
    evaluated = find_evaluated(recipe) if phases == recipe.phases else ()
    is_trained = all(phase.name in state.finished for phase in phases)
    return is_trained and all(phase.name in state.evaluations for phase in evaluated)


def read_finished(
    recipe: Recipe, options: Options, phases: tuple[Phase, ...]
) -> tuple[Path, RunState] | None:
    """Return the folder and state of a latest run that needs no writing, as these phases are finished."""
    folders = () if options.new else run_folders(options.root, recipe.name)[-1:]
    for folder in folders:
        try:
            state = load_journal(folder / "journal.jsonl")
        except JournalError:
            return None
        if is_finished(recipe, phases, state) and not describe_changes(folder, recipe):
            return folder, state
    return None


def report_finished(
    recipe: Recipe,
    options: Options,
    phases: tuple[Phase, ...],
    folder: Path,
    state: RunState,
    reporter: Reporter,
) -> RunState:
    """Show what finished phases came to, once their snapshots are verified; raises WeightsError."""
    for end in [phase for phase in phases if phase in find_leaves(recipe)] or phases[-1:]:
        done = state.finished[end.name]
        trained = find_trained(recipe, done.phase, done.snapshot)
        verify_kept(options.root / done.snapshot, done.sha256, done.phase, trained)
    what = "is finished" if phases == recipe.phases else f"is finished up to {phases[-1].name}"
    reporter.say(f"{folder} {what}; --new starts another run")
    reporter.show_result(recipe, state)
    return state
