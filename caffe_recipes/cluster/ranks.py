"""Find, signal, end and monitor a run's ranks on its hosts, and find the one that holds the others up.

A rank is identified only by LAUNCH_VARIABLE in its environment, which it inherits from the launcher.
`ranks.sh` is the part that runs on the hosts. During a launch, its verb `beat` keeps running on each host and
answers every few seconds with a pulse: the state of each rank there. A broken connection is reopened until
the host answers.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal, TypeVar

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import try_each
from caffe_recipes.cluster.remote import Conversation, call, call_to_end, unreadable
from caffe_recipes.errors import CaffeRecipesError, ClusterError, escaped_error
from caffe_recipes.wording import describe_count, plural

LAUNCH_VARIABLE = "CAFFE_RECIPES_LAUNCH"
# A process that survives SIGKILL for this long hangs in the kernel, usually because a disk does not respond.
_KILL_S = 5.0
# Time to connect to a host, in addition to the work there.
_CONNECT_S = 5.0
_NAME = re.compile(r"[0-9a-f]{16}(/[A-Za-z0-9._-]+)?")
_PROCESS = re.compile(r"process (\d{1,9}) (\d{1,19}) (\d{1,19}) (\d{1,9}|-) ([01]) (\S+) (\S+)")
_LEFT = re.compile(r"left (\d{1,9}) (\S)")


@dataclass(frozen=True)
class RankProcess:
    """A process of a launch, as reported by a host; `rank` is None for processes of the launcher itself.

    `started` is the start time in clock ticks since boot.
    """

    pid: int
    rank: int | None
    catches_hup: bool
    command: tuple[str, ...]
    launch: str
    started: int = 0
    parent: int = 0


def find_ranks(host: Host, run: str) -> tuple[RankProcess, ...]:
    """Return this user's processes on a host that belong to the run, or to the single launch, named `run`.

    Raises ClusterError.
    """
    records = call_to_end(host, "ranks", "list", check_launch(run))
    return tuple(_parse_process(host, record) for record in records)


def request_snapshot(host: Host, launch: str, word: str) -> Literal["asked", "absent", "deaf"]:
    """Send SIGHUP to rank 0's trainer, so that it writes a snapshot; return `asked` if it was sent.

    The trainer is the process with `word` among its arguments. Returns `absent` if there is none, and `deaf`
    if it does not catch SIGHUP, in which case the signal is not sent, since it would kill the trainer. Raises
    ClusterError.
    """
    trainer = pick_trainer(find_ranks(host, launch), word)
    if trainer is None:
        return "absent"
    record = call(host, "ranks", "snapshot", launch, str(trainer.pid), str(trainer.started))[-1]
    for answer in ("asked", "absent", "deaf"):
        if record == answer:
            return answer
    raise unreadable(host.name, "snapshot", record)


def pick_trainer(processes: Sequence[RankProcess], word: str) -> RankProcess | None:
    """Return rank 0's process that has `word` among its arguments; of a wrapper and its child, the child.

    A child with the same arguments as its parent is a helper fork, and is skipped.
    """
    by_pid = {process.pid: process for process in processes}
    candidates = {process.pid for process in processes if process.rank == 0 and word in process.command[1:]}
    for pid in tuple(candidates):
        parent = by_pid.get(by_pid[pid].parent)
        if parent is not None and parent.command == by_pid[pid].command:
            candidates.discard(pid)
    outer = {ancestor for pid in candidates for ancestor in _ancestors(by_pid, pid)}
    inner = [by_pid[pid] for pid in candidates - outer]
    return min(
        inner, key=lambda process: (not process.catches_hup, process.started, process.pid), default=None
    )


def end_ranks(hosts: Sequence[Host], run: str, *, grace_s: float = 5.0) -> dict[str, str]:
    """End a run's ranks and launchers on all hosts at once; return reasons by host where this failed.

    Sends SIGTERM, and SIGKILL after `grace_s`, until none is left.
    """
    last_s = grace_s + _KILL_S
    words = (check_launch(run), f"{grace_s * 10:.0f}", f"{last_s * 10:.0f}")
    return try_each(hosts, lambda host: _end_on(host, words, last_s + _CONNECT_S), last_s + 2 * _CONNECT_S)


def check_launch(name: str) -> str:
    """Return the name of a run or launch unchanged. Raises ClusterError if it is not valid.

    >>> check_launch("0123456789abcdef/init-1")
    '0123456789abcdef/init-1'
    """
    if not _NAME.fullmatch(name):
        what = f"{name[:80]!r} is not the name of a run or launch"
        raise ClusterError("", what, "give sixteen hex digits, plus `/` and a name for a single launch")
    return name


def _end_on(host: Host, words: Sequence[str], timeout_s: float) -> str | None:
    """Return a sentence about the processes that survived on a host; None if there are none."""
    left = []
    for record in call_to_end(host, "ranks", "end", *words, timeout_s=timeout_s):
        match = _LEFT.fullmatch(record)
        if match is None:
            raise unreadable(host.name, "end", record)
        left.append(f"{match[1]} (state {match[2]})")
    return f"SIGKILL did not end process {', '.join(left)}" if left else None


def _parse_process(host: Host, record: str) -> RankProcess:
    match = _PROCESS.fullmatch(record)
    if match is None:
        raise unreadable(host.name, "list", record)
    pid, started, parent, rank, hup, launch, command = match.groups()
    try:
        words = b"" if command == "-" else base64.b64decode(command, validate=True)
    except binascii.Error:
        raise unreadable(host.name, "list", record) from None
    return RankProcess(
        pid=int(pid),
        rank=None if rank == "-" else int(rank),
        catches_hup=hup == "1",
        command=tuple(os.fsdecode(word) for word in words.removesuffix(b"\0").split(b"\0")) if words else (),
        launch=launch,
        started=int(started),
        parent=int(parent),
    )


def _ancestors(by_pid: dict[int, RankProcess], pid: int) -> set[int]:
    found: set[int] = set()
    while (parent := by_pid[pid].parent) in by_pid and parent not in found:
        found.add(parent)
        pid = parent
    return found


# How many pulses are kept per host.
MAX_PULSES = 12
RETRY_S = 2.0
# The command on a host exits after this long without a request.
_IDLE_LIMIT_S = 30.0
# How long `close` waits for the hosts at most: a dead host would never answer.
_CLOSE_S = 2.0
_RANK = re.compile(r"rank (\d{1,9}) (\d{1,9}) (\S) (\d{1,19}) (\d{1,19})")
_NO_ANSWER = "no answer"


@dataclass(frozen=True)
class RankPulse:
    """One process of a rank; `state` is the kernel's state letter. A rank may have several processes."""

    rank: int
    pid: int
    state: str
    cpu_s: float
    memory_bytes: int


@dataclass(frozen=True)
class Pulse:
    """A host's report of its ranks, and when it arrived, on our clock; `ended` ranks ran there before."""

    host: str
    heard_at_s: float
    ranks: tuple[RankPulse, ...]
    ended: frozenset[int] = frozenset()

    @property
    def living(self) -> frozenset[int]:
        """The ranks that have a running process on the host; zombies do not count."""
        return frozenset(process.rank for process in self.ranks if process.state not in "ZX")


@dataclass(frozen=True)
class Silence:
    """A host that has sent no pulse for that many seconds, and the reason, if known."""

    host: str
    seconds: float
    reason: str


class PulseMonitor:
    """Polls every host for a pulse every few seconds, in background threads, until it is closed.

    It shares the hosts' connections with other commands. Its methods never wait for a host.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        launch: str,
        every_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        retry_s: float = RETRY_S,
    ) -> None:
        """Start polling; retry `retry_s` after each failure. Raises ClusterError if `launch` is not valid."""
        self._words = (check_launch(launch), f"{max(_IDLE_LIMIT_S, 2 * every_s):.0f}")
        self._every_s, self._again_s, self._clock = every_s, retry_s, clock
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._kept: dict[str, deque[Pulse]] = {host.name: deque(maxlen=MAX_PULSES) for host in hosts}
        self._local = {host.name for host in hosts if host.is_local}
        self._errors: dict[str, str] = {}
        self._opened_at_s = clock()
        self._threads = [
            threading.Thread(target=self._listen, args=(host,), daemon=True, name=f"pulse-{host.name}")
            for host in hosts
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> PulseMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def latest(self) -> Mapping[str, Pulse]:
        """Return the latest pulse of every host that has sent one."""
        with self._lock:
            return {name: kept[-1] for name, kept in self._kept.items() if kept}

    def histories(self) -> dict[str, tuple[Pulse, ...]]:
        """Return every host's recent pulses, newest last."""
        with self._lock:
            return {name: tuple(kept) for name, kept in self._kept.items()}

    def is_responding(self, host: str) -> bool:
        """Return whether a host has sent a pulse and its connection has not broken since."""
        with self._lock:
            return bool(self._kept[host]) and host not in self._errors

    def silent(self, patience_s: float) -> tuple[Silence, ...]:
        """Return the hosts without a pulse for more than `patience_s`, in their order.

        This machine is never among them, however busy it is, since there is no network link to fail.
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
        """End the commands on all hosts; on an unreachable host, the command ends with its connection."""
        self._closing.set()
        deadline = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _listen(self, host: Host) -> None:
        while not self._closing.is_set():
            try:
                self._follow(host)
            except Exception as error:  # without its thread, nobody would watch the host
                named = error if isinstance(error, CaffeRecipesError) else escaped_error(host.name, error)
                with self._lock:
                    self._errors[host.name] = named.what
                self._closing.wait(self._again_s)

    def _follow(self, host: Host) -> None:
        """Poll a host until the monitor is closed. Raises ClusterError when the connection breaks."""
        with Conversation(host, "ranks", "beat", *self._words) as conversation:
            while not self._closing.is_set():
                asked_at = time.monotonic()
                records = conversation.ask()
                self._keep(Pulse(host.name, self._clock(), parse_beat(host.name, records)))
                self._closing.wait(max(0.0, asked_at + self._every_s - time.monotonic()))
            conversation.finish()

    def _keep(self, pulse: Pulse) -> None:
        with self._lock:
            kept = self._kept[pulse.host]
            before = kept[-1].living | kept[-1].ended if kept else frozenset()
            kept.append(replace(pulse, ended=before - pulse.living))
            self._errors.pop(pulse.host, None)


def parse_beat(host: str, records: Sequence[str]) -> tuple[RankPulse, ...]:
    """Return the processes in the records of one pulse. Raises HostFailed if a record is malformed."""
    ranks = []
    for record in records:
        match = _RANK.fullmatch(record)
        if match is None:
            raise unreadable(host, "beat", record)
        rank, pid, state, cpu_ms, memory = match.groups()
        ranks.append(RankPulse(int(rank), int(pid), state, int(cpu_ms) / 1000, int(memory)))
    return tuple(ranks)


# A state or an absence counts once this many consecutive pulses show it.
BEATS = 3
# Hosts that are slow to start their ranks get more time, unless ssh has printed an error.
UNSTARTED_BEATS = 8
# CPUs in use: a rank that waits for a file or socket uses almost none, one that computes or polls uses one.
IDLE = 0.05
BUSY = 0.5
# A host is not compared with others if its last pulse is older than this many typical intervals.
_STALE = 3.0
_STATES = {"T": "is stopped (SIGSTOP)", "t": "is stopped by a debugger", "D": "is waiting for a disk"}
_Rank = tuple[str, int]
_Key = TypeVar("_Key", str, _Rank)


@dataclass(frozen=True)
class Straggler:
    """The host or rank that holds the others up; `rank` is None if it is the whole host.

    `is_certain` is true if it will not continue by itself, such as a stopped rank.
    """

    host: str
    rank: int | None
    reason: str
    is_certain: bool = False


def find_straggler(histories: Mapping[str, Sequence[Pulse]], *, is_ending: bool = False) -> Straggler | None:
    """Return the rank or host that the others are waiting for; None if it is unclear.

    `histories` holds each host's recent pulses, newest last. A silent host is not a straggler. When training
    `is_ending`, rank 0 still writes and the others end, so only a rank that is stuck is one.
    """
    heard = _recent(histories)
    stuck = _find_stuck(heard)
    return stuck if is_ending else stuck or _find_gone(heard) or _find_outlier(heard)


def find_unstarted(histories: Mapping[str, Sequence[Pulse]], words: Sequence[str] = ()) -> Straggler | None:
    """Return a host where no rank has started although ranks run on other hosts; None if it is unclear.

    The verdict takes UNSTARTED_BEATS pulses, but only BEATS if one of ssh's error lines in `words` names the
    host, or if there are such lines and it is the only host without ranks.
    """
    without = [host for host, pulses in histories.items() if _has_no_rank(pulses, BEATS)]
    have = [host for host, pulses in histories.items() if pulses and pulses[-1].ranks]
    named = [(host, line) for host in without for line in words if names_host(line, host)]
    if not named and words and len(without) == 1 and (have or len(histories) == 1):
        named = [(without[0], words[-1])]
    if named:
        host, line = named[0]
        return Straggler(host, None, f"no rank has started there: {line}", is_certain=True)
    late = [host for host in without if _has_no_rank(histories[host], UNSTARTED_BEATS)]
    began = [host for host in have if all(pulse.ranks for pulse in histories[host][-UNSTARTED_BEATS:])]
    if not late or not any(len(histories[host]) >= UNSTARTED_BEATS for host in began):
        return None
    newest, first = histories[late[0]][-1], histories[late[0]][-UNSTARTED_BEATS]
    seconds = newest.heard_at_s - first.heard_at_s
    others = f"while {describe_count(len(have), 'host')} {plural(len(have), 'has', 'have')} theirs"
    return Straggler(
        late[0], None, f"no rank has started there for {seconds:.0f} s, {others}", is_certain=True
    )


def _has_no_rank(pulses: Sequence[Pulse], beats: int) -> bool:
    """Return whether a host has sent at least `beats` pulses, none of which shows a rank."""
    return len(pulses) >= beats and not any(pulse.ranks or pulse.ended for pulse in pulses)


def names_host(line: str, host: str) -> bool:
    """Return whether a line contains a host's name as a whole word, not as part of another name."""
    return re.search(rf"(?<![\w.-]){re.escape(host)}(?![\w-]|\.\w)", line) is not None


def _recent(histories: Mapping[str, Sequence[Pulse]]) -> dict[str, Sequence[Pulse]]:
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
    """Return a rank that stays stopped, or that keeps waiting for a disk while most hosts do not."""
    for letters in ("Tt", "D"):
        stuck = {
            (host, rank): state
            for host, pulses in histories.items()
            for rank, state in _ranks_in_state(pulses[-BEATS:], letters)
        }
        hosts = {host for host, _ in stuck}
        if hosts and (letters == "Tt" or 2 * len(hosts) <= len(histories)):
            (host, rank), state = min(stuck.items())
            everybody = sum(len(pulses[-1].living) for pulses in histories.values())
            is_alone = (
                letters == "Tt" and len(stuck) < everybody
            )  # if all are, the scheduler suspended the job
            return Straggler(host, rank, f"rank {rank} {_STATES[state]}", is_alone)
    return None


def _ranks_in_state(pulses: Sequence[Pulse], letters: str) -> Iterable[tuple[int, str]]:
    """Yield the rank and state of each process that is in one of these states in every pulse."""
    for last in pulses[-1].ranks:
        seen = [{process.pid: process.state for process in pulse.ranks}.get(last.pid, "") for pulse in pulses]
        if all(state and state in letters for state in seen):
            yield last.rank, last.state


def _find_gone(histories: Mapping[str, Sequence[Pulse]]) -> Straggler | None:
    """Return a rank that has ended while most continue, or the only one that continues."""
    ended = _ranks_throughout(histories, lambda pulse: pulse.ended)
    living = _ranks_throughout(histories, lambda pulse: pulse.living)
    if ended and len(ended) <= len(living):
        host, rank = ended[0]
        return Straggler(host, rank, f"rank {rank} has ended while others continue")
    if ended and len(living) == 1:
        host, rank = living[0]
        return Straggler(host, rank, f"only rank {rank} continues; the others have ended")
    return None


def _ranks_throughout(
    histories: Mapping[str, Sequence[Pulse]], ranks_in: Callable[[Pulse], frozenset[int]]
) -> list[_Rank]:
    """Return the ranks that `ranks_in` returns for each of their host's last BEATS pulses."""
    return [
        (host, rank)
        for host, pulses in sorted(histories.items())
        for rank in sorted(frozenset.intersection(*map(ranks_in, pulses[-BEATS:])))
    ]


def _find_outlier(histories: Mapping[str, Sequence[Pulse]]) -> Straggler | None:
    """Return the only rank or host that computes, or the only one that does not."""
    rates = {
        (host, rank): rate
        for host, pulses in histories.items()
        for rank, rate in _cpu_rates(pulses[-BEATS - 1 :]).items()
    }
    odd = _single_outlier(rates)
    if odd is not None:
        (host, rank), doing = odd
        return Straggler(host, rank, f"rank {rank} {doing}")
    by_host: dict[str, float] = {}
    for (host, _), rate in rates.items():
        by_host[host] = by_host.get(host, 0.0) + rate
    odd_host = _single_outlier(by_host)
    return None if odd_host is None else Straggler(odd_host[0], None, odd_host[1])


def _cpu_rates(pulses: Sequence[Pulse]) -> dict[int, float]:
    """Return the CPUs that each rank used from the first to the last pulse, by processes present in both."""
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


def _single_outlier(rates: Mapping[_Key, float]) -> tuple[_Key, str] | None:
    """Return the key that differs from all others, and how; None if unclear, or for fewer than three."""
    if len(rates) < 3:
        return None
    busy = [key for key, rate in rates.items() if rate >= BUSY]
    idle = [key for key, rate in rates.items() if rate <= IDLE]
    if len(busy) + len(idle) < len(rates):
        return None
    if len(busy) == 1:
        others = max(rates[key] for key in idle)
        return (
            busy[0],
            f"is the only one computing ({rates[busy[0]]:.2f} CPUs); the others wait (at most {others:.2f})",
        )
    if len(idle) == 1:
        others = min(rates[key] for key in busy)
        return idle[
            0
        ], f"is the only idle one ({rates[idle[0]]:.2f} CPUs); the others compute ({others:.2f} or more)"
    return None
