"""Following a launch to its end: its log, the hosts it runs on, and what the user asks meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from caffe_recipes.chain.journal import Launch
from caffe_recipes.chain.keeper import Keeper
from caffe_recipes.chain.plan import SOLVER, Training
from caffe_recipes.chain.rank_logs import RankLogs
from caffe_recipes.chain.run import Run
from caffe_recipes.chain.trainer import POLL_S, Trainer
from caffe_recipes.chain.watch import (
    LogTail,
    find_divergence,
    find_failure,
    find_ignored,
    has_passed,
    losses_until,
    measure,
)
from caffe_recipes.chain.watchdog import Trouble, Watchdog
from caffe_recipes.cluster.hosts import Host, LocalHost
from caffe_recipes.cluster.pulses import Pulses
from caffe_recipes.cluster.ranks import ask_snapshot, end_ranks
from caffe_recipes.errors import CaffeRecipesError

# Hydra ends all ranks where a signal ended one, but waits for the others where one has merely exited.
_DYING_S = 5.0
# Hosts are looked at so often; the log at every poll.
_LOOK_S = 1.0


@dataclass(frozen=True)
class Followed:
    """What a launch left: its log, the host of its rank 0, and what was wrong with it or its hosts.

    `unheard` are hosts that did not answer when the ranks of a failed launch were ended.
    """

    tail: LogTail
    lead: Host
    trouble: Trouble | None = None
    unheard: tuple[str, ...] = ()


def follow(run: Run, training: Training, launch: Launch, start: Callable[[], Trainer]) -> Followed:
    """Follow a launch until it ends, is lost, or has done what it is to be stopped after.

    Whatever goes wrong here, no rank is left behind on any host that can be reached. Raises Interrupted if
    the user has asked to stop, with the snapshot that Caffe was then asked for kept as a checkpoint.
    """
    folder = run.path(launch.log).with_suffix(".ranks")
    ranks = RankLogs(folder, run.setting.recipe.cluster.ranks, run.reporter.say)
    tail = LogTail(run.path(launch.log), ranks.feed)
    with ExitStack() as stack:
        stack.callback(ranks.close)
        trouble: Trouble | None = None
        unheard: list[str] = []
        trainer = Trainer(run.path(launch.log))
        stack.callback(lambda: unheard.extend(_end(run, training, trainer, tail, trouble)))
        stack.enter_context(run.interrupts.noted())
        with run.interrupts.held():
            trainer = start()
        # A journal of an earlier version names no launch: its ranks are heard of nowhere.
        pulses = stack.enter_context(Pulses(run.setting.hosts, launch.id or run.id))
        attendant = _Attendant(run, training, launch, tail, trainer, pulses)
        while trainer.is_running() and not attendant.attend():
            run.interrupts.raise_urgent()
            run.check_folder()
            time.sleep(POLL_S)
        run.check_folder()
        lead, trouble = attendant.lead(), attendant.trouble
        attendant.take_last()
        if trouble is not None:
            run.journal.append("ending", phase=training.phase, host=trouble.host, reason=trouble.what)
            run.reporter.say(f"{training.phase}: {trouble}; ending the launch on every host")
    tail.read(to_end=True)
    if find_failure(tail, training) is not None:
        run.interrupts.raise_asked()
    return Followed(tail, lead, trouble, tuple(unheard))


def end_everywhere(run: Run, lost: str | None = None) -> list[str]:
    """End every rank of the run on every host but one that is lost; say, and return, where that failed."""
    hosts = [host for host in run.setting.hosts if host.name != lost]
    here = () if any(host.is_local for host in hosts) else (LocalHost(),)  # hydra's logins are left here
    if lost:
        run.reporter.say(f"{lost}: its ranks, if it lives, end with their connection or with the next launch")
    failed = end_ranks((*hosts, *here), run.id, launcher=True)
    for host, reason in failed.items():
        run.reporter.say(f"{host}: its ranks could not be ended: {reason}")
    return list(failed)


def _end(run: Run, training: Training, trainer: Trainer, tail: LogTail, trouble: Trouble | None) -> list[str]:
    try:
        trainer.stop()
    finally:
        tail.read(to_end=True)
        unheard: list[str] = []
        if trouble is not None or find_failure(tail, training) is not None:
            unheard = end_everywhere(run, trouble.host if trouble and trouble.is_lost else None)
        run.reporter.end_progress()
    return unheard


class _Attendant:
    """Acts on what a launch's log and hosts tell; `attend` is called again and again while it runs."""

    def __init__(
        self, run: Run, training: Training, launch: Launch, tail: LogTail, trainer: Trainer, pulses: Pulses
    ) -> None:
        self.trouble: Trouble | None = None
        self._run, self._training, self._launch = run, training, launch
        self._tail, self._trainer, self._pulses = tail, trainer, pulses
        self._watchdog = Watchdog(pulses, run.setting.policy.stall_s)
        self._look_at = 0.0
        self._end_at: float | None = None
        self._keeper = Keeper(run, training, tail, self.lead)
        self._ignored = 0
        self._is_asked = False
        self._suspects: set[str] = set()

    def lead(self) -> Host:
        """Return the host of rank 0: the hostfile's first, unless it has been heard of on another."""
        heard = self._pulses.latest()
        leads = {name for name, pulse in heard.items() for rank in pulse.ranks if rank.rank == 0}
        hosts = self._run.setting.hosts
        return next((host for host in hosts if host.name in leads), hosts[0])

    def attend(self) -> bool:
        """Act on what is new; tell whether the launch is to be ended."""
        run, training, tail = self._run, self._training, self._tail
        known = len(tail.summary.losses), len(tail.summary.rates)
        tail.read()
        if (len(tail.summary.losses), len(tail.summary.rates)) != known:
            self._show()
        if find_divergence(losses_until(tail.summary, training.last_iter)):
            return True
        self.trouble = self._find_ignored()
        if self.trouble is not None:
            return True
        if run.interrupts.asked is not None and not self._is_asked and not self._ask():
            return True
        if self._keeper.take() and self._is_asked:  # whether it could be kept or not
            return True
        if self._end_at is None and (tail.summary.fatal or tail.no_step):
            self._end_at = time.monotonic() + _DYING_S
        elif self._end_at is None and _is_to_stop(tail, training):
            run.journal.append("stopping", phase=training.phase, iteration=training.last_iter)
            self._trainer.interrupt()
            self._end_at = time.monotonic() + run.setting.stop_grace_s
        self.trouble = self._look()
        return self.trouble is not None or (self._end_at is not None and time.monotonic() >= self._end_at)

    def _find_ignored(self) -> Trouble | None:
        known, self._ignored = self._ignored, len(self._tail.summary.ignored)
        root = self._run.setting.root
        said = find_ignored(self._tail, self._training, root) if self._ignored > known else None
        return Trouble(said) if said else None

    def take_last(self) -> None:
        """Keep what was snapshotted just before the launch ended, if rank 0's host can still be asked."""
        self._tail.read(to_end=True)
        if self._pulses.is_well(self.lead().name) and find_failure(self._tail, self._training) is not None:
            self._keeper.take()

    def _show(self) -> None:
        steps = self._run.plan.trainings
        later = [step.phase for step in steps].index(self._training.phase) + 1
        self._run.reporter.show_progress(
            measure(
                self._tail.summary,
                self._training.phase,
                self._training.last_iter,
                self._training.images_per_iter,
                sum(step.last_iter for step in steps[later:]),
            )
        )

    def _ask(self) -> bool:
        """Ask rank 0 for a snapshot; tell whether one is to be waited for."""
        run, self._is_asked, self._keeper.is_wanted = self._run, True, True
        word = next((word for word in self._launch.arguments if word.startswith(SOLVER)), "")
        try:
            answer = ask_snapshot(self.lead(), self._launch.id or run.id, word)
        except CaffeRecipesError as error:
            run.reporter.say(f"no snapshot can be asked for: {error}")
            return False
        if answer != "asked":
            run.reporter.say("no snapshot can be asked for: Caffe is not there yet, or no more")
            return False
        self._keeper.skip()
        self._end_at = time.monotonic() + run.setting.stop_grace_s
        run.reporter.say("asked Caffe for a snapshot; once more stops at once")
        return True

    def _look(self) -> Trouble | None:
        if time.monotonic() < self._look_at:
            return None
        self._look_at = time.monotonic() + _LOOK_S
        trouble, suspect = self._watchdog.look(self._tail), self._watchdog.suspect
        if suspect is not None and suspect.host not in self._suspects:
            self._suspects.add(suspect.host)
            self._run.reporter.say(f"{suspect.host} may hold the others up: {suspect.reason}")
        return trouble


def _is_to_stop(tail: LogTail, training: Training) -> bool:
    return training.is_stopped and has_passed(tail.summary, training.snapshot, training.last_iter)
