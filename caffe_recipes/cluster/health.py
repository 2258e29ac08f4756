"""The pulse of every host while a launch runs: whether it answers, and how its ranks are.

One command stays on each host (`ranks.sh`, verb `beat`) and answers when it is asked, every few seconds. A
connection that breaks is opened again until the host is heard.

The straggler: the one host or rank that holds the others up, told from the pulses of all.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.ranks import check_launch
from caffe_recipes.cluster.remote import Conversation, unreadable
from caffe_recipes.errors import CaffeRecipesError
from caffe_recipes.wording import describe_count, plural

# Pulses of a host that are kept.
KEPT = 12
AGAIN_S = 2.0
# A command that has not been asked for so long serves nobody any more, and ends.
_UNASKED_S = 30.0
# How long closing waits for hosts that answer, at most: a dead one is left to itself.
_CLOSE_S = 2.0
_RANK = re.compile(r"rank (\d+) (\d+) (\S) (\d+) (\d+)")
_NO_ANSWER = "no answer"


@dataclass(frozen=True)
class RankPulse:
    """A process of a rank; `state` is the kernel's letter. A rank with helpers has several."""

    rank: int
    pid: int
    state: str
    cpu_s: float
    memory_bytes: int


@dataclass(frozen=True)
class Pulse:
    """What a host reports of its ranks, and when on our clock; `ended` are ranks that lived there before."""

    host: str
    heard_at_s: float
    ranks: tuple[RankPulse, ...]
    ended: frozenset[int] = frozenset()

    @property
    def living(self) -> frozenset[int]:
        """The ranks that have a process there; a zombie is none."""
        return frozenset(process.rank for process in self.ranks if process.state not in "ZX")


@dataclass(frozen=True)
class Silence:
    """A host without a pulse for so long, and why, as far as is known."""

    host: str
    seconds: float
    reason: str


class Pulses:
    """Hears every host every few seconds while open.

    The hosts' connections are shared with other commands. Nothing here waits for a host.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        launch: str,
        every_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        again_s: float = AGAIN_S,
    ) -> None:
        """Begin to listen, again each `again_s` after a failure; raises ClusterError for a bad launch."""
        self._words = (check_launch(launch), f"{max(_UNASKED_S, 2 * every_s):.0f}")
        self._every_s, self._again_s, self._clock = every_s, again_s, clock
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._kept: dict[str, deque[Pulse]] = {host.name: deque(maxlen=KEPT) for host in hosts}
        self._local = {host.name for host in hosts if host.is_local}
        self._errors: dict[str, str] = {}
        self._opened_at_s = clock()
        self._threads = [
            threading.Thread(target=self._listen, args=(host,), daemon=True, name=f"pulse-{host.name}")
            for host in hosts
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Pulses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def latest(self) -> Mapping[str, Pulse]:
        """Return the last pulse of every host that has sent one."""
        with self._lock:
            return {name: kept[-1] for name, kept in self._kept.items() if kept}

    def history(self, host: str) -> tuple[Pulse, ...]:
        """Return a host's last pulses, the newest last."""
        with self._lock:
            return tuple(self._kept[host])

    def histories(self) -> dict[str, tuple[Pulse, ...]]:
        """Return every host's last pulses, the newest last."""
        with self._lock:
            return {name: tuple(kept) for name, kept in self._kept.items()}

    def is_well(self, host: str) -> bool:
        """Tell whether a host has sent a pulse, and its connection has not broken since."""
        with self._lock:
            return bool(self._kept[host]) and host not in self._errors

    def silent(self, patience_s: float) -> tuple[Silence, ...]:
        """Return the hosts without a pulse for longer than `patience_s`, in their order.

        This machine is none of them, however busy: no link lies between, and it would have to be left alone.
        """
        now = self._clock()
        with self._lock:
            heard = {
                name: kept[-1].heard_at_s if kept else self._opened_at_s for name, kept in self._kept.items()
            }
            return tuple(
                Silence(name, now - at, self._errors.get(name, _NO_ANSWER))
                for name, at in heard.items()
                if now - at > patience_s and name not in self._local
            )

    def close(self) -> None:
        """End the commands on all hosts at once; where a host cannot be told, it ends with its connection."""
        self._closing.set()
        deadline = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _listen(self, host: Host) -> None:
        while not self._closing.is_set():
            try:
                self._follow(host)
            except CaffeRecipesError as error:
                with self._lock:
                    self._errors[host.name] = error.what
                self._closing.wait(self._again_s)

    def _follow(self, host: Host) -> None:
        """Ask a host for its beats until we are closed; raises ClusterError when that breaks."""
        with Conversation(host, "ranks", "beat", *self._words) as talk:
            while not self._closing.is_set():
                asked_at = time.monotonic()
                records = talk.ask()
                self._keep(Pulse(host.name, self._clock(), parse_beat(host.name, records)))
                self._closing.wait(max(0.0, asked_at + self._every_s - time.monotonic()))
            talk.finish()

    def _keep(self, pulse: Pulse) -> None:
        with self._lock:
            kept = self._kept[pulse.host]
            before = kept[-1].living | kept[-1].ended if kept else frozenset()
            kept.append(replace(pulse, ended=before - pulse.living))
            self._errors.pop(pulse.host, None)


def parse_beat(host: str, records: Sequence[str]) -> tuple[RankPulse, ...]:
    """Read the records of one beat; raises HostFailed."""
    ranks = []
    for record in records:
        match = _RANK.fullmatch(record)
        if match is None:
            raise unreadable(host, "beat", record)
        rank, pid, state, cpu_ms, memory = match.groups()
        ranks.append(RankPulse(int(rank), int(pid), state, int(cpu_ms) / 1000, int(memory)))
    return tuple(ranks)


# A state or an absence counts when so many pulses in a row show it.
BEATS = 3
# Without a word of ssh's a host that is slow to start its ranks is given more time.
UNSTARTED_BEATS = 8
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


def find_unstarted(histories: Mapping[str, Sequence[Pulse]], words: Sequence[str] = ()) -> Straggler | None:
    """Return the host where no rank has started though others have theirs; None where that is unclear.

    That counts at UNSTARTED_BEATS pulses; at BEATS where ssh's own `words` name that host, or where there are
    such words and it alone lacks its ranks.
    """
    lack = [host for host, pulses in histories.items() if _lacks(pulses, BEATS)]
    have = [host for host, pulses in histories.items() if pulses and pulses[-1].ranks]
    named = [(host, line) for host in lack for line in words if names_host(line, host)]
    if not named and words and len(lack) == 1 and (have or len(histories) == 1):
        named = [(lack[0], words[-1])]
    if named:
        host, line = named[0]
        return Straggler(host, None, f"no rank has started there: {line}", is_certain=True)
    late = [host for host in lack if _lacks(histories[host], UNSTARTED_BEATS)]
    began = [host for host in have if all(pulse.ranks for pulse in histories[host][-UNSTARTED_BEATS:])]
    if not late or not any(len(histories[host]) >= UNSTARTED_BEATS for host in began):
        return None
    newest, first = histories[late[0]][-1], histories[late[0]][-UNSTARTED_BEATS]
    seconds = newest.heard_at_s - first.heard_at_s
    others = f"while {describe_count(len(have), 'host')} {plural(len(have), 'has', 'have')} theirs"
    return Straggler(
        late[0], None, f"no rank has started there for {seconds:.0f} s, {others}", is_certain=True
    )


def _lacks(pulses: Sequence[Pulse], beats: int) -> bool:
    """Tell whether a host has shown no rank, now or before, at so many pulses."""
    return len(pulses) >= beats and not any(pulse.ranks or pulse.ended for pulse in pulses)


def names_host(line: str, host: str) -> bool:
    """Tell whether a line holds a host's name, and not merely within another."""
    return re.search(rf"(?<![\w.-]){re.escape(host)}(?![\w-]|\.\w)", line) is not None


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
    """Find a rank that has ended while most continue, or that alone continues."""
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
