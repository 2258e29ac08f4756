"""Cancelling a run: its Slurm jobs, or its process. Caffe is asked for a snapshot first."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from caffe_recipes.cluster.commands import Host, Say
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.slurm.jobs import JobState, describe_state
from caffe_recipes.cluster.slurm.queries import Slurm
from caffe_recipes.cluster.slurm.sbatch import cancel_jobs
from caffe_recipes.errors import InputError, RunFailed
from caffe_recipes.limits import JOB_GRACE_S
from caffe_recipes.run.context import check_own_root
from caffe_recipes.run.folders import own_run_paths, run_entries
from caffe_recipes.run.monitor.follow import FollowEnv, StatusOptions
from caffe_recipes.run.monitor.run_files import LocalFiles, Process
from caffe_recipes.run.monitor.status import StatusEntry, find_status
from caffe_recipes.run.signals import CANCEL
from caffe_recipes.run.submit.submissions import (
    Ask,
    SubmissionJournal,
    SubmittedJob,
    query_jobs,
    submissions_path,
)

_POLL_S = 0.2
_POLL_SLURM_S = 3.0
# The states of a job that the cancel did not cause. FAILED is not one of them: Slurm also reports that for a
# job that stopped in order after SIGTERM, because of the exit code of its script.
_ENDED_BY_ITSELF = (
    JobState.COMPLETED,
    JobState.TIMEOUT,
    JobState.NODE_FAIL,
    JobState.OUT_OF_MEMORY,
    JobState.PREEMPTED,
)


@dataclass(frozen=True)
class CancelOptions:
    """Options of `cancel`; `now` leaves no time for a snapshot."""

    root: str = "."
    now: bool = False
    grace_s: float = JOB_GRACE_S


@dataclass(frozen=True)
class CancelEnv:
    """Injected clock, sleep and kill functions, and the host on which Slurm is asked."""

    host: Host = field(default_factory=LocalHost)
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    kill: Callable[[int, int], None] = os.kill


def cancel_run(run: str, options: CancelOptions, say: Say, env: CancelEnv | None = None) -> None:
    """Stop a run cleanly, as Ctrl-C does, and wait until it has ended; cancel jobs that are still queued.

    Raises InputError if there is nothing to cancel, if the process is on another host, or if other users can
    write in the Caffe root; RunFailed if Slurm does not respond.
    """
    env = env or CancelEnv()
    root = Path(options.root)
    check_own_root(root, own_run_paths(root, Path(run).name))  # its journals name what to end
    ask = Slurm(env.host)
    status = find_status(run, StatusOptions(options.root), FollowEnv(ask=ask), reach=False)
    if status.run is not None:  # given by its folder, or by the name that this was renamed to
        check_own_root(root, [*own_run_paths(root, status.recipe), *run_entries(Path(status.run.path))])
    away = next((job.away for job in status.jobs if job.away), "")
    live = [job for job in status.jobs if job.is_live or job.is_elsewhere]
    if live:
        _cancel_jobs(status, live, options, say, env, ask)
    elif status.run is not None and status.lives:
        _stop_process(status.run.process, options, say, env)
    elif away:
        raise RunFailed(
            "", f"cannot tell whether a job is queued or running: {away}", "nothing was cancelled"
        )
    else:
        raise _nothing_to_cancel(status)


def _nothing_to_cancel(status: StatusEntry) -> InputError:
    if status.state == "unknown" and status.run is not None:
        process = status.run.process
        what = f"its process {process.pid} is on another host, {process.node}"
        return InputError(status.name, what, "cancel it there")
    return InputError(status.name, f"nothing to cancel: it is {status.state}")


def _stop_process(process: Process, options: CancelOptions, say: Say, env: CancelEnv) -> None:
    """Ask a run to stop, with --now by sending SIGINT twice, and wait for its end."""
    say(f"stopping process {process.pid}" + ("" if options.now else "; Caffe writes a snapshot first"))
    files = LocalFiles()
    signals = [signal.SIGINT] * 2 if options.now else [CANCEL]
    while files.read((), process).lives:
        # The second of two signals in quick succession would be lost, so they are a poll apart.
        if signals:
            with suppress(ProcessLookupError):
                env.kill(process.pid, signals.pop())
        env.pause(_POLL_S)
    say("stopped")


def _cancel_jobs(
    status: StatusEntry,
    live: Sequence[SubmittedJob],
    options: CancelOptions,
    say: Say,
    env: CancelEnv,
    ask: Ask,
) -> None:
    """Cancel the queued jobs, the last one first, so that none starts meanwhile; then the running ones."""
    path = submissions_path(Path(options.root), status.recipe)
    with closing(SubmissionJournal(path)) as journal:
        waiting = [job for job in reversed(live) if job.standing == "waiting"]
        running = [job for job in live if job.standing != "waiting"]
        _cancel(journal, waiting, say, env, ask)
        if running and not options.now:
            _stop_in_order(running, options, say, env, ask)
        _cancel(journal, running, say, env, ask)


def _cancel(
    journal: SubmissionJournal, jobs: Sequence[SubmittedJob], say: Say, env: CancelEnv, ask: Ask
) -> None:
    """Cancel jobs, and report those that have ended by themselves in the meantime."""
    for seen in jobs:
        if seen.job_id is None:
            continue
        cancel_jobs(env.host, [seen.job_id], cluster=seen.cluster)
        if not seen.submission.is_settled:
            journal.settle(seen.submission.name, seen.job_id, seen.cluster)
        (now,) = query_jobs([seen.submission], ask)
        if now.job is not None and now.job.state in _ENDED_BY_ITSELF:
            say(f"job {now.label} was not cancelled, because it {describe_state(now.job)}")
            continue
        if seen.submission.is_ours:
            journal.cancel(seen.submission.name)
        say(f"job {seen.label} was cancelled")


def _stop_in_order(
    running: Sequence[SubmittedJob], options: CancelOptions, say: Say, env: CancelEnv, ask: Ask
) -> None:
    """Signal the runs of these jobs to write a snapshot and stop; wait for that for `options.grace_s`."""
    for cluster in dict.fromkeys(seen.cluster for seen in running):
        ids = [seen.job_id for seen in running if seen.job_id is not None and seen.cluster == cluster]
        cancel_jobs(env.host, ids, signal="TERM", batch=True, cluster=cluster)
    jobs = ", ".join(f"job {seen.label}" for seen in running)
    grace = f"within {options.grace_s:g} s (--now stops it without one)"
    say(f"stopping {jobs}; Caffe writes a snapshot first, {grace}")
    until = env.clock() + options.grace_s
    submissions = [seen.submission for seen in running]
    while env.clock() < until:
        env.pause(_POLL_SLURM_S)
        if not any(seen.is_live or seen.away or seen.is_elsewhere for seen in query_jobs(submissions, ask)):
            return
    say(f"not stopped within {options.grace_s:g} s")
