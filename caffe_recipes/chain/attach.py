"""Watching a run from anywhere: its journal and its trainer's log, read as they grow. Nothing is written.

The run's own process may be on another machine, and end without a word: that is told, and not waited for.
"""

from __future__ import annotations

import posixpath
from contextlib import ExitStack
from dataclasses import dataclass

from caffe_recipes.chain.eyes import HERE_S, THERE_S, Eyes, open_files
from caffe_recipes.chain.eyes import Means as Means
from caffe_recipes.chain.find_run import load_frozen
from caffe_recipes.chain.folder import RUNS
from caffe_recipes.chain.report import Reporter
from caffe_recipes.chain.run_files import RunFiles, Wanted
from caffe_recipes.chain.shown_run import ShownRun
from caffe_recipes.chain.submitting.job_eyes import JobEyes
from caffe_recipes.chain.submitting.seen import Ask, slurm_beside
from caffe_recipes.chain.waiting import check_end_with_jobs, wait_for_run
from caffe_recipes.errors import InputError

# No file is as long: nothing of it is read.
_BEYOND = 1 << 62


@dataclass(frozen=True)
class AttachOptions:
    """What the user says of watching besides the run; `root` is a path on the host `on`."""

    root: str = "."
    on: str | None = None
    once: bool = False


def attach(
    run: str, options: AttachOptions, reporter: Reporter, means: Means | None = None, ask: Ask | None = None
) -> None:
    """Show a run, and follow it until it is finished; with `once` only where it stands.

    `run` is its folder, its name, or its recipe, whose latest run is meant. While a job of the recipe waits
    or runs, that is told and the run waited for. Raises InputError if there is neither, and RunFailed when
    the run has failed, is interrupted, or its process is gone without a word.
    """
    means = means or Means()
    with ExitStack() as stack:
        files = open_files(options.on, means)
        stack.callback(files.close)
        stack.callback(reporter.end_progress)
        runs = posixpath.normpath(posixpath.join(options.root, RUNS))
        jobs = JobEyes(files, runs, ask or slurm_beside(files), reporter.say_amid, means.clock)
        path = wait_for_run(run, options.root, jobs, means, once=options.once)
        if path is None:
            return
        shown = ShownRun(run, path, load_frozen(files, path), reporter)
        eyes = Eyes(files, reporter, means, options.once)
        stack.callback(eyes.close)
        # Which log there is to be read, and whose process to be asked for, the journal tells first.
        shown.take(eyes.look(shown).pieces)
        while not shown.is_complete:
            process = shown.process
            look = eyes.look(shown)
            if shown.take(look.pieces, live=not options.once):
                eyes.saw_news()
            if shown.is_complete:
                break
            if shown.process == process:
                check_end_with_jobs(shown, look, jobs, is_final=options.once or eyes.is_quiet)
            if options.once:
                break
            means.pause(THERE_S if options.on else HERE_S)
        if shown.is_complete:
            shown.show_result()
            for model in shown.models:
                if _is_gone(files, model):
                    reporter.say(f"{model}: the model is gone; restore it, or train again with --new")
        elif progress := shown.progress():
            reporter.show_now(progress)


def _is_gone(files: RunFiles, path: str) -> bool:
    """Tell whether there is no such file; one that cannot be looked at may be there."""
    try:
        return files.look([Wanted(path, _BEYOND)]).pieces == (None,)
    except InputError:
        return False
