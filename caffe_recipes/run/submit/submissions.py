"""What was submitted of a recipe: `runs/<recipe>.submissions.jsonl`, written before sbatch and after it.

Each job is looked for by a name that no other has, so that a submit that was killed between the two is known
for what it was, and not done again.

What has become of submitted jobs, as far as Slurm tells: a scheduler that is away makes nothing fail.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from signal import SIGTERM
from typing import Any, Literal, cast

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.slurm_jobs import Job, State, describe_state
from caffe_recipes.cluster.slurm_queries import SchedulerAway, find_jobs
from caffe_recipes.errors import ClusterError, InputError
from caffe_recipes.files import read_within
from caffe_recipes.run.folders import RUNS
from caffe_recipes.run.journal import Clock, JournalError, JournalFile, fold_lines
from caffe_recipes.run.monitor.files import HostFiles, RunFiles, Wanted

SUFFIX = ".submissions.jsonl"
Outcome = Literal["submitting", "submitted", "refused", "cancelled"]
_FIELDS = ("name", "group", "script", "argv", "profile", "phase", "output", "cluster")
_HINT = "fix it, or move it away once no job of the recipe waits or runs"


@dataclass(frozen=True)
class Submission:
    """A job that was submitted, or was about to be: `submitting` while nothing tells how that ended.

    `name` is the job's, and no other's; `group` is the submit that it belongs to, `phase` the one that it is
    for, None for the whole chain. `output` is what Slurm writes what the script says into. `cluster` has
    the job, or are those that may get it, with commas between them; none is the submitter's own.
    """

    name: str
    group: str
    script: str
    time_s: float
    argv: tuple[str, ...] = ()
    profile: str | None = None
    phase: str | None = None
    output: str = ""
    outcome: Outcome = "submitting"
    job_id: int | None = None
    reason: str = ""
    cluster: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether `submit` has made it, and not a user's own sbatch."""
        return self.group != ""

    @property
    def is_settled(self) -> bool:
        """Whether it is known what became of it."""
        return self.outcome != "submitting"


@dataclass(frozen=True)
class Submissions:
    """All of a recipe, in the order in which they were submitted."""

    all: tuple[Submission, ...] = ()

    @property
    def latest(self) -> tuple[Submission, ...]:
        """What belongs to the last submit; of the earlier ones no job was left when it began."""
        return tuple(each for each in self.all if each.group == self.all[-1].group)

    @property
    def unsettled(self) -> tuple[Submission, ...]:
        """What was being submitted when the program ended, or lost Slurm."""
        return tuple(each for each in self.all if not each.is_settled)

    def find(self, name: str) -> Submission:
        """Return the one of that name; KeyError if there is none."""
        return {each.name: each for each in self.all}[name]


def _fold(state: Submissions, event: str, fields: Mapping[str, Any], time_s: float) -> Submissions:
    if event == "submitting":
        fields = {**fields, "argv": tuple(fields.get("argv", ()))}
        return Submissions((*state.all, Submission(**fields, time_s=time_s)))
    if event not in ("submitted", "refused", "cancelled"):
        return state
    known = state.find(fields["name"])
    changed = replace(
        known,
        outcome=cast("Outcome", event),
        job_id=int(fields["job_id"]) if event == "submitted" else known.job_id,
        reason=str(fields.get("reason", known.reason)),
        cluster=str(fields.get("cluster", known.cluster)),
    )
    return Submissions(tuple(changed if each.name == known.name else each for each in state.all))


def submissions_path(root: Path, recipe_name: str) -> Path:
    """Return where a recipe's submissions are written."""
    return root / RUNS / f"{recipe_name}{SUFFIX}"


def fold_submissions(text: str, where: str | Path) -> Submissions:
    """Return what a text tells of; raises JournalError for a whole line that is none of such a file."""
    return fold_lines(text, where, _fold, Submissions(), _HINT)


def load_submissions(path: Path) -> Submissions:
    """Read what was submitted; nothing if there is no such file. Raises JournalError."""
    try:
        return fold_submissions(read_within(path, "journal-bytes").decode(errors="replace"), path)
    except FileNotFoundError:
        return Submissions()
    except OSError as error:
        raise JournalError(path, f"cannot be read: {error.strerror}", _HINT) from None


def choose_group() -> str:
    """Return what tells the jobs of one submit from those of any other."""
    return secrets.token_hex(3)


def name_job(recipe_name: str, group: str, phase: str | None = None) -> str:
    """Return a job's name.

    >>> name_job("small", "3fa210"), name_job("small", "3fa210", "cyc1")
    ('small-3fa210', 'small-3fa210-cyc1')
    """
    return "-".join(part for part in (recipe_name, group, phase) if part)


class SubmissionJournal(JournalFile):
    """The open file, locked, so that no two submits of a recipe are at work at once."""

    def __init__(self, path: Path, clock: Clock = time.time) -> None:
        """Open, make and lock; raises InputError if another submit, or a cancel, is at work."""
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            what = f"cannot be made: {error.strerror}"
            raise InputError(path.parent, what, "check the Caffe root and its disk") from None
        super().__init__(
            path,
            clock,
            lambda: InputError(path, "another submit, or cancel, of this recipe is at work", "wait for it"),
            hint=_HINT,
            after_room="run the same command again: it first finds out what was submitted",
            create=True,
        )

    def state(self) -> Submissions:
        """Fold what is written so far."""
        return load_submissions(self.path)

    def begin(self, submission: Submission) -> None:
        """Write that a job is about to be submitted; raises RunFailed, and then it must not be."""
        fields = {key: getattr(submission, key) for key in _FIELDS}
        self.write("submitting", **fields)

    def settle(self, name: str, job_id: int, cluster: str = "") -> None:
        """Write a job's number, and which cluster has it, if sbatch reports one."""
        self.write("submitted", name=name, job_id=job_id, **({"cluster": cluster} if cluster else {}))

    def refuse(self, name: str, reason: str) -> None:
        """Write that a job was not submitted."""
        self.write("refused", name=name, reason=reason)

    def cancel(self, name: str) -> None:
        """Write that a job was cancelled."""
        self.write("cancelled", name=name)


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
    """Return what stands for a job that only a run's journal tells of, which was last seen at `time_s`.

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
    """Tell whether a job was cancelled; of a user's own only its end tells that."""
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
