"""A branch that trains beside its run's main line: a run in the run.

It has a journal, logs and checkpoints of its own, in `branches/<phase>/` of the run's folder, and its ranks
go by a name of their own. When it is finished the run's own journal says so, too, and nobody who reads that
needs to know of branches.

Branches that train beside the main line, each group of hosts carried by a thread of this process.

A line that fails begins nothing more. What the others then train is finished first, so that nothing is lost,
and then the run fails. Asked to stop, all end in order at once.

Which branches of a recipe train beside its main line, and on which hosts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

from caffe_recipes.cluster.hosts import open_all
from caffe_recipes.errors import CaffeRecipesError, InputError, RunFailed
from caffe_recipes.run.context import Run, Setting
from caffe_recipes.run.events import Branched, Created, Failed, Launch, RunStarted, RunState
from caffe_recipes.run.journal import branch_launches, name_branch
from caffe_recipes.run.phase import note_stop, train
from caffe_recipes.run.prepare import prepare
from caffe_recipes.run.process import TrainerProcess
from caffe_recipes.run.recovery import with_retries
from caffe_recipes.run.signals import Interrupted
from caffe_recipes.run.snapshots import verify_kept
from caffe_recipes.run.steps import RunPlan, Training


def train_branch(run: Run, training: Training, setting: Setting) -> Setting:
    """Train a branch of a run on the hosts of a setting, to its end, and journal it in the run's.

    Returns the setting with the hosts that it then has, of which some may be spares.

    Raises RunFailed, or Interrupted when stopped before it is finished.
    """
    branch = _open_branch(run, training, setting)
    with closing(branch.journal) as journal:
        finish = journal.state().finished.get(training.phase)
        if finish is not None:  # the run was killed before it could write that down
            verify_kept(branch.path(finish.snapshot), finish.sha256, finish.phase, training.snapshot)
        else:
            try:
                branch = with_retries(with_retries(branch, prepare), partial(train, training=training))
            except Interrupted as stop:
                note_stop(branch, stop)
                if training.phase not in journal.state().finished:
                    raise
        run.record(journal.state().finished[training.phase])
    return branch.setting


def _open_branch(run: Run, training: Training, setting: Setting) -> Run:
    """Return the run that a branch is, known from the journal of the whole."""
    phase, state = training.phase, run.journal.state()
    folder = f"{run.folder}/branches/{phase}"
    hosts = [host.name for host in setting.hosts]
    run.emit(Branched(phase, folder, hosts))
    try:
        for name in ("logs", "checkpoints"):
            run.path(f"{folder}/{name}").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFailed(run.path(folder), f"cannot be made: {error.strerror}", "check the disk") from None
    journal = run.journal.open_beside(run.path(folder) / "journal.jsonl")
    name = name_branch(run.id, phase)
    if not journal.state().id:
        journal.append(Created(setting.recipe.name, name))
    branch = replace(
        run,
        id=name,
        setting=setting,
        plan=RunPlan(run.plan.files, (training,)),
        folder=folder,
        journal=journal,
        reporter=run.reporter.beside(phase),
        main=run.journal,
    )
    branch.record(RunStarted.here(state.job, state.restarts))
    return branch


_LOOK_S = 0.5
# Who is asked twice to stop ends its ranks within this; what is left then stages, or waits for a host.
_URGENT_S = 60.0


class Branches:
    """Trains `waiting` branches in threads; leaving its `with` block waits until they have ended."""

    def __init__(self, run: Run, waiting: Sequence[Training]) -> None:
        """Begin nothing yet; `run` is the one that they belong to."""
        self._run, self._waiting = run, list(waiting)
        self._training: list[str] = []
        self._threads: list[threading.Thread] = []
        self._news = threading.Condition()
        self._is_closing = False
        self._failure: BaseException | None = None

    def __enter__(self) -> Branches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait(error)
        if error is None:
            self.check()
            self._run.interrupts.raise_asked()

    def start(self, setting: Setting, left: str | None = None, *, takes_more: bool = True) -> None:
        """Train on more hosts: first what a killed run has left there, then what is ready."""
        with self._news:
            first = next((step for step in self._waiting if step.phase == left), None)
            if first is not None:
                self._waiting.remove(first)
        thread = threading.Thread(target=self._work, args=(setting, first, takes_more), daemon=True)
        self._threads.append(thread)
        thread.start()

    def look(self) -> None:
        """Have them look at what is finished now."""
        with self._news:
            self._news.notify_all()

    def check(self) -> None:
        """Raise what a branch has failed of, once that is in the run's journal."""
        error = self._failure
        if isinstance(error, RunFailed):
            self._run.emit(Failed(str(error)))
        if error is not None:
            raise error

    def _close(self) -> None:
        """Have nothing more begun."""
        with self._news:
            self._is_closing = True
            self._news.notify_all()

    def _wait(self, error: BaseException | None) -> None:
        """Wait for the threads; they see for themselves what the user asks meanwhile."""
        until: float | None = None
        while True:
            try:
                with self._run.interrupts.noted():
                    if error is not None and not self._is_closing:
                        self._close()
                        self._report_failure(error)
                    for thread in self._threads:
                        while thread.is_alive() and (until is None or time.monotonic() < until):
                            thread.join(_LOOK_S)
                return
            except Interrupted:
                until = until or time.monotonic() + _URGENT_S

    def _report_failure(self, error: BaseException) -> None:
        if self._training and not isinstance(error, Interrupted):
            named = ", ".join(self._training)
            self._run.notify(f"{error}; first the end of {named} is waited for, which trains")

    def _work(self, setting: Setting, first: Training | None, takes_more: bool) -> None:
        try:
            training = first or (self._next() if takes_more else None)
            while training is not None:
                self._training.append(training.phase)
                try:
                    setting = train_branch(self._run, training, setting)
                finally:
                    self._training.remove(training.phase)
                self.look()
                training = self._next() if takes_more else None
        except Interrupted:
            self._close()
        except BaseException as error:  # whatever it is, the main thread raises it
            self._failure = self._failure or error
            self._close()
            if isinstance(error, CaffeRecipesError):
                self._run.notify(f"{error}; the run ends when what trains now is finished")

    def _next(self) -> Training | None:
        """Wait until there is a branch whose start is finished; None if nothing more is to be begun."""
        with self._news:
            while self._waiting and not self._is_closing and self._run.interrupts.asked is None:
                finished = self._run.journal.state().finished
                for training in self._waiting:
                    if training.starts_from is None or training.starts_from in finished:
                        self._waiting.remove(training)
                        return training
                self._news.wait(_LOOK_S)
        return None


def on_hosts(setting: Setting, names: Sequence[str]) -> Setting:
    """Return a setting with other hosts; spares are the run's, which its lines share."""
    return replace(setting, hosts=open_all(names, setting.connect), spares=())


_OPTION = "--side-by-side"


@dataclass(frozen=True)
class HostGroup:
    """Hosts that train branches; `left` is the phase that a killed run's trainer still trains there.

    `takes_more`: when that phase is done, they train other branches, since they belong to this run.
    """

    hosts: tuple[str, ...]
    left: str | None = None
    takes_more: bool = True


@dataclass(frozen=True)
class BranchPlan:
    """What a run trains one after another, and what beside that by which groups of hosts.

    `is_held` tells that a killed run had its main line's hosts train branches, and that they still do.
    """

    main: tuple[Training, ...]
    beside: tuple[Training, ...] = ()
    groups: tuple[HostGroup, ...] = ()
    is_held: bool = False


def plan_branches(setting: Setting, plan: RunPlan, state: RunState) -> tuple[Setting, BranchPlan]:
    """Plan what is trained beside what; return the setting with the spares that are left, and the plan.

    Side by side all branches are, but for those that the main line's hosts have begun; else only those that
    have begun so. Groups are the last of the spares: the first still replace. Raises InputError without a
    branch, with too few hosts, and where a trainer of a killed run is in the way.
    """
    nodes = setting.recipe.cluster.nodes
    on_line = setting.trainer.main_line()
    if setting.side_by_side and all(step.phase in on_line for step in plan.trainings):
        raise InputError(_OPTION, f"nothing branches off in {setting.recipe.name}", "leave it out")
    beside = _find_beside(setting, plan, state, on_line)
    waiting = {step.phase for step in beside}
    main = [step for step in plan.trainings if step.phase not in waiting]
    left = _find_left(setting, plan, state, is_done=all(step.phase in state.finished for step in main))
    own = {host.name for host in setting.hosts}
    held = [launch for launch in left if own & {*launch.hosts}]
    busy = {name for launch in left for name in launch.hosts}
    free = [name for name in setting.spares if name not in busy]
    count = min(len(free) // nodes, len(beside) - len(left)) if setting.side_by_side else 0
    if setting.side_by_side and beside and not left and not count:
        what = f"needs at least {2 * nodes} hosts, {nodes} for the main line and as many for a branch"
        there = f"{len(setting.hosts) + len(free)} can be used"
        raise InputError(_OPTION, f"{what}; {there}", "give more in the hostfile, or leave it out")
    kept = len(free) - count * nodes
    new = (HostGroup(tuple(free[at : at + nodes])) for at in range(len(free) - nodes, kept - 1, -nodes))
    adopted = (
        HostGroup(
            launch.hosts,
            launch.phase,
            launch in held or (setting.side_by_side and {*launch.hosts} <= {*setting.spares}),
        )
        for launch in left
    )
    # Adopt a launch of the killed run before another one is journaled over it.
    early = {*state.finished, state.launch.phase if state.launch else ""}
    main.sort(key=lambda step: step.phase not in early)
    return replace(setting, spares=tuple(free[:kept])), BranchPlan(
        tuple(main), beside, (*adopted, *new), bool(held)
    )


def _find_left(setting: Setting, plan: RunPlan, state: RunState, *, is_done: bool) -> list[Launch]:
    """Return the launches of a killed run that still train branches; raises InputError for one in the way.

    A branch on the main line's hosts is in the way unless the main line `is_done`; after it, those hosts
    train branches too.
    """
    own = (state.launch,) if state.launch else ()
    beside = branch_launches(setting.root, state)
    lives = [each for each in (*own, *beside) if TrainerProcess(setting.root / each.log).is_running()]
    planned, hosts = {step.phase for step in plan.trainings}, {host.name for host in setting.hosts}
    for launch in lives:
        what = f"phase {launch.phase} of a killed run still trains"
        if launch.phase not in planned:
            raise InputError("--until", what, "leave --until out, or wait for its end")
        if launch in beside and hosts & {*launch.hosts} and not is_done:
            where = ", ".join(sorted(hosts & {*launch.hosts}))
            raise InputError(where, what, "resume with the previous hostfile, or wait for its end")
    return [launch for launch in lives if launch in beside]


def _find_beside(
    setting: Setting, plan: RunPlan, state: RunState, on_line: Collection[str]
) -> tuple[Training, ...]:
    beside: dict[str, Training] = {}
    for step in plan.trainings:
        if step.phase in on_line or step.phase in state.finished or step.phase in state.attempts:
            continue
        waits = step.starts_from in beside
        if setting.side_by_side or step.phase in state.branches or waits:
            beside[step.phase] = step
    return tuple(beside.values())
