"""The watchdog: what no launcher notices, as a link that goes silent, or a rank that holds all others up.

Training is synchronous: while iterations come, every host is well, whatever ssh says of it. So a host is lost
only when neither it nor the log has been heard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from caffe_recipes.chain.units import describe_duration
from caffe_recipes.chain.watch import LogTail
from caffe_recipes.cluster.pulses import Pulse, Silence
from caffe_recipes.cluster.stragglers import Straggler, find_straggler

# A host that has not been heard for so long is lost, unless the log goes on.
SILENT_S = 20.0
# Loading nets, LMDBs and, on a busy file system, the program itself.
START_STALL_S = 900.0
STALL_S = 600.0
# A log that goes on belongs to ranks that all work, whatever their states look like.
HELD_S = 15.0
# A log may fall silent for so many times its longest silence before: a test takes longer than a display.
_PACES = 20
# Between two looks, at most, so much counts.
_GAP_S = 5.0


class Hearing(Protocol):
    """What is heard of the hosts: Pulses, or a test's."""

    def silent(self, patience_s: float) -> Sequence[Silence]:
        """Return the hosts that were not heard for longer."""

    def histories(self) -> Mapping[str, Sequence[Pulse]]:
        """Return every host's last pulses, the newest last."""


@dataclass(frozen=True)
class Trouble:
    """Why a launch must be ended; `host` is where, if that is known, and nothing reaches one that is lost."""

    what: str
    host: str | None = None
    is_lost: bool = False

    def __str__(self) -> str:
        return f"{self.host}: {self.what}" if self.host else self.what


class Watchdog:
    """Looks at the log's pace and at the hosts; `stall_s` overrides what the pace says."""

    def __init__(
        self, hearing: Hearing, stall_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin to count silence now."""
        self._hearing, self._stall_s, self._clock = hearing, stall_s, clock
        self._lines = 0
        self._looked_at = clock()
        self._quiet_s = self._longest_s = 0.0
        self.suspect: Straggler | None = None

    def look(self, tail: LogTail) -> Trouble | None:
        """Say what is wrong, if the launch cannot go on; a mere suspicion is kept as `suspect`."""
        quiet_s = self._count_silence(tail)
        patience_s = max(SILENT_S, min(2 * self._longest_s, STALL_S))
        for silence in self._hearing.silent(patience_s):
            if quiet_s > patience_s:
                said = f" ({silence.reason})" if silence.reason else ""
                what = f"not heard for {describe_duration(silence.seconds)}{said}"
                return Trouble(what, silence.host, is_lost=True)
        # While lines come nobody is held up; at a normal end ranks finish at different times.
        is_held = quiet_s > max(HELD_S, 2 * self._longest_s)
        self.suspect = straggler = find_straggler(self._hearing.histories()) if is_held else None
        if straggler is not None and straggler.is_certain:
            return Trouble(f"holds the others up: {straggler.reason}", straggler.host)
        if quiet_s < self._patience_s(begun=bool(tail.summary.losses)):
            return None
        what = f"the log has said nothing for {describe_duration(quiet_s)}"
        if straggler is not None:
            return Trouble(f"{what}; {straggler.reason}", straggler.host)
        return Trouble(what)

    def _count_silence(self, tail: LogTail) -> float:
        now = self._clock()
        # What we have slept through ourselves, stopped or busy, is no silence of the log's.
        self._quiet_s += min(now - self._looked_at, _GAP_S)
        self._looked_at = now
        if tail.lines != self._lines:
            if tail.summary.losses:
                self._longest_s = max(self._longest_s, self._quiet_s)
            self._lines, self._quiet_s = tail.lines, 0.0
        return self._quiet_s

    def _patience_s(self, *, begun: bool) -> float:
        if self._stall_s is not None:
            return self._stall_s
        return max(STALL_S, _PACES * self._longest_s) if begun else START_STALL_S
