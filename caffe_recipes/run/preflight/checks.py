"""The table of preflight checks, and the preflight of a recipe on its own, which changes nothing on disk.

A check returns findings; an error that it raises becomes one as well.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path

from caffe_recipes.cluster.hosts import start_threads
from caffe_recipes.errors import CaffeRecipesError
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.run.choices import choose_for_machine
from caffe_recipes.run.context import Connect, RunOptions, RunSetup, find_setting
from caffe_recipes.run.events import RunState
from caffe_recipes.run.folded_events import is_trained
from caffe_recipes.run.folders import check_resumable, next_folder, root_words
from caffe_recipes.run.journal import JOURNAL, load_journal
from caffe_recipes.run.preflight.disks import check_disk, check_snapshots
from caffe_recipes.run.preflight.findings import CheckResult
from caffe_recipes.run.preflight.lmdbs import check_means, check_test_lmdb, check_train_lmdb
from caffe_recipes.run.preflight.machine import (
    check_clocks,
    check_cores,
    check_hosts,
    check_launches,
    check_memory,
    check_spares,
    check_tmp,
)
from caffe_recipes.run.preflight.nodes import NodeView, look_at_nodes
from caffe_recipes.run.preflight.storage import check_files, check_folders, check_lint, check_start
from caffe_recipes.run.preflight.tensorflow_records import check_test_records, check_train_records
from caffe_recipes.run.preflight.trials import check_launcher, check_ranks, check_trainer
from caffe_recipes.run.process import check_nothing_trains, describe_work, find_running
from caffe_recipes.run.snapshots import check_interval
from caffe_recipes.run.trainer import TrainingPlan
from caffe_recipes.run.training_plan import plan_steps, plan_training
from caffe_recipes.run_names import RUNS, run_folders

CHECKS: Mapping[str, Callable[[NodeView], list[CheckResult]]] = {
    "hosts": check_hosts,
    "launches": check_launches,
    "spares": check_spares,
    "cores": check_cores,
    "memory": check_memory,
    "/tmp": check_tmp,
    "clock": check_clocks,
    "launcher": check_launcher,
    "trainer": check_trainer,
    "folders": check_folders,
    "ranks": check_ranks,
    "prototxts": check_files,
    "programs": check_files,
    "train records": check_train_records,
    "test records": check_test_records,
    "training data": check_train_lmdb,
    "test data": check_test_lmdb,
    "mean file": check_means,
    "lint": check_lint,
    "starts from": check_start,
    "snapshots": check_snapshots,
    "disk": check_disk,
}
# Checks that are skipped if another fails.
_AFTER = {"ranks": "trainer"}
# Computes for seconds, in which the threads of the others would read no answer.
_COMPUTES = "lint"
# The checks of every run; the trainer names the others.
_OF_EVERY_RUN = ("hosts", "launches", "spares", "cores", "memory", "/tmp", "clock", "launcher")


def run_preflight(
    setting: RunSetup, plan: TrainingPlan, state: RunState, under_way: str = ""
) -> list[CheckResult]:
    """Run all checks and return their findings; nothing on any disk is changed.

    The checks run concurrently, since they mostly wait for hosts; the one that computes follows, since hosts
    have a limited time to answer in. If `under_way` names a training that is running there, launcher and
    trainer are skipped.
    """
    view = look_at_nodes(setting, plan, state, under_way)
    checks = {subject: CHECKS[subject] for subject in (*_OF_EVERY_RUN, *setting.trainer.checks)}
    futures: dict[str, Future[list[CheckResult]]] = {}
    try:
        for subject, check in checks.items():
            if subject != _COMPUTES:
                first = futures.get(_AFTER.get(subject, ""))
                futures[subject] = start_threads([partial(_run_check, subject, check, view, first)])[0]
        wait(futures.values())
        if _COMPUTES in checks:
            futures[_COMPUTES] = start_threads(
                [partial(_run_check, _COMPUTES, checks[_COMPUTES], view, None)]
            )[0]
        return [finding for subject in checks for finding in futures[subject].result()]
    except BaseException:  # for example Ctrl-C
        view.commands.stop()
        raise


def _run_check(
    subject: str,
    check: Callable[[NodeView], list[CheckResult]],
    view: NodeView,
    first: Future[list[CheckResult]] | None,
) -> list[CheckResult]:
    if first is not None and any(finding.error for finding in first.result()):
        message = f"skipped, because the {_AFTER[subject]} check failed"
        return [CheckResult(subject, message, warns=True)]
    try:
        return check(view)
    except CaffeRecipesError as error:
        return [CheckResult(subject, str(error), error)]


def preflight_recipe(recipe: AnyRecipe, options: RunOptions, connect: Connect) -> list[CheckResult]:
    """Check everything that a new run of a recipe needs, or its latest run needs to resume.

    Raises InputError if the hostfile, the profile or a program is missing.
    """
    setting = choose_for_machine(find_setting(recipe, options, connect))
    existing = run_folders(options.root, recipe.name)
    folders = [] if options.new else existing
    state = load_journal(folders[-1] / JOURNAL) if folders else RunState()
    refused = _check_latest(existing[-1], state, recipe, options) if existing else []
    if is_trained(state, plan_steps(recipe)):
        folders, state = [], RunState()
    folder = folders[-1] if folders else next_folder(options.root, recipe.name)
    under_way = describe_work(setting.root, recipe.name, state)
    running = find_running(setting.root, recipe.name) if under_way else None
    plan = plan_training(recipe, f"{RUNS}/{folder.name}")
    check_interval(plan, setting.policy.checkpoint_every)
    try:
        found = [*refused, *_describe_choice(setting), *run_preflight(setting, plan, state, under_way)]
    finally:
        for host in setting.hosts:
            host.close()
    return [_describe_running(setting, running, under_way, found), *found] if running else found


def _describe_choice(setting: RunSetup) -> list[CheckResult]:
    text = setting.chosen.describe()
    return [CheckResult("choice", text)] if text else []


def _check_latest(folder: Path, state: RunState, recipe: AnyRecipe, options: RunOptions) -> list[CheckResult]:
    """Return why `run` will not resume the latest run, in its `folder`, or not start another beside it."""
    try:
        if options.new:
            check_nothing_trains(folder)
        else:
            check_resumable(folder, state, recipe)
    except CaffeRecipesError as error:
        return [CheckResult("run", str(error), error)]
    return []


def _describe_running(
    setting: RunSetup, folder: Path, under_way: str, found: Sequence[CheckResult]
) -> CheckResult:
    """Return the finding that a run of the recipe is running, what was left out, and how to watch it."""
    watch, show = (
        f"`{shlex.join(['caffe-recipes', command, name, *root_words(setting.root)])}`"
        for command, name in (("attach", folder.name), ("status", setting.recipe.name))
    )
    left_out = [finding.subject for finding in found if finding.is_left_out]
    what = f"{under_way}; skipped while it runs: {', '.join(left_out)}"
    return CheckResult("run", f"{what}; watch it with {watch}, or see {show}", warns=True, is_running=True)
