"""Branches: phases that train in parallel with the run's main line, on hosts of their own.

A branch is a run within the run. It has its own journal, logs and checkpoints in `branches/<phase>/` of the
run's folder, and its ranks have their own id. When it finishes, the run's journal records that too, so a
reader of that journal does not need to know about branches.

Each group of hosts is driven by its own thread of this process. After a failure no new phase is started. The
phases that are already training are finished first, so that no work is lost; then the run fails. When the
user stops the run, all of them stop at once, in order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

from caffe_recipes.cluster.hosts import open_all
from caffe_recipes.errors import CaffeRecipesError, InputError, RunFailed, hint_for
from caffe_recipes.run.context import Run, RunSetup
from caffe_recipes.run.events import Branched, Created, Failed, Launch, RunStarted, RunState
from caffe_recipes.run.journal import JOURNAL, Journal, find_open_launches, name_branch
from caffe_recipes.run.phase import note_stop, train
from caffe_recipes.run.prepare import prepare
from caffe_recipes.run.process import TrainerProcess
from caffe_recipes.run.recovery import with_retries
from caffe_recipes.run.signals import Interrupted
from caffe_recipes.run.snapshots import verify_kept
from caffe_recipes.run.trainer import Training, TrainingPlan


def train_branch(run: Run, training: Training, setting: RunSetup) -> RunSetup:
    """Train a branch to its end on the hosts of a setting, and record that in the run's journal.

    Returns the setting with the hosts that the branch ended on, some of which may be former spares. Raises
    RunFailed if it fails, and Interrupted if it is stopped before it has finished.
    """
    branch = _open_branch(run, training, setting)
    with closing(branch.journal) as journal:
        finish = journal.state().finished.get(training.phase)
        if finish is not None:  # the run was killed before it could record that in its own journal
            verify_kept(branch.path(finish.snapshot), finish.sha256, finish.phase, training.snapshot)
        else:
            try:
                branch = with_retries(with_retries(branch, prepare), partial(train, training=training))
            except Interrupted as stop:
                note_stop(branch, stop)
                if training.phase not in journal.state().finished:
                    raise
        run.journal.append(journal.state().finished[training.phase])
    return branch.setting


def _open_branch(run: Run, training: Training, setting: RunSetup) -> Run:
    """Return the run of a branch, with its folder and journal, and announce it in the main journal."""
    phase, state = training.phase, run.journal.state()
    folder = f"{run.folder}/branches/{phase}"
    hosts = [host.name for host in setting.hosts]
    run.emit(Branched(phase, folder, hosts))
    try:
        for name in ("logs", "checkpoints"):
            run.path(f"{folder}/{name}").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"cannot be created: {error.strerror}"
        raise RunFailed(run.path(folder), what, hint_for(error, "check the disk")) from None
    journal = Journal(run.path(folder) / JOURNAL, create=True)
    name = name_branch(run.id, phase)
    if not journal.state().id:
        journal.append(Created(setting.recipe.name, name))
    reporter = run.reporter.for_branch(phase)
    journal.append(RunStarted.here(state.job, state.restarts))
    return replace(
        run,
        id=name,
        setting=setting,
        plan=TrainingPlan(run.plan.files, (training,)),
        folder=folder,
        journal=journal,
        reporter=reporter,
        observers=(reporter.observe,),
        main=run.journal,
    )


_POLL_S = 0.5
# A branch that is asked to stop twice ends its ranks within this time. A thread that is still alive after it
# is staging data or waiting for a host, and is abandoned.
_URGENT_S = 60.0


class BranchThreads:
    """Trains branches in threads. Leaving the `with` block waits until they have ended."""

    def __init__(self, run: Run, waiting: Sequence[Training]) -> None:
        """Queue the `waiting` branches of `run`; none starts before `start` is called."""
        self._run, self._waiting = run, list(waiting)
        self._training: list[str] = []
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._is_closing = False
        self._failure: BaseException | None = None

    def __enter__(self) -> BranchThreads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait(error)
        if error is None:
            self.raise_failure()
            self._run.interrupts.raise_asked()

    def start(self, setting: RunSetup, adopted: str | None = None, *, takes_more: bool = True) -> None:
        """Start a thread that trains on the hosts of a setting.

        It begins with the phase `adopted`, which a killed run left training there, and then, if `takes_more`,
        trains the branches that are ready.
        """
        with self._changed:
            first = next((step for step in self._waiting if step.phase == adopted), None)
            if first is not None:
                self._waiting.remove(first)
        thread = threading.Thread(target=self._work, args=(setting, first, takes_more), daemon=True)
        self._threads.append(thread)
        thread.start()

    def notify(self) -> None:
        """Wake the waiting threads, as a phase has finished that a branch may start from."""
        with self._changed:
            self._changed.notify_all()

    def raise_failure(self) -> None:
        """Raise the error of a branch that has failed, after recording it in the run's journal."""
        error = self._failure
        if isinstance(error, RunFailed):
            self._run.emit(Failed(str(error)))
        if error is not None:
            raise error

    def _close(self) -> None:
        """Start no further branches."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    def _wait(self, error: BaseException | None) -> None:
        """Wait for the threads, which handle the user's signals themselves."""
        until: float | None = None
        while True:
            try:
                with self._run.interrupts.noted():
                    if error is not None and not self._is_closing:
                        self._close()
                        self._report_failure(error)
                    for thread in self._threads:
                        while thread.is_alive() and (until is None or time.monotonic() < until):
                            thread.join(_POLL_S)
                return
            except Interrupted:
                until = until or time.monotonic() + _URGENT_S

    def _report_failure(self, error: BaseException) -> None:
        if self._training and not isinstance(error, Interrupted):
            phases = ", ".join(self._training)
            self._run.notify(f"{error}; waiting for {phases} to finish first")

    def _work(self, setting: RunSetup, first: Training | None, takes_more: bool) -> None:
        try:
            training = first or (self._next() if takes_more else None)
            while training is not None:
                self._training.append(training.phase)
                try:
                    setting = train_branch(self._run, training, setting)
                finally:
                    self._training.remove(training.phase)
                self.notify()
                training = self._next() if takes_more else None
        except Interrupted:
            self._close()
        except BaseException as error:  # the main thread raises it
            self._failure = self._failure or error
            self._close()
            if isinstance(error, CaffeRecipesError):
                self._run.notify(f"{error}; the run ends after the phases that are training now")

    def _next(self) -> Training | None:
        """Wait for a branch whose starting phase has finished; return None if no more are to start."""
        with self._changed:
            while self._waiting and not self._is_closing and self._run.interrupts.asked is None:
                finished = self._run.journal.state().finished
                for training in self._waiting:
                    if training.starts_from is None or training.starts_from in finished:
                        self._waiting.remove(training)
                        return training
                self._changed.wait(_POLL_S)
        return None


def on_hosts(setting: RunSetup, names: Sequence[str]) -> RunSetup:
    """Return a setting with other hosts, and without spares: those are shared by the whole run."""
    return replace(setting, hosts=open_all(names, setting.connect), spares=())


_OPTION = "--side-by-side"


@dataclass(frozen=True)
class HostGroup:
    """Hosts that train branches.

    `adopted` is the phase that the trainer of a killed run is still training on them. `takes_more` means that
    the hosts belong to this run, so they train other branches after that phase.
    """

    hosts: tuple[str, ...]
    adopted: str | None = None
    takes_more: bool = True


@dataclass(frozen=True)
class BranchPlan:
    """The phases of a run's main line, and the branches that train in parallel on groups of hosts.

    `is_held` means that the hosts of the main line are still training a branch for a killed run.
    """

    main: tuple[Training, ...]
    beside: tuple[Training, ...] = ()
    groups: tuple[HostGroup, ...] = ()
    is_held: bool = False


def plan_branches(setting: RunSetup, plan: TrainingPlan, state: RunState) -> tuple[RunSetup, BranchPlan]:
    """Plan which phases train in parallel; return the setting with the remaining spares, and the plan.

    With --side-by-side these are all branches except those that the main line's hosts have already started;
    without it, only the branches that were started that way before. The groups take the last of the spares;
    the first ones remain to replace failed hosts. Raises InputError if the recipe has no branch, if there are
    too few hosts, or if a trainer of a killed run is in the way.
    """
    nodes = setting.recipe.cluster.nodes
    if setting.side_by_side and all(step.is_main for step in plan.trainings):
        raise InputError(_OPTION, f"{setting.recipe.name} has no branches", "leave it out")
    beside = _find_beside(setting, plan, state)
    waiting = {step.phase for step in beside}
    main = [step for step in plan.trainings if step.phase not in waiting]
    running = _find_running(setting, plan, state, is_done=all(step.phase in state.finished for step in main))
    own = {host.name for host in setting.hosts}
    held = [launch for launch in running if own & {*launch.hosts}]
    busy = {name for launch in running for name in launch.hosts}
    free = [name for name in setting.spares if name not in busy]
    count = min(len(free) // nodes, len(beside) - len(running)) if setting.side_by_side else 0
    if setting.side_by_side and beside and not running and not count:
        what = f"needs at least {2 * nodes} hosts, {nodes} for the main line and {nodes} for a branch"
        available = f"only {len(setting.hosts) + len(free)} can be used"
        raise InputError(_OPTION, f"{what}; {available}", "add hosts to the hostfile, or leave it out")
    kept = len(free) - count * nodes
    new = (HostGroup(tuple(free[at : at + nodes])) for at in range(len(free) - nodes, kept - 1, -nodes))
    adopted = (
        HostGroup(
            launch.hosts,
            launch.phase,
            launch in held or (setting.side_by_side and {*launch.hosts} <= {*setting.spares}),
        )
        for launch in running
    )
    # Adopt the launch of a killed run before another launch replaces it in the journal.
    early = {*state.finished, state.launch.phase if state.launch else ""}
    main.sort(key=lambda step: step.phase not in early)
    return replace(setting, spares=tuple(free[:kept])), BranchPlan(
        tuple(main), beside, (*adopted, *new), bool(held)
    )


def _find_running(setting: RunSetup, plan: TrainingPlan, state: RunState, *, is_done: bool) -> list[Launch]:
    """Return the launches of a killed run that are still training branches.

    Raises InputError for one that is in the way. A branch on the hosts of the main line is in the way unless
    the main line `is_done`, since those hosts train branches only after it.
    """
    launches = find_open_launches(setting.root, state)
    running = [each for each in launches if TrainerProcess(setting.root / each.log).is_running()]
    planned, hosts = {step.phase for step in plan.trainings}, {host.name for host in setting.hosts}
    for launch in running:
        what = f"phase {launch.phase} of a killed run is still training"
        if launch.phase not in planned:
            raise InputError("--until", what, "leave out --until, or wait for the phase to end")
        if launch != state.launch and hosts & {*launch.hosts} and not is_done:
            where = ", ".join(sorted(hosts & {*launch.hosts}))
            raise InputError(where, what, "resume with the previous hostfile, or wait for the phase to end")
    return [launch for launch in running if launch != state.launch]


def _find_beside(setting: RunSetup, plan: TrainingPlan, state: RunState) -> tuple[Training, ...]:
    """Return the branches that train in parallel with the main line."""
    beside: dict[str, Training] = {}
    for step in plan.trainings:
        if step.is_main or step.phase in state.finished or step.phase in state.attempts:
            continue
        waits = step.starts_from in beside
        if setting.side_by_side or step.phase in state.branches or waits:
            beside[step.phase] = step
    return tuple(beside.values())
