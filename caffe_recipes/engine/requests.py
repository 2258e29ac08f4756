"""What a user asks of a running training by signals: to stop, or to take a snapshot."""

from __future__ import annotations

import signal
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
            signal.signal(number, lambda number, frame, effect=effect: self._ask(effect, frame))

    def _ask(self, effect: str, frame: FrameType | None) -> None:
        if effect == "stop":
            self.stop = True
        elif effect == "snapshot":
            self.snapshot = True
