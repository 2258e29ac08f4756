"""What happens in a run: an event each, as its journal keeps it, and the line that is printed of it.

A run emits its events: the journal has them first, the console prints their lines. Who watches a run decodes
them from the journal and prints the same lines. Events of earlier versions lack some fields, later ones may
have more; what is no event here is passed over.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

from caffe_recipes.recipe.graph import find_evaluated
from caffe_recipes.recipe.model import Phase, Recipe
from caffe_recipes.review.naming import shipped_names
from caffe_recipes.run.journal import Finish, Launch, RunState
from caffe_recipes.run.plan import fetched_snapshot
from caffe_recipes.run.snapshots import Checkpoint
from caffe_recipes.units import describe_bytes, describe_duration
from caffe_recipes.wording import describe_count, describe_names

_RESUMES = re.compile(r"--snapshot=.*_iter_([0-9]+)\.solverstate", re.DOTALL)


@dataclass(frozen=True)
class Event:
    """One thing that has happened; `name` is what the journal calls it."""

    name: ClassVar[str]

    def details(self) -> dict[str, object]:
        """Return what the journal keeps of it: its fields, without empty ones."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}

    @classmethod
    def decode(cls, details: Mapping[str, Any]) -> Self:
        """Make it of what a journal has kept; raises TypeError, KeyError or ValueError if too little."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: _frozen(value) for name, value in details.items() if name in known})

    def line(self, recipe: Recipe, folder: str) -> str:
        """Return the line to print, for a run in `folder`; empty for an event that prints none."""
        return ""


def _frozen(value: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    return tuple(value) if isinstance(value, list) else value


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

    def line(self, recipe: Recipe, folder: str) -> str:
        """Name the run's folder."""
        return f"{folder}: log and state of this run; process {self.pid} on {self.host}"


@dataclass(frozen=True)
class Placed(Event):
    """Prototxts were written where the trainer finds them."""

    name = "placed"
    files: Sequence[str]

    def line(self, recipe: Recipe, folder: str) -> str:
        """Count them."""
        return f"placed {describe_count(len(self.files), 'prototxt')} in {', '.join(recipe.prototxt_dirs)}"


@dataclass(frozen=True)
class Built(Event):
    """LMDBs that the recipe prepares were made."""

    name = "built"
    lmdbs: Sequence[str]

    def line(self, recipe: Recipe, folder: str) -> str:
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

    def line(self, recipe: Recipe, folder: str) -> str:
        """Say what was sent where."""
        size = describe_bytes(self.bytes)
        what = f"{self.source} ({size})" if self.source else size
        return f"staged {what} to {self.lmdb} on {describe_names(self.hosts)}"


@dataclass(frozen=True)
class Launched(Event):
    """A trainer is about to start."""

    name = "launched"
    launch: Launch

    def details(self) -> dict[str, object]:
        """Return the launch's fields; its time is the journal's."""
        return {name: value for name, value in asdict(self.launch).items() if name != "time_s"}

    @classmethod
    def decode(cls, details: Mapping[str, Any]) -> Self:
        """Make it of a launch whose time stands beside it."""
        return cls(Launch(**{name: _frozen(value) for name, value in details.items()}, time_s=0.0))

    def line(self, recipe: Recipe, folder: str) -> str:
        """Say how many iterations are to come, and from what."""
        phase = recipe.phase(self.launch.phase)
        resumed = self._resumed()
        if resumed is not None:
            left = phase.last_iter - resumed
            return f"{phase.name}: {left:,} iterations from the checkpoint at {resumed:,}"
        from_what = self._weights(recipe, folder) or "the nets' fillers"
        return f"{phase.name}: {phase.last_iter:,} iterations from {from_what}"

    def _weights(self, recipe: Recipe, folder: str) -> str | None:
        """Return what the trainer starts from; the recipe tells where no arguments were kept, as once."""
        if self.launch.arguments:
            given = (word.partition("--weights=") for word in self.launch.arguments)
            return next((path for before, found, path in given if found and not before), None)
        phase = recipe.phase(self.launch.phase)
        start = recipe.starts_from(phase)
        return fetched_snapshot(start, folder, phase.weights_iter) if isinstance(start, Phase) else start

    def _resumed(self) -> int | None:
        """Return the iteration of the checkpoint that the trainer was told to resume from, if from one."""
        found = [_RESUMES.fullmatch(argument) for argument in self.launch.arguments]
        return next((int(match[1]) for match in found if match), None)


@dataclass(frozen=True)
class Branched(Event):
    """A phase trains beside the main line, with a journal of its own in `folder`."""

    name = "branched"
    phase: str
    folder: str
    hosts: Sequence[str]

    def line(self, recipe: Recipe, folder: str) -> str:
        """Say where."""
        log = f"{folder}/branches/{self.phase}/logs"
        return f"{self.phase}: a branch, on {describe_names(self.hosts)}; log: {log}"


@dataclass(frozen=True)
class Finished(Event):
    """A phase's snapshot was fetched and verified."""

    name = "finished"
    finish: Finish

    def details(self) -> dict[str, object]:
        """Return the finish's fields."""
        return asdict(self.finish)

    @classmethod
    def decode(cls, details: Mapping[str, Any]) -> Self:
        """Make it of a finish."""
        return cls(Finish(**details))

    def line(self, recipe: Recipe, folder: str) -> str:
        """Say how long it took, how fast it was, and where the snapshot lies."""
        done = self.finish
        speed = f", {done.images_per_s:,.0f} images/s" if done.images_per_s else ""
        return f"{done.phase}: finished in {describe_duration(done.seconds)}{speed}; {done.snapshot}"


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
        return cls(Checkpoint(**details))

    def line(self, recipe: Recipe, folder: str) -> str:
        """Say at which iteration."""
        return f"{self.checkpoint.phase}: checkpoint at iteration {self.checkpoint.iteration:,}"


@dataclass(frozen=True)
class Ending(Event):
    """A launch is given up, for what befell a host or for what its log says."""

    name = "ending"
    phase: str
    reason: str
    host: str | None = None

    def line(self, recipe: Recipe, folder: str) -> str:
        """Say why."""
        host = f"{self.host}: " if self.host else ""
        return f"{self.phase}: {host}{self.reason}; ending the launch on every host"


@dataclass(frozen=True)
class Stopping(Event):
    """Caffe is told to stop: the phase has reached its last iteration, its schedule has not."""

    name = "stopping"
    phase: str
    iteration: int


@dataclass(frozen=True)
class Retrying(Event):
    """A failed launch is tried again."""

    name = "retrying"
    number: int
    retries: int

    def line(self, recipe: Recipe, folder: str) -> str:
        """Count."""
        return f"trying again ({self.number} of {self.retries})"


@dataclass(frozen=True)
class Replaced(Event):
    """A spare has taken the place of a host."""

    name = "replaced"
    host: str
    spare: str

    def line(self, recipe: Recipe, folder: str) -> str:
        """Name both."""
        return f"{self.spare} takes the place of {self.host}"


@dataclass(frozen=True)
class Restored(Event):
    """A kept snapshot that was damaged was fetched again."""

    name = "restored"
    snapshot: str
    host: str

    def line(self, recipe: Recipe, folder: str) -> str:
        """Say from where."""
        return f"{self.snapshot}: was damaged; fetched again from {self.host}"


@dataclass(frozen=True)
class Evaluating(Event):
    """A model is tested."""

    name = "evaluating"
    weights: str

    def line(self, recipe: Recipe, folder: str) -> str:
        """Name it."""
        return f"evaluating {self.weights}"


@dataclass(frozen=True)
class Evaluated(Event):
    """A model was tested: what its net's outputs were on average; the run's result shows them."""

    name = "evaluated"
    phase: str
    outputs: Mapping[str, float]
    log: str


@dataclass(frozen=True)
class Failed(Event):
    """Something has failed; with a phase, its launch is over. What goes on after it says so."""

    name = "failed"
    reason: str
    phase: str | None = None
    host: str | None = None
    log: str | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Stopped(Event):
    """The run was told to stop by `signal`, `seconds` into a launch, which may have `trained` to its end."""

    name = "interrupted"
    signal: str
    trained: bool = False
    seconds: float = 0.0


_EVENTS: Mapping[str, type[Event]] = {each.name: each for each in Event.__subclasses__()}


def decode_event(said: Mapping[str, Any]) -> Event | None:
    """Return the event that a line of a journal tells of; None for one of another version that lacks much."""
    kind = _EVENTS.get(str(said.get("event")))
    details = {name: value for name, value in said.items() if name not in ("event", "time")}
    try:
        return kind.decode(details) if kind else None
    except (KeyError, TypeError, ValueError):
        return None


def describe_event(said: Mapping[str, Any], recipe: Recipe, folder: str) -> str:
    """Return the line of a journal's event as the run has printed it; empty for what it prints nothing of."""
    event = decode_event(said)
    try:
        return event.line(recipe, folder) if event else ""
    except (KeyError, TypeError, ValueError):  # of another recipe, or of another type
        return ""


def describe_before(state: RunState, recipe: Recipe, folder: str) -> list[str]:
    """Write what was finished, or left behind, before the process that carries the run on now."""
    lines = [
        f"{phase.name}: finished before; {fetched_snapshot(phase, folder)}"
        for phase in recipe.phases
        if phase.name in state.finished
    ]
    left = [f"{state.launch.phase}: going on with the trainer of a killed run"] if state.launch else []
    return lines + left


def describe_run_command(given: str, recipe: Recipe) -> str:
    """Write what goes on with a run; `given` is what its watcher called it.

    Of a recipe of the user's own the name is known, but not where its YAML is.
    """
    if given.endswith((".yaml", ".yml")) or recipe.name in shipped_names():
        name = given if given.endswith((".yaml", ".yml")) else recipe.name
        return f"`caffe-recipes run {shlex.quote(name)}`"
    return "`caffe-recipes run` with its recipe"


def is_complete(state: RunState, recipe: Recipe) -> bool:
    """Tell whether nothing is left to be done."""
    return is_trained(state, recipe) and next_evaluated(state, recipe) is None


def next_evaluated(state: RunState, recipe: Recipe) -> Phase | None:
    """Return the phase whose model is evaluated next; None if all have been."""
    return next((phase for phase in find_evaluated(recipe) if phase.name not in state.evaluations), None)


def is_trained(state: RunState, recipe: Recipe) -> bool:
    """Tell whether all phases are finished."""
    return all(phase.name in state.finished for phase in recipe.phases)
