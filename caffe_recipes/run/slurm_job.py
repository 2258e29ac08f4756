"""The Slurm jobs of a run: whether that of an earlier launch is over, and what ours has kept.

A requeued job may start on other nodes, from which the processes of its earlier start cannot be seen, so
Slurm is asked whether the job of an earlier launch is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from caffe_recipes.cluster.slurm.calls import SchedulerAway
from caffe_recipes.cluster.slurm.this_job import JobStart
from caffe_recipes.cluster.slurm.waiting import PATIENCE_S, AskJob, wait_for_end
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.run.events import Launch, RunState
from caffe_recipes.run.training_plan import find_trainer
from caffe_recipes.run_names import run_folders


def started_before(launch: Launch, state: RunState) -> bool:
    """Return whether a launch belongs to a job other than the run's, or to an earlier start of that job."""
    return launch.job != "" and (launch.job, launch.restarts) != (state.job, state.restarts)


def check_over(
    launch: Launch,
    folder: Path,
    here: JobStart,
    ask: AskJob,
    say: Callable[[str], None] = print,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Raise InputError if a launch from another host may still be running, according to its Slurm job.

    An earlier start of our own job is over, and so is a job that Slurm no longer knows. Inside a job, wait
    for Slurm to answer and for an ending job to end, since an error would make jobs that depend on ours fail.
    """
    what = f"phase {launch.phase} was started on {launch.host}"
    if not launch.job:
        raise InputError(folder, f"{what}, and its outcome is unknown", _hint(f"resume it on {launch.host}"))
    what += f" in Slurm job {launch.job}"
    if launch.job == here.job:
        if launch.restarts < here.restarts:
            return
        hint = _hint(f"resume it on {launch.host}")
        raise InputError(folder, f"{what}, and its outcome is unknown", hint)
    patience_s = PATIENCE_S if here.job else 0
    try:
        state = wait_for_end(launch.job, ask, patience_s, say, pause, clock)
    except SchedulerAway:
        hint = _hint("try again when Slurm responds")
        raise InputError(folder, f"{what}, and Slurm does not say whether that job has ended", hint) from None
    if state is not None:
        hint = _hint(f"let that job continue, or cancel it: scancel {launch.job}")
        raise InputError(folder, f"{what}, which is {state.value}", hint)


def list_kept(root: Path, recipe: AnyRecipe) -> frozenset[tuple[str, int]]:
    """Return (path, mtime in ns) of all models that the latest run and its branches can resume from."""
    kept: set[tuple[str, int]] = set()
    suffix = find_trainer(recipe).models.model_suffix
    with suppress(OSError):  # an unreachable disk must not prevent an orderly stop
        for folder in run_folders(root, recipe.name)[-1:]:
            for path in (*folder.glob(f"*/*{suffix}"), *folder.glob(f"branches/*/*/*{suffix}")):
                with suppress(FileNotFoundError):  # an old checkpoint that has just been deleted
                    kept.add((str(path), path.stat().st_mtime_ns))
    return frozenset(kept)


def _hint(first: str) -> str:
    return f"{first}, or start another run with --new"
