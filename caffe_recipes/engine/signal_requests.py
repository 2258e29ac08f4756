"""The signals that ask a training for a stop or a snapshot. Does not import torch, which takes seconds."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

SIGNAL_EFFECTS = ("snapshot", "stop", "none")


@dataclass
class SignalRequests:
    """Stop and snapshot requests made by signals, pending until the end of the iteration."""

    stop: bool = False
    snapshot: bool = False

    def listen(self, sigint_effect: str, sighup_effect: str) -> None:
        """Install handlers that turn SIGINT and SIGHUP into requests. SIGTERM still ends the process."""
        for number, effect in ((signal.SIGINT, sigint_effect), (signal.SIGHUP, sighup_effect)):
            signal.signal(number, self._handler(effect))

    def drain(self) -> SignalRequests:
        """Return the pending requests and clear them."""
        taken = SignalRequests(self.stop, self.snapshot)
        # Write only what was requested: a signal may arrive between any two instructions, and would be lost.
        if taken.stop:
            self.stop = False
        if taken.snapshot:
            self.snapshot = False
        return taken

    def __or__(self, other: SignalRequests) -> SignalRequests:
        return SignalRequests(self.stop or other.stop, self.snapshot or other.snapshot)

    def _handler(self, effect: str) -> Callable[[int, FrameType | None], None]:
        def request(number: int, frame: FrameType | None) -> None:
            self.stop |= effect == "stop"
            self.snapshot |= effect == "snapshot"

        return request
