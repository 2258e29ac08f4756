"""What happens in a run: an event each, with its line in the journal, what it changes, and the line printed.

A run emits its events: the journal has them first, the console prints their lines. Who watches a run decodes
them from the journal, folds them into the same state and prints the same lines. Events of earlier versions
lack some fields, later ones may have more; an event that this version does not know changes nothing.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import reduce
from typing import Any, ClassVar, Self

from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.review.naming import shipped_names
from caffe_recipes.run.plan import find_step, plan_steps
from caffe_recipes.run.steps import Checkpoint
from caffe_recipes.run.trainer import find_trainer
from caffe_recipes.units import describe_bytes, describe_duration
from caffe_recipes.wording import describe_count, describe_names


@dataclass(frozen=True)
class Event:
    """One thing that has happened; `name` is what the journal calls it, empty for an unknown event."""

    name: ClassVar[str] = ""

    def details(self) -> dict[str, object]:
        """Return what the journal keeps of it: its fields, without empty ones."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}

    @classmethod
    def decode(cls, details: Mapping[str, Any]) -> Self:
        """Make it of what a journal has kept; raises TypeError, KeyError or ValueError if too little."""
        event: Self = _build(cls, details)
        return event

    def fold(self, state: RunState) -> RunState:
        """Return the state of a run to which it has happened; most events change nothing."""
        return state

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Return the line to print, for a run in `folder`; empty for an event that prints none."""
        return ""


def _words(value: Sequence[Any]) -> tuple[str, ...]:
    return tuple(str(each) for each in value)


def _floats(value: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(number) for name, number in value.items()}


# By a field's type: what makes it of JSON. A journal may hold anything.
_FROM_JSON: Mapping[str, Callable[[Any], Any]] = {
    "bool": bool,
    "float": float,
    "int": int,
    "str": str,
    "Sequence[str]": _words,
    "tuple[str, ...]": _words,
    "Mapping[str, float]": _floats,
    "Mapping[str, str]": dict,
    "Mapping[str, str | None]": dict,
}


def _build(kind: Any, details: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any dataclass
    """Return a dataclass of the fields that it has; raises TypeError or ValueError for wrong values."""
    types = {each.name: str(each.type) for each in fields(kind)}
    values: dict[str, Any] = {}
    for name, value in details.items():
        if name in types:
            is_none = value is None and types[name].endswith(" | None")
            convert = _FROM_JSON[types[name].removesuffix(" | None")]
            values[name] = None if is_none else convert(value)
    return kind(**values)


@dataclass(frozen=True)
class RunState:
    """What a journal says; `launch` is the trainer that was started last, while its end is not journaled.

    `id` is the run's own, `evaluations` what tests of phases' models gave, `checkpoints` are the last two of
    each unfinished phase, `kept` where the launch's own were written, `hosts` all that have had ranks, but
    for those of Slurm jobs before this one: Slurm ends these. `job` and `restarts` are of who carried the run
    on last. `branches` are the phases that train beside the main line, or did, and the folders,
    from the Caffe root, that hold their journals. `weights` is the SHA-256 of what launches started from, by
    path, as the first of them read it. `spent` are the seconds of each phase's launches that did not
    finish it.
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
        """What the evaluation gave, of several models the last one; None if there was none."""
        return next(reversed([*self.evaluations.values()]), None)

    def without_launch(self, phase: str, seconds: float = 0.0) -> RunState:
        """Return it once a phase's launch has ended, after `seconds` that did not finish the phase.

        A launch of another phase stays: one that trained beside it may end first.
        """
        launch = None if self.launch is None or self.launch.phase == phase else self.launch
        spent = {**self.spent, phase: self.spent.get(phase, 0.0) + seconds} if seconds else self.spent
        return replace(self, launch=launch, spent=spent)


@dataclass(frozen=True)
class Created(Event):
    """A run's folder was made; `id` is what its ranks are known by."""

    name = "created"
    recipe: str = ""
    id: str = ""

    def fold(self, state: RunState) -> RunState:
        """Know the run by its id."""
        return replace(state, id=self.id)


@dataclass(frozen=True)
class RunStarted(Event):
    """A process carries the run on; `job` is the Slurm job around it, queued again `restarts` times."""

    name = "started"
    pid: int
    host: str
    job: str = ""
    restarts: int = 0

    @classmethod
    def here(cls, job: str, restarts: int) -> Self:
        """Make it of this process."""
        return cls(os.getpid(), socket.gethostname(), job, restarts)

    def details(self) -> dict[str, object]:
        """Return what is kept of it: outside of a job nothing of one."""
        around = {"job": self.job, "restarts": self.restarts} if self.job else {}
        return {"pid": self.pid, "host": self.host, **around}

    def fold(self, state: RunState) -> RunState:
        """Know who carries the run on; of an earlier Slurm job no rank is left."""
        is_same = not state.job or (self.job, self.restarts) == (state.job, state.restarts)
        hosts = state.hosts if is_same else ()
        return replace(state, pid=self.pid, host=self.host, job=self.job, restarts=self.restarts, hosts=hosts)

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Name the run's folder."""
        return f"{folder}: log and state of this run; process {self.pid} on {self.host}"


@dataclass(frozen=True)
class Placed(Event):
    """The trainer's files were written where it finds them."""

    name = "placed"
    files: Sequence[str]

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Count them."""
        trainer = find_trainer(recipe)
        folders = ", ".join(trainer.folders())
        return f"placed {describe_count(len(self.files), trainer.file_kind)} in {folders}"


@dataclass(frozen=True)
class Built(Event):
    """LMDBs that the recipe prepares were made."""

    name = "built"
    lmdbs: Sequence[str]

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Name them."""
        return f"built {', '.join(self.lmdbs)}"


@dataclass(frozen=True)
class Staged(Event):
    """The training LMDB was sent to hosts."""

    name = "staged"
    lmdb: str
    bytes: int
    hosts: Sequence[str]
    source: str = ""

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Say what was sent where."""
        size = describe_bytes(self.bytes)
        what = f"{self.source} ({size})" if self.source else size
        return f"staged {what} to {self.lmdb} on {describe_names(self.hosts)}"


@dataclass(frozen=True)
class Launch(Event):
    """A trainer is about to start; `stamp` is what lay at its last snapshot's path before, if anything.

    `needed` are such stamps of the other snapshots that later phases start from, by path. `id` is what its
    ranks are known by on any host, `arguments` what the trainer was given, `hosts` where its ranks are, `job`
    the Slurm job around it, if any, which had been queued again `restarts` times. `weights` is the SHA-256 of
    the weights that it starts from, by path, `resumed` the iteration of the checkpoint that it resumes.
    `time_s` is the journal line's own.
    """

    name = "launched"
    phase: str
    attempt: int
    log: str
    host: str
    stamp: str | None
    time_s: float
    needed: Mapping[str, str | None] = field(default_factory=dict)
    id: str = ""
    arguments: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    job: str = ""
    restarts: int = 0
    weights: Mapping[str, str] = field(default_factory=dict)
    resumed: int | None = None

    def details(self) -> dict[str, object]:
        """Return its fields, empty ones too; its time is the journal's."""
        return {name: value for name, value in asdict(self).items() if name != "time_s"}

    def fold(self, state: RunState) -> RunState:
        """Know it as the launch under way; weights stay what the first launch read."""
        return replace(
            state,
            launch=self,
            attempts={**state.attempts, self.phase: self.attempt},
            kept=(),
            hosts=tuple(dict.fromkeys((*state.hosts, *self.hosts))),
            weights={**self.weights, **state.weights},
        )

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Say how many iterations are to come, and from what; the plan tells where no arguments were kept."""
        trainer, step = find_trainer(recipe), find_step(recipe, self.phase, folder)
        resumed = trainer.resumed_iter(self.arguments) if self.resumed is None else self.resumed
        if resumed is not None:
            left = step.last_iter - resumed
            return f"{step.phase}: {left:,} iterations from the checkpoint at {resumed:,}"
        from_what = trainer.started_from(self.arguments) if self.arguments else step.weights
        return f"{step.phase}: {step.last_iter:,} iterations from {from_what or trainer.initialization}"


@dataclass(frozen=True)
class Branched(Event):
    """A phase trains beside the main line, with a journal of its own in `folder`."""

    name = "branched"
    phase: str
    folder: str
    hosts: Sequence[str] = ()

    def fold(self, state: RunState) -> RunState:
        """Know where its journal is."""
        return replace(state, branches={**state.branches, self.phase: self.folder})

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Say where."""
        log = f"{folder}/branches/{self.phase}/logs"
        return f"{self.phase}: a branch, on {describe_names(self.hosts)}; log: {log}"


@dataclass(frozen=True)
class Finish(Event):
    """A phase's snapshot was fetched and verified; paths are from the Caffe root.

    `seconds` are those of all its launches.

    `needed` are the digests of the other snapshots that later phases start from, by path.
    """

    name = "finished"
    phase: str
    snapshot: str
    sha256: str
    seconds: float
    images_per_s: float | None
    loss: float | None
    needed: Mapping[str, str] = field(default_factory=dict)

    def details(self) -> dict[str, object]:
        """Return its fields, empty ones too."""
        return asdict(self)

    def fold(self, state: RunState) -> RunState:
        """Know the phase as finished: its launch is over, and its checkpoints serve no more."""
        left = {phase: kept for phase, kept in state.checkpoints.items() if phase != self.phase}
        finished = {**state.finished, self.phase: self}
        return replace(state.without_launch(self.phase), finished=finished, checkpoints=left)

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Say how long it took, how fast it was, and where the snapshot lies."""
        speed = f", {self.images_per_s:,.0f} images/s" if self.images_per_s else ""
        return f"{self.phase}: finished in {describe_duration(self.seconds)}{speed}; {self.snapshot}"


@dataclass(frozen=True)
class Checkpointed(Event):
    """A snapshot on the way of a phase was kept, to resume from."""

    name = "checkpointed"
    checkpoint: Checkpoint

    def details(self) -> dict[str, object]:
        """Return the checkpoint's fields."""
        return asdict(self.checkpoint)

    @classmethod
    def decode(cls, details: Mapping[str, Any]) -> Self:
        """Make it of a checkpoint."""
        return cls(_build(Checkpoint, details))

    def fold(self, state: RunState) -> RunState:
        """Know the last two of its phase."""
        kept = self.checkpoint
        earlier = [each for each in state.checkpoints.get(kept.phase, ()) if each != kept]
        checkpoints = {**state.checkpoints, kept.phase: (*earlier[-1:], kept)}
        return replace(state, checkpoints=checkpoints, kept=(*state.kept, kept.state_path))

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Say at which iteration."""
        return f"{self.checkpoint.phase}: checkpoint at iteration {self.checkpoint.iteration:,}"


@dataclass(frozen=True)
class Ending(Event):
    """A launch is given up, for what befell a host or for what its log says."""

    name = "ending"
    phase: str
    reason: str = ""
    host: str | None = None

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Say why."""
        host = f"{self.host}: " if self.host else ""
        return f"{self.phase}: {host}{self.reason}; ending the launch on every host"


@dataclass(frozen=True)
class Stopping(Event):
    """Caffe is asked to stop: the phase has reached its last iteration, its schedule has not."""

    name = "stopping"
    phase: str
    iteration: int


@dataclass(frozen=True)
class Retrying(Event):
    """A failed launch is tried again."""

    name = "retrying"
    number: int
    retries: int

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Count."""
        return f"trying again ({self.number} of {self.retries})"


@dataclass(frozen=True)
class Replaced(Event):
    """A spare has taken the place of a host."""

    name = "replaced"
    host: str
    spare: str

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Name both."""
        return f"{self.spare} takes the place of {self.host}"


@dataclass(frozen=True)
class Restored(Event):
    """A kept snapshot that was damaged was fetched again."""

    name = "restored"
    snapshot: str
    host: str

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Say from where."""
        return f"{self.snapshot}: was damaged; fetched again from {self.host}"


@dataclass(frozen=True)
class Evaluating(Event):
    """A model is tested."""

    name = "evaluating"
    weights: str

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Name it."""
        return f"evaluating {self.weights}"


@dataclass(frozen=True)
class Evaluated(Event):
    """A model was tested: what its net's outputs were on average; the run's result shows them."""

    name = "evaluated"
    phase: str
    outputs: Mapping[str, float]
    log: str = ""

    @classmethod
    def decode(cls, details: Mapping[str, Any]) -> Self:
        """Make it of what a journal has kept: before recipes had branches no phase."""
        return super().decode({"phase": "", **details})

    def fold(self, state: RunState) -> RunState:
        """Know the outputs; where the journal names no phase, they are those of the last one."""
        phase = self.phase or next(reversed([*state.finished]), "")
        return replace(state, evaluations={**state.evaluations, phase: self.outputs})


@dataclass(frozen=True)
class Failed(Event):
    """Something has failed; with a phase, its launch is over. What goes on after it says so."""

    name = "failed"
    reason: str = ""
    phase: str | None = None
    host: str | None = None
    log: str | None = None
    seconds: float | None = None

    def fold(self, state: RunState) -> RunState:
        """Know a trainer's end only from its phase's failure: one that a killed run left may live on."""
        return state if self.phase is None else state.without_launch(self.phase, self.seconds or 0.0)


@dataclass(frozen=True)
class Stopped(Event):
    """The run was stopped by `signal`, `seconds` into a launch, which may have `trained` to its end."""

    name = "interrupted"
    signal: str = ""
    trained: bool = False
    seconds: float = 0.0

    def fold(self, state: RunState) -> RunState:
        """Keep the launch of a trainer that had done all it was to do: what it left is yet to be judged."""
        phase = state.launch.phase if state.launch else ""
        return state if self.trained else state.without_launch(phase, self.seconds)


@dataclass(frozen=True)
class Notice(Event):
    """A remark about a phase, or about the run, that changes nothing."""

    name = "notice"
    message: str
    phase: str = ""

    def line(self, recipe: AnyRecipe, folder: str) -> str:
        """Print it, behind its phase."""
        return f"{self.phase}: {self.message}" if self.phase else self.message


_EVENTS: Mapping[str, type[Event]] = {each.name: each for each in Event.__subclasses__()}


def decode_event(name: str, details: Mapping[str, Any], time_s: float) -> Event:
    """Return the event that a journal's line of that time holds; a bare Event for one of another version.

    Raises TypeError or ValueError where an event that the state depends on lacks a field.
    """
    kind = _EVENTS.get(name, Event)
    try:
        return kind.decode({**details, "time_s": time_s})
    except (TypeError, ValueError):
        if kind.fold is not Event.fold:
            raise
        return Event()


def fold_events(events: Iterable[Event], state: RunState | None = None) -> RunState:
    """Return the state of a run, or what becomes of one, to which these have happened."""
    return reduce(lambda known, event: event.fold(known), events, state or RunState())


def describe_event(event: Event, recipe: AnyRecipe, folder: str) -> str:
    """Return the line of a journal's event as the run has printed it; empty for what it prints nothing of."""
    try:
        return event.line(recipe, folder)
    except (KeyError, TypeError, ValueError):  # of another recipe
        return ""


def describe_before(state: RunState, recipe: AnyRecipe, folder: str) -> list[str]:
    """Write what was finished before the process that carries the run on now."""
    return [
        f"{step.phase}: finished before; {step.fetched}"
        for step in plan_steps(recipe, folder)
        if step.phase in state.finished
    ]


def describe_run_command(given: str, recipe: AnyRecipe) -> str:
    """Write the command that resumes a run; `given` is what its watcher called it.

    Of a recipe of the user's own the name is known, but not where its YAML is.
    """
    if given.endswith((".yaml", ".yml")) or recipe.name in shipped_names():
        name = given if given.endswith((".yaml", ".yml")) else recipe.name
        return f"`caffe-recipes run {shlex.quote(name)}`"
    return "`caffe-recipes run` with its recipe"


def is_complete(state: RunState, recipe: AnyRecipe) -> bool:
    """Tell whether nothing is left to be done."""
    tested = (step.phase for step in plan_steps(recipe) if step.is_evaluated)
    return is_trained(state, recipe) and all(phase in state.evaluations for phase in tested)


def is_trained(state: RunState, recipe: AnyRecipe) -> bool:
    """Tell whether all phases are finished."""
    return all(step.phase in state.finished for step in plan_steps(recipe))
