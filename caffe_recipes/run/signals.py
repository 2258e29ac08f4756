"""Requests to stop: Ctrl-C, SIGTERM, a closed terminal, and SIGUSR1 shortly before a job's time limit."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

# SIGUSR1 comes from a batch script, since background jobs of a shell ignore SIGINT.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
# The signal of `cancel`: SIGINT, except that it never counts as a repeated one, by which a snapshot is lost.
CANCEL = signal.SIGUSR2


class Interrupted(KeyboardInterrupt):
    """Raised when the signal `number` has stopped the run.

    `launch_s` is for how long the current launch had run, in seconds; 0 without one. `time_s` is when the
    first signal arrived, on the monotonic clock.
    """

    launch_s = 0.0

    def __init__(self, number: int, time_s: float | None = None) -> None:
        """Store the signal number; the exit code of a stopped process is 128 plus it."""
        self.number = number
        self.time_s = time.monotonic() if time_s is None else time_s
        super().__init__(signal.Signals(number).name)


class Interrupts:
    """Turns signals to stop into Interrupted.

    Inside `raised`, a signal raises Interrupted in the main thread; inside `held` this is deferred. Inside
    `noted`, the first signal is only stored, as `asked`, and the second raises. Other threads are never
    interrupted: they poll `asked`, `raise_asked` and `raise_urgent`.

    SIGUSR1, which means that the job's time is nearly over, is overridden by any later signal: a job that the
    user cancels must not be requeued. CANCEL does nothing if the run is already stopping for another reason.
    """

    def __init__(self) -> None:
        """Begin without a signal."""
        self.asked: int | None = None
        self._asked_s: float | None = None
        self._is_urgent = False
        self._held = False
        self._noting = False
        self._pending: int | None = None

    @contextmanager
    def raised(self, numbers: Sequence[signal.Signals] = (*STOPPING, CANCEL)) -> Iterator[None]:
        """Raise Interrupted on a signal while inside. Signals that are ignored, as by nohup, stay ignored."""
        if not _is_main():
            yield
            return
        listened = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._handle) for number in listened}
        # A batch script blocks SIGUSR1 until there is a handler for it.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, listened)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Defer signals to the end, so that a process which is being started is not lost.

        In another thread, which signals do not interrupt, raise Interrupted first if the run was asked to
        stop.
        """
        if not _is_main():
            self.raise_asked()
            yield
            return
        self._held = True
        try:
            yield
        finally:
            self._held = False
            if self._pending is not None:
                self._handle(self._pending, None)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Store the first signal instead of raising, so that the caller can finish cleanly."""
        if not _is_main():
            yield
            return
        self._noting = True
        try:
            yield
        finally:
            self._noting = False

    def raise_asked(self) -> None:
        """Raise Interrupted if the run was asked to stop."""
        if self.asked is not None:
            raise Interrupted(self.asked, self._asked_s)

    def raise_urgent(self) -> None:
        """Raise Interrupted if the run was asked twice, and must not wait for an orderly end."""
        if self._is_urgent:
            self.raise_asked()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._pending = number if self._held else None
        if self._held:
            return
        is_repeated = self.asked is not None and number != CANCEL
        if number == CANCEL:
            if self.asked not in (None, signal.SIGUSR1):
                return
            number = signal.SIGINT
        if self.asked in (None, signal.SIGUSR1):
            self.asked = number
        if self._asked_s is None:
            self._asked_s = time.monotonic()
        if self._noting and not is_repeated:
            return
        self._is_urgent = is_repeated
        if number == signal.SIGUSR1:
            self.raise_asked()
        raise Interrupted(number, self._asked_s)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
