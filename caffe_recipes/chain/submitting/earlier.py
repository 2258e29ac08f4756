"""The job that a submit is told to wait for: one that Slurm forgot, or that failed, holds nothing back."""

from __future__ import annotations

from collections.abc import Sequence

from caffe_recipes.cluster.hosts import Host
from caffe_recipes.cluster.slurm.jobs import State
from caffe_recipes.cluster.slurm.queries import find_jobs
from caffe_recipes.cluster.slurm.reasons import describe_state
from caffe_recipes.errors import InputError


def check_after(host: Host, number: int, clusters: Sequence[str] = ()) -> None:
    """Raise InputError where a job behind this one would begin at once, or never; SchedulerAway.

    sbatch takes a dependency on a job that Slurm does not know, and drops it.
    """
    found = [job for cluster in clusters or ("",) for job in find_jobs(host, ids=[number], cluster=cluster)]
    if not found:
        hint = "leave --after out if it has ended well"
        raise InputError("--after", f"Slurm knows no job {number} (any more)", hint)
    for job in found:
        if job.state.is_over and job.state is not State.COMPLETED:
            what = f"a job behind job {number} would never begin: it {describe_state(job)}"
            raise InputError("--after", what.partition("; ")[0], "give one that can end well, or none")
