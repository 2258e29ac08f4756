"""One phase of a run, and the evaluation: launch, watch, judge by log and snapshot, keep what is verified."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from caffe_recipes.chain.journal import Finish, Journal, Launch, RunState
from caffe_recipes.chain.lock import RecipeLock
from caffe_recipes.chain.plan import Plan, Testing, Training
from caffe_recipes.chain.report import Reporter
from caffe_recipes.chain.setting import Setting
from caffe_recipes.chain.signals import Interrupts
from caffe_recipes.chain.snapshots import fetch_snapshot
from caffe_recipes.chain.trainer import POLL_S, Trainer, launch_trainer
from caffe_recipes.chain.units import describe_duration
from caffe_recipes.chain.watch import (
    LogTail,
    find_divergence,
    find_failure,
    has_passed,
    images_per_s,
    last_value,
    losses_until,
    measure,
)
from caffe_recipes.cluster.hosts import file_stamp
from caffe_recipes.errors import RunFailed
from caffe_recipes.generate.nets import build_net

# Hydra ends all ranks where a signal ended one, but waits for the others where one has merely exited.
_DYING_S = 5.0


@dataclass(frozen=True)
class Run:
    """A run under way; `folder` is its folder from the Caffe root."""

    setting: Setting
    plan: Plan
    folder: str
    journal: Journal
    reporter: Reporter
    interrupts: Interrupts
    lock: RecipeLock

    def path(self, path: str) -> Path:
        """Return a path from the Caffe root as one from here."""
        return self.setting.root / path


def train(run: Run, training: Training, state: RunState) -> None:
    """Carry a phase to its verified snapshot; raises RunFailed, and Interrupted, with the trainer stopped."""
    left = state.launch
    if left is not None and _resume(run, training, left):
        return
    attempt = state.attempts.get(training.phase, 0) + 1
    launch = Launch(
        phase=training.phase,
        attempt=attempt,
        log=f"{run.folder}/logs/{training.phase}-{attempt}.log",
        host=socket.gethostname(),
        stamp=_stamp(run, training.snapshot),
        time_s=time.time(),
        needed={snapshot: _stamp(run, snapshot) for snapshot, _ in training.needed},
    )
    start = f"from {training.weights}" if training.weights else "from the nets' fillers"
    run.reporter.say(f"{training.phase}: {training.last_iter:,} iterations {start}")
    inherited = run.lock.take_trainer()
    # The journal comes first: whoever finds the launch there finds the trainer by its log.
    run.journal.append("launched", **{key: value for key, value in asdict(launch).items() if key != "time_s"})
    command = (run.setting.trainer, *training.arguments)
    argv = run.setting.launch_argv(command, f"{run.folder}/hostfile")
    _carry(run, training, launch, lambda: _launch(run, argv, launch.log, inherited))


def evaluate(run: Run, testing: Testing) -> None:
    """Test the last phase's model on this machine; raises RunFailed."""
    log = _next_log(run)
    run.reporter.say(f"evaluating {testing.weights}")
    argv = run.setting.trainer_argv(testing.arguments)
    tail = _follow(run, lambda: _launch(run, argv, log), log, lambda _: None)
    outputs = dict(tail.summary.means)
    if tail.summary.fatal or not outputs:
        reason = tail.summary.fatal or f"no outputs; it said: {tail.last_line[:300]}"
        run.journal.append("failed", reason=reason, log=log)
        raise RunFailed("evaluation", reason, f"log: {log}")
    run.journal.append("evaluated", outputs=outputs, log=log)


def has_trained(run: Run, launch: Launch | None) -> bool:
    """Tell whether a trainer's log says that it has done all it was to do."""
    training = {step.phase: step for step in run.plan.trainings}.get(launch.phase if launch else "")
    if launch is None or training is None:
        return False
    tail = LogTail(run.path(launch.log))
    tail.read(to_end=True)
    return find_failure(tail, training) is None


def _resume(run: Run, training: Training, left: Launch) -> bool:
    """Take over what a killed run left: wait for its trainer, judge what it leaves; tell if it finished."""
    trainer = Trainer(run.path(left.log))
    lives = trainer.is_running()
    doing = "is still training; going on with it" if lives else "has ended since; looking at what it left"
    run.reporter.say(f"{training.phase}: the trainer of a killed run {doing}")
    try:
        _carry(run, training, left, lambda: trainer)
    except RunFailed as failure:
        run.reporter.say(f"{training.phase}: {failure.what}; starting it over")
        return False
    return True


def _carry(run: Run, training: Training, launch: Launch, start: Callable[[], Trainer]) -> None:
    """Follow a trainer to its end and judge it; journal what became of it."""
    later = [step.phase for step in run.plan.trainings].index(training.phase) + 1
    later_iterations = sum(step.last_iter for step in run.plan.trainings[later:])
    phase, last, images = training.phase, training.last_iter, training.images_per_iter

    def show(tail: LogTail) -> None:
        run.reporter.show_progress(measure(tail.summary, phase, last, images, later_iterations))

    try:
        tail = _follow(run, start, launch.log, show, training)
        finish = _judge(run, training, launch, tail)
    except RunFailed as failure:
        run.journal.append("failed", phase=training.phase, reason=failure.what)
        where, what = f"phase {training.phase}", failure.what
        raise RunFailed(where, f"failed: {what}", f"log: {launch.log}") from None
    run.journal.append("finished", **asdict(finish))
    speed = f", {finish.images_per_s:,.0f} images/s" if finish.images_per_s else ""
    took = describe_duration(finish.seconds)
    run.reporter.say(f"{training.phase}: finished in {took}{speed}; {finish.snapshot}")


def _judge(run: Run, training: Training, launch: Launch, tail: LogTail) -> Finish:
    """Believe neither exit code nor log alone: the snapshot must be there, new, whole, and fit."""
    reason = find_failure(tail, training)
    if reason:
        raise RunFailed("", reason)
    net = build_net(run.setting.recipe, training.net)

    def fetch(path: str, stamp: str | None, to: str) -> str:
        return fetch_snapshot(run.setting.hosts[0], run.setting.path(path), stamp, run.path(to), net)

    ended = run.path(launch.log).stat().st_mtime
    return Finish(
        phase=training.phase,
        snapshot=training.fetched,
        sha256=fetch(training.snapshot, launch.stamp, training.fetched),
        seconds=ended - launch.time_s,
        images_per_s=images_per_s(tail.summary, training.images_per_iter),
        loss=last_value(losses_until(tail.summary, training.last_iter).values()),
        needed={to: fetch(path, launch.needed.get(path), to) for path, to in training.needed},
    )


def _follow(
    run: Run,
    start: Callable[[], Trainer],
    log: str,
    show: Callable[[LogTail], None],
    training: Training | None = None,
) -> LogTail:
    """Read a trainer's log until it ends, is lost, or has done what it is to be stopped after.

    Whatever goes wrong here, no trainer is left behind.
    """
    tail = LogTail(run.path(log))
    try:
        with run.interrupts.held():
            trainer = start()
        end_at = None
        while trainer.is_running() and (end_at is None or time.monotonic() < end_at):
            known = len(tail.summary.losses)
            tail.read()
            if len(tail.summary.losses) > known:
                show(tail)
            if training and find_divergence(losses_until(tail.summary, training.last_iter)):
                break
            if end_at is None and tail.summary.fatal:
                end_at = time.monotonic() + _DYING_S
            elif end_at is None and training and _is_to_stop(tail, training):
                run.journal.append("stopping", phase=training.phase, iteration=training.last_iter)
                trainer.interrupt()
                end_at = time.monotonic() + run.setting.stop_grace_s
            time.sleep(POLL_S)
    finally:
        Trainer(run.path(log)).stop()
        run.reporter.end_progress()
    tail.read(to_end=True)
    return tail


def _is_to_stop(tail: LogTail, training: Training) -> bool:
    return training.is_stopped and has_passed(tail.summary, training.snapshot, training.last_iter)


def _stamp(run: Run, snapshot: str) -> str | None:
    return file_stamp(run.setting.hosts[0], run.setting.path(snapshot))


def _launch(run: Run, argv: tuple[str, ...], log: str, inherited: tuple[int, ...] = ()) -> Trainer:
    return launch_trainer(argv, run.setting.root, run.setting.environment, run.path(log), inherited)


def _next_log(run: Run) -> str:
    names = (f"{run.folder}/logs/evaluation-{number}.log" for number in range(1, 10**6))
    return next(name for name in names if not run.path(name).exists())
