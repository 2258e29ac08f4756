"""What a user asks of a running training by signals: to stop, or to take a snapshot."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

EFFECTS = ("snapshot", "stop", "none")


@dataclass
class Requests:
    """Requests that wait until the iteration is done."""

    stop: bool = False
    snapshot: bool = False

    def listen(self, sigint_effect: str, sighup_effect: str) -> None:
        """Let SIGINT and SIGHUP make requests; SIGTERM ends the process as ever."""
        for number, effect in ((signal.SIGINT, sigint_effect), (signal.SIGHUP, sighup_effect)):
            signal.signal(number, self._handler(effect))

    def take(self) -> Requests:
        """Give what was asked until now, and forget it."""
        taken = Requests(self.stop, self.snapshot)
        # A signal that comes meanwhile is kept: only what was seen is taken away.
        self.stop &= not taken.stop
        self.snapshot &= not taken.snapshot
        return taken

    def __or__(self, other: Requests) -> Requests:
        return Requests(self.stop or other.stop, self.snapshot or other.snapshot)

    def _handler(self, effect: str) -> Callable[[int, FrameType | None], None]:
        def ask(number: int, frame: FrameType | None) -> None:
            self.stop |= effect == "stop"
            self.snapshot |= effect == "snapshot"

        return ask
