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


class Pace:
    """A log's pace: how long it has told of no progress, and its longest such pause since it had begun.

    `stall_s` overrides what the pace says of how long is too long.
    """

    def __init__(self, stall_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to count silence now."""
        self._stall_s, self._clock = stall_s, clock
        self._lines = self._signs = 0
        self._has_begun = False
        self._looked_at = clock()
        self.quiet_s = self.longest_s = 0.0

    def look(self, tail: LogTail) -> str | None:
        """Count on to now; say so if the log has stalled."""
        now = self._clock()
        # What we have slept through ourselves, stopped or busy, is no silence of the log's.
        self.quiet_s += min(now - self._looked_at, _GAP_S)
        self._looked_at = now
        if tail.signs != self._signs:
            if self._has_begun:  # how long loading took tells nothing of iterations
                self.longest_s = max(self.longest_s, self.quiet_s)
            self._lines, self._signs, self._has_begun = tail.lines, tail.signs, tail.has_begun
            self.quiet_s = 0.0
        if self.quiet_s < self._patience_s(begun=tail.has_begun):
            return None
        if tail.lines == self._lines:
            return f"the log has said nothing for {describe_duration(self.quiet_s)}"
        said = f"and says only: {tail.last_line[:200]}"
        return f"the log has told of no progress for {describe_duration(self.quiet_s)}, {said}"

    def _patience_s(self, *, begun: bool) -> float:
        if self._stall_s is not None:
            return self._stall_s
        return max(STALL_S, _PACES * self.longest_s) if begun else START_STALL_S


class Watchdog:
    """Looks at the log's pace and at the hosts; `stall_s` overrides what the pace says."""

    def __init__(
        self, hearing: Hearing, stall_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin to count silence now."""
        self._hearing, self._pace = hearing, Pace(stall_s, clock)
        self.suspect: Straggler | None = None

    def look(self, tail: LogTail) -> Trouble | None:
        """Say what is wrong, if the launch cannot go on; a mere suspicion is kept as `suspect`."""
        stalled = self._pace.look(tail)
        quiet_s, longest_s = self._pace.quiet_s, self._pace.longest_s
        patience_s = max(SILENT_S, min(2 * longest_s, STALL_S))
        for silence in self._hearing.silent(patience_s):
            if quiet_s > patience_s:
                said = f" ({silence.reason})" if silence.reason else ""
                what = f"not heard for {describe_duration(silence.seconds)}{said}"
                return Trouble(what, silence.host, is_lost=True)
        # While progress comes nobody is held up; at a normal end ranks finish at different times.
        is_held = quiet_s > max(HELD_S, 2 * longest_s)
        self.suspect = straggler = find_straggler(self._hearing.histories()) if is_held else None
        if straggler is not None and straggler.is_certain:
            return Trouble(f"holds the others up: {straggler.reason}", straggler.host)
        if stalled is None:
            return None
        if straggler is not None:
            return Trouble(f"{stalled}; {straggler.reason}", straggler.host)
        return Trouble(stalled)
