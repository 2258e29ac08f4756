"""The journal of a run: one line of JSON per event, on disk before anything is done on the strength of it.

The state of a run is a fold over its journal. A line that a crash cut short was never acted upon: it is not
read, and the next one cuts it off. An open journal is locked, so that no two programs carry on the same run.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from caffe_recipes.errors import InputError, RunFailed
from caffe_recipes.files import FULL, open_lock, read_within, try_lock
from caffe_recipes.run.events import Event, Launch, RunState, decode_event, fold_events

Clock = Callable[[], float]
# A disk that has been full for so long is not about to have room again.
ROOM_S = 60.0
_PAUSE_S = 1.0
# What is whole, and only not to be written, is nothing to start anew for.
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
State = TypeVar("State")
Fold = Callable[[State, str, Mapping[str, Any], float], State]


class JournalError(InputError):
    """A journal that is missing or holds what no journal does."""


def fold_lines(text: str, where: str | Path, fold: Fold[State], state: State, hint: str) -> State:
    """Fold the whole lines of a text into a state: of each its event's name, its fields and its time.

    Raises JournalError, whose `where` is `file:line`, for a whole line that no journal holds.
    """
    whole, _, _ = text.rpartition("\n")
    for number, line in enumerate(whole.split("\n") if whole else (), 1):
        try:
            fields = json.loads(line)
            time_s = datetime.fromisoformat(fields.pop("time")).timestamp()
            state = fold(state, fields.pop("event"), fields, time_s)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise JournalError(f"{where}:{number}", "is not a journal line", hint) from None
    return state


class Lines:
    """Such a file, open and locked until it is closed; `write` returns when the line is on disk.

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
        after_room: str,
        create: bool = False,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Open and lock; raises InputError, the one that `busy` makes if another process holds the lock.

        `hint` is the hint for a file that cannot be opened, `after_room` what to do after making room on a
        full disk.
        """
        self.path = path
        self._clock, self._pause = clock, pause
        self._after_room = after_room
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

    def write(self, event: str, **details: object) -> None:
        """Write one line, and cut off what a crash left of the one before; raises RunFailed."""
        self._write(event, details, ROOM_S)

    def _write(self, event: str, details: Mapping[str, object], patience_s: float) -> None:
        now = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "event": event, **details}) + "\n"
        try:
            with self._appending:
                self._wait_and_write(line.encode(), patience_s)
        except OSError as error:
            what = f"cannot be written: {error.strerror}"
            raise RunFailed(self.path, what, f"make room, then {self._after_room}") from None

    def _wait_and_write(self, line: bytes, patience_s: float) -> None:
        """Write a line; on a full disk wait for room, so that what is trained meanwhile is not lost."""
        until = time.monotonic() + patience_s
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


def read_events(text: str, where: str | Path) -> list[tuple[float, Event]]:
    """Return the events of a journal's text, each with its time.

    Raises JournalError, whose `where` is `file:line`, for a whole line that no journal holds.
    """

    def collect(
        events: list[tuple[float, Event]], name: str, fields: Mapping[str, Any], time_s: float
    ) -> list[tuple[float, Event]]:
        events.append((time_s, decode_event(name, fields, time_s)))
        return events

    return fold_lines(text, where, collect, [], "fix it, or start over with --new")


def fold_journal(text: str, where: str | Path, state: RunState | None = None) -> RunState:
    """Return the state of a run, or what becomes of one, by a journal's text; raises as `read_events`."""
    return fold_events((event for _, event in read_events(text, where)), state)


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
    """Return the launches of branches whose outcome is unknown; raises JournalError."""
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
            after_room="run the same command again to resume",
            create=create,
        )

    def state(self) -> RunState:
        """Return what all lines say that are written so far; raises JournalError where they are none."""
        with self._appending:
            if self._state is None:
                self._state = load_journal(self.path)
            return self._state

    def append(self, event: Event, patience_s: float = ROOM_S) -> None:
        """Write an event; raises RunFailed, on a disk that stays full after `patience_s`."""
        self._write(event.name, event.details(), patience_s)

    def _wait_and_write(self, line: bytes, patience_s: float) -> None:
        known, self._state = self._state, None  # where a signal comes between, the file is read again
        super()._wait_and_write(line, patience_s)
        if known is not None:
            self._state = fold_journal(line.decode(), self.path, known)

    def open_beside(self, path: Path) -> Journal:
        """Open another by the same clock, which is made if it is not there; raises InputError."""
        return Journal(path, self._clock, create=True)
