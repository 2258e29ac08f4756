"""The submissions of a recipe, and the state of their jobs.

A submission is recorded in `runs/<recipe>.submissions.jsonl` before and after sbatch is called. Each job has
a unique name, so the job of a submit that was killed in between can be found, and is not submitted twice.

The state of a job is what Slurm reports; if Slurm does not respond, it is unknown, and nothing fails.
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

from pydantic import TypeAdapter

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.slurm.calls import SchedulerAway
from caffe_recipes.cluster.slurm.jobs import Job, JobState, describe_state
from caffe_recipes.cluster.slurm.queries import Slurm
from caffe_recipes.errors import ClusterError, InputError, hint_for
from caffe_recipes.limits import MOST_ASKED_JOBS
from caffe_recipes.run.journal import Clock, JournalFile, fold_lines
from caffe_recipes.run.monitor.run_files import HostFiles, LocalFiles, ReadRequest, RunFiles
from caffe_recipes.run_names import RUNS, SUBMISSIONS

Outcome = Literal["submitting", "submitted", "refused", "cancelled"]
_FIELDS = ("name", "group", "script", "argv", "profile", "phase", "output", "cluster", "excluded")
_HINT = "move it away once no job of the recipe is pending or running"


@dataclass(frozen=True)
class Submission:
    """A job that was submitted, or was about to be; its outcome is `submitting` until the result is known.

    `name` is the unique name of the job, `group` identifies the submit, `phase` is the phase that it trains,
    or None for the whole chain. `output` is the file for the script's output. `cluster` is the cluster of the
    job, or those that may get it, separated by commas; empty for the submitter's own cluster. `excluded` are
    the nodes that it does without because they failed before. It `is_foreign` if another user's journal names
    it: Slurm is then not asked about it.
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
    excluded: tuple[str, ...] = ()
    is_foreign: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether the job was submitted by `submit`, and not by the user with sbatch."""
        return self.group != ""

    @property
    def is_settled(self) -> bool:
        """Whether it is known if the job was submitted."""
        return self.outcome != "submitting"


_SUBMISSION = TypeAdapter(Submission)  # checks the types of the fields, since JSON may have any
_NOT_ASKED = "Slurm is not asked about jobs in another user's journal, or about more than the latest 100"
_NO_JOB = 2**32  # Slurm's job ids have 32 bits


@dataclass(frozen=True)
class Submissions:
    """All submissions of a recipe, in order."""

    all: tuple[Submission, ...] = ()

    @property
    def latest(self) -> tuple[Submission, ...]:
        """The submissions of the last submit; no earlier job was left when that started."""
        return tuple(each for each in self.all if each.group == self.all[-1].group)

    def find(self, name: str) -> Submission:
        """Return the submission with a name; raises KeyError if there is none."""
        return {each.name: each for each in self.all}[name]


def _fold(
    found: dict[str, Submission], event: str, fields: Mapping[str, Any], time_s: float
) -> dict[str, Submission]:
    """Add an event to the submissions found so far, by name; raises ValueError for one that cannot be."""
    if event == "submitting":
        submission = _SUBMISSION.validate_python({**fields, "time_s": time_s})
    elif event in ("submitted", "refused", "cancelled"):
        known = {key: fields[key] for key in ("reason", "cluster") if key in fields}
        if event == "submitted":
            known["job_id"] = int(fields["job_id"])
        if not all(isinstance(value, str) for key, value in known.items() if key != "job_id"):
            raise TypeError("a text is not a text")
        submission = replace(found[fields["name"]], **known, outcome=cast("Outcome", event))
    else:
        raise ValueError(f"not an event of a submission: {event!r}")
    # Slurm is asked about all jobs at once, so one that it cannot know would hide the others.
    if not (submission.name + submission.cluster).isprintable() or not 0 < (submission.job_id or 1) < _NO_JOB:
        raise ValueError(f"not a job of Slurm: {submission.name!r}")
    found[submission.name] = submission
    return found


def submissions_path(root: Path, recipe_name: str) -> Path:
    """Return the path of the file with a recipe's submissions."""
    return root / RUNS / f"{recipe_name}{SUBMISSIONS}"


def fold_submissions(text: str, where: str | Path) -> Submissions:
    """Return the submissions in the text of a file; raises JournalError for a complete but invalid line."""
    return Submissions(tuple(fold_lines(text, where, _fold, dict[str, Submission](), _HINT).values()))


def load_submissions(path: Path) -> Submissions:
    """Return the submissions in a file, or none if it does not exist; raises InputError."""
    return _read(LocalFiles(), str(path))


def choose_group() -> str:
    """Return a random id that distinguishes the jobs of a submit from those of any other."""
    return secrets.token_hex(3)


def name_job(recipe_name: str, group: str, phase: str | None = None) -> str:
    """Return the name of a job.

    >>> name_job("small", "3fa210"), name_job("small", "3fa210", "cyc1")
    ('small-3fa210', 'small-3fa210-cyc1')
    """
    return "-".join(part for part in (recipe_name, group, phase) if part)


class SubmissionJournal(JournalFile):
    """The file of submissions, open and locked, so that no two submits of a recipe run at once."""

    def __init__(self, path: Path, clock: Clock = time.time) -> None:
        """Create, open and lock the file; raises InputError if another submit or cancel is running."""
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            what = f"cannot be created: {error.strerror}"
            raise InputError(path.parent, what, hint_for(error, "check the Caffe root")) from None
        super().__init__(
            path,
            clock,
            lambda: InputError(path, "another submit or cancel of this recipe is running", "wait for it"),
            hint=f"fix it, or {_HINT}",
            after_room="run the same command again: it first checks what was submitted",
            create=True,
        )

    def state(self) -> Submissions:
        """Return all submissions so far."""
        return load_submissions(self.path)

    def begin(self, submission: Submission) -> None:
        """Record that a job is about to be submitted; if this raises RunFailed, it must not be submitted."""
        fields = {key: getattr(submission, key) for key in _FIELDS}
        self.write("submitting", **fields)

    def settle(self, name: str, job_id: int, cluster: str = "") -> None:
        """Record the id of a submitted job, and its cluster if sbatch reports one."""
        self.write("submitted", name=name, job_id=job_id, **({"cluster": cluster} if cluster else {}))

    def refuse(self, name: str, reason: str) -> None:
        """Record that a job was not submitted."""
        self.write("refused", name=name, reason=reason)

    def cancel(self, name: str) -> None:
        """Record that a job was cancelled."""
        self.write("cancelled", name=name)


# A function that asks Slurm for jobs by their ids and names; raises ClusterError if Slurm does not answer.
Ask = Callable[[Collection[int], Collection[str]], Sequence[Job]]
JobStanding = Literal["waiting", "running", "over", "unknown"]


@dataclass(frozen=True)
class SubmittedJob:
    """A submission and its job according to Slurm, if any; `away` is the reason if Slurm did not answer."""

    submission: Submission
    standing: JobStanding
    job: Job | None = None
    away: str = ""

    @property
    def job_id(self) -> int | None:
        """The id of the job, if it has one."""
        return self.job.job_id if self.job else self.submission.job_id

    @property
    def cluster(self) -> str:
        """The cluster of the job; empty for the submitter's own."""
        return self.job.cluster if self.job else self.submission.cluster

    @property
    def label(self) -> str:
        """The id of the job, or its name if it has no id, and its phase."""
        phase = f" ({self.submission.phase})" if self.submission.phase else ""
        return f"{self.job_id or self.submission.name}{phase}"

    @property
    def is_live(self) -> bool:
        """Whether the job is queued or running according to Slurm."""
        return self.standing in ("waiting", "running")

    @property
    def is_elsewhere(self) -> bool:
        """Whether another cluster of the federation has the job, so that ours does not know its state."""
        return self.job is not None and self.job.state is JobState.REVOKED


def slurm_for(files: RunFiles) -> Ask:
    """Return a function that asks Slurm on the host of the files about jobs."""
    return Slurm(files.remote if isinstance(files, HostFiles) else LocalHost())


def read_submissions(files: RunFiles, runs: str, recipe: str) -> Submissions:
    """Return the submissions of a recipe from the folder `runs`; raises InputError."""
    return _read(files, f"{runs}/{recipe}{SUBMISSIONS}")


def _read(files: RunFiles, path: str) -> Submissions:
    piece = files.read([ReadRequest(path)]).pieces[0]
    if piece is None:
        return Submissions()
    found = fold_submissions(piece.data.decode(errors="replace"), path)
    if files.is_own(path):
        return found
    return Submissions(tuple(replace(each, is_foreign=True) for each in found.all))


def submitted_by_hand(recipe: str, job_id: int, time_s: float) -> Submission:
    """Return a submission for a job that the user submitted with sbatch and that a run's journal mentions.

    It was last seen at `time_s`. It is identified by its id, since its name is up to the user.
    """
    return Submission(recipe, "", "", time_s, outcome="submitted", job_id=job_id)


def query_jobs(submissions: Sequence[Submission], ask: Ask) -> tuple[SubmittedJob, ...]:
    """Return the job of each submission according to Slurm, in order.

    Refused and foreign submissions are not queried, nor are more than the latest MOST_ASKED_JOBS.
    """
    wanted = (each for each in submissions if each.outcome != "refused" and not each.is_foreign)
    asked = [*wanted][-MOST_ASKED_JOBS:]
    skipped = {each.name for each in submissions} - {each.name for each in asked}
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
    # Slurm reuses job ids, whereas the names are unique.
    by_name = {job.name: job for job in found}
    by_number: dict[int | None, Job] = {job.job_id: job for job in found}
    return tuple(
        _see(
            each,
            by_name.get(each.name) if each.is_ours else by_number.get(each.job_id),
            _NOT_ASKED if each.name in skipped else away,
        )
        for each in submissions
    )


def describe_job(seen: SubmittedJob, last_s: float | None = None, last: str = "") -> str:
    """Return the state of a job as a phrase that follows its id.

    If Slurm does not answer, it names the last known state, `last` at `last_s`, by default its submission.
    """
    each = seen.submission
    if seen.away and each.outcome != "refused":
        moment = datetime.fromtimestamp(each.time_s if last_s is None else last_s).astimezone()
        known = last or {"submitting": "it was being submitted", "cancelled": "it was cancelled"}.get(
            each.outcome, "it was submitted"
        )
        return f"unknown since {_clock(moment)} ({known}): {seen.away}"
    if seen.job is not None and seen.job.state is JobState.FAILED and _is_cancelled(seen, seen.job):
        # It is FAILED only because its script exits with a nonzero code after a signal.
        return "was cancelled, and stopped cleanly"
    if seen.job is not None:
        return describe_state(seen.job)
    return {
        "refused": f"was refused: {each.reason}",
        "cancelled": "was cancelled",
        "submitting": "is being submitted, or its `submit` was killed; the next `submit` checks",
        "submitted": "has ended: Slurm no longer knows it",
    }[each.outcome]


def _is_cancelled(seen: SubmittedJob, job: Job) -> bool:
    """Return whether a job was cancelled; for a user's own job, judged by how it ended."""
    if seen.submission.is_ours:
        return seen.submission.outcome == "cancelled"
    return job.signal == SIGTERM or job.exit_code == 128 + SIGTERM


def _see(each: Submission, job: Job | None, away: str) -> SubmittedJob:
    if each.outcome == "refused":
        return SubmittedJob(each, "over")
    if job is None and away:
        return SubmittedJob(each, "unknown", away=away)
    if job is None:
        return SubmittedJob(each, "over" if each.is_settled else "unknown")
    if job.state is JobState.REVOKED:
        return SubmittedJob(each, "unknown", job)
    if job.state.is_over:
        return SubmittedJob(each, "over", job)
    return SubmittedJob(each, "waiting" if job.state.is_waiting else "running", job)


def _clock(moment: datetime) -> str:
    """Return the time of day, with the date if it is not today."""
    today = datetime.now().astimezone().date()
    return moment.strftime("%H:%M" if moment.date() == today else "%Y-%m-%d %H:%M")
