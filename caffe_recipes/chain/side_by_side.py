"""Branches that train beside the main line, each group of hosts carried by a thread of this process.

A line that fails begins nothing more. What the others then train is finished first, so that nothing is lost,
and then the run fails. Told to stop, all end in order at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

from caffe_recipes.chain.branch import train_branch
from caffe_recipes.chain.plan import Training
from caffe_recipes.chain.run import Run
from caffe_recipes.chain.setting import Setting
from caffe_recipes.chain.signals import Interrupted
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
                    train_branch(self._run, training, setting)
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


def on_hosts(setting: Setting, names: Sequence[str]) -> Setting:
    """Return a setting with other hosts, and no spares."""
    return replace(setting, hosts=open_all(names, setting.connect), spares=())
