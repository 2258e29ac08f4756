"""Run commands on another machine over ssh, as configured in `~/.ssh/config`.

One connection per host is opened when it is first needed, and is shared by all commands. `ssh_login` logs in,
and `ssh_config` lists the options that are read.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import paramiko

from caffe_recipes.cluster.commands import (
    COMMAND_S,
    GRACE_S,
    Completed,
    Running,
    fetch_file,
    put_file,
    quote_command,
    supervise,
)
from caffe_recipes.cluster.ssh_config import default_folder
from caffe_recipes.cluster.ssh_login import FAILURES, KEEPALIVE_COUNT, Login, log_in, reason_of, sending_on
from caffe_recipes.errors import ClusterError, HostFailed

# An sshd that is restarting, or gets too many logins at once, refuses connections for a while.
PATIENCE_S = 20.0
_OPEN_S = 30.0


@dataclass
class SshHost:
    """A host reached by ssh, as configured in `ssh_folder`; refused logins are retried for `patience_s`."""

    name: str
    ssh_folder: Path = field(default_factory=default_folder)
    patience_s: float = PATIENCE_S
    is_local: bool = field(default=False, init=False)
    _login: Login | None = field(default=None, init=False, repr=False)
    _single_use: list[Login] = field(default_factory=list, init=False, repr=False)
    _closed: int = field(default=0, init=False, repr=False)
    _connecting: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _changing: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def connect(self) -> None:
        """Open the connection unless it is open. Raises ClusterError."""
        self._connected()

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        """Run a command to its end."""
        return self.start(argv, timeout_s).finish(timeout_s)

    def start(self, argv: Sequence[str], limit_s: float | None = None) -> Running:
        """Start a command; the host ends it after `limit_s`, or when the connection ends."""
        mark, supervised = supervise(argv, limit_s)
        return Running(self.name, argv, mark, self._execute(quote_command(supervised)))

    def fetch(self, path: str, to: Path) -> None:
        """Copy a file from the host."""
        fetch_file(self, path, to)

    def put(self, path: Path, to: str) -> None:
        """Copy a file to the host."""
        put_file(self, path, to)

    def close(self) -> None:
        """Close all connections, including one being opened; the next command opens a new one."""
        with self._changing:  # not `_connecting`, which is held while an unresponsive host is contacted
            logins = [*self._single_use, *([self._login] if self._login is not None else [])]
            self._login, self._single_use = None, []
            self._closed += 1
        for login in logins:
            login.close()

    def release(self, login: Login) -> None:
        """Close a connection that served a single command."""
        with self._changing:
            if login not in self._single_use:
                return  # closed already, with all others
            self._single_use.remove(login)
        login.close()

    def connection_lost(self) -> ClusterError:
        """Return the error for the lost connection."""
        login = self._login
        if login is not None and login.went_silent:
            what = f"did not respond for {login.options.keepalive_s * KEEPALIVE_COUNT:.0f} s"
            return HostFailed(self.name, what, "check the host and its network")
        hint = f"check the host, and `ssh {self.name} true`"
        return HostFailed(self.name, "the connection was lost", hint)

    def _execute(self, command: str) -> _Channel:
        """Start a command in a new session, over a new connection if the old one has ended.

        If sshd allows no more sessions on the connection (MaxSessions), the command gets its own connection.
        """
        for again in (True, False):
            login = self._connected()
            try:
                return _Channel(self, _open_session(login.transport, command))
            except paramiko.ChannelException:
                return self.execute_over_new_connection(command)
            except FAILURES as error:
                if isinstance(error, EOFError):  # it has ended, even if paramiko's reader has not noticed yet
                    login.hang_up()
                if again and not login.is_alive():
                    continue
                raise self._session_failed(error) from None
        raise AssertionError("unreachable")

    def execute_over_new_connection(self, command: str) -> _Channel:
        """Start a command over its own, new connection. Raises ClusterError."""
        login, closed = None, self._closed
        try:
            login = log_in(self.name, self.ssh_folder, self.patience_s)
            channel = _Channel(self, _open_session(login.transport, command), login)
            self._register(login, closed)
        except BaseException as error:
            if login is not None:
                login.close()
            if isinstance(error, FAILURES):
                raise self._session_failed(error) from None
            raise
        return channel

    def _register(self, login: Login, closed: int) -> None:
        with self._changing:
            if self._closed != closed:
                raise _closed_while_opening(self.name)
            self._single_use.append(login)

    def _session_failed(self, error: BaseException) -> ClusterError:
        what = f"cannot start a session: {reason_of(error)}"
        return HostFailed(self.name, what, f"check `ssh {self.name} true`")

    def _connected(self) -> Login:
        """Return the shared connection, which saves 0.3 s per login. Raises ClusterError."""
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
            raise _closed_while_opening(self.name)


def _closed_while_opening(host: str) -> HostFailed:
    return HostFailed(host, "the connection was closed while it was being opened", "see the earlier error")


@dataclass
class _Channel:
    """The standard streams of one session; `login` is set if the connection serves only this session."""

    host: SshHost
    channel: paramiko.Channel
    login: Login | None = None

    def read(self, most: int) -> bytes:
        return self.channel.recv(most)

    def read_errors(self, most: int) -> bytes:
        return self.channel.recv_stderr(most)

    def send(self, data: bytes) -> None:
        try:
            with sending_on(self.channel):
                self.channel.sendall(data)
        except FAILURES:
            if not self.channel.get_transport().is_active():
                raise self.host.connection_lost() from None
            what = "the command no longer reads its input"
            raise HostFailed(self.host.name, what, "see its output") from None

    def end_input(self) -> None:
        with suppress(*FAILURES), sending_on(self.channel):
            self.channel.shutdown_write()

    def code(self) -> int:
        code = self.channel.recv_exit_status()
        if code < 0:  # no exit status was received
            if self.channel.get_transport().is_active():
                hint = "look there for what ends processes, such as a lack of memory"
                raise HostFailed(self.host.name, "a signal ended the command", hint)
            raise self.host.connection_lost()
        return code

    def end(self, pid: int | None) -> None:
        if self.channel.exit_status_ready() or self.channel.closed:
            return
        try:
            if pid is not None:
                killer = self._execute_beside(f"kill -TERM {pid}")
                self.channel.status_event.wait(2 * GRACE_S)
                killer.close()
        except (ClusterError, *FAILURES):
            pass
        if self.channel.exit_status_ready():
            return
        # Closing the connection ends its parent on the host, and then the supervisor ends the command.
        if self.login is not None:
            self.host.release(self.login)
        else:
            self.host.close()

    def _execute_beside(self, command: str) -> _Channel:
        """Start a command on the same connection, or on a new one if sshd allows no further sessions."""
        transport = self.channel.get_transport()
        try:
            return _Channel(self.host, _open_session(transport, command, GRACE_S))
        except paramiko.ChannelException:
            return self.host.execute_over_new_connection(command)

    def close(self) -> None:
        with suppress(*FAILURES):  # it says so to a host whose connection may be lost by now
            self.channel.close()
        if self.login is not None:
            self.host.release(self.login)


def _open_session(
    transport: paramiko.Transport, command: str, timeout_s: float = _OPEN_S
) -> paramiko.Channel:
    channel = transport.open_session(timeout=timeout_s)
    # Paramiko waits for the reply without limit, and for ever if the connection was lost just before.
    alarm = threading.Timer(timeout_s, channel.event.set)
    alarm.daemon = True
    alarm.start()
    try:
        channel.exec_command(command)
    finally:
        alarm.cancel()
    return channel
