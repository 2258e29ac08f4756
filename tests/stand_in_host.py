"""Hosts for tests: one with canned answers, without a process, and this machine without a supervisor."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from caffe_recipes.cluster.commands import COMMAND_S, Completed, Running, supervise
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.errors import ClusterError, HostFailed

Answer = Callable[[tuple[str, ...], bytes], Completed]


def answer_nothing(argv: tuple[str, ...], stdin: bytes) -> Completed:
    """Succeed silently for any command."""
    return Completed(0, "", "")


def answer_call(argv: Sequence[str], *records: str) -> Completed:
    """Return the answer of a function of ours that was called by `remote.call`."""
    return Completed(0, "".join(f"{argv[4]} {record}\n" for record in records), "")


@dataclass
class StandInHost:
    """A host with canned answers: `asked` holds each command's argv and input, in order.

    While `fault` is set, everything raises it, as a host does that cannot be reached.
    """

    name: str = "standin"
    answer: Answer = answer_nothing
    files: dict[str, bytes] = field(default_factory=dict)
    fault: ClusterError | None = None
    is_local: bool = False
    asked: list[tuple[tuple[str, ...], bytes]] = field(default_factory=list)
    closed: int = 0

    def connect(self) -> None:
        """Be reached."""
        self._raise_fault()

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        """Answer a command."""
        return self.start(argv, timeout_s).finish(timeout_s)

    def start(self, argv: Sequence[str], limit_s: float | None = None) -> Running:
        """Answer a command once its input has ended."""
        self._raise_fault()
        mark, _ = supervise(argv, limit_s)
        return Running(self.name, argv, mark, _Canned(self, tuple(argv), mark))

    def fetch(self, path: str, to: Path) -> None:
        """Write one of `files`."""
        self._raise_fault()
        if path not in self.files:
            raise HostFailed(self.name, "cannot be copied: No such file or directory", "check it", path)
        to.write_bytes(self.files[path])

    def put(self, path: Path, to: str) -> None:
        """Take a file into `files`."""
        self._raise_fault()
        self.files[to] = path.read_bytes()

    def close(self) -> None:
        """Count how often it was let go of."""
        self.closed += 1

    def _raise_fault(self) -> None:
        if self.fault is not None:
            raise self.fault


class QuickHost(LocalHost):
    """This machine, where short commands run without a supervisor, whose processes are most of their time."""

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        """Run a command to its end."""
        done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout_s)
        return Completed(
            done.returncode, *(each.decode(errors="replace") for each in (done.stdout, done.stderr))
        )


class _Canned:
    """The bytes of an answer, which is made when the input ends."""

    def __init__(self, host: StandInHost, argv: tuple[str, ...], mark: str) -> None:
        self._host, self._argv, self._mark = host, argv, mark
        self._input = bytearray()
        self._ended = threading.Event()
        self._done = Completed(-1, "", "")
        self._left: dict[str, bytes] = {}

    def read(self, most: int) -> bytes:
        return self._take("stdout", most)

    def read_errors(self, most: int) -> bytes:
        return self._take("stderr", most)

    def send(self, data: bytes) -> None:
        self._input += data

    def end_input(self) -> None:
        if self._ended.is_set():
            return
        self._host.asked.append((self._argv, bytes(self._input)))
        self._done = self._host.answer(self._argv, bytes(self._input))
        head = f"{self._mark} 1\n"
        self._left = {
            "stdout": (head + self._done.stdout).encode(),
            "stderr": (head + self._done.stderr).encode(),
        }
        self._ended.set()

    def code(self) -> int:
        self._ended.wait()
        return self._done.returncode

    def end(self, pid: int | None) -> None:
        self._ended.set()

    def close(self) -> None:
        self._ended.set()

    def _take(self, stream: str, most: int) -> bytes:
        self._ended.wait()
        left = self._left.get(stream, b"")
        self._left[stream] = left[most:]
        return left[:most]
