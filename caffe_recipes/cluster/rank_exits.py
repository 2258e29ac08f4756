"""Read from the log of a launch which rank ended first, and how, whichever launcher has started the ranks.

Hydra may start its proxies with srun, and ibrun starts hydra, so the log is read by all of them.
"""

from __future__ import annotations

import re
from itertools import chain

from caffe_recipes.cluster.launchers import LAUNCHERS

# What OpenSSH's client prints if it cannot log in, and what launchers print if they cannot start ranks.
_NOT_STARTED = re.compile(
    "|".join(
        (
            r"ssh: .+|Host key verification failed\.|(?:\S+: )?Permission denied \(.+\)\.?",
            r"(?:kex_exchange_identification|ssh_exchange_identification|banner exchange): .+",
            r"Connection (?:closed|reset) by .+|Connection timed out during banner exchange",
            r"(?:Received disconnect from|Unable to negotiate with|Bad owner or permissions on) .+",
            r"Host key for \S+ has changed and you have requested strict checking\.",
            r"No .+ host key is known for \S+ and you have requested strict checking\.",
            *(each.not_started for each in LAUNCHERS.values() if each.not_started),
        )
    )
)
# Those that report each rank as it ends come first, since they know more.
_READERS = sorted(
    dict.fromkeys(each.exits for each in LAUNCHERS.values()), key=lambda each: not each.REPORTS_EACH
)
_MAX_ERROR_LENGTH = 2000  # of a line that may be matched; a rank can print any line
_MAX_LINES = 100


# The line that a run adds to the log of a launch when it ends it.
ENDED_BY_US = "caffe-recipes: ending the ranks"


class RankExitReader:
    """Reads from the log of a launch which rank ended first, and how; this ends the other ranks, too.

    It `is_over` once the run itself ends the ranks; what the launcher then reports does not count.
    `not_started` are the distinct lines about hosts on which no ranks could be started. In a long log only
    lines that contain one of the `VITAL` words are read.

    >>> ends = RankExitReader()
    >>> ends.feed("srun: error: node2: task 3: Killed")
    >>> ends.cause
    'node2: rank 3 was killed by signal 9 (out of memory?)'
    """

    VITAL = tuple(chain.from_iterable(each.VITAL for each in _READERS))

    def __init__(self) -> None:
        """Start before the first line of output."""
        self.is_over = False
        self.not_started: list[str] = []
        self._readers = [each() for each in _READERS]

    def feed(self, line: str) -> None:
        """Process the next line, without its rank label."""
        self.is_over = self.is_over or line == ENDED_BY_US
        if self.is_over:
            return
        is_error = len(line) <= _MAX_ERROR_LENGTH and _NOT_STARTED.fullmatch(line) is not None
        if is_error and line not in self.not_started[-_MAX_LINES:]:
            self.not_started = [*self.not_started[-_MAX_LINES:], line]
        for reader in self._readers:
            reader.feed(line)

    @property
    def exit_string(self) -> str:
        """What a launcher printed when a signal has killed a rank; "" if it prints nothing."""
        return next((each.exit_string for each in self._readers if each.exit_string), "")

    @property
    def cause(self) -> str:
        """A sentence with the signal that ended a rank, and its host if known; "" if none is reported."""
        return next((each.cause for each in self._readers if each.cause), "")

    @property
    def is_unsure(self) -> bool:
        """Whether the first rank that ended may have run on any host."""
        return next((each.is_unsure for each in self._readers if each.cause), False)
