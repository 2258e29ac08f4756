"""Another machine, by ssh: one connection that is opened when it is first needed, and used for everything.

As configured in `~/.ssh/config`; `ssh_config` says what of it is read, `ssh_login` what is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from caffe_recipes.cluster.commands import (
    COMMAND_S,
    GRACE_S,
    Completed,
    Running,
    quote_command,
    supervise,
)
from caffe_recipes.cluster.ssh_config import default_folder
from caffe_recipes.cluster.transfer import fetch_file, put_file
from caffe_recipes.errors import ClusterError

if TYPE_CHECKING:
    import paramiko

    from caffe_recipes.cluster.ssh_login import Login

# An sshd that restarts, or has too many logins at once, refuses for a while.
PATIENCE_S = 20.0
_OPEN_S = 30.0


@dataclass
class SshHost:
    """A host that is reached by ssh, as configured in `ssh_folder`; refusals are borne for `patience_s`."""

    name: str
    ssh_folder: Path = field(default_factory=default_folder)
    patience_s: float = PATIENCE_S
    is_local: bool = field(default=False, init=False)
    _login: Login | None = field(default=None, init=False, repr=False)
    _closed: int = field(default=0, init=False, repr=False)
    _connecting: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _changing: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def connect(self) -> None:
        """Open the connection, if it does not stand; raises ClusterError."""
        self._connected()

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        """Run a command to its end."""
        return self.start(argv, timeout_s).finish(timeout_s)

    def start(self, argv: Sequence[str], limit_s: float | None = None) -> Running:
        """Start a command; it ends there after `limit_s`, and when this connection does."""
        mark, supervised = supervise(argv, limit_s)
        channel = self._execute(quote_command(supervised))
        return Running(self.name, argv, mark, _Channel(self, channel))

    def fetch(self, path: str, to: Path) -> None:
        """Copy a file from there."""
        fetch_file(self, path, to)

    def put(self, path: Path, to: str) -> None:
        """Copy a file there."""
        put_file(self, path, to)

    def close(self) -> None:
        """Close the connection, also one that is being opened; the next command opens another."""
        with self._changing:  # not `_connecting`: a host that is dead or refuses is tried for long
            login, self._login = self._login, None
            self._closed += 1
        if login is not None:
            login.close()

    def lost(self) -> ClusterError:
        """Return the error that says how the connection ended."""
        from caffe_recipes.cluster.ssh_login import KEEPALIVE_COUNT

        login = self._login
        if login is not None and login.went_silent:
            what = f"gave no sign of life for {login.options.keepalive_s * KEEPALIVE_COUNT:.0f} s"
            return ClusterError(self.name, what, "check the host and its link")
        hint = f"check the host, and `ssh {self.name} true`"
        return ClusterError(self.name, "the connection was lost", hint)

    def _execute(self, command: str) -> paramiko.Channel:
        """Start a command in a new session; over a new connection if the old one turns out to have ended."""
        from caffe_recipes.cluster.ssh_keys import FAILURES, reason_of

        for again in (True, False):
            login = self._connected()
            try:
                channel = login.transport.open_session(timeout=_OPEN_S)
                channel.exec_command(command)
                return channel
            except FAILURES as error:
                if again and not login.is_alive():
                    continue
                what = f"starts no session: {reason_of(error)}"
                raise ClusterError(self.name, what, f"check `ssh {self.name} true`") from None
        raise AssertionError("unreachable")

    def _connected(self) -> Login:
        """Return the one connection: a login costs about 0.3 s."""
        from caffe_recipes.cluster.ssh_login import log_in

        with self._connecting:
            with self._changing:
                login, closed = self._login, self._closed
                if login is not None and login.is_alive():
                    return login
                self._login = None
            if login is not None:
                login.close()
            login = log_in(self.name, self.ssh_folder, self.patience_s)
            with self._changing:
                if self._closed == closed:
                    self._login = login
                    return login
            login.close()
            raise ClusterError(self.name, "was let go of while it was being reached", "see what let it go")


@dataclass
class _Channel:
    """The bytes of one session."""

    host: SshHost
    channel: paramiko.Channel

    def read(self, most: int) -> bytes:
        return self.channel.recv(most)

    def read_errors(self, most: int) -> bytes:
        return self.channel.recv_stderr(most)

    def send(self, data: bytes) -> None:
        from caffe_recipes.cluster.ssh_keys import FAILURES

        try:
            self.channel.sendall(data)
        except FAILURES:
            if not self.channel.get_transport().is_active():
                raise self.host.lost() from None
            what = "the command no longer reads its input"
            raise ClusterError(self.host.name, what, "see what it says") from None

    def end_input(self) -> None:
        with suppress(OSError, EOFError):
            self.channel.shutdown_write()

    def code(self) -> int:
        code = self.channel.recv_exit_status()
        if code < 0:  # none has come
            raise self.host.lost()
        return code

    def end(self, pid: int | None) -> None:
        if self.channel.exit_status_ready() or self.channel.closed:
            return
        try:
            if pid is not None:
                killer = self.channel.get_transport().open_session(timeout=GRACE_S)
                killer.exec_command(f"kill -TERM {pid}")
                self.channel.status_event.wait(2 * GRACE_S)
                killer.close()
        except (OSError, EOFError, _ssh_exception()):
            pass
        if not self.channel.exit_status_ready():  # its parent there goes with the connection, and then it
            self.host.close()

    def close(self) -> None:
        self.channel.close()


def _ssh_exception() -> type[Exception]:
    import paramiko

    return paramiko.SSHException
