"""Hosts: run a command there, copy a file there or back. This machine, or another one by ssh.

Errors of ssh and of the operating system become ClusterErrors that name the host.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from caffe_recipes.errors import ClusterError

if TYPE_CHECKING:
    import paramiko

CONNECT_S = 15.0
KEEPALIVE_S = 15
COMMAND_S = 60.0


@dataclass(frozen=True)
class Completed:
    """A command that has ended: its exit code and what it said."""

    returncode: int
    stdout: str
    stderr: str


class Host(Protocol):
    """Where ranks run. Paths are absolute; a relative one would mean another folder on each host."""

    @property
    def name(self) -> str:
        """The host's name in the hostfile."""

    @property
    def is_local(self) -> bool:
        """Whether it is reached without ssh."""

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        """Run a command to its end; raises ClusterError if it cannot start or takes longer."""

    def fetch(self, path: str, to: Path) -> None:
        """Copy a file from the host; raises ClusterError."""

    def put(self, path: Path, to: str) -> None:
        """Copy a file to the host; raises ClusterError."""

    def close(self) -> None:
        """Let go of the connection."""


@dataclass(frozen=True)
class LocalHost:
    """This machine, without ssh."""

    name: str = "localhost"
    is_local: bool = True

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        """Run a command to its end."""
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise _too_slow(self.name, argv, timeout_s) from None
        except OSError as error:
            raise ClusterError(self.name, f"{argv[0]} does not start: {error.strerror}", "check it") from None
        return Completed(
            done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )

    def fetch(self, path: str, to: Path) -> None:
        """Copy a file."""
        _copy(self.name, path, to)

    def put(self, path: Path, to: str) -> None:
        """Copy a file."""
        _copy(self.name, path, to)

    def close(self) -> None:
        """Hold nothing."""


@dataclass
class SshHost:
    """Another machine, by ssh: `~/.ssh/config`, the agent, and only host keys that `known_hosts` holds."""

    name: str
    ssh_folder: Path = field(default_factory=lambda: Path.home() / ".ssh")
    is_local: bool = field(default=False, init=False)
    _client: paramiko.SSHClient | None = field(default=None, init=False, repr=False)
    _connecting: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        """Run a command to its end."""
        try:
            _, stdout, stderr = self._connected().exec_command(shlex.join(argv), timeout=timeout_s)
            with ThreadPoolExecutor(1) as pool:  # one stream left unread would fill the channel of both
                reading = pool.submit(stderr.read)
                said, complained = stdout.read(), reading.result()
            code = stdout.channel.recv_exit_status()
        except TimeoutError:
            raise _too_slow(self.name, argv, timeout_s) from None
        except self._failures() as error:
            raise ClusterError(self.name, f"ssh broke: {error}", f"check `ssh {self.name} true`") from None
        return Completed(code, said.decode(errors="replace"), complained.decode(errors="replace"))

    def fetch(self, path: str, to: Path) -> None:
        """Copy a file from there by sftp."""
        self._transfer(path, lambda sftp: sftp.get(path, os.fspath(to)))

    def put(self, path: Path, to: str) -> None:
        """Copy a file there by sftp."""
        self._transfer(to, lambda sftp: sftp.put(os.fspath(path), to))

    def close(self) -> None:
        """Close the connection; the next command opens another."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _transfer(self, path: str, copy: Callable[[paramiko.SFTPClient], object]) -> None:
        try:
            with self._connected().open_sftp() as sftp:
                copy(sftp)
        except self._failures() as error:
            raise ClusterError(f"{self.name}:{path}", f"cannot be copied: {error}", "check it") from None

    @staticmethod
    def _failures() -> tuple[type[Exception], ...]:
        import paramiko

        return (paramiko.SSHException, OSError, EOFError, ValueError)

    def _connected(self) -> paramiko.SSHClient:
        """Return the one connection, opened when it is first needed: a login costs about 0.3 s."""
        with self._connecting:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> paramiko.SSHClient:
        import paramiko

        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        tried = ""
        try:
            options = self._options()
            port, proxy = int(options.get("port", 22)), options.get("proxycommand")
            user = options.get("user") or getpass.getuser()
            keys = options.get("identityfile")  # a list, whatever paramiko's types say
            tried = f" as {user} at {options['hostname']}:{port} with {_describe_keys(keys)}"
            for file in (Path("/etc/ssh/ssh_known_hosts"), self.ssh_folder / "known_hosts"):
                if file.is_file():
                    client.load_system_host_keys(str(file))
            client.connect(
                options["hostname"],
                port=port,
                username=user,
                key_filename=keys,
                sock=paramiko.ProxyCommand(proxy) if proxy else None,
                timeout=CONNECT_S,
                auth_timeout=CONNECT_S,
                banner_timeout=CONNECT_S,
            )
            transport = client.get_transport()
            if transport is not None:
                transport.set_keepalive(KEEPALIVE_S)
        except self._failures() as error:
            client.close()
            raise self._unreachable(tried, error) from None
        return client

    def _options(self) -> paramiko.SSHConfigDict:
        import paramiko

        config = self.ssh_folder / "config"
        found = paramiko.SSHConfig.from_path(str(config)) if config.is_file() else paramiko.SSHConfig()
        return found.lookup(self.name)

    def _unreachable(self, tried: str, error: Exception) -> ClusterError:
        reason = " ".join(str(error).split()) or type(error).__name__
        hint = (
            f"make `ssh {self.name} true` work without a password; of ~/.ssh/config this reads "
            "HostName, Port, User, IdentityFile, ProxyCommand"
        )
        return ClusterError(self.name, f"cannot be reached by ssh{tried}: {reason}", hint)


def _describe_keys(keys: Sequence[str] | None) -> str:
    return f"{', '.join(keys)} and the agent's keys" if keys else "the keys of ~/.ssh and the agent"


def open_host(name: str, copy_with: Literal["ssh", "auto"] = "auto") -> Host:
    """Return the host of that name: without ssh where it is this machine, unless `copy_with` is ssh."""
    return LocalHost(name) if copy_with == "auto" and is_this_machine(name) else SshHost(name)


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
    """Return what changes whenever a file is written: inode, bytes, time; None if there is no such file."""
    done = host.run(["stat", "-L", "-c", "%f %i %s %.9Y", "--", path])
    if done.returncode != 0:
        return None
    found = _answer(host, path, "stat", done, r"([0-9a-f]+) \d+ \d+ -?[\d.,]+")
    return found[0] if stat.S_ISREG(int(found[1], 16)) else None


def file_bytes(host: Host, path: str) -> int | None:
    """Return a file's size in bytes; None if there is no such file."""
    stamp = file_stamp(host, path)
    return None if stamp is None else int(stamp.split()[2])


def file_digest(host: Host, path: str) -> str:
    """Return a file's SHA-256; raises ClusterError if it cannot be read."""
    done = host.run(["sha256sum", "--", path], timeout_s=600)
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


def _copy(host: str, source: str | Path, to: str | Path) -> None:
    try:
        shutil.copyfile(source, to)
    except OSError as error:
        where = f"{host}:{error.filename or source}"
        raise ClusterError(where, f"cannot be copied: {error.strerror}", "check the disk") from None


def _too_slow(host: str, argv: Sequence[str], timeout_s: float) -> ClusterError:
    return ClusterError(
        host, f"{argv[0]} did not end within {timeout_s:.0f} s", "check the host and its disks"
    )
