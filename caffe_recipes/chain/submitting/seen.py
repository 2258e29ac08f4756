"""What has become of submitted jobs, as far as Slurm tells: a scheduler that is away makes nothing fail."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from signal import SIGTERM
from typing import Literal

from caffe_recipes.chain.run_files import HostFiles, RunFiles, Wanted
from caffe_recipes.chain.submitting.submissions import SUFFIX, Submission, Submissions, fold_submissions
from caffe_recipes.cluster.hosts import Host, LocalHost
from caffe_recipes.cluster.slurm.jobs import Job, State
from caffe_recipes.cluster.slurm.queries import SchedulerAway, find_jobs
from caffe_recipes.cluster.slurm.reasons import describe_state
from caffe_recipes.errors import ClusterError

# Asks Slurm for jobs by their numbers and names; raises ClusterError if it does not answer.
Ask = Callable[[Collection[int], Collection[str]], Sequence[Job]]
Standing = Literal["waiting", "running", "over", "unknown"]


@dataclass(frozen=True)
class SeenJob:
    """A submission and the job that Slurm knows of it, if any; `away` is why Slurm was not asked."""

    submission: Submission
    standing: Standing
    job: Job | None = None
    away: str = ""

    @property
    def job_id(self) -> int | None:
        """The job's number, if it has one."""
        return self.job.job_id if self.job else self.submission.job_id

    @property
    def cluster(self) -> str:
        """The cluster that has it, where that is not the own."""
        return self.job.cluster if self.job else self.submission.cluster

    @property
    def is_live(self) -> bool:
        """Whether Slurm says that it waits or runs."""
        return self.standing in ("waiting", "running")

    @property
    def is_elsewhere(self) -> bool:
        """Whether another cluster of the federation has it, so that ours does not know whether it lives."""
        return self.job is not None and self.job.state is State.REVOKED


@dataclass(frozen=True)
class Slurm:
    """Asks the Slurm of a host; of `cluster`, if that is another than the host's own."""

    host: Host
    cluster: str = ""

    def __call__(self, ids: Collection[int], names: Collection[str]) -> Sequence[Job]:
        """Return the jobs of these numbers and names; raises ClusterError if it does not answer."""
        return find_jobs(self.host, ids=ids, names=names, cluster=self.cluster)


def slurm_of(host: Host) -> Ask:
    """Return what asks the Slurm of a host."""
    return Slurm(host)


def slurm_beside(files: RunFiles) -> Ask:
    """Return what asks the Slurm of the host that files are on."""
    return slurm_of(files.there if isinstance(files, HostFiles) else LocalHost())


def read_submissions(files: RunFiles, runs: str, recipe: str) -> Submissions:
    """Return all that was submitted of a recipe, from where its runs are; raises InputError."""
    path = f"{runs}/{recipe}{SUFFIX}"
    piece = files.look([Wanted(path)]).pieces[0]
    return Submissions() if piece is None else fold_submissions(piece.data.decode(errors="replace"), path)


def read_latest(files: RunFiles, runs: str, recipe: str) -> tuple[Submission, ...]:
    """Return what the last submit of a recipe has submitted, from where its runs are; raises InputError."""
    return read_submissions(files, runs, recipe).latest


def submitted_by_hand(recipe: str, job_id: int, time_s: float) -> Submission:
    """Return what stands for a job that only a run's journal tells of, which was heard of last at `time_s`.

    Whoever calls sbatch may name the job as they like: it is known by its number.
    """
    return Submission(recipe, "", "", time_s, outcome="submitted", job_id=job_id)


def see_jobs(submissions: Sequence[Submission], ask: Ask) -> tuple[SeenJob, ...]:
    """Return what Slurm says of each submission, in order; nothing is asked for what it refused."""
    asked = [each for each in submissions if each.outcome != "refused"]
    found: list[Job] = []
    away = ""
    for cluster in dict.fromkeys(name for each in asked for name in each.cluster.split(",")):
        there = [each for each in asked if cluster in each.cluster.split(",")]
        ids = [each.job_id for each in there if each.job_id is not None]
        names = [each.name for each in there if each.job_id is None]
        try:
            found += (replace(ask, cluster=cluster) if isinstance(ask, Slurm) else ask)(ids, names)
        except ClusterError as error:
            found += error.known if isinstance(error, SchedulerAway) else ()
            away = str(error)
    # A number comes round again; a name does not.
    by_name = {job.name: job for job in found}
    by_number: dict[int | None, Job] = {job.job_id: job for job in found}
    return tuple(
        _see(each, by_name.get(each.name) if each.is_ours else by_number.get(each.job_id), away)
        for each in submissions
    )


def describe_job(seen: SeenJob, last_s: float | None = None, last: str = "") -> str:
    """Say what a job does in words that follow its number.

    `last` is what was last known of it, at `last_s`; without, that it was submitted.
    """
    each = seen.submission
    if seen.away and each.outcome != "refused":
        moment = datetime.fromtimestamp(each.time_s if last_s is None else last_s).astimezone()
        known = last or {"submitting": "it was being submitted", "cancelled": "it was cancelled"}.get(
            each.outcome, "it was submitted"
        )
        return f"unknown since {_clock(moment)} ({known}): {seen.away}"
    if seen.job is not None and seen.job.state is State.FAILED and _is_cancelled(seen, seen.job):
        return "was cancelled, and ended in order"  # its script returns what a signal makes it return
    if seen.job is not None:
        return describe_state(seen.job)
    return {
        "refused": f"was refused: {each.reason}",
        "cancelled": "was cancelled",
        "submitting": "is being submitted, or was when its submit was ended; the next submit looks first",
        "submitted": "is over: Slurm knows it no more",
    }[each.outcome]


def name_seen(seen: SeenJob) -> str:
    """Name a job as a user of Slurm does; by its name where it has no number.

    >>> name_seen(SeenJob(Submission("small-3fa210", "3fa210", "chain.sbatch", 0.0), "unknown"))
    'job small-3fa210'
    """
    phase = f" ({seen.submission.phase})" if seen.submission.phase else ""
    return f"job {seen.job_id or seen.submission.name}{phase}"


def _is_cancelled(seen: SeenJob, job: Job) -> bool:
    """Tell whether a job was told to end; of a user's own only its end tells that."""
    if seen.submission.is_ours:
        return seen.submission.outcome == "cancelled"
    return job.signal == SIGTERM or job.exit_code == 128 + SIGTERM


def _see(each: Submission, job: Job | None, away: str) -> SeenJob:
    if each.outcome == "refused":
        return SeenJob(each, "over")
    if job is None and away:
        return SeenJob(each, "unknown", away=away)
    if job is None:
        return SeenJob(each, "over" if each.is_settled else "unknown")
    if job.state is State.REVOKED:
        return SeenJob(each, "unknown", job)
    if job.state.is_over:
        return SeenJob(each, "over", job)
    return SeenJob(each, "waiting" if job.state.is_waiting else "running", job)


def _clock(moment: datetime) -> str:
    """Write the time of the day, with the day where that is another."""
    today = datetime.now().astimezone().date()
    return moment.strftime("%H:%M" if moment.date() == today else "%Y-%m-%d %H:%M")
