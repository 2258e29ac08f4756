"""Hosts for tests: a small ssh server in this process, and, for tests marked `cluster`, hosts of their own.

The server runs commands and serves files as this user.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import paramiko
import pytest
from paramiko.common import AUTH_FAILED, AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from tests.cluster.harness.cluster import Cluster, NoCluster
from tests.cluster.harness.slurm import Slurm

# Of Slurm's commands; see recorded/README.txt.
RECORDED = Path(__file__).parent / "recorded"
# The longest by far: begun last, they would end alone.
_FIRST = ("test_run_on_hosts", "test_published_lines_on_hosts")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest tests first."""
    items.sort(key=lambda item: item.path.stem not in _FIRST)


@pytest.fixture
def recorded() -> Callable[[str], str]:
    """Give a function that returns an answer of Slurm by its file's name."""
    return lambda name: (RECORDED / f"{name}.txt").read_text("utf-8")


class _File(paramiko.SFTPHandle):
    def __init__(self, flags: int, file: IO[bytes]) -> None:
        super().__init__(flags)
        self.readfile = self.writefile = file

    def stat(self) -> paramiko.SFTPAttributes:
        return paramiko.SFTPAttributes.from_stat(os.fstat(self.readfile.fileno()))


class _Files(paramiko.SFTPServerInterface):
    def stat(self, path: str) -> paramiko.SFTPAttributes | int:
        try:
            return paramiko.SFTPAttributes.from_stat(Path(path).stat())
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)

    lstat = stat

    def open(self, path: str, flags: int, attr: paramiko.SFTPAttributes) -> paramiko.SFTPHandle | int:
        try:
            file = os.fdopen(os.open(path, flags, 0o600), "wb" if flags & os.O_WRONLY else "rb")
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)
        return _File(flags, file)


class _Session(paramiko.ServerInterface):
    def __init__(self, server: SshServer) -> None:
        self.server = server

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return AUTH_SUCCESSFUL if key == self.server.user_key else AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=self._run, args=(channel, command), daemon=True).start()
        return True

    def _run(self, channel: paramiko.Channel, command: bytes) -> None:
        """Run a command as sshd does: bytes flow as they come, and its input ends when the client ends it."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, shell=True, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        channel.sendall(self.server.greeting)
        feeder = threading.Thread(target=_pump, args=(channel.recv, process.stdin.write, process.stdin.close))
        pumps = [
            threading.Thread(target=_pump, args=(stream.read, send))
            for stream, send in (
                (process.stdout, channel.sendall),
                (process.stderr, channel.sendall_stderr),
            )
        ]
        for thread in (feeder, *pumps):
            thread.daemon = True
            thread.start()
        for thread in pumps:
            thread.join()
        with suppress(OSError, EOFError):
            channel.send_exit_status(process.wait())
            channel.close()


def _pump(
    read: Callable[[int], bytes], write: Callable[[bytes], object], close: Callable[[], None] | None = None
) -> None:
    with suppress(OSError, EOFError, ValueError):
        while chunk := read(1 << 16):
            write(chunk)
    if close is not None:
        close()


class SshServer:
    """Listens on 127.0.0.1; `folder` becomes the client's ~/.ssh, with a host called `node1`.

    `greeting` is what its shell prints before each command's output, as a .bashrc may.
    """

    def __init__(self, folder: Path) -> None:
        self.host_key = paramiko.ECDSAKey.generate()
        self.user_key = paramiko.ECDSAKey.generate()
        self.more_keys: list[paramiko.PKey] = []
        self.hang_ups = 0
        self.logins = 0
        self.greeting = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._transports: list[paramiko.Transport] = []
        port = self._listener.getsockname()[1]
        folder.mkdir()
        self.user_key.write_private_key_file(str(folder / "id"))
        (folder / "known_hosts").write_text(
            f"[127.0.0.1]:{port} {self.host_key.get_name()} {self.host_key.get_base64()}\n"
        )
        (folder / "config").write_text(
            f"Host node1\n  HostName 127.0.0.1\n  Port {port}\n"
            f"  User tester\n  IdentityFile {folder / 'id'}\n"
        )
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self.hang_ups > 0:
                self.hang_ups -= 1
                connection.close()
                continue
            self.logins += 1
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport = paramiko.Transport(connection)
            for key in (self.host_key, *self.more_keys):
                transport.add_server_key(key)
            transport.set_subsystem_handler("sftp", paramiko.SFTPServer, _Files)
            transport.start_server(server=_Session(self), event=threading.Event())
            self._transports.append(transport)

    def close(self) -> None:
        self._listener.close()
        for transport in self._transports:
            transport.close()


@pytest.fixture
def ssh_server(tmp_path: Path) -> Iterator[SshServer]:
    """Serve `node1` to clients whose ssh folder is `tmp_path / "ssh"`."""
    serving = SshServer(tmp_path / "ssh")
    yield serving
    serving.close()


@pytest.fixture(scope="module")
def _standing_cluster() -> Iterator[Cluster]:
    with _failing_with_reason(), Cluster.up(4) as standing:
        yield standing


@pytest.fixture
def cluster(_standing_cluster: Cluster) -> Iterator[Cluster]:
    """Give a head and four nodes that the tests of a module share; our sockets are the head's.

    A test may cut and limit links; they are restored after it. It may leave no process on any host.
    """
    with _standing_cluster.inside("head"):
        yield _standing_cluster
    for name in _standing_cluster.pids:
        _standing_cluster.reconnect(name)
    _standing_cluster.rate(None)
    assert _standing_cluster.leftovers() == {}


@pytest.fixture(scope="module")
def _standing_slurm() -> Iterator[Slurm]:
    with _failing_with_reason(), Cluster.up(4) as cluster, Slurm.up(cluster) as slurm:
        yield slurm


@pytest.fixture
def slurm4(_standing_slurm: Slurm) -> Iterator[Slurm]:
    """Give a Slurm that a module's tests share: a head, four nodes, partitions `debug` and `short`.

    Our sockets are the head's. A test may stop the controller; no job and no process of one stays behind it.
    """
    with _standing_slurm.cluster.inside("head"):
        yield _standing_slurm
    _standing_slurm.clear()
    assert _standing_slurm.leftovers() == {}


@pytest.fixture
def shared(cluster: Cluster) -> Iterator[Path]:
    """Give a folder that all hosts of the cluster see under one path; a test's own."""
    folder = Path(tempfile.mkdtemp(dir=cluster.shared))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., Cluster]]:
    """Give a function that brings up a cluster for one test, which may do with it what it likes."""
    with ExitStack() as stack:

        def make(nodes: int | Sequence[str] = 4, *, tmp: str = "4g", **sshd: str) -> Cluster:
            with _failing_with_reason():
                cluster = stack.enter_context(Cluster.up(nodes, tmp=tmp, sshd=sshd))
            stack.enter_context(cluster.inside("head"))
            return cluster

        yield make


@contextmanager
def _failing_with_reason() -> Iterator[None]:
    try:
        yield
    except NoCluster as error:
        pytest.fail(str(error), pytrace=False)
