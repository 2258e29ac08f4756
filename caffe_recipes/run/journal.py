"""The journal of a run: a line of JSON per event, which is on disk before the run acts on it.

The state of a run is a fold over its journal. A line that a crash left incomplete was never acted upon: it is
not read, and the next write removes it. The first line has the format number too. An open journal is locked,
so no two processes can run the same run.
"""

from __future__ import annotations

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

from caffe_recipes.errors import InputError, InUse, RunFailed, hint_for
from caffe_recipes.file_format import FORMAT, take_format
from caffe_recipes.files.bounded_reads import load_within
from caffe_recipes.files.disk_space import FULL
from caffe_recipes.files.locks import open_lock, try_lock
from caffe_recipes.run.events import Event, Launch, RunState, decode_event
from caffe_recipes.run.folded_events import fold_events

JOURNAL = "journal.jsonl"  # in the folder of a run

Clock = Callable[[], float]
# How long a write waits for space on a full disk.
FULL_DISK_WAIT_S = 60.0
_PAUSE_S = 1.0
_FLAGS = os.O_RDWR | os.O_APPEND
Folded = TypeVar("Folded")
Fold = Callable[[Folded, str, Mapping[str, Any], float], Folded]


class JournalError(InputError):
    """A journal that is missing, damaged or of another format."""


def fold_lines(
    text: str, where: str | Path, fold: Fold[Folded], state: Folded, hint: str, *, is_start: bool = True
) -> Folded:
    """Fold the complete lines of a text into a state, each with its event's name, its fields and its time.

    `is_start` is set for the beginning of a file, where the format number is. `hint` is what to do with a
    file of another format. Raises JournalError for one, and, with `file:line` as its `where`, for a complete
    line that is not a journal line.
    """
    whole, _, _ = text.rpartition("\n")
    for number, line in enumerate(whole.split("\n") if whole else (), 1):
        try:
            fields = json.loads(line)
            if is_start and number == 1:
                take_format(fields, where, hint, JournalError)
            time_s = datetime.fromisoformat(fields.pop("time")).timestamp()
            state = fold(state, fields.pop("event"), fields, time_s)
        except (ValueError, OverflowError, TypeError, KeyError, AttributeError, RecursionError):
            raise JournalError(f"{where}:{number}", "is not a journal line", f"fix it, or {hint}") from None
    return state


class JournalFile:
    """A file of JSON lines, open and locked until it is closed; `write` returns once the line is on disk.

    Other users may read the file, and anybody who can read a file can lock it. The lock is therefore on a
    separate file next to it, `journal.lock`, which only its owner can open. Thread-safe.
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
    ) -> None:
        """Open and lock the file; raises InputError, which `busy` creates if another process holds the lock.

        `hint` is the hint if the file cannot be opened; `after_room` is what to do once a full disk has
        space.
        """
        self.path = path
        self._clock, self._pause = clock, time.sleep
        self._after_room = after_room
        self._appending = threading.Lock()
        try:
            file = os.open(path, _FLAGS | (os.O_CREAT if create else 0), 0o666)
            self._file = os.fdopen(file, "rb+", buffering=0)
        except OSError as error:
            raise _open_error(path, error, hint) from None
        try:
            self._lock = self._acquire_lock(busy, hint)
        except BaseException:
            self._file.close()
            raise

    def _acquire_lock(self, busy: Callable[[], InputError], hint: str) -> int:
        """Return the descriptor of the lock file, locked."""
        path = self.path.with_suffix(".lock")
        try:
            lock = open_lock(path)
        except OSError as error:
            raise _open_error(path, error, hint) from None
        try:
            if try_lock(lock):
                return lock
            refusal = busy()
        except OSError as error:
            what = f"cannot be locked: {error.strerror}"
            refusal = InputError(path, what, "use a filesystem that supports flock")
        os.close(lock)
        raise refusal

    def write(self, event: str, **details: object) -> None:
        """Write a line, after removing an incomplete one that a crash left; raises RunFailed."""
        self._write(event, details, FULL_DISK_WAIT_S)

    def _write(self, event: str, details: Mapping[str, object], patience_s: float) -> None:
        now = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        try:
            with self._appending:
                self._wait_and_write({"time": now, "event": event, **details}, patience_s)
        except OSError as error:
            what = f"cannot be written: {error.strerror}"
            hint = f"{hint_for(error, 'check its disk')}, then {self._after_room}"
            raise RunFailed(self.path, what, hint) from None

    def _wait_and_write(self, fields: Mapping[str, object], patience_s: float) -> None:
        """Write a line, waiting for space if the disk is full, so that a training in progress is not lost."""
        until = time.monotonic() + patience_s
        while True:
            try:
                return self._write_line(fields)
            except OSError as error:
                if error.errno not in FULL or time.monotonic() >= until:
                    raise
            self._pause(_PAUSE_S)

    def still_exists(self) -> bool:
        """Return whether the path still leads to this file; the folder may have been removed or moved."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # a disk that does not respond is no sign that the folder was moved
            return True

    def close(self) -> None:
        """Release the lock. Does nothing when called again."""
        if not self._file.closed:
            self._file.close()
            os.close(self._lock)

    def _write_line(self, fields: Mapping[str, object]) -> None:
        whole = self._whole_bytes()
        line = _render_line(fields if whole else {"format": FORMAT, **fields}).encode()
        if self._file.seek(0, os.SEEK_END) > whole:
            self._file.truncate(whole)
        try:
            while line:  # a write to a disk that fills up may be partial and report no error
                line = line[self._file.write(line) or 0 :]
            os.fsync(self._file.fileno())
        except OSError:
            with suppress(OSError):  # otherwise the next append truncates it
                self._file.truncate(whole)
            raise

    def _whole_bytes(self) -> int:
        self._file.seek(0)
        return self._file.read().rfind(b"\n") + 1


def _render_line(fields: Mapping[str, object]) -> str:
    return json.dumps(fields) + "\n"


def _open_error(path: Path, error: OSError, hint: str) -> JournalError:
    known = hint_for(error, "")
    if known:  # the journal is intact, so the hint is not to start over
        hint = f"{known}, and run again"
    return JournalError(path, f"cannot be opened: {error.strerror}", hint)


def read_events(text: str, where: str | Path, *, is_start: bool) -> list[tuple[float, Event]]:
    """Return the events in the text of a journal, each with its time; raises JournalError as fold_lines does.

    `is_start` is set if the text begins where the journal does.
    """

    def collect(
        events: list[tuple[float, Event]], name: str, fields: Mapping[str, Any], time_s: float
    ) -> list[tuple[float, Event]]:
        events.append((time_s, decode_event(name, fields, time_s)))
        return events

    return fold_lines(text, where, collect, [], "start over with --new", is_start=is_start)


def fold_journal(text: str, where: str | Path, state: RunState | None = None) -> RunState:
    """Return the state after the events in a journal's text, or, with `state`, in its next lines.

    Raises JournalError as `read_events` does.
    """
    events = read_events(text, where, is_start=state is None)
    return fold_events((event for _, event in events), state)


def load_journal(path: Path) -> RunState:
    """Return the state of a run from its journal; raises JournalError if it cannot be read."""
    hint = "check the run's folder, or start over with --new"
    data = load_within(path, "journal-bytes", JournalError, hint)
    return fold_journal(data.decode(errors="replace"), path)


def empty_journal_error(path: str | Path) -> JournalError:
    """Return the error for the empty journal of a run, whose folder is never created without an event."""
    return JournalError(path, "is empty", "restore it, or start over with --new")


def find_open_launches(root: Path, state: RunState) -> tuple[Launch, ...]:
    """Return the launches of a run and of its branches whose outcome is unknown; raises JournalError."""
    paths = [
        root / folder / JOURNAL for phase, folder in state.branches.items() if phase not in state.finished
    ]
    launches = [state.launch, *(load_journal(path).launch for path in paths if path.exists())]
    return tuple(launch for launch in launches if launch is not None)


def name_branch(run: str, phase: str) -> str:
    """Return the id of a branch's ranks, which differs from the run's so that each can be ended alone."""
    return hashlib.sha256(f"{run}/{phase}".encode()).hexdigest()[:16]


def name_process(path: Path) -> str:
    """Return the process that ran a run last, according to its journal."""
    try:
        state = load_journal(path)
    except JournalError:
        return "another process"
    return "another process" if state.pid is None else f"process {state.pid} on {state.host}"


def _hint_in_use(run: str) -> str:
    return f"watch it with `caffe-recipes attach {run}`, or stop it with `caffe-recipes cancel {run}`"


class Journal(JournalFile):
    """An open journal, locked until it is closed."""

    def __init__(self, path: Path, clock: Clock = time.time, *, create: bool = False) -> None:
        """Open and lock the journal; raises InputError with the name of the process that holds the lock."""
        self._state: RunState | None = None
        super().__init__(
            path,
            clock,
            lambda: InUse(path.parent, f"is in use by {name_process(path)}", _hint_in_use(path.parent.name)),
            hint="check the run's folder, or start over with --new",
            after_room="run the same command again to resume",
            create=create,
        )

    def state(self) -> RunState:
        """Return the state of the run after all events so far; raises JournalError if the file is damaged."""
        with self._appending:
            if self._state is None:
                self._state = load_journal(self.path)
            return self._state

    def append(self, event: Event, patience_s: float = FULL_DISK_WAIT_S) -> None:
        """Write an event; raises RunFailed if that fails, on a full disk after `patience_s`."""
        self._write(event.name, event.details(), patience_s)

    def _wait_and_write(self, fields: Mapping[str, object], patience_s: float) -> None:
        before, self._state = self._state, None  # if a signal interrupts the write, the file is read again
        super()._wait_and_write(fields, patience_s)
        if before is not None:
            self._state = fold_journal(_render_line(fields), self.path, before)
