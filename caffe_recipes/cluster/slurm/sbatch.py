"""Submit a script to Slurm, and distinguish a refused job from one that may have been submitted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from caffe_recipes.cluster.commands import Completed, Host
from caffe_recipes.cluster.slurm.calls import (
    ASK_S,
    SBATCH_ENVIRONMENT,
    NoCommand,
    SchedulerAway,
    is_away,
    join_complaints,
    on_cluster,
    run_command,
)
from caffe_recipes.cluster.slurm.jobs import Job
from caffe_recipes.cluster.slurm.queries import find_jobs
from caffe_recipes.cluster.slurm.sbatch_options import JobRequest, sbatch_argv
from caffe_recipes.errors import ClusterError, HostFailed

# sbatch itself retries for a while if the controller is busy.
SUBMIT_S = 60.0
_JOB_ID = re.compile(r"(\d{1,10})(?:;(\S+))?")
_REFUSED = re.compile(
    r"error: |fatal: |allocation failure|unrecognized option|invalid option|requires an argument|ambiguous"
)
# Exit codes of `timeout`, and of a shell whose child was killed; sbatch's own are 1 and 255.
_KILLED = range(124, 255)
_ENDED = re.compile(r"invalid job id|already completing or completed|job not found", re.IGNORECASE)


@dataclass(frozen=True)
class Submitted:
    """Slurm accepted the job; `cluster` is set if sbatch chose a cluster, or was given one."""

    job_id: int
    cluster: str = ""


@dataclass(frozen=True)
class Refused:
    """The job was certainly not submitted; `text` is Slurm's reason, on one line."""

    text: str


@dataclass(frozen=True)
class Unsure:
    """The job may have been submitted; search for its name before a retry. `text` says what is known."""

    text: str


def try_submission(host: Host, request: JobRequest) -> str | None:
    """Return None if Slurm would accept a job, else its reason on one line; nothing is submitted.

    Slurm also accepts jobs that can never start; see check_limits. Raises SchedulerAway.
    """
    done = run_command(host, sbatch_argv(request, test_only=True), ASK_S, SBATCH_ENVIRONMENT)
    if done.returncode == 0:
        return None
    reason = join_complaints(done.stderr) or f"exit code {done.returncode}"
    if is_away(done.stderr) or done.returncode in _KILLED:
        raise SchedulerAway(host.name, f"sbatch got no answer from Slurm: {reason}")
    return reason


def submit_job(host: Host, request: JobRequest) -> Submitted | Refused | Unsure:
    """Submit a job, in one attempt. Raises ClusterError if the request is not valid."""
    argv = sbatch_argv(request)
    try:
        host.connect()
    except ClusterError as error:
        return Refused(str(error))
    try:
        return _judge(run_command(host, argv, SUBMIT_S, SBATCH_ENVIRONMENT))
    except NoCommand as error:
        return Refused(str(error))
    except SchedulerAway as error:
        return Unsure(str(error))


def find_submission(host: Host, name: str, cluster: str = "") -> Job | None:
    """Return the job with a name that is used only once; None if Slurm knows no such job.

    Without accounting, Slurm forgets a job some minutes after it ends (MinJobAge). A busy controller may
    accept a job shortly after sbatch has given up. Raises SchedulerAway.
    """
    return next(iter(find_jobs(host, names=(name,), cluster=cluster)), None)


def cancel_jobs(
    host: Host,
    ids: Iterable[int | str],
    *,
    signal: str | None = None,
    batch: bool = False,
    cluster: str = "",
) -> None:
    """Cancel jobs or steps, or send a signal to the steps of jobs, or with `batch` only to their scripts.

    Jobs that have ended or are unknown are skipped. Raises SchedulerAway, and ClusterError if Slurm refuses.
    """
    words = [str(job_id) for job_id in dict.fromkeys(ids)]
    if not words:
        return  # without ids scancel would cancel all jobs
    options = [*([f"--signal={signal}"] if signal else []), *(["--batch"] if batch else [])]
    done = run_command(host, on_cluster(["scancel", *options, *words], cluster))
    if done.returncode == 0:
        return
    left = "\n".join(line for line in done.stderr.splitlines() if not _ENDED.search(line))
    reason = join_complaints(left)
    if is_away(left) or done.returncode in _KILLED:
        raise SchedulerAway(host.name, f"scancel got no answer from Slurm: {reason}")
    if reason:
        raise HostFailed(host.name, f"scancel failed: {reason}", "see scontrol show job")


def _judge(done: Completed) -> Submitted | Refused | Unsure:
    # A site's wrapper may print other lines, but the job id is alone on its line.
    numbers = [found for line in done.stdout.splitlines() if (found := _JOB_ID.fullmatch(line.strip()))]
    if done.returncode == 0 and numbers:
        return Submitted(int(numbers[-1][1]), numbers[-1][2] or "")
    reason = join_complaints(done.stderr)
    sure = done.returncode != 0 and done.returncode not in _KILLED and not numbers
    if sure and _REFUSED.search(done.stderr) and not is_away(done.stderr):
        return Refused(reason)
    return Unsure(reason or f"sbatch printed no job id and exited with {done.returncode}")
