"""The preflight of a recipe on its own, as a run of it would begin; no lock is taken, nothing is written."""

from __future__ import annotations

from caffe_recipes.chain.folder import RUNS, next_folder, run_folders
from caffe_recipes.chain.journal import RunState, load_journal
from caffe_recipes.chain.plan import plan_chain
from caffe_recipes.chain.preflight.checks import run_preflight
from caffe_recipes.chain.preflight.findings import Finding
from caffe_recipes.chain.preflight.under_way import describe_work
from caffe_recipes.chain.setting import Connect, Options, find_setting
from caffe_recipes.recipe.model import Recipe


def preflight_recipe(recipe: Recipe, options: Options, connect: Connect) -> list[Finding]:
    """Look at everything that a run of a recipe would need, or the latest run of it to go on.

    Raises InputError for a hostfile, a profile or a program that is missing.
    """
    setting = find_setting(recipe, options, connect)
    folders = [] if options.new else run_folders(options.root, recipe.name)
    state = load_journal(folders[-1] / "journal.jsonl") if folders else RunState()
    if state.finished.keys() >= {phase.name for phase in recipe.phases}:
        folders, state = [], RunState()
    folder = folders[-1] if folders else next_folder(options.root, recipe.name)
    under_way = describe_work(setting.root, recipe.name, state)
    try:
        return run_preflight(setting, plan_chain(recipe, f"{RUNS}/{folder.name}"), state, under_way)
    finally:
        for host in setting.hosts:
            host.close()
