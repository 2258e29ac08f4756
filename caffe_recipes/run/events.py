"""The events of a run: their fields in the journal, their effect on the run's state, and their printed lines.

A run writes each event to its journal and hands it to its observers, one of which prints its line. A program
that watches the run decodes the events from the journal, folds them into the same state and prints the same
lines.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self

from caffe_recipes.errors import RunFailed
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.run.event_json import Finite, from_json
from caffe_recipes.run.trainer import Checkpoint
from caffe_recipes.run.training_plan import find_step, find_trainer
from caffe_recipes.units import describe_bytes, describe_duration
from caffe_recipes.wording import describe_count, describe_names, join_names


@dataclass(frozen=True)
class Event:
    """Something that happened in a run; `name` is its name in the journal."""

    name: ClassVar[str]

    def details(self) -> dict[str, object]:
        """Return the fields to write to the journal."""
        return asdict(self)

    @classmethod
    def decode(cls, details: Mapping[str, Any], time_s: float) -> Self:
        """Create the event from the fields and the time of a journal line.

        Raises TypeError, KeyError, ValueError or OverflowError if they are invalid.
        """
        event: Self = from_json(cls, details)
        return event

    def fold(self, draft: StateDraft) -> None:
        """Change the state of the run as this event does; by default it is unchanged."""

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Return the line to print for a run in `folder`; by default it is empty, and nothing is printed."""
        return ""

    @property
    def names_phase(self) -> bool:
        """Whether the line begins with the phase that it is about."""
        return bool(getattr(self, "phase", None))


@dataclass(frozen=True)
class RunState:
    """The state of a run according to its journal.

    `id` identifies the ranks of the run. `pid`, `host`, `job` and `restarts` describe the process that ran it
    last. `launch` is the last launch, until its end is journaled. `evaluations` holds the test results of
    each phase's model. `checkpoints` are the last two of each unfinished phase, and `kept` the paths at which
    the current launch wrote its checkpoints. `hosts` are all hosts that have had ranks, except those of
    earlier Slurm jobs, whose ranks Slurm has ended. `branches` maps each phase that was started in parallel
    with the main line to the folder of its journal, relative to the Caffe root. `weights` is the SHA-256 of
    the weights that launches start from, by path, as the first launch read them. `spent` is the time in
    seconds of each phase's launches that did not finish it.
    """

    id: str = ""
    pid: int | None = None
    host: str | None = None
    attempts: Mapping[str, int] = field(default_factory=dict)
    launch: Launch | None = None
    finished: Mapping[str, Finish] = field(default_factory=dict)
    evaluations: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    checkpoints: Mapping[str, tuple[Checkpoint, ...]] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    job: str = ""
    restarts: int = 0
    branches: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)
    spent: Mapping[str, float] = field(default_factory=dict)

    @property
    def snapshots(self) -> Mapping[str, tuple[str, str]]:
        """The SHA-256 and the phase of every kept snapshot, by path."""
        return {
            path: (sha256, done.phase)
            for done in self.finished.values()
            for path, sha256 in ((done.snapshot, done.sha256), *done.needed.items())
        }

    @property
    def outputs(self) -> Mapping[str, float] | None:
        """The result of the last evaluation; None if there was none."""
        return next(reversed([*self.evaluations.values()]), None)


class StateDraft:
    """A state into which events are folded one by one, without a copy of what earlier events left."""

    def __init__(self, state: RunState) -> None:
        """Start from a state, which stays as it is."""
        self.id, self.pid, self.host = state.id, state.pid, state.host
        self.job, self.restarts = state.job, state.restarts
        self.launch = state.launch
        self.attempts = dict(state.attempts)
        self.finished = dict(state.finished)
        self.evaluations = dict(state.evaluations)
        self.checkpoints = dict(state.checkpoints)
        self.kept = list(state.kept)
        self.hosts = dict.fromkeys(state.hosts)
        self.branches = dict(state.branches)
        self.weights = dict(state.weights)
        self.spent = dict(state.spent)

    def freeze(self) -> RunState:
        """Return the state so far, which later events do not change."""
        return RunState(
            id=self.id,
            pid=self.pid,
            host=self.host,
            attempts=dict(self.attempts),
            launch=self.launch,
            finished=dict(self.finished),
            evaluations=dict(self.evaluations),
            checkpoints=dict(self.checkpoints),
            kept=tuple(self.kept),
            hosts=tuple(self.hosts),
            job=self.job,
            restarts=self.restarts,
            branches=dict(self.branches),
            weights=dict(self.weights),
            spent=dict(self.spent),
        )

    def end_launch(self, phase: str, seconds: float = 0.0) -> None:
        """Record that a launch has ended, with the `seconds` that did not finish its phase.

        The launch of another phase is kept, since a branch may end before it.
        """
        if self.launch is not None and self.launch.phase == phase:
            self.launch = None
        if seconds:
            self.spent[phase] = self.spent.get(phase, 0.0) + seconds


@dataclass(frozen=True)
class Created(Event):
    """The folder of a run was created; `id` identifies its ranks."""

    name = "created"
    recipe: str
    id: str

    def fold(self, draft: StateDraft) -> None:
        """Record the id of the run."""
        draft.id = self.id


@dataclass(frozen=True)
class RunStarted(Event):
    """A process started or resumed the run, inside the Slurm job `job`, if any, requeued `restarts` times.

    `hidden` are the digests of what reports leave out, salted with the id of the run.
    """

    name = "started"
    pid: int
    host: str
    job: str = ""
    restarts: int = 0
    hidden: Sequence[str] = ()

    @classmethod
    def here(cls, job: str, restarts: int, hidden: Sequence[str] = ()) -> Self:
        """Create the event for the current process."""
        return cls(os.getpid(), socket.gethostname(), job, restarts, hidden)

    def fold(self, draft: StateDraft) -> None:
        """Record the process, and forget the hosts of an earlier Slurm job, which has no ranks left."""
        if draft.job and (self.job, self.restarts) != (draft.job, draft.restarts):
            draft.hosts.clear()
        draft.pid, draft.host, draft.job, draft.restarts = self.pid, self.host, self.job, self.restarts

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Return the line to print, with the folder of the run."""
        return f"{folder}: log and state of this run; process {self.pid} on {self.host}"


@dataclass(frozen=True)
class Chosen(Event):
    """What the recipe leaves to the machine: the OpenMP threads of a rank, and the GPU (None: the CPU)."""

    name = "chosen"
    threads: int | None = None
    chooses_device: bool = False
    gpu: int | None = None
    gpu_name: str = ""
    gpus: int = 0  # several: the ranks take one each, in turn

    @property
    def training_arguments(self) -> tuple[str, ...]:
        """The trainer's arguments that select the GPUs of the ranks."""
        return (f"--gpu={','.join(map(str, range(self.gpus)))}",) if self.gpus > 1 else self.arguments

    @property
    def arguments(self) -> tuple[str, ...]:
        """The trainer's arguments that select the GPU of a single process."""
        return () if self.gpu is None else (f"--gpu={self.gpu}",)

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Return the line to print; "" if nothing was left open."""
        return self.describe()

    def describe(self) -> str:
        """Return what was chosen, and how to choose it; "" if nothing was left open.

        >>> Chosen(threads=4).describe()
        'chosen for this machine: 4 threads per rank; to choose yourself, set cluster.omp_num_threads'
        """
        parts, keys = [], []
        if self.threads is not None:
            parts.append(f"{describe_count(self.threads, 'thread')} per rank")
            keys.append("cluster.omp_num_threads")
        if self.chooses_device:
            device = "the CPU, since PyTorch finds no GPU"
            which = f"GPUs 0 to {self.gpus - 1}" if self.gpus > 1 else f"GPU {self.gpu}"
            parts.append(device if self.gpu is None else f"{which} ({self.gpu_name})")
            keys.append("solver.solver_mode")
        hint = f"to choose yourself, set {join_names(keys)}"
        return f"chosen for this machine: {', and '.join(parts)}; {hint}" if parts else ""


@dataclass(frozen=True)
class Placed(Event):
    """The files of the trainer were written to the Caffe root."""

    name = "placed"
    files: Sequence[str]

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Return the line to print, with the number of files."""
        trainer = find_trainer(recipe)
        folders = ", ".join(trainer.folders())
        return f"wrote {describe_count(len(self.files), trainer.words.file_kind)} to {folders}"


@dataclass(frozen=True)
class Built(Event):
    """The LMDBs that the recipe prepares were built."""

    name = "built"
    lmdbs: Sequence[str]

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Return the line to print, with their names."""
        return f"built {', '.join(self.lmdbs)}"


@dataclass(frozen=True)
class Staged(Event):
    """The training LMDB was copied to hosts."""

    name = "staged"
    lmdb: str
    bytes: int
    hosts: Sequence[str]
    source: str

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Return the line to print, with the source, its size and the hosts."""
        what = f"{self.source} ({describe_bytes(self.bytes)})"
        return f"staged {what} to {self.lmdb} on {describe_names(self.hosts)}"


@dataclass(frozen=True)
class Launch(Event):
    """A launch of a phase is about to start.

    `stamp` identifies the file that was at the path of its last snapshot before, if any; `needed` has such
    stamps for the other snapshots that later phases start from, by path. `id` identifies its ranks on any
    host, `hosts` are the hosts of the ranks, and `arguments` those of the trainer. `job` is the current
    Slurm job, if any, which had been requeued `restarts` times. `weights` is the SHA-256 of the weights that
    it starts from, by path; `starts_from` is the path of those, and `resumed` the iteration of the checkpoint
    that it resumes instead. `time_s` is the time of the journal line.
    """

    name = "launched"
    phase: str
    attempt: int
    log: str
    host: str
    stamp: str | None
    time_s: Finite
    needed: Mapping[str, str | None]
    id: str
    arguments: tuple[str, ...]
    hosts: tuple[str, ...]
    job: str
    restarts: int
    weights: Mapping[str, str]
    starts_from: str | None
    resumed: int | None

    @classmethod
    def decode(cls, details: Mapping[str, Any], time_s: float) -> Self:
        """Create the event, with the time of its line."""
        return super().decode({**details, "time_s": time_s}, time_s)

    def details(self) -> dict[str, object]:
        """Return the fields without the time, which each journal line has anyway."""
        return {name: value for name, value in asdict(self).items() if name != "time_s"}

    def fold(self, draft: StateDraft) -> None:
        """Record this launch as the current one, keeping the weights that the first launch read."""
        draft.launch = self
        draft.attempts[self.phase] = self.attempt
        draft.kept.clear()
        draft.hosts.update(dict.fromkeys(self.hosts))
        for path, sha256 in self.weights.items():
            draft.weights.setdefault(path, sha256)

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Return the line to print, with the number of iterations and what they start from."""
        step = find_step(recipe, self.phase, folder)
        if self.resumed is not None:
            left = step.last_iter - self.resumed
            return (
                f"{step.phase}: {describe_count(left, 'iteration')} from the checkpoint at {self.resumed:,}"
            )
        source = self.starts_from or find_trainer(recipe).words.initialization
        return f"{step.phase}: {describe_count(step.last_iter, 'iteration')} from {source}"


@dataclass(frozen=True)
class Branched(Event):
    """A branch started to train in parallel with the main line; its own journal is in `folder`."""

    name = "branched"
    phase: str
    folder: str
    hosts: Sequence[str]

    def fold(self, draft: StateDraft) -> None:
        """Record the folder of the branch's journal."""
        draft.branches[self.phase] = self.folder

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Return the line to print, with the hosts and the folder of the logs."""
        log = f"{folder}/branches/{self.phase}/logs"
        return f"{self.phase}: branch on {describe_names(self.hosts)}; log: {log}"


@dataclass(frozen=True)
class Finish(Event):
    """A phase finished: its snapshot was fetched and verified. Paths are relative to the Caffe root.

    `seconds` is the time of all its launches. `needed` has the SHA-256 of the other snapshots that later
    phases start from, by path.
    """

    name = "finished"
    phase: str
    snapshot: str
    sha256: str
    seconds: Finite
    images_per_s: Finite | None
    loss: float | None
    needed: Mapping[str, str]

    def fold(self, draft: StateDraft) -> None:
        """Record the phase as finished, without its launch and its checkpoints."""
        draft.end_launch(self.phase)
        draft.finished[self.phase] = self
        draft.checkpoints.pop(self.phase, None)

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Return the line to print, with the time, the speed and the path of the snapshot."""
        return f"{self.phase}: {self.describe()}; {self.snapshot}"

    def describe(self) -> str:
        """Return how the phase finished: the time and the speed."""
        speed = f", {self.images_per_s:,.0f} images/s" if self.images_per_s else ""
        return f"finished in {describe_duration(self.seconds)}{speed}"


@dataclass(frozen=True)
class Checkpointed(Event):
    """A checkpoint of an unfinished phase was kept to resume from."""

    name = "checkpointed"
    checkpoint: Checkpoint

    @property
    def phase(self) -> str:
        """The phase to resume."""
        return self.checkpoint.phase

    def details(self) -> dict[str, object]:
        """Return the fields of the checkpoint."""
        return asdict(self.checkpoint)

    @classmethod
    def decode(cls, details: Mapping[str, Any], time_s: float) -> Self:
        """Create the event from the fields of a checkpoint."""
        return cls(from_json(Checkpoint, details))

    def fold(self, draft: StateDraft) -> None:
        """Record the checkpoint, keeping the last two of its phase."""
        kept = self.checkpoint
        earlier = [each for each in draft.checkpoints.get(kept.phase, ()) if each != kept]
        draft.checkpoints[kept.phase] = (*earlier[-1:], kept)
        draft.kept.append(kept.state_path)

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Return the line to print, with the iteration."""
        return f"{self.phase}: checkpoint at iteration {self.checkpoint.iteration:,}"


@dataclass(frozen=True)
class Ending(Event):
    """A launch is being ended because of what happened to a host, or because of its log."""

    name = "ending"
    phase: str
    reason: str
    host: str | None = None

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Return the line to print, with the reason."""
        host = f"{self.host}: " if self.host else ""
        return f"{self.phase}: {host}{self.reason}; stopping the launch on every host"


@dataclass(frozen=True)
class Stopping(Event):
    """Caffe is asked to stop: the phase has reached its last iteration, before the end of its schedule."""

    name = "stopping"
    phase: str
    iteration: int


@dataclass(frozen=True)
class Retrying(Event):
    """A failed launch is about to be repeated."""

    name = "retrying"
    number: int
    retries: int

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Return the line to print, with the number of the retry."""
        return f"retrying ({self.number} of {self.retries})"


@dataclass(frozen=True)
class Replaced(Event):
    """A spare has replaced a host."""

    name = "replaced"
    host: str
    spare: str

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Return the line to print, with both hosts."""
        return f"{self.spare} replaces {self.host}"


@dataclass(frozen=True)
class Restored(Event):
    """A kept snapshot that was damaged was fetched again."""

    name = "restored"
    snapshot: str
    host: str

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Return the line to print, with the host that had an intact copy."""
        return f"{self.snapshot}: was damaged; fetched again from {self.host}"


@dataclass(frozen=True)
class Evaluating(Event):
    """The evaluation of a model is about to start."""

    name = "evaluating"
    weights: str

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Return the line to print, with the model."""
        return f"evaluating {self.weights}"


@dataclass(frozen=True)
class Evaluated(Event):
    """A model was evaluated: the means of its net's outputs, which are printed with the result of the run."""

    name = "evaluated"
    phase: str
    outputs: Mapping[str, float]
    log: str

    def fold(self, draft: StateDraft) -> None:
        """Record the outputs."""
        draft.evaluations[self.phase] = self.outputs


@dataclass(frozen=True)
class Failed(Event):
    """A step failed; if the event names a phase, its launch has ended. A retry is a separate event.

    `cause` is what the log shows to be behind the reason, if that is known, and `change` is what must be
    changed before the command can succeed.
    """

    name = "failed"
    reason: str
    phase: str | None = None
    host: str | None = None
    log: str | None = None
    seconds: Finite | None = None
    cause: str | None = None
    change: str | None = None

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Return the line to print, with the cause; the reason is printed as the error of the run."""
        if self.phase is None or self.cause is None:
            return ""
        return f"{self.phase}: cause of the failure: {self.cause}"

    def error(self, log: str | None) -> RunFailed:
        """Return the error that the run ends with if this is its last event; `log` is the launch's."""
        first = f"first, {self.change}" if self.change else ""
        hint = "; ".join(filter(None, [first, f"log: {log}" if log else ""]))
        if self.phase is not None:
            return RunFailed(f"phase {self.phase}", f"failed: {self.reason}", hint)
        return RunFailed("evaluation" if log else "", self.reason, hint)

    def fold(self, draft: StateDraft) -> None:
        """End the launch if a phase failed; otherwise the trainer of a killed run may still be running."""
        if self.phase is not None:
            draft.end_launch(self.phase, self.seconds or 0.0)


@dataclass(frozen=True)
class Stopped(Event):
    """The run was stopped by `signal`, `seconds` into a launch; `trained` if that had reached its end."""

    name = "interrupted"
    signal: str
    trained: bool
    seconds: Finite

    def fold(self, draft: StateDraft) -> None:
        """End the launch, but keep one that had trained to its end: its snapshot is still to be verified."""
        if not self.trained:
            draft.end_launch(draft.launch.phase if draft.launch else "", self.seconds)


@dataclass(frozen=True)
class Notice(Event):
    """A remark about a phase or the run, which changes nothing."""

    name = "notice"
    message: str
    phase: str = ""

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Return the line to print: the remark after its phase."""
        return f"{self.phase}: {self.message}" if self.phase else self.message


_EVENTS: Mapping[str, type[Event]] = {each.name: each for each in Event.__subclasses__()}


def decode_event(name: str, details: Mapping[str, Any], time_s: float) -> Event:
    """Return the event of a journal line with that time.

    Raises TypeError, KeyError, ValueError or OverflowError if it is unknown or its fields are invalid.
    """
    return _EVENTS[name].decode(details, time_s)
