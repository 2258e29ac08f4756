"""The evaluation: `caffe test` of a phase's model, by one process on this machine."""

from __future__ import annotations

import time

from caffe_recipes.chain.plan import Testing
from caffe_recipes.chain.run import Run
from caffe_recipes.chain.trainer import POLL_S, Trainer, launch_trainer
from caffe_recipes.chain.watch import LogTail, describe_last_words
from caffe_recipes.chain.watchdog import Pace
from caffe_recipes.errors import RunFailed


def evaluate(run: Run, testing: Testing) -> None:
    """Test a phase's model and journal what it gave; raises RunFailed, also where the log stalls."""
    log = _next_log(run)
    run.reporter.say(f"evaluating {testing.weights}")
    tail, stalled = _follow(run, testing, log)
    outputs = dict(tail.summary.means)
    if tail.summary.fatal or not outputs:
        said = describe_last_words(tail, "; it said: ")
        reason = tail.summary.fatal or (f"{stalled}; ended it" if stalled else f"no outputs{said}")
        run.journal.append("failed", reason=reason, log=log)
        raise RunFailed("evaluation", reason, f"log: {log}")
    run.journal.append("evaluated", phase=testing.phase, outputs=outputs, log=log)


def _follow(run: Run, testing: Testing, log: str) -> tuple[LogTail, str | None]:
    """Wait for the end, or make it where the log stalls; return the log, and how it has stalled."""
    setting, tail, pace = run.setting, LogTail(run.path(log)), Pace(run.setting.policy.stall_s)
    stalled: str | None = None
    argv = setting.trainer_argv(testing.arguments)
    try:
        with run.interrupts.held():
            trainer = launch_trainer(argv, setting.root, setting.environment, run.path(log))
        while trainer.is_running() and stalled is None:
            time.sleep(POLL_S)
            tail.read()
            stalled = pace.look(tail)
    finally:
        Trainer(run.path(log)).stop()
    tail.read(to_end=True)
    return tail, stalled


def _next_log(run: Run) -> str:
    names = (f"{run.folder}/logs/evaluation-{number}.log" for number in range(1, 10**6))
    return next(name for name in names if not run.path(name).exists())
