"""The journal of a run: one line of JSON per event, on disk before anything is done on the strength of it.

The state of a run is a fold over its journal. A line that a crash cut short was never acted upon, and is not
read. The open journal is locked, so that no two programs carry on the same run.

A file that grows by whole lines of JSON, an event each, and is locked by whoever writes it.

A line is on disk before anything is done on the strength of it. One that a crash cut short was never acted
upon: it is not read, and the next append cuts it off.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from caffe_recipes.errors import InputError, RunFailed
from caffe_recipes.files import FULL, open_lock, read_within, try_lock
from caffe_recipes.run.snapshots import Checkpoint

Clock = Callable[[], float]
# A disk that has been full for so long is not about to have room again.
ROOM_S = 60.0
_PAUSE_S = 1.0
# What is whole, and only not to be written, is nothing to start anew for.
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
State = TypeVar("State")
Fold = Mapping[str, Callable[[State, Mapping[str, Any], float], State]]


class JournalError(InputError):
    """A journal that is missing or holds what no journal does."""


def fold_lines(text: str, where: str | Path, table: Fold[State], state: State, hint: str) -> State:
    """Fold the whole lines of a text into a state by a table of events; others are for people to read.

    Raises JournalError, whose `where` is `file:line`, for a whole line that no journal holds.
    """
    whole, _, _ = text.rpartition("\n")
    for number, line in enumerate(whole.split("\n") if whole else (), 1):
        try:
            said = json.loads(line)
            time_s = datetime.fromisoformat(said.pop("time")).timestamp()
            event = said.pop("event")
            if event in table:
                state = table[event](state, said, time_s)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise JournalError(f"{where}:{number}", "is no line of a journal", hint) from None
    return state


class Lines:
    """Such a file, open and locked until it is closed; `append` returns when the line is on disk.

    Others may read the file, and whoever can read a file can hold its lock: so the lock is that of a file
    beside it, `journal.lock`, which nobody else can open. Several threads may append.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        busy: Callable[[], InputError],
        *,
        hint: str,
        go_on: str,
        create: bool = False,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Open and lock; raises InputError, the one that `busy` makes if another process holds the lock.

        `hint` is what to do about a file that cannot be opened, `go_on` what goes on once there is room.
        """
        self.path = path
        self._clock, self._pause = clock, pause
        self._go_on = go_on
        self._appending = threading.Lock()
        try:
            flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0)
            self._file = os.fdopen(os.open(path, flags, 0o666), "rb+", buffering=0)
        except OSError as error:
            raise _refuse_open(path, error, hint) from None
        try:
            self._lock = self._take_lock(busy, hint)
        except BaseException:
            self._file.close()
            raise

    def _take_lock(self, busy: Callable[[], InputError], hint: str) -> int:
        """Return the open lock; earlier versions locked the file itself, which is locked as well if possible.

        A lock on the file itself counts only where no version that has the lock beside it has been at work.
        """
        path = self.path.with_suffix(".lock")
        is_first = not os.path.lexists(path)
        try:
            if not try_lock(self._file.fileno()) and is_first:
                raise busy()
        except OSError as error:
            raise _refuse_lock(self.path, error) from None
        try:
            lock = open_lock(path)
        except OSError as error:
            raise _refuse_open(path, error, hint) from None
        try:
            if try_lock(lock):
                return lock
            refusal = busy()
        except OSError as error:
            refusal = _refuse_lock(path, error)
        os.close(lock)
        raise refusal

    def append(self, event: str, **details: object) -> None:
        """Write one event, and what a crash cut short before it off; raises RunFailed."""
        now = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "event": event, **details}) + "\n"
        try:
            with self._appending:
                self._wait_and_write(line.encode())
        except OSError as error:
            what = f"cannot be written: {error.strerror}"
            raise RunFailed(self.path, what, f"make room; {self._go_on}") from None

    def _wait_and_write(self, line: bytes) -> None:
        """Write a line; on a full disk wait for room, for what is trained meanwhile is not to be given up."""
        until = time.monotonic() + ROOM_S
        while True:
            try:
                return self._write_line(line)
            except OSError as error:
                if error.errno not in FULL or time.monotonic() >= until:
                    raise
            self._pause(_PAUSE_S)

    def is_there(self) -> bool:
        """Tell whether its path still leads to this file: its folder may have been removed, or moved."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # a disk that hangs has moved nothing
            return True

    def close(self) -> None:
        """Let go of the lock; a second time does nothing."""
        if not self._file.closed:
            self._file.close()
            os.close(self._lock)

    def _write_line(self, line: bytes) -> None:
        whole = self._whole_bytes()
        if self._file.seek(0, os.SEEK_END) > whole:
            self._file.truncate(whole)
        try:
            while line:  # a disk that fills up takes a part without a word
                line = line[self._file.write(line) or 0 :]
            os.fsync(self._file.fileno())
        except OSError:
            with suppress(OSError):  # the next append cuts it off, too
                self._file.truncate(whole)
            raise

    def _whole_bytes(self) -> int:
        self._file.seek(0)
        return self._file.read().rfind(b"\n") + 1


def _refuse_open(path: Path, error: OSError, hint: str) -> JournalError:
    if error.errno in _READ_ONLY:
        hint = "have the disk and the folder made writable, and run again"
    return JournalError(path, f"cannot be opened: {error.strerror}", hint)


def _refuse_lock(path: Path, error: OSError) -> InputError:
    return InputError(path, f"cannot be locked: {error.strerror}", "use a disk that has flock")


@dataclass(frozen=True)
class Launch:
    """A trainer that was started; `stamp` is what lay at its last snapshot's path before, if anything.

    `needed` are such stamps of the other snapshots that later phases start from, by path. `id` is what its
    ranks are known by on any host, `arguments` what the trainer was given, `hosts` where its ranks are, `job`
    the Slurm job around it, if any, which had been queued again `restarts` times. `weights` is the SHA-256 of
    the weights that it starts from, by path.
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
    weights: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Finish:
    """A phase whose snapshot was fetched and verified; paths are from the Caffe root.

    `seconds` are those of all its launches.

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
    weights = {**launch.weights, **state.weights}
    return replace(state, launch=launch, attempts=attempts, kept=(), hosts=hosts, weights=weights)


def _interrupted(state: RunState, said: Mapping[str, Any], time_s: float) -> RunState:
    """Keep the launch of a trainer that had done all it was to do: what it left is yet to be judged."""
    if said.get("trained"):
        return state
    phase = state.launch.phase if state.launch else ""
    return replace(state, launch=None, spent=_spend(state, phase, said))


def _failed(state: RunState, said: Mapping[str, Any], time_s: float) -> RunState:
    """Know a trainer's end only from its phase's failure: one that a killed run left may live on."""
    if "phase" not in said:
        return state
    phase = said["phase"]
    return replace(state, launch=_launch_but(state, phase), spent=_spend(state, phase, said))


def _spend(state: RunState, phase: str, said: Mapping[str, Any]) -> Mapping[str, float]:
    seconds = float(said.get("seconds", 0.0))
    return {**state.spent, phase: state.spent.get(phase, 0.0) + seconds} if seconds else state.spent


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
    earlier = [each for each in state.checkpoints.get(kept.phase, ()) if each != kept]
    newest = (*earlier[-1:], kept)
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
        return fold_journal(read_within(path, "journal-bytes").decode(errors="replace"), path)
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
        self._state: RunState | None = None
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

    def state(self) -> RunState:
        """Return what all lines say that are written so far; raises JournalError where they are none."""
        with self._appending:
            if self._state is None:
                self._state = load_journal(self.path)
            return self._state

    def _wait_and_write(self, line: bytes) -> None:
        known, self._state = self._state, None  # where a signal comes between, the file is read again
        super()._wait_and_write(line)
        if known is not None:
            self._state = fold_lines(line.decode(), self.path, _FOLD, known, "")

    def open_beside(self, path: Path) -> Journal:
        """Open another by the same clock, which is made if it is not there; raises InputError."""
        return Journal(path, self._clock, create=True)
