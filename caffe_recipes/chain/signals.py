"""Being told to stop: Ctrl-C, SIGTERM, a terminal that closes, and SIGUSR1 before a job's time is over."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

# SIGUSR1 comes from a batch script: a background job of a shell's ignores SIGINT.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class Interrupted(KeyboardInterrupt):
    """The run was told to stop by the signal `number`."""

    def __init__(self, number: int) -> None:
        """Keep the signal's number: a shell expects 128 and it as exit code."""
        self.number = number
        super().__init__(signal.Signals(number).name)


class Interrupts:
    """While open, a signal to stop raises Interrupted in the main thread; never inside `held`.

    Inside `noted` the first is only remembered, as `asked`, and the second raises.
    """

    def __init__(self) -> None:
        """Hold nothing back yet."""
        self.asked: int | None = None
        self._held = False
        self._noting = False
        self._pending: int | None = None

    @contextmanager
    def raised(self, numbers: Sequence[signal.Signals] = STOPPING) -> Iterator[None]:
        """Raise Interrupted while inside. What nohup ignores stays ignored."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        listened = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._take) for number in listened}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put what arrives off to the end: a process must not be started and then forgotten."""
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
        self._noting = True
        try:
            yield
        finally:
            self._noting = False

    def raise_asked(self) -> None:
        """Raise Interrupted for what was only noted."""
        if self.asked is not None:
            raise Interrupted(self.asked)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._pending = number if self._held else None
        if self._held:
            return
        if self._noting and self.asked is None:
            self.asked = number
            return
        raise Interrupted(number)
