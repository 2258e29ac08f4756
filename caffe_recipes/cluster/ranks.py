"""Find a run's ranks on its hosts, request a snapshot from rank 0, end all ranks, and find why ranks ended.

A rank is identified only by LAUNCH_VARIABLE in its environment, which it inherits from the launcher.
`ranks.sh` is the part that runs on the hosts. `RankExitReader` parses the launcher's output.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import try_each
from caffe_recipes.cluster.remote import call, call_to_end, unreadable
from caffe_recipes.errors import ClusterError

LAUNCH_VARIABLE = "CAFFE_RECIPES_LAUNCH"
# A process that survives SIGKILL for this long hangs in the kernel, usually because a disk does not respond.
_KILL_S = 5.0
# Time to connect to a host, in addition to the work there.
_CONNECT_S = 5.0
_NAME = re.compile(r"[0-9a-f]{16}(/[A-Za-z0-9._-]+)?")
_PROCESS = re.compile(r"process (\d+) (\d+) (\d+) (\d+|-) ([01]) (\S+) (\S+)")
_LEFT = re.compile(r"left (\d+) (\S)")


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


def end_ranks(
    hosts: Sequence[Host],
    run: str,
    *,
    keep: str | None = None,
    grace_s: float = 5.0,
    launcher: bool = False,
) -> dict[str, str]:
    """End a run's ranks and their proxies on all hosts at once; return reasons by host where this failed.

    Sends SIGTERM, and SIGKILL after `grace_s`, until none is left. Processes of the launch `keep` are spared.
    Unless `launcher` is true, so are those of the launcher (mpiexec, its shells, its ssh), which end with
    their ranks.
    """
    check_launch(run)
    last_s = grace_s + _KILL_S
    words = (
        *(run, "-" if keep is None else check_launch(keep)),
        *(f"{grace_s * 10:.0f}", f"{last_s * 10:.0f}", "1" if launcher else "0"),
    )
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


# MPICH's hydra names the host, and the process of its first rank; Intel's names the rank that ended.
_FAILED_RANK = re.compile(r"= +(?:RANK (\d{1,7}) )?PID \d+ RUNNING AT (\S{1,253})")
_EXIT_CODE = re.compile(r"= +EXIT CODE: (\d{1,5})\b.*")
_INTEL_SIGNAL = re.compile(r"= +KILLED BY SIGNAL: (\d{1,3})\b.*")
_EXIT_STRING = re.compile(r"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: ((.+) \(signal (\d{1,3})\)|.+)")
_SRUN = re.compile(
    r"srun: error: (\S{1,253}): (?:task (\d{1,7})|tasks? [][\d,-]+): (.{1,100}?)(?: \(core dumped\))?"
)
_CANCELLED = re.compile(r"slurmstepd: error: \*\*\* .*CANCELLED AT .*")
# What OpenSSH's client, and the remote shell, print if hydra's proxy cannot be started.
_NOT_STARTED = re.compile(
    r"ssh: .+|Host key verification failed\.|(?:\S+: )?Permission denied \(.+\)\.?|"
    r"(?:kex_exchange_identification|ssh_exchange_identification|banner exchange): .+|"
    r"Connection (?:closed|reset) by .+|Connection timed out during banner exchange|"
    r"(?:Received disconnect from|Unable to negotiate with|Bad owner or permissions on) .+|"
    r"Host key for \S+ has changed and you have requested strict checking\.|"
    r"No .+ host key is known for \S+ and you have requested strict checking\.|"
    r".*(?:pmi_proxy|hydra_\w{0,30}proxy)\S{0,99}: (?:.*[Nn]ot found|No such file or directory|"
    r"Permission denied|error while loading shared libraries.*|[Cc]annot execute.*|Is a directory)"
)
_MAX_LINE_LENGTH = 300
_MAX_ERROR_LENGTH = 2000  # of a line that may be matched; a rank can print any line
_MAX_LINES = 100
_OUT_OF_MEMORY = "Out Of Memory"
# Without hydra's exit string, an exit code may be the rank's own, so only codes that programs rarely use
# are taken for signals.
_SIGNAL_NAMES = {number: (signal.strsignal(number) or "").lower() for number in (4, 6, 7, 8, 9, 11, 15)}
_SIGNAL_NAMES[9] = "out of memory?"
_SIGNAL_BY_TEXT = {signal.strsignal(number): number for number in _SIGNAL_NAMES}


class RankExitReader:
    """Reads from a launcher's output which rank ended first, and how; this ends the other ranks, too.

    >>> ends = RankExitReader()
    >>> ends.feed("srun: error: node2: task 3: Killed")
    >>> ends.cause
    'node2: rank 3 was killed by signal 9 (out of memory?)'
    """

    def __init__(self) -> None:
        """Start before the first line of output."""
        self.exit_string = ""  # what hydra printed when a signal has killed a rank
        self._host = self._string = self._by_slurm = ""
        self._rank: str | None = None
        self._code: int | None = None
        self._signal: int | None = None
        self._is_cancelled = False
        self.not_started: list[str] = []  # distinct error lines from ssh

    def feed(self, line: str) -> None:
        """Process the next line, without its rank label."""
        is_error = len(line) <= _MAX_ERROR_LENGTH and _NOT_STARTED.fullmatch(line) is not None
        if is_error and line[:_MAX_LINE_LENGTH] not in self.not_started[-_MAX_LINES:]:
            self.not_started = [*self.not_started[-_MAX_LINES:], line[:_MAX_LINE_LENGTH]]
        if not line.startswith(("=", "YOUR APPLICATION", "srun: error: ", "slurmstepd: error: ")):
            return
        if found := _FAILED_RANK.fullmatch(line):
            if not self._host:
                self._rank, self._host = found.groups()
        elif found := _EXIT_CODE.fullmatch(line):
            self._code = int(found[1]) if self._code is None else self._code
        elif found := _INTEL_SIGNAL.fullmatch(line):
            self._signal = self._signal or int(found[1])
        elif found := _EXIT_STRING.fullmatch(line):
            self.exit_string, string, combined = found.groups()
            if string:
                self._string = string
                self._signal = self._signal or _pick_signal(self._code, int(combined))
        elif _CANCELLED.fullmatch(line):  # all ranks are ended, and srun reports each
            self._is_cancelled = True
        elif (found := _SRUN.fullmatch(line)) and not self._is_cancelled:
            self._read_srun(*found.groups())

    @property
    def cause(self) -> str:
        """A sentence with the host where a rank was ended, and the signal; "" if the launcher names none."""
        if self._by_slurm or not self._host:
            return self._by_slurm
        number = self._signal
        if number is None and self._string:
            who = _name_rank(self._host, self._rank)
            return f"{who} was killed by a signal (the launcher reported: {self._string})"
        if (
            number is None
            and self._code is not None
            and self._code % 128 in _SIGNAL_NAMES
            and self._code < 256
        ):
            number = self._code % 128
        return _describe(self._host, self._rank, number) if number is not None else ""

    def _read_srun(self, host: str, rank: str | None, word: str) -> None:
        if word == _OUT_OF_MEMORY:
            cause = f"{_name_rank(host, rank)} was killed: out of memory"
        elif word in _SIGNAL_BY_TEXT:
            cause = _describe(host, rank, _SIGNAL_BY_TEXT[word])
        else:
            return
        self._by_slurm = self._by_slurm or cause


def _name_rank(host: str, rank: str | None) -> str:
    return f"{host}: a rank" if rank is None else f"{host}: rank {rank}"


def _describe(host: str, rank: str | None, number: int) -> str:
    name = _SIGNAL_NAMES.get(number)
    return f"{_name_rank(host, rank)} was killed by signal {number}" + (f" ({name})" if name else "")


def _pick_signal(code: int | None, combined: int) -> int | None:
    """Return the signal that ended the first rank; None if hydra's two numbers are ambiguous.

    `code` is the exit code of the host's first rank, which may come from the SIGKILL that hydra sends to all
    ranks once one has died. `combined` is the bitwise or of the signals of all ranks on the host.

    >>> _pick_signal(6, 15), _pick_signal(9, 11), _pick_signal(9, 9), _pick_signal(9, 15)
    (6, 11, 9, None)
    """
    own = (code or 0) % 128
    if own and own != signal.SIGKILL:
        return own
    return combined if combined in (signal.SIGKILL, signal.SIGSEGV) or not combined & signal.SIGKILL else None
