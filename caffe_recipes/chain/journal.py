"""The journal of a run: one line of JSON per event, on disk before anything is done on the strength of it.

The state of a run is a fold over its journal. A line that a crash cut short was never acted upon, and is not
read. The open journal is locked, so that no two programs carry on the same run.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from caffe_recipes.chain.checkpoints import Checkpoint
from caffe_recipes.chain.lines import Clock as Clock
from caffe_recipes.chain.lines import Fold, Lines, fold_lines
from caffe_recipes.chain.lines import JournalError as JournalError
from caffe_recipes.errors import InputError


@dataclass(frozen=True)
class Launch:
    """A trainer that was started; `stamp` is what lay at its last snapshot's path before, if anything.

    `needed` are such stamps of the other snapshots that later phases start from, by path. `id` is what its
    ranks are known by on any host, `arguments` what the trainer was given, `hosts` where its ranks are, `job`
    the Slurm job around it, if any, which had been queued again `restarts` times.
    """

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


@dataclass(frozen=True)
class Finish:
    """A phase whose snapshot was fetched and verified; paths are from the Caffe root.

    `needed` are the digests of the other snapshots that later phases start from, by path.
    """

    phase: str
    snapshot: str
    sha256: str
    seconds: float
    images_per_s: float | None
    loss: float | None
    needed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunState:
    """What a journal says; `launch` is the trainer that was started last, while nothing tells of its end.

    `id` is the run's own, `evaluations` what tests of phases' models gave, `checkpoints` are the last two of
    each unfinished phase, `kept` where the launch's own were written, `hosts` all that have had ranks, but
    for those of Slurm jobs before this one: Slurm ends these. `job` and `restarts` are of who carried the run
    on last. `branches` are the phases that train beside the main line, or did, and the folders,
    from the Caffe root, that hold their journals.
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

    @property
    def outputs(self) -> Mapping[str, float] | None:
        """What the evaluation gave, of several models the last one; None if there was none."""
        return next(reversed([*self.evaluations.values()]), None)


def _created(state: RunState, said: Mapping[str, Any], time_s: float) -> RunState:
    return replace(state, id=str(said.get("id", "")))


def _started(state: RunState, said: Mapping[str, Any], time_s: float) -> RunState:
    job, restarts = str(said.get("job", "")), int(said.get("restarts", 0))
    hosts = state.hosts if not state.job or (job, restarts) == (state.job, state.restarts) else ()
    pid, host = int(said["pid"]), str(said["host"])
    return replace(state, pid=pid, host=host, job=job, restarts=restarts, hosts=hosts)


def _launched(state: RunState, said: Mapping[str, Any], time_s: float) -> RunState:
    lists = {name: tuple(said.get(name, ())) for name in ("arguments", "hosts")}
    launch = Launch(**{**said, **lists}, time_s=time_s)
    hosts = tuple(dict.fromkeys((*state.hosts, *launch.hosts)))
    attempts = {**state.attempts, launch.phase: launch.attempt}
    return replace(state, launch=launch, attempts=attempts, kept=(), hosts=hosts)


def _interrupted(state: RunState, said: Mapping[str, Any], time_s: float) -> RunState:
    """Keep the launch of a trainer that had done all it was to do: what it left is yet to be judged."""
    return state if said.get("trained") else replace(state, launch=None)


def _failed(state: RunState, said: Mapping[str, Any], time_s: float) -> RunState:
    """Know a trainer's end only from its phase's failure: one that a killed run left may live on."""
    return replace(state, launch=_launch_but(state, said["phase"])) if "phase" in said else state


def _finished(state: RunState, said: Mapping[str, Any], time_s: float) -> RunState:
    finish = Finish(**said)
    left = {phase: kept for phase, kept in state.checkpoints.items() if phase != finish.phase}
    finished = {**state.finished, finish.phase: finish}
    return replace(state, launch=_launch_but(state, finish.phase), finished=finished, checkpoints=left)


def _launch_but(state: RunState, phase: str) -> Launch | None:
    """Return the launch under way, unless it is a phase's: one that trained beside it may end first."""
    return None if state.launch is None or state.launch.phase == phase else state.launch


def _branched(state: RunState, said: Mapping[str, Any], time_s: float) -> RunState:
    return replace(state, branches={**state.branches, str(said["phase"]): str(said["folder"])})


def _checkpointed(state: RunState, said: Mapping[str, Any], time_s: float) -> RunState:
    kept = Checkpoint(**said)
    newest = (*state.checkpoints.get(kept.phase, ())[-1:], kept)
    checkpoints = {**state.checkpoints, kept.phase: newest}
    return replace(state, checkpoints=checkpoints, kept=(*state.kept, kept.state_path))


def _evaluated(state: RunState, said: Mapping[str, Any], time_s: float) -> RunState:
    outputs = {str(name): float(value) for name, value in said["outputs"].items()}
    # Before recipes had branches it was the last phase's, and not said.
    phase = str(said.get("phase", next(reversed([*state.finished]), "")))
    return replace(state, evaluations={**state.evaluations, phase: outputs})


_FOLD: Fold[RunState] = {
    "created": _created,
    "started": _started,
    "launched": _launched,
    "branched": _branched,
    "failed": _failed,
    "interrupted": _interrupted,
    "checkpointed": _checkpointed,
    "finished": _finished,
    "evaluated": _evaluated,
}


def fold_journal(text: str, where: str | Path) -> RunState:
    """Return the state of the run that a journal's text tells of; other events are for people to read.

    Raises JournalError, whose `where` is `file:line`, for a whole line that no journal holds.
    """
    return fold_lines(text, where, _FOLD, RunState(), "mend it, or start over with --new")


def load_journal(path: Path) -> RunState:
    """Read a journal; raises JournalError if it cannot be read."""
    try:
        return fold_journal(path.read_text("utf-8", "replace"), path)
    except OSError as error:
        hint = "check the run's folder, or start over with --new"
        raise JournalError(path, f"cannot be read: {error.strerror}", hint) from None


def refuse_empty(path: str | Path) -> JournalError:
    """Return the error of a journal that tells of nothing, beside snapshots that some run has kept."""
    return JournalError(path, "is empty beside snapshots", "restore it, or start over with --new")


def branch_launches(root: Path, state: RunState) -> tuple[Launch, ...]:
    """Return the launches beside the main line that nothing tells the end of; raises JournalError."""
    paths = [
        root / folder / "journal.jsonl"
        for phase, folder in state.branches.items()
        if phase not in state.finished
    ]
    launches = [load_journal(path).launch for path in paths if path.exists()]
    return tuple(launch for launch in launches if launch is not None)


def name_branch(run: str, phase: str) -> str:
    """Return what the ranks of a branch are known by: to end those of the run's main line spares them."""
    return hashlib.sha256(f"{run}/{phase}".encode()).hexdigest()[:16]


def _name_process(path: Path) -> str:
    try:
        state = load_journal(path)
    except JournalError:
        return "another process"
    return f"process {state.pid} on {state.host}"


class Journal(Lines):
    """An open journal, locked until it is closed."""

    def __init__(self, path: Path, clock: Clock = time.time, *, create: bool = False) -> None:
        """Open and lock; raises InputError, which names the process, if another holds the lock."""
        super().__init__(
            path,
            clock,
            lambda: InputError(
                path.parent, f"{_name_process(path)} carries on this run", "wait for it, or stop it"
            ),
            hint="check the run's folder, or start over with --new",
            go_on="the same command goes on",
            create=create,
        )

    def start(self, job: str = "", restarts: int = 0) -> None:
        """Write that this process carries the run on, and in which start of which Slurm job, if in any."""
        around = {"job": job, "restarts": restarts} if job else {}
        self.append("started", pid=os.getpid(), host=socket.gethostname(), **around)

    def state(self) -> RunState:
        """Fold what is written so far."""
        return load_journal(self.path)

    def open_beside(self, path: Path) -> Journal:
        """Open another by the same clock, which is made if it is not there; raises InputError."""
        return Journal(path, self._clock, create=True)
