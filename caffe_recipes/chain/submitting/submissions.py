"""What was submitted of a recipe: `runs/<recipe>.submissions.jsonl`, written before sbatch and after it.

Each job is looked for by a name that no other has, so that a submit that was killed between the two is known
for what it was, and not done again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from caffe_recipes.chain.folder import RUNS
from caffe_recipes.chain.lines import Clock, Fold, JournalError, Lines, fold_lines
from caffe_recipes.errors import InputError

SUFFIX = ".submissions.jsonl"
_TOLD = ("name", "group", "script", "argv", "profile", "phase", "output", "cluster")
_HINT = "mend it, or move it away once no job of the recipe waits or runs"


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
    outcome: Literal["submitting", "submitted", "refused", "cancelled"] = "submitting"
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

    def with_changed(self, name: str, **changes: Any) -> Submissions:  # noqa: ANN401 - as dataclasses.replace
        """Return them with one changed; KeyError if there is none of that name."""
        changed = replace(self.find(name), **changes)
        return Submissions(tuple(changed if each.name == name else each for each in self.all))


def _submitting(state: Submissions, said: Mapping[str, Any], time_s: float) -> Submissions:
    argv = tuple(said.get("argv", ()))
    return Submissions((*state.all, Submission(**{**said, "argv": argv}, time_s=time_s)))


def _submitted(state: Submissions, said: Mapping[str, Any], time_s: float) -> Submissions:
    cluster = str(said.get("cluster", state.find(said["name"]).cluster))
    return state.with_changed(said["name"], outcome="submitted", job_id=int(said["job_id"]), cluster=cluster)


def _refused(state: Submissions, said: Mapping[str, Any], time_s: float) -> Submissions:
    return state.with_changed(said["name"], outcome="refused", reason=str(said.get("reason", "")))


def _cancelled(state: Submissions, said: Mapping[str, Any], time_s: float) -> Submissions:
    return state.with_changed(said["name"], outcome="cancelled")


_FOLD: Fold[Submissions] = {
    "submitting": _submitting,
    "submitted": _submitted,
    "refused": _refused,
    "cancelled": _cancelled,
}


def submissions_path(root: Path, recipe_name: str) -> Path:
    """Return where a recipe's submissions are written."""
    return root / RUNS / f"{recipe_name}{SUFFIX}"


def fold_submissions(text: str, where: str | Path) -> Submissions:
    """Return what a text tells of; raises JournalError for a whole line that is none of such a file."""
    return fold_lines(text, where, _FOLD, Submissions(), _HINT)


def load_submissions(path: Path) -> Submissions:
    """Read what was submitted; nothing if there is no such file. Raises JournalError."""
    try:
        return fold_submissions(path.read_text("utf-8", "replace"), path)
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


class SubmissionJournal(Lines):
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
            go_on="the same command again looks first what was submitted",
            create=True,
        )

    def state(self) -> Submissions:
        """Fold what is written so far."""
        return load_submissions(self.path)

    def begin(self, submission: Submission) -> None:
        """Write that a job is about to be submitted; raises RunFailed, and then it must not be."""
        told = {key: getattr(submission, key) for key in _TOLD}
        self.append("submitting", **told)

    def settle(self, name: str, job_id: int, cluster: str = "") -> None:
        """Write a job's number, and which cluster has it, if that was told."""
        self.append("submitted", name=name, job_id=job_id, **({"cluster": cluster} if cluster else {}))

    def refuse(self, name: str, reason: str) -> None:
        """Write that a job was not submitted."""
        self.append("refused", name=name, reason=reason)

    def cancel(self, name: str) -> None:
        """Write that a job was cancelled."""
        self.append("cancelled", name=name)
