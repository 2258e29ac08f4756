"""A file that grows by whole lines of JSON, an event each, and is locked by whoever writes it.

A line is on disk before anything is done on the strength of it. One that a crash cut short was never acted
upon: it is not read, and the next append cuts it off.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from caffe_recipes.errors import InputError, RunFailed

Clock = Callable[[], float]
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

    Several threads may append.
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
    ) -> None:
        """Open and lock; raises InputError, the one that `busy` makes if another process holds the lock.

        `hint` is what to do about a file that cannot be opened, `go_on` what goes on once there is room.
        """
        self.path = path
        self._clock = clock
        self._go_on = go_on
        self._appending = threading.Lock()
        try:
            flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0)
            self._file = os.fdopen(os.open(path, flags, 0o666), "rb+", buffering=0)
        except OSError as error:
            if error.errno in _READ_ONLY:
                hint = "have the disk and the folder made writable, and run again"
            raise JournalError(path, f"cannot be opened: {error.strerror}", hint) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise busy() from None
        except OSError as error:
            self._file.close()
            what = f"cannot be locked: {error.strerror}"
            raise InputError(path, what, "use a disk that has flock") from None

    def append(self, event: str, **details: object) -> None:
        """Write one event, and what a crash cut short before it off; raises RunFailed."""
        now = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "event": event, **details}) + "\n"
        try:
            with self._appending:
                self._write_line(line.encode())
        except OSError as error:
            what = f"cannot be written: {error.strerror}"
            raise RunFailed(self.path, what, f"make room; {self._go_on}") from None

    def is_there(self) -> bool:
        """Tell whether its path still leads to this file: its folder may have been removed, or moved."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # a disk that hangs has moved nothing
            return True

    def close(self) -> None:
        """Let go of the lock."""
        self._file.close()

    def _write_line(self, line: bytes) -> None:
        whole = self._whole_bytes()
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
