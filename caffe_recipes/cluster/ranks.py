"""The ranks of a run on its hosts: find them, ask one for a snapshot, end them all.

A rank is told from anything else by LAUNCH_VARIABLE in its environment, which the launcher hands on from its
own, and by nothing else. `ranks.sh` is the node's side.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from caffe_recipes.cluster.commands import COMMAND_S, Completed
from caffe_recipes.cluster.hosts import Host
from caffe_recipes.cluster.parallel import try_each
from caffe_recipes.errors import ClusterError

LAUNCH_VARIABLE = "CAFFE_RECIPES_LAUNCH"
MARK = "caffe-recipes: "
# What SIGKILL does not end within this stays in the kernel: its disk or its file server does not answer.
_KILL_S = 5.0
# For reaching a host, beyond what is done there.
_REACH_S = 5.0
_NAME = re.compile(r"[0-9a-f]{16}(/[A-Za-z0-9._-]+)?")
_PROCESS = re.compile(r"process (\d+) (\d+) (\d+) (\d+|-) (\S) (\d+) (\d+) ([01]) (\S+) (\S+)")
_LEFT = re.compile(r"left (\d+) (\S)")


@dataclass(frozen=True)
class RankProcess:
    """A process of a launch, as a host told it; `rank` is None for what belongs to the launcher itself.

    `state` is the kernel's letter, `started` its time of start in the kernel's ticks since the boot.
    """

    pid: int
    rank: int | None
    state: str
    cpu_s: float
    memory_bytes: int
    catches_hup: bool
    command: tuple[str, ...]
    launch: str
    started: int = 0
    parent: int = 0


def find_ranks(host: Host, run: str) -> tuple[RankProcess, ...]:
    """Return all processes of ours there whose launch is one of a run's, or the launch that `run` names.

    Raises ClusterError.
    """
    *lines, end = _ask(host, "list", check_launch(run)) or [""]
    found = [_PROCESS.fullmatch(line) for line in lines]
    if end != "end" or None in found:
        raise _unreadable(host, "\n".join([*lines, end]))
    return tuple(_parse_process(host, match) for match in found if match is not None)


def ask_snapshot(host: Host, launch: str, word: str) -> Literal["asked", "absent", "deaf"]:
    """Send SIGHUP to rank 0's trainer, the process with `word` among its arguments, so that it snapshots.

    `deaf`: it does not catch SIGHUP, which would kill it, and is spared. Raises ClusterError.
    """
    trainer = pick_trainer(find_ranks(host, launch), word)
    if trainer is None:
        return "absent"
    said = _ask(host, "snapshot", launch, str(trainer.pid), str(trainer.started))
    for answer in ("asked", "absent", "deaf"):
        if said == [answer]:
            return answer
    raise _unreadable(host, "\n".join(said))


def pick_trainer(processes: Sequence[RankProcess], word: str) -> RankProcess | None:
    """Return rank 0's process that has `word` among its arguments; of a wrapper and its child, the child.

    A child with the very words of its parent is a fork that works for it, and not the one.
    """
    by_pid = {process.pid: process for process in processes}
    having = {process.pid for process in processes if process.rank == 0 and word in process.command[1:]}
    for pid in tuple(having):
        parent = by_pid.get(by_pid[pid].parent)
        if parent is not None and parent.command == by_pid[pid].command:
            having.discard(pid)
    outer = {ancestor for pid in having for ancestor in _ancestors(by_pid, pid)}
    inner = [by_pid[pid] for pid in having - outer]
    return min(
        inner, key=lambda process: (not process.catches_hup, process.started, process.pid), default=None
    )


def end_ranks(
    hosts: Sequence[Host],
    run: str,
    *,
    but: str | None = None,
    grace_s: float = 5.0,
    launcher: bool = False,
) -> dict[str, str]:
    """End a run's ranks and their proxies on all hosts at once; return by host why that could not be done.

    SIGTERM, and after `grace_s` SIGKILL, until none is left. The launch `but` is spared; so is, without
    `launcher`, what belongs to the launcher (mpiexec, shells about it, its ssh): that ends with its ranks.
    """
    check_launch(run)
    last_s = grace_s + _KILL_S
    words = (
        *("end", run, "-" if but is None else check_launch(but)),
        *(f"{grace_s * 10:.0f}", f"{last_s * 10:.0f}", "1" if launcher else "0"),
    )
    return try_each(hosts, lambda host: _end_on(host, words, last_s + _REACH_S), last_s + 2 * _REACH_S)


def check_launch(name: str) -> str:
    """Return a run's or launch's name; raises ClusterError if it is none.

    >>> check_launch("0123456789abcdef/init-1")
    '0123456789abcdef/init-1'
    """
    if not _NAME.fullmatch(name):
        what = f"{name[:80]!r} is no launch"
        raise ClusterError("", what, "sixteen hex digits are, and `/` with a name behind them")
    return name


@cache
def ranks_program() -> str:
    """Return the node's side, for `sh -c`."""
    return resources.files(__package__).joinpath("ranks.sh").read_text("utf-8")


def _ask(host: Host, verb: str, *words: str, timeout_s: float = COMMAND_S) -> list[str]:
    """Run a verb of `ranks.sh`; return its lines without their mark."""
    done = host.run(["sh", "-c", ranks_program(), "caffe-recipes", verb, *words], timeout_s)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not all(line.startswith(MARK) for line in lines):
        raise _unreadable(host, _said(done))
    return [line.removeprefix(MARK) for line in lines]


def _end_on(host: Host, words: Sequence[str], timeout_s: float) -> str | None:
    """Return what survives on a host, in words; None if nothing does."""
    *lines, end = _ask(host, *words, timeout_s=timeout_s) or [""]
    found = [_LEFT.fullmatch(line) for line in lines]
    if end != "end" or None in found:
        raise _unreadable(host, "\n".join([*lines, end]))
    left = [f"{match[1]} (state {match[2]})" for match in found if match is not None]
    return f"SIGKILL does not end process {', '.join(left)}" if left else None


def _parse_process(host: Host, match: re.Match[str]) -> RankProcess:
    pid, started, parent, rank, state, cpu_ms, memory, hup, launch, command = match.groups()
    try:
        said = b"" if command == "-" else base64.b64decode(command, validate=True)
    except binascii.Error:
        raise _unreadable(host, match[0]) from None
    return RankProcess(
        pid=int(pid),
        rank=None if rank == "-" else int(rank),
        state=state,
        cpu_s=int(cpu_ms) / 1000,
        memory_bytes=int(memory),
        catches_hup=hup == "1",
        command=tuple(os.fsdecode(word) for word in said.removesuffix(b"\0").split(b"\0")) if said else (),
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


def _said(done: Completed) -> str:
    return done.stderr.strip() or done.stdout.strip() or f"exit {done.returncode}"


def _unreadable(host: Host, said: str) -> ClusterError:
    what = f"gives no answer about its ranks that can be read: {' '.join(said.split())[:200]!r}"
    return ClusterError(host.name, what, "check that the host has sh, /proc and GNU coreutils")
