"""Branches that train beside the main line, each group of hosts carried by a thread of this process.

A branch is a run in the run: it has a journal, logs and checkpoints of its own, in `branches/<phase>/` of the
run's folder, and its ranks go by a name of their own. When it is finished the run's own journal says so, too,
and nobody who reads that needs to know of branches.

A line that fails begins nothing more. What the others then train is finished first, so that nothing is lost,
and then the run fails. Told to stop, all end in order at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from types import TracebackType

from caffe_recipes.chain.journal import name_branch
from caffe_recipes.chain.phase import note_stop, train
from caffe_recipes.chain.plan import Plan, Training
from caffe_recipes.chain.prepare import prepare
from caffe_recipes.chain.recovery import insist
from caffe_recipes.chain.run import Run
from caffe_recipes.chain.setting import Setting
from caffe_recipes.chain.signals import Interrupted
from caffe_recipes.chain.snapshots import verify_kept
from caffe_recipes.chain.units import describe_names
from caffe_recipes.cluster.parallel import open_all
from caffe_recipes.errors import CaffeRecipesError, RunFailed
from caffe_recipes.recipe.phases import Phase

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

    def start(self, setting: Setting, left: str | None = None, *, goes_on: bool = True) -> None:
        """Train on more hosts: first what a killed run has left there, then what is ready."""
        with self._news:
            first = next((step for step in self._waiting if step.phase == left), None)
            if first is not None:
                self._waiting.remove(first)
        thread = threading.Thread(target=self._work, args=(setting, first, goes_on), daemon=True)
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
            self._run.journal.append("failed", reason=str(error))
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
                        self._tell_of(error)
                    for thread in self._threads:
                        while thread.is_alive() and (until is None or time.monotonic() < until):
                            thread.join(_LOOK_S)
                return
            except Interrupted:
                until = until or time.monotonic() + _URGENT_S

    def _tell_of(self, error: BaseException) -> None:
        if self._training and not isinstance(error, Interrupted):
            named = ", ".join(self._training)
            self._run.reporter.say(f"{error}; first the end of {named} is waited for, which trains")

    def _work(self, setting: Setting, first: Training | None, goes_on: bool) -> None:
        try:
            training = first or (self._next() if goes_on else None)
            while training is not None:
                self._training.append(training.phase)
                try:
                    self._train(training, setting)
                finally:
                    self._training.remove(training.phase)
                self.look()
                training = self._next() if goes_on else None
        except Interrupted:
            self._close()
        except BaseException as error:  # whatever it is, the main thread raises it
            self._failure = self._failure or error
            self._close()
            if isinstance(error, CaffeRecipesError):
                self._run.reporter.say(f"{error}; the run ends when what trains now is finished")

    def _next(self) -> Training | None:
        """Wait until there is a branch whose start is finished; None if nothing more is to be begun."""
        with self._news:
            while self._waiting and not self._is_closing and self._run.interrupts.asked is None:
                finished = self._run.journal.state().finished
                for training in self._waiting:
                    recipe = self._run.setting.recipe
                    start = recipe.starts_from(recipe.phase(training.phase))
                    if not isinstance(start, Phase) or start.name in finished:
                        self._waiting.remove(training)
                        return training
                self._news.wait(_LOOK_S)
        return None

    def _train(self, training: Training, setting: Setting) -> None:
        """Train a branch to its end, and tell the run's journal of it."""
        branch = self._open(training, setting)
        with closing(branch.journal) as journal:
            finish = journal.state().finished.get(training.phase)
            if finish is not None:  # the run was killed before it could write that down
                verify_kept(branch.path(finish.snapshot), finish.sha256, finish.phase)
            else:
                try:
                    insist(insist(branch, prepare), partial(train, training=training))
                except Interrupted as stop:
                    note_stop(branch, stop)
                    if training.phase not in journal.state().finished:
                        raise
            self._run.journal.append("finished", **asdict(journal.state().finished[training.phase]))

    def _open(self, training: Training, setting: Setting) -> Run:
        """Return the run that a branch is, told of in the journal of the whole."""
        run, phase = self._run, training.phase
        folder, state = f"{run.folder}/branches/{phase}", run.journal.state()
        hosts = [host.name for host in setting.hosts]
        run.journal.append("branched", phase=phase, folder=folder, hosts=hosts)
        try:
            for name in ("logs", "checkpoints"):
                run.path(f"{folder}/{name}").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFailed(run.path(folder), f"cannot be made: {error.strerror}", "check the disk") from None
        journal = run.journal.open_beside(run.path(folder) / "journal.jsonl")
        name = name_branch(run.id, phase)
        if not journal.state().id:
            journal.append("created", recipe=setting.recipe.name, id=name)
        journal.start(state.job, state.restarts)
        reporter = run.reporter.beside(phase)
        reporter.say(f"a branch, on {describe_names(hosts)}; log: {folder}/logs")
        return replace(
            run,
            id=name,
            setting=setting,
            plan=Plan(run.plan.prototxts, (training,)),
            folder=folder,
            journal=journal,
            reporter=reporter,
        )


def on_hosts(setting: Setting, names: Sequence[str]) -> Setting:
    """Return a setting with other hosts, and no spares."""
    return replace(setting, hosts=open_all(names, setting.connect), spares=())
