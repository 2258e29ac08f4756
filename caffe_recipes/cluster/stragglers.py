"""The straggler: the one host or rank that holds the others up, told from the pulses of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from caffe_recipes.cluster.pulses import Pulse

# A state or an absence counts when so many pulses in a row show it.
BEATS = 3
# CPUs in use: a rank that waits in a file or socket takes hardly any, one that computes or polls takes one.
IDLE = 0.05
BUSY = 0.5
# How much longer than between its own last pulses a host may not have been heard, to be compared with others.
_STALE = 3.0
_STATES = {"T": "is stopped (SIGSTOP)", "t": "is stopped by a debugger", "D": "waits for a disk"}
_Rank = tuple[str, int]
_Key = TypeVar("_Key", str, _Rank)


@dataclass(frozen=True)
class Straggler:
    """Who holds the others up; `rank` is None where it is all of a host's.

    `is_certain` of a rank that is stopped; another may yet go on, or wait for those that do.
    """

    host: str
    rank: int | None
    reason: str
    is_certain: bool = False


def find_straggler(histories: Mapping[str, Sequence[Pulse]]) -> Straggler | None:
    """Return the one that the others wait for; None where that is unclear.

    `histories` holds each host's last pulses, the newest last. A host that is not heard is no straggler.
    """
    heard = _still_heard(histories)
    return _find_stuck(heard) or _find_gone(heard) or _find_odd(heard)


def _still_heard(histories: Mapping[str, Sequence[Pulse]]) -> dict[str, Sequence[Pulse]]:
    whole = {host: pulses for host, pulses in histories.items() if len(pulses) >= BEATS}
    if not whole:
        return {}
    newest_s = max(pulses[-1].heard_at_s for pulses in whole.values())
    step_s = median(pulses[-1].heard_at_s - pulses[-2].heard_at_s for pulses in whole.values())
    return {
        host: pulses
        for host, pulses in whole.items()
        if newest_s - pulses[-1].heard_at_s <= _STALE * max(step_s, 0.0)
    }


def _find_stuck(histories: Mapping[str, Sequence[Pulse]]) -> Straggler | None:
    """Find a rank that is stopped, or that alone waits for its disk, pulse after pulse."""
    for letters in ("Tt", "D"):
        stuck = {
            (host, rank): state
            for host, pulses in histories.items()
            for rank, state in _states(pulses[-BEATS:], letters)
        }
        hosts = {host for host, _ in stuck}
        if hosts and (letters == "Tt" or 2 * len(hosts) <= len(histories)):
            (host, rank), state = min(stuck.items())
            everybody = sum(len(pulses[-1].living) for pulses in histories.values())
            is_alone = letters == "Tt" and len(stuck) < everybody  # else a scheduler has suspended them all
            return Straggler(host, rank, f"rank {rank} {_STATES[state]}", is_alone)
    return None


def _states(pulses: Sequence[Pulse], letters: str) -> Iterable[tuple[int, str]]:
    """Yield each rank with a process that is in such a state in every one of the pulses."""
    for last in pulses[-1].ranks:
        seen = [{process.pid: process.state for process in pulse.ranks}.get(last.pid, "") for pulse in pulses]
        if all(state and state in letters for state in seen):
            yield last.rank, last.state


def _find_gone(histories: Mapping[str, Sequence[Pulse]]) -> Straggler | None:
    """Find a rank that has ended while most go on, or that alone goes on."""
    ended = _through(histories, lambda pulse: pulse.ended)
    living = _through(histories, lambda pulse: pulse.living)
    if ended and len(ended) <= len(living):
        host, rank = ended[0]
        return Straggler(host, rank, f"rank {rank} has ended, while others go on")
    if ended and len(living) == 1:
        host, rank = living[0]
        return Straggler(host, rank, f"rank {rank} alone goes on, the others have ended")
    return None


def _through(
    histories: Mapping[str, Sequence[Pulse]], ranks_in: Callable[[Pulse], frozenset[int]]
) -> list[_Rank]:
    """Return the ranks that are in every one of the last pulses of their host."""
    return [
        (host, rank)
        for host, pulses in sorted(histories.items())
        for rank in sorted(frozenset.intersection(*map(ranks_in, pulses[-BEATS:])))
    ]


def _find_odd(histories: Mapping[str, Sequence[Pulse]]) -> Straggler | None:
    """Find the one that alone computes, or alone does not: a rank, or all of a host's."""
    rates = {
        (host, rank): rate
        for host, pulses in histories.items()
        for rank, rate in _rates(pulses[-BEATS - 1 :]).items()
    }
    odd = _odd_one(rates)
    if odd is not None:
        (host, rank), doing = odd
        return Straggler(host, rank, f"rank {rank} {doing}")
    by_host: dict[str, float] = {}
    for (host, _), rate in rates.items():
        by_host[host] = by_host.get(host, 0.0) + rate
    odd_host = _odd_one(by_host)
    return None if odd_host is None else Straggler(odd_host[0], None, odd_host[1])


def _rates(pulses: Sequence[Pulse]) -> dict[int, float]:
    """Return the CPUs that each rank used over the pulses, of its processes that are in all of them."""
    first = {process.pid: process for process in pulses[0].ranks}
    seconds = pulses[-1].heard_at_s - pulses[0].heard_at_s
    rates: dict[int, float] = {}
    if seconds <= 0:
        return rates
    for process in pulses[-1].ranks:
        if process.pid in first:
            used = max(0.0, process.cpu_s - first[process.pid].cpu_s)
            rates[process.rank] = rates.get(process.rank, 0.0) + used / seconds
    return rates


def _odd_one(rates: Mapping[_Key, float]) -> tuple[_Key, str] | None:
    """Return who is far off the others, of at least three, and what it does; None where that is unclear."""
    if len(rates) < 3:
        return None
    busy = [key for key, rate in rates.items() if rate >= BUSY]
    idle = [key for key, rate in rates.items() if rate <= IDLE]
    if len(busy) + len(idle) < len(rates):
        return None
    if len(busy) == 1:
        others = max(rates[key] for key in idle)
        return busy[0], f"alone computes ({rates[busy[0]]:.2f} CPUs), the others wait ({others:.2f} at most)"
    if len(idle) == 1:
        others = min(rates[key] for key in busy)
        return idle[
            0
        ], f"alone does nothing ({rates[idle[0]]:.2f} CPUs), the others work ({others:.2f} or more)"
    return None
