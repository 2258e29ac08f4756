"""Run commands and copy files on this machine or over ssh, on one host or on many at once.

Errors of ssh and of the operating system become ClusterErrors that name the host.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, Literal, TypeVar

from caffe_recipes.cluster.commands import (
    COMMAND_S,
    GRACE_S,
    Completed,
    Host,
    Running,
    fetch_file,
    put_file,
    supervise,
)
from caffe_recipes.cluster.hostfile import explain_bad_host_name, is_host_name
from caffe_recipes.errors import CaffeRecipesError, ClusterError, HostFailed, InputError

DIGEST_S = 600.0


@dataclass(frozen=True)
class LocalHost:
    """This machine, without ssh."""

    name: str = "localhost"
    is_local: bool = True

    def connect(self) -> None:
        """Do nothing: no connection is needed."""

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        """Run a command to its end."""
        return self.start(argv, timeout_s).finish(timeout_s)

    def start(self, argv: Sequence[str], limit_s: float | None = None) -> Running:
        """Start a command, which ends at the latest with this process or after `limit_s`."""
        mark, supervised = supervise(argv, limit_s)
        try:
            process = subprocess.Popen(
                supervised,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # so that Ctrl-C reaches only us
            )
        except OSError as error:
            raise HostFailed(
                self.name, f"{argv[0]} does not start: {error.strerror}", "check its path"
            ) from None
        return Running(self.name, argv, mark, _Pipes(process))

    def fetch(self, path: str, to: Path) -> None:
        """Copy a file."""
        fetch_file(self, path, to)

    def put(self, path: Path, to: str) -> None:
        """Copy a file."""
        put_file(self, path, to)

    def close(self) -> None:
        """Do nothing: no connection is open."""


@dataclass(frozen=True)
class _Pipes:
    """The standard streams of a child process."""

    process: subprocess.Popen[bytes]

    def read(self, most: int) -> bytes:
        assert self.process.stdout is not None
        return os.read(self.process.stdout.fileno(), most)

    def read_errors(self, most: int) -> bytes:
        assert self.process.stderr is not None
        return os.read(self.process.stderr.fileno(), most)

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self.process.stdin.fileno(), left) :]
        except (OSError, ValueError):
            raise ClusterError("", "the command no longer reads its input", "see its output") from None

    def end_input(self) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()

    def code(self) -> int:
        return self.process.wait()

    def end(self, pid: int | None) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)  # Popen sends none to a process that has been waited for
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(2 * GRACE_S)

    def close(self) -> None:
        """Close the input; the output streams end with the command."""
        self.end_input()


def open_host(name: str, copy_with: Literal["ssh", "auto"] = "auto") -> Host:
    """Return the host with that name; this machine is accessed without ssh, unless `copy_with` is ssh.

    Raises InputError if the name is not a host name.
    """
    if not is_host_name(name):
        hint = explain_bad_host_name(name, "write a name or an address")
        raise InputError("", f"{name[:80]!r} is not a host name", hint)
    if copy_with == "auto" and is_this_machine(name):
        return LocalHost(name)
    from caffe_recipes.cluster.ssh import SshHost  # paramiko

    return SshHost(name)


def is_this_machine(name: str) -> bool:
    """Return whether a host name refers to this machine, by its name or an address of its interfaces."""
    if name in ("localhost", socket.gethostname(), socket.gethostname().split(".")[0]):
        return True
    try:
        addresses = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in addresses)


def file_bytes(host: Host, path: str) -> int | None:
    """Return the size of a file in bytes, following links; None if there is no file."""
    done = host.run(["stat", "-L", "-c", "%f %s", "--", path])
    if done.returncode != 0:
        return None
    found = _match_answer(host, path, "stat", done, r"([0-9a-f]{1,8}) (\d{1,19})")
    return int(found[2]) if stat.S_ISREG(int(found[1], 16)) else None


def remote_sha256(host: Host, path: str) -> str:
    """Return a file's SHA-256. Raises ClusterError if the file cannot be read."""
    return _read_digest(host, path, host.run(["sha256sum", "--", path], DIGEST_S))


def start_digest(host: Host, path: str) -> Running:
    """Start hashing a file on a host, which takes a while; `finish_digest` returns the result."""
    return host.start(["sha256sum", "--", path], DIGEST_S)


def finish_digest(host: Host, path: str, command: Running) -> str:
    """Return the SHA-256 from `start_digest`. Raises ClusterError if the file cannot be read."""
    return _read_digest(host, path, command.finish(DIGEST_S))


def _read_digest(host: Host, path: str, done: Completed) -> str:
    if done.returncode != 0:
        raise HostFailed(host.name, "cannot be read", done.stderr.strip() or "check the file", path)
    return _match_answer(host, path, "sha256sum", done, r"\\?([0-9a-f]{64}) .*")[1]


def _match_answer(host: Host, path: str, program: str, done: Completed, pattern: str) -> re.Match[str]:
    """Match the last line of a program's output; a login shell may have printed lines before it."""
    found = re.fullmatch(pattern, done.stdout.rstrip("\n").rpartition("\n")[2])
    if found is None:
        what = f"cannot parse the output of {program}: {done.stdout[:200]!r}"
        hint = "keep the login shell of this host from printing anything"
        raise HostFailed(host.name, what, hint, path)
    return found


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


T = TypeVar("T")

AT_ONCE = 64
CONNECT_ALL_S = 120.0


@dataclass(frozen=True)
class Answer(Generic[T]):
    """The result of a call for one host: a value, or the error that was raised."""

    host: Host
    value: T | None = None
    error: CaffeRecipesError | None = None


def open_all(names: Sequence[str], connect: Callable[[str], Host]) -> tuple[Host, ...]:
    """Return the hosts with these names, in their order; the names are looked up in parallel."""
    with ThreadPoolExecutor(min(AT_ONCE, max(1, len(names))), thread_name_prefix="names") as pool:
        return tuple(pool.map(connect, names))


@contextmanager
def opened(names: Sequence[str], connect: Callable[[str], Host]) -> Iterator[tuple[Host, ...]]:
    """Yield the hosts with these names, as `open_all` returns them; close them at the end."""
    hosts = open_all(names, connect)
    try:
        yield hosts
    finally:
        for host in hosts:
            host.close()


def ask_all(
    hosts: Sequence[Host], act: Callable[[Host], T], timeout_s: float, at_once: int = AT_ONCE
) -> tuple[Answer[T], ...]:
    """Call `act` on all hosts, `at_once` at a time; return the answers in the order of the hosts.

    If a call takes longer than `timeout_s`, the host's connection is closed, which ends all waits for it, and
    its answer is an error. Exceptions other than CaffeRecipesError are raised.
    """
    begun: dict[int, float] = {}
    lock = threading.Lock()

    def timed(index: int) -> T:
        with lock:
            begun[index] = time.monotonic()
        return act(hosts[index])

    futures = start_threads([partial(timed, index) for index in range(len(hosts))], at_once)
    try:
        late: set[int] = set()
        while left := {index for index, future in enumerate(futures) if not future.done()} - late:
            wait([futures[index] for index in left], timeout=_next_deadline_s(begun, left, timeout_s))
            for index in left:
                if (
                    not futures[index].done()
                    and time.monotonic() - begun.get(index, time.monotonic()) > timeout_s
                ):
                    late.add(index)
                    hosts[index].close()
        return tuple(
            _timed_out(host, timeout_s) if index in late else _answer(host, future.result)
            for index, (host, future) in enumerate(zip(hosts, futures, strict=True))
        )
    finally:
        for future in futures:
            future.cancel()


def start_threads(calls: Sequence[Callable[[], T]], at_once: int = 1) -> list[Future[T]]:
    """Make some calls in `at_once` threads; return their futures, which may be cancelled.

    Unlike those of a ThreadPoolExecutor, the threads do not delay the end of the program: one that waits for
    a dead host could do so for ever.
    """
    futures: list[Future[T]] = [Future() for _ in calls]
    waiting = queue.SimpleQueue[tuple[Future[T], Callable[[], T]]]()
    for each in zip(futures, calls, strict=True):
        waiting.put(each)

    def work() -> None:
        with suppress(queue.Empty):
            while True:
                future, call = waiting.get_nowait()
                if not future.set_running_or_notify_cancel():
                    continue
                try:
                    future.set_result(call())
                except BaseException as error:  # raised where the result is read
                    future.set_exception(error)

    for _ in range(min(at_once, len(calls))):
        threading.Thread(target=work, daemon=True).start()
    return futures


def try_each(hosts: Sequence[Host], act: Callable[[Host], str | None], limit_s: float) -> dict[str, str]:
    """Call `act` on all hosts at once; return reasons by host, for the hosts that did not return None.

    A reason is the text or error of `act`, or says that it took longer than `limit_s`. A thread that waits
    for a dead host is left running; it delays neither the caller nor the end of the program.
    """
    late = f"did not respond within {limit_s:.0f} s"
    outcomes: dict[str, str | None] = {host.name: late for host in hosts}
    left = threading.Semaphore(0)

    def attempt(host: Host) -> None:
        try:
            outcomes[host.name] = act(host)
        except CaffeRecipesError as error:
            outcomes[host.name] = error.what
        finally:
            left.release()

    deadline = time.monotonic() + limit_s
    for host in hosts:
        threading.Thread(target=attempt, args=(host,), daemon=True, name=f"each-{host.name}").start()
    for _ in hosts:
        left.acquire(timeout=max(0.0, deadline - time.monotonic()))
    return {name: reason for name, reason in dict(outcomes).items() if reason is not None}


def first_error(answers: Sequence[Answer[T]]) -> CaffeRecipesError | None:
    """Return the first error, extended with the number of other hosts that failed; None if none failed."""
    failed = [answer.error for answer in answers if answer.error is not None]
    if len(failed) < 2:
        return failed[0] if failed else None
    others = f"{failed[0].what} (and {len(failed) - 1} more of {len(answers)} hosts failed)"
    return failed[0].reworded(what=others)


def _answer(host: Host, result: Callable[[], T]) -> Answer[T]:
    try:
        return Answer(host, result())
    except CaffeRecipesError as error:
        return Answer(host, error=error)


def _timed_out(host: Host, timeout_s: float) -> Answer[T]:
    what = f"did not respond within {timeout_s:.0f} s"
    return Answer(host, error=HostFailed(host.name, what, "check the host and its disks"))


def _next_deadline_s(begun: dict[int, float], left: set[int], timeout_s: float) -> float:
    """Return the seconds until the first of the started hosts exceeds its time."""
    starts = [begun[index] for index in left if index in begun]
    return max(0.01, min(starts) + timeout_s - time.monotonic() + 0.01) if starts else min(1.0, timeout_s)
