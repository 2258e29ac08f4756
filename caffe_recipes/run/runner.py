"""Run a recipe from start to end: preflight, staging, and each phase with its snapshot; then evaluate.

Every step is journaled before the next begins, so that the same call resumes the run after any crash. A phase
is finished when its snapshot is verified, whatever its process returned. If a run is already finished, its
snapshots are verified and its results shown again.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import open_host
from caffe_recipes.cluster.slurm.this_job import this_job
from caffe_recipes.cluster.slurm.waiting import ask_slurm
from caffe_recipes.errors import CaffeRecipesError, ClusterError, InputError, RunFailed, describe_setback
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.run.branches import BranchPlan, BranchThreads, on_hosts, plan_branches
from caffe_recipes.run.choices import choose_for_machine
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.context import (
    Connect,
    Observer,
    Run,
    RunOptions,
    RunSetup,
    Spares,
    check_submitted,
    find_setting,
)
from caffe_recipes.run.events import Chosen, Failed, RunStarted, RunState
from caffe_recipes.run.folded_events import describe_finished, is_complete, is_trained
from caffe_recipes.run.folders import check_resumable, create_run, describe_changes, next_folder
from caffe_recipes.run.handover import hand_on
from caffe_recipes.run.hidden_texts import digest_texts
from caffe_recipes.run.journal import (
    JOURNAL,
    Journal,
    JournalError,
    find_open_launches,
    load_journal,
)
from caffe_recipes.run.lock import RecipeLock
from caffe_recipes.run.phase import evaluate, note_stop, train
from caffe_recipes.run.preflight.checks import run_preflight
from caffe_recipes.run.prepare import ensure_snapshot, prepare, stage_data
from caffe_recipes.run.process import (
    StartTrainer,
    TrainerProcess,
    check_nothing_trains,
    describe_launch,
    launch_trainer,
)
from caffe_recipes.run.recovery import replace_hosts, with_retries
from caffe_recipes.run.signals import Interrupted, Interrupts
from caffe_recipes.run.slurm_job import check_over
from caffe_recipes.run.snapshots import check_interval, delete_parts, verify_kept
from caffe_recipes.run.trainer import Training, TrainingPlan
from caffe_recipes.run.training_plan import find_trainer, plan_files, plan_steps, plan_training
from caffe_recipes.run_names import RUNS, run_folders
from caffe_recipes.wording import describe_count, describe_names


def is_finished(recipe: AnyRecipe, steps: tuple[Training, ...], state: RunState) -> bool:
    """Return whether the first steps of a run are finished, and, if these are all steps, also evaluated."""
    if len(steps) == len(plan_steps(recipe)):
        return is_complete(state, steps)
    return is_trained(state, steps)


def read_finished(
    recipe: AnyRecipe, options: RunOptions, steps: tuple[Training, ...]
) -> tuple[Path, RunState] | None:
    """Return the folder and state of the latest run if these steps of it are finished; None otherwise."""
    folders = () if options.new else run_folders(options.root, recipe.name)[-1:]
    for folder in folders:
        try:
            state = load_journal(folder / JOURNAL)
        except JournalError:
            return None
        if is_finished(recipe, steps, state) and not describe_changes(folder, recipe):
            return folder, state
    return None


def report_finished(
    recipe: AnyRecipe,
    options: RunOptions,
    steps: tuple[Training, ...],
    folder: Path,
    state: RunState,
    reporter: Reporter,
) -> RunState:
    """Verify the snapshots of finished steps and show the results. Raises WeightsError if one is damaged."""
    for end in [step for step in steps if step.is_end] or steps[-1:]:
        done = state.finished[end.phase]
        trained = end.trained_path(done.snapshot)
        verify_kept(options.root / done.snapshot, done.sha256, done.phase, trained)
    is_whole = len(steps) == len(plan_steps(recipe))
    what = "is finished" if is_whole else f"is finished up to {steps[-1].phase}"
    unused = "--hostfile is not used; " if options.hostfile else ""
    reporter.say(f"{folder} {what}; {unused}use --new to start another run")
    reporter.show_result(recipe, state)
    if is_whole:
        models = find_trainer(recipe).models
        hand_on(folder, recipe, models, state, lambda: plan_files(recipe), reporter.say)
    _write_event_files(folder, options.tensorboard, reporter)
    return state


def run_chain(
    recipe: AnyRecipe,
    options: RunOptions,
    reporter: Reporter | None = None,
    *,
    observers: Sequence[Observer] = (),
    connect: Connect = open_host,
    start: StartTrainer = launch_trainer,
) -> RunState:
    """Train all phases of a recipe, or resume its latest run; return the state at the end.

    The `observers` get its events, as the reporter does. `connect` opens a host, and `start` starts a
    trainer. Raises InputError before anything on disk has changed, RunFailed if the run fails, and
    Interrupted if it is stopped; in all of these cases no trainer is left behind.
    """
    reporter, interrupts = reporter or Reporter(), Interrupts()
    _check_start(recipe, options)
    steps = plan_steps(recipe, until=options.until)
    with interrupts.raised(), ExitStack() as stack:
        try:
            latest = _open_latest(recipe, options, reporter.say, stack)
        except JournalError:  # for example on a read-only disk; a finished run can still be shown
            done = read_finished(recipe, options, steps)
            if done is None:
                raise
            return report_finished(recipe, options, steps, *done, reporter)
        folder = latest.path.parent if latest else next_folder(options.root, recipe.name)
        state = latest.state() if latest else RunState()
        if latest and is_finished(recipe, steps, state):
            return report_finished(recipe, options, steps, folder, state, reporter)
        found = find_setting(recipe, options, _closing(connect, stack))
        setting = replace(choose_for_machine(found), start=start)
        name = f"{RUNS}/{folder.name}"
        plan = plan_training(recipe, name, options.until)
        check_interval(plan, setting.policy.checkpoint_every)
        plan_branches(setting, plan, state)
        RecipeLock(setting.root, recipe.name).check()
        setting, branches = plan_branches(_preflight(setting, plan, state, reporter), plan, state)
        lock = _acquire_locks(setting, state, stack)
        journal = latest or create_run(folder, recipe, plan.files)
        stack.callback(journal.close)
        run = Run(journal.state().id, setting, plan, name, journal, reporter, interrupts, lock)
        run = replace(run, observers=(reporter.observe, *observers), spares=Spares(setting.spares))
        stack.callback(_report, run, options.tensorboard)
        return _run_to_end(run, branches)


def _check_start(recipe: AnyRecipe, options: RunOptions) -> None:
    check_submitted(recipe, os.environ)
    if options.tensorboard is not None:
        if options.tensorboard.exists() and not options.tensorboard.is_dir():
            raise InputError(options.tensorboard, "is not a folder", "give a folder with --tensorboard")
        from caffe_recipes.review.inspect.event_files import require_checksums  # few runs need it

        require_checksums("--tensorboard")


def _run_to_end(run: Run, branches: BranchPlan) -> RunState:
    """Do the remaining steps; journal it if the run is stopped or fails."""
    try:
        return _run_remaining(run, branches)
    except Interrupted as stop:
        note_stop(run, stop)
        raise
    except (CaffeRecipesError, OSError) as error:
        run.check_folder()
        if not isinstance(error, (InputError, ClusterError)):
            raise
        run.emit(Failed(str(error)))
        raise RunFailed(error.where, error.what, error.hint) from None


def _run_remaining(run: Run, planned: BranchPlan) -> RunState:
    """Do the remaining steps of a run; return its state."""
    run = replace(run, plan=replace(run.plan, trainings=planned.main))
    around = this_job(os.environ)
    hidden = digest_texts(run.setting.profile.launcher.environment.values(), run.id)
    run.emit(RunStarted.here(around.job, around.restarts, hidden))
    delete_parts(run.path(run.folder))
    if run.setting.chosen != Chosen():
        run.emit(run.setting.chosen)
    for line in describe_finished(run.journal.state().finished, run.setting.recipe, run.folder):
        run.reporter.say(line)
    with BranchThreads(run, planned.beside) as branches:
        for group in planned.groups:
            if group.adopted:
                branches.start(on_hosts(run.setting, group.hosts), group.adopted, takes_more=group.takes_more)
        run = with_retries(run, prepare)
        launch = run.journal.state().launch
        running = launch.phase if launch and TrainerProcess(run.path(launch.log)).is_running() else None
        for group in planned.groups:
            if not group.adopted:  # stage from this thread, where a signal interrupts it at once
                there = replace(run, setting=on_hosts(run.setting, group.hosts))
                branches.start(with_retries(there, stage_data).setting)
        for training in planned.main:
            if training.phase in run.journal.state().finished:
                continue
            if training.phase != running:  # if it is already training, it must be followed first
                branches.raise_failure()
            run = with_retries(run, partial(train, training=training))
            branches.notify()
        if planned.beside and not planned.is_held:  # the remaining branches
            branches.start(run.setting)
    for testing in run.plan.testings:
        if testing.phase not in run.journal.state().evaluations:
            evaluate(run, testing)
    for path in run.snapshots():
        ensure_snapshot(run, path)
    state = run.journal.state()
    run.reporter.show_result(run.setting.recipe, state)
    recipe = run.setting.recipe
    if is_finished(recipe, plan_steps(recipe), state):
        models, folder = run.setting.trainer.models, run.path(run.folder)
        hand_on(folder, recipe, models, state, lambda: run.plan.files, run.reporter.say)
    return state


def _report(run: Run, event_files: Path | None) -> None:
    """Write the run's report and event files, unless its folder is lost; a signal ends only the writing."""
    with suppress(Interrupted):
        if not run.journal.still_exists():
            return
        try:  # here, not at the start of a run, since when caffe-recipes may have been replaced
            from caffe_recipes.run.report.writing import write_own_report

            ran_s = sum(done.seconds for done in run.journal.state().finished.values())
            reason = write_own_report(run.path(run.folder), run.setting.root, ran_s)
        except Exception as error:
            reason = describe_setback(error)
        if reason:
            run.reporter.say(f"the report of {run.folder} was not written: {reason}")
        _write_event_files(run.path(run.folder), event_files, run.reporter)


def _write_event_files(run: Path, folder: Path | None, reporter: Reporter) -> None:
    """Write the event files of a run, if there is a folder for them; whatever goes wrong is only shown."""
    if folder is None:
        return
    try:
        from caffe_recipes.run.monitor.tensorboard import write_event_files

        write_event_files([str(run)], str(run.parent.parent), folder)
    except Exception as error:
        reporter.say(f"the event files of {run.name} were not written: {describe_setback(error)}")
    else:
        reporter.say(f"event files: {folder / run.name}")


def _closing(connect: Connect, stack: ExitStack) -> Connect:
    """Return a `connect` whose hosts are closed when `stack` is."""

    def reach(name: str, copy_with: Literal["ssh", "auto"]) -> Host:
        host = connect(name, copy_with)
        stack.callback(host.close)
        return host

    return reach


def _open_latest(
    recipe: AnyRecipe, options: RunOptions, say: Callable[[str], None], stack: ExitStack
) -> Journal | None:
    """Open the journal of the run to resume; None if a new run is to be started.

    Raises InputError if another process is working on the latest run, if its trainer may still be training,
    or if the recipe or one of its nets has changed since it started.
    """
    folders = run_folders(options.root, recipe.name)
    if not folders:
        return None
    folder = folders[-1]
    try:
        journal = Journal(folder / JOURNAL)
        stack.callback(journal.close)
        state = journal.state()
        launches = find_open_launches(options.root, state)
    except JournalError:
        if not options.new:
            raise
    if options.new:
        check_nothing_trains(folder)
        return None
    for launch in launches:
        if launch.host != socket.gethostname():
            check_over(launch, folder, this_job(os.environ), ask_slurm, say)
    check_resumable(folder, state, recipe)
    return journal


def _acquire_locks(setting: RunSetup, state: RunState, stack: ExitStack) -> RecipeLock:
    """Acquire both locks of the recipe.

    The trainer's lock is shared with trainers that are taken over; else it is acquired once no trainer holds
    it.
    """
    lock = RecipeLock(setting.root, setting.recipe.name)
    stack.callback(lock.close)
    lock.acquire()
    if describe_launch(setting.root, state):
        lock.share_trainer()
    else:
        lock.acquire_trainer()
    return lock


def _preflight(setting: RunSetup, plan: TrainingPlan, state: RunState, reporter: Reporter) -> RunSetup:
    """Run the preflight; return the setting without unfit spares, and with bad hosts replaced by spares.

    Raises the first error if the policy is not to replace hosts, or there are too few spares.
    """
    while True:
        reporter.say(f"checking {describe_count(len(setting.hosts) + len(setting.spares), 'host')} ...")
        findings = run_preflight(setting, plan, state, describe_launch(setting.root, state))
        reporter.show_findings(findings)
        unfit = {name for finding in findings if finding.unfit for name in finding.hosts}
        spares = tuple(name for name in setting.spares if name not in unfit)
        setting = replace(setting, spares=spares)
        failed = [finding for finding in findings if finding.error]
        if not failed:
            return setting
        ours = {host.name for host in setting.hosts}  # findings may also concern this machine
        bad = {name for finding in failed for name in finding.hosts} & ours
        if setting.policy.on_failure != "replace" or not bad or len(bad) > len(setting.spares):
            error = failed[0].error
            assert error is not None
            raise error
        reporter.say(f"checking again, with spares in place of {describe_names(sorted(bad))}")
        setting = replace_hosts(setting, bad)
