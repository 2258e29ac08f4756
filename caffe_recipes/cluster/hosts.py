"""Hosts: run a command there, copy a file there or back. This machine, another one by ssh, or a test's.

Errors of ssh and of the operating system become ClusterErrors that name the host.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import stat
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from caffe_recipes.cluster.commands import COMMAND_S as COMMAND_S
from caffe_recipes.cluster.commands import GRACE_S, Running, supervise
from caffe_recipes.cluster.commands import Completed as Completed
from caffe_recipes.cluster.nodelists import describe_no_host, is_host_name
from caffe_recipes.cluster.ssh import SshHost as SshHost
from caffe_recipes.cluster.transfer import private_file
from caffe_recipes.errors import ClusterError

_DIGEST_S = 600.0


class Host(Protocol):
    """Where ranks run. Paths are absolute; a relative one would mean another folder on each host."""

    @property
    def name(self) -> str:
        """The host's name in the hostfile."""

    @property
    def is_local(self) -> bool:
        """Whether it is reached without ssh."""

    def connect(self) -> None:
        """Reach it, if that is still to be done; raises ClusterError."""

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        """Run a command to its end; raises ClusterError if it cannot start or takes longer."""

    def start(self, argv: Sequence[str], limit_s: float | None = None) -> Running:
        """Start a command; it never outlives us, the connection, or `limit_s`. Raises ClusterError."""

    def fetch(self, path: str, to: Path) -> None:
        """Copy a file from the host, whole or not at all, with mode 0600; raises ClusterError."""

    def put(self, path: Path, to: str) -> None:
        """Copy a file to the host, whole or not at all, with mode 0600; raises ClusterError."""

    def close(self) -> None:
        """Let go of the connection."""


@dataclass(frozen=True)
class LocalHost:
    """This machine, without ssh."""

    name: str = "localhost"
    is_local: bool = True

    def connect(self) -> None:
        """Do nothing: we are there."""

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        """Run a command to its end."""
        return self.start(argv, timeout_s).finish(timeout_s)

    def start(self, argv: Sequence[str], limit_s: float | None = None) -> Running:
        """Start a command; it never outlives us, or `limit_s`."""
        mark, supervised = supervise(argv, limit_s)
        try:
            process = subprocess.Popen(
                supervised,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C is for us to act on
            )
        except OSError as error:
            raise ClusterError(self.name, f"{argv[0]} does not start: {error.strerror}", "check it") from None
        return Running(self.name, argv, mark, _Pipes(process))

    def fetch(self, path: str, to: Path) -> None:
        """Copy a file."""
        _copy(self.name, Path(path), to)

    def put(self, path: Path, to: str) -> None:
        """Copy a file."""
        _copy(self.name, path, Path(to))

    def close(self) -> None:
        """Hold nothing."""


@dataclass(frozen=True)
class _Pipes:
    """The bytes of a child of ours."""

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
            raise ClusterError("", "the command no longer reads its input", "see what it says") from None

    def end_input(self) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()

    def code(self) -> int:
        return self.process.wait()

    def end(self, pid: int | None) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)  # to none that has ended and been waited for
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(2 * GRACE_S)

    def close(self) -> None:
        """Leave the streams to their readers: they end with the command."""
        self.end_input()


def open_host(name: str, copy_with: Literal["ssh", "auto"] = "auto") -> Host:
    """Return the host of that name: without ssh where it is this machine, unless `copy_with` is ssh.

    Raises ClusterError for what is no host's name.
    """
    if not is_host_name(name):
        hint = describe_no_host(name, "write a name or an address")
        raise ClusterError("", f"{name[:80]!r} is no host's name", hint)
    if copy_with == "auto" and is_this_machine(name):
        return LocalHost(name)
    return SshHost(name)


def is_this_machine(name: str) -> bool:
    """Tell whether a host's name is this machine's: by name, or by an address of one of its interfaces."""
    if name in ("localhost", socket.gethostname(), socket.gethostname().split(".")[0]):
        return True
    try:
        addresses = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in addresses)


def file_stamp(host: Host, path: str) -> str | None:
    """Return what changes whenever a file is written: inode, bytes, time; None if there is no such file.

    A link is none: whoever made it decides what it leads to.
    """
    return _stamp(host, path)


def file_bytes(host: Host, path: str) -> int | None:
    """Return the size in bytes of a file, or of the one that a link leads to; None if there is none."""
    stamp = _stamp(host, path, "-L")
    return None if stamp is None else int(stamp.split()[2])


def file_digest(host: Host, path: str) -> str:
    """Return a file's SHA-256; raises ClusterError if it cannot be read."""
    return _read_digest(host, path, host.run(["sha256sum", "--", path], _DIGEST_S))


def start_digest(host: Host, path: str) -> Running:
    """Have a host hash a file, which takes a while; `finish_digest` asks what came of it."""
    return host.start(["sha256sum", "--", path], _DIGEST_S)


def finish_digest(host: Host, path: str, summing: Running) -> str:
    """Return the SHA-256 that was started; raises ClusterError if the file cannot be read."""
    return _read_digest(host, path, summing.finish(_DIGEST_S))


def _read_digest(host: Host, path: str, done: Completed) -> str:
    if done.returncode != 0:
        raise ClusterError(f"{host.name}:{path}", "cannot be read", done.stderr.strip() or "check it")
    return _answer(host, path, "sha256sum", done, r"\\?([0-9a-f]{64}) .*")[1]


def free_bytes(host: Host, path: str) -> int:
    """Return the room on the disk that holds `path`, or would hold it once its folders are made."""
    for folder in (Path(path), *Path(path).parents):
        done = host.run(["df", "-P", "-B1", "--", str(folder)])
        if done.returncode == 0:
            return int(_answer(host, path, "df", done, r".*\s(-?\d+)\s+(?:\d+%|-)\s+/.*")[1])
    raise ClusterError(f"{host.name}:{path}", "no disk is there", "check the path")


def _stamp(host: Host, path: str, *options: str) -> str | None:
    done = host.run(["stat", *options, "-c", "%f %i %s %.9Y", "--", path])
    if done.returncode != 0:
        return None
    found = _answer(host, path, "stat", done, r"([0-9a-f]+) \d+ \d+ -?[\d.,]+")
    return found[0].replace(",", ".") if stat.S_ISREG(int(found[1], 16)) else None  # some write 1,5


def _answer(host: Host, path: str, program: str, done: Completed, pattern: str) -> re.Match[str]:
    """Match the last line of what a program said: a shell may have greeted us in the lines before."""
    found = re.fullmatch(pattern, done.stdout.rstrip("\n").rpartition("\n")[2])
    if found is None:
        what = f"{program} gives no answer that can be read: {done.stdout[:200]!r}"
        raise ClusterError(f"{host.name}:{path}", what, "let the shell of this host print nothing of its own")
    return found


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


def _copy(host: str, source: Path, to: Path) -> None:
    part = to.with_name(f"{to.name}.{secrets.token_hex(4)}.part")
    at = source  # what fails, if anything does: only what opens a file names it
    try:
        with source.open("rb") as read:
            at = to
            with private_file(part) as write:
                at = source
                while chunk := read.read(1 << 20):
                    at = to
                    write.write(chunk)
                    at = source
                at = to  # closing writes, too
        part.replace(to)
    except OSError as error:
        raise ClusterError(f"{host}:{at}", f"cannot be copied: {error.strerror}", "check the disk") from None
    finally:
        part.unlink(missing_ok=True)
