"""The pulse of every host while a launch runs: whether it is heard, and how its ranks are.

One command stays on each host (`ranks.sh`, verb `beat`) and answers when it is asked, every few seconds. A
connection that breaks is opened again until the host is heard.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from caffe_recipes.cluster.commands import Running
from caffe_recipes.cluster.hosts import Host
from caffe_recipes.cluster.ranks import MARK, check_launch, ranks_program
from caffe_recipes.errors import CaffeRecipesError, ClusterError

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
    """What a host said of its ranks, and when on our clock; `ended` are the ranks that lived there before."""

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
    """A host that has not been heard for so long, and why, as far as is known."""

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
        """Begin to listen, after a failure anew each `again_s`; raises ClusterError for what is no launch."""
        beat = ("beat", check_launch(launch), f"{max(_UNASKED_S, 2 * every_s):.0f}")
        self._argv = ("sh", "-c", ranks_program(), "caffe-recipes", *beat)
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
        """Return the last pulse of every host that has been heard."""
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
        """Tell whether a host has been heard, and its connection has not broken since."""
        with self._lock:
            return bool(self._kept[host]) and host not in self._errors

    def silent(self, patience_s: float) -> tuple[Silence, ...]:
        """Return the hosts that have not been heard for longer than `patience_s`, in their order.

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
        with host.start(self._argv) as command:
            rest = b""
            while not self._closing.is_set():
                asked_at = time.monotonic()
                command.send(b"\n")
                said, rest = _read_beat(command, rest)
                self._keep(Pulse(host.name, self._clock(), parse_beat(host.name, said)))
                self._closing.wait(max(0.0, asked_at + self._every_s - time.monotonic()))
            command.end_input()
            while command.read():
                pass
            command.wait()

    def _keep(self, pulse: Pulse) -> None:
        with self._lock:
            kept = self._kept[pulse.host]
            before = kept[-1].living | kept[-1].ended if kept else frozenset()
            kept.append(replace(pulse, ended=before - pulse.living))
            self._errors.pop(pulse.host, None)


def parse_beat(host: str, said: str) -> tuple[RankPulse, ...]:
    """Read what a host says at one beat; raises ClusterError."""
    ranks = []
    for line in said.splitlines():
        match = _RANK.fullmatch(line.removeprefix(MARK)) if line.startswith(MARK) else None
        if match is None:
            what = f"gives a pulse that cannot be read: {line[:200]!r}"
            raise ClusterError(host, what, "check that the host has sh, /proc and GNU coreutils")
        rank, pid, state, cpu_ms, memory = match.groups()
        ranks.append(RankPulse(int(rank), int(pid), state, int(cpu_ms) / 1000, int(memory)))
    return tuple(ranks)


def _read_beat(command: Running, rest: bytes) -> tuple[str, bytes]:
    """Return the lines of one beat, and what has come behind it; raises ClusterError at the end."""
    end = f"{MARK}beat\n".encode()
    while end not in rest:
        more = command.read()
        if not more:
            code = command.wait()
            what = f"its pulse ended with exit code {code}: {' '.join(command.errors().split())[:200]}"
            raise ClusterError(command.host, what, "check that the host has sh, /proc and GNU coreutils")
        rest += more
    said, _, rest = rest.partition(end)
    return said.decode(errors="replace"), rest
