"""The evaluation: `caffe test` of the last phase's model, by one process on this machine."""

from __future__ import annotations

import time

from caffe_recipes.chain.plan import Testing
from caffe_recipes.chain.run import Run
from caffe_recipes.chain.trainer import POLL_S, Trainer, launch_trainer
from caffe_recipes.chain.watch import LogTail
from caffe_recipes.errors import RunFailed


def evaluate(run: Run, testing: Testing) -> None:
    """Test the last phase's model and journal what it gave; raises RunFailed."""
    log = _next_log(run)
    run.reporter.say(f"evaluating {testing.weights}")
    tail = _follow(run, testing, log)
    outputs = dict(tail.summary.means)
    if tail.summary.fatal or not outputs:
        reason = tail.summary.fatal or f"no outputs; it said: {tail.last_line[:300]}"
        run.journal.append("failed", reason=reason, log=log)
        raise RunFailed("evaluation", reason, f"log: {log}")
    run.journal.append("evaluated", outputs=outputs, log=log)


def _follow(run: Run, testing: Testing, log: str) -> LogTail:
    setting, tail = run.setting, LogTail(run.path(log))
    argv = setting.trainer_argv(testing.arguments)
    try:
        with run.interrupts.held():
            trainer = launch_trainer(argv, setting.root, setting.environment, run.path(log))
        while trainer.is_running():
            time.sleep(POLL_S)
    finally:
        Trainer(run.path(log)).stop()
    tail.read(to_end=True)
    return tail


def _next_log(run: Run) -> str:
    names = (f"{run.folder}/logs/evaluation-{number}.log" for number in range(1, 10**6))
    return next(name for name in names if not run.path(name).exists())
