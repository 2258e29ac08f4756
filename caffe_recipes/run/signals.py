"""Requests to stop: Ctrl-C, SIGTERM, a terminal that closes, and SIGUSR1 before a job's time is over."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

# SIGUSR1 comes from a batch script: a background job of a shell's ignores SIGINT.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class Interrupted(KeyboardInterrupt):
    """The run was stopped by the signal `number`, `launch_s` seconds into a launch, if into one.

    `time_s` is when the first signal came, on the monotonic clock.
    """

    launch_s = 0.0

    def __init__(self, number: int, time_s: float | None = None) -> None:
        """Keep the signal's number: a shell expects 128 and it as exit code."""
        self.number = number
        self.time_s = time.monotonic() if time_s is None else time_s
        super().__init__(signal.Signals(number).name)


class Interrupts:
    """While open, a signal to stop raises Interrupted in the main thread; never inside `held`.

    Inside `noted` the first is only remembered, as `asked`, and the second raises. In other threads nothing
    is ever raised by itself: they look at `asked`, and raise with `raise_asked` and `raise_urgent`.

    After SIGUSR1, which comes before a job's time is over, another signal has the last word: who cancels a
    job does not want it to go on.
    """

    def __init__(self) -> None:
        """Hold nothing back yet."""
        self.asked: int | None = None
        self._asked_s: float | None = None
        self._is_urgent = False
        self._held = False
        self._noting = False
        self._pending: int | None = None

    @contextmanager
    def raised(self, numbers: Sequence[signal.Signals] = STOPPING) -> Iterator[None]:
        """Raise Interrupted while inside. What nohup ignores stays ignored."""
        if not _is_main():
            yield
            return
        listened = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._take) for number in listened}
        # A batch script has SIGUSR1 wait until there is somebody to take it.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, listened)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put what arrives off to the end: a process must not be started and then forgotten.

        In another thread, which nothing interrupts there, none is to be started any more once asked to stop.
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
                self._take(self._pending, None)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Remember the first signal instead of raising: whoever is inside ends its work in order."""
        if not _is_main():
            yield
            return
        self._noting = True
        try:
            yield
        finally:
            self._noting = False

    def raise_asked(self) -> None:
        """Raise Interrupted for what was only noted."""
        if self.asked is not None:
            raise Interrupted(self.asked, self._asked_s)

    def raise_urgent(self) -> None:
        """Raise Interrupted for whoever has asked twice, and does not wait for what ends in order."""
        if self._is_urgent:
            self.raise_asked()

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._pending = number if self._held else None
        if self._held:
            return
        is_first = self.asked is None
        if is_first or self.asked == signal.SIGUSR1:
            self.asked = number
        if self._asked_s is None:
            self._asked_s = time.monotonic()
        if self._noting and is_first:
            return
        self._is_urgent = not is_first
        if number == signal.SIGUSR1:
            self.raise_asked()
        raise Interrupted(number, self._asked_s)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
