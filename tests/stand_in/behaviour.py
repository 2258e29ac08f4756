"""What goes wrong, as `behaviour.json` in the working directory has it; without it all goes well.

    {"ms": 20,
     "init": "nan",
     "cyc1": [{"does": "truncated", "once": true}, {"does": "hangs", "at": 4, "rank": 1}]}

`ms` is the time that an iteration takes. A phase goes by its solver's name, `solver_<phase>.prototxt`, its
faults by these words; `at` is an iteration (2 without a word), and `once` spares all but the first training
of the phase.

    nan, stuck                  the loss, from `at` on
    empty, truncated, html,     what the last snapshot is instead of whole; `renamed` has a layer that the net
    renamed, nothing            does not; `nothing` is not there at all
    dies, hangs                 the rank `rank` (0 without a word), at `at`
    killed                      so does rank 0, by SIGKILL
    early                       rank 0 returns 0 at `at`, without a word
    ignored                     the log says that a layer of the weights is ignored
    waits                       rank 0 waits at `at` until there is the file that `until` names, or `release`
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

_FILE = Path("behaviour.json")
_TAKEN = Path(".faults")


@dataclass(frozen=True)
class Fault:
    """A fault of a training."""

    does: str
    at: int = 2
    rank: int = 0
    once: bool = False
    until: str = "release"


@dataclass(frozen=True)
class Behaviour:
    """How a training behaves."""

    iteration_s: float
    faults: tuple[Fault, ...]

    def has(self, does: str, iteration: int | None = None) -> bool:
        """Return whether rank 0 does that, and at that very iteration if one is given."""
        found = [fault for fault in self.faults if fault.does == does and fault.rank == 0]
        return any(iteration in (None, fault.at) for fault in found)

    def has_begun(self, does: str, iteration: int) -> bool:
        """Return whether that has begun by an iteration."""
        return any(fault.does == does and fault.at <= iteration for fault in self.faults)

    def of_ranks(self) -> dict[int, str]:
        """Return the faults of the ranks but 0, as `hangs 4`."""
        return {fault.rank: f"{fault.does} {fault.at}" for fault in self.faults if fault.rank}


def load_behaviour(phase: str) -> Behaviour:
    """Read how a training of a phase behaves; faults marked `once` are used up by that."""
    settings = json.loads(_FILE.read_text("utf-8")) if _FILE.exists() else {}
    given = settings.get(phase, [])
    faults = [_parse(fault) for fault in (given if isinstance(given, list) else [given])]
    return Behaviour(settings.get("ms", 0) / 1000, tuple(fault for fault in faults if _is_due(phase, fault)))


def _parse(given: str | dict[str, object]) -> Fault:
    return Fault(given) if isinstance(given, str) else Fault(**given)  # type: ignore[arg-type]


def _is_due(phase: str, fault: Fault) -> bool:
    if not fault.once:
        return True
    _TAKEN.mkdir(exist_ok=True)
    try:
        (_TAKEN / f"{phase}-{fault.does}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
