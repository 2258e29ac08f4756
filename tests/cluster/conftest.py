"""A small ssh server in this process: it runs commands and serves files as this user."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import paramiko
import pytest
from paramiko.common import AUTH_FAILED, AUTH_SUCCESSFUL, OPEN_SUCCEEDED


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
        done = subprocess.run(command, shell=True, capture_output=True, check=False)
        channel.sendall_stderr(done.stderr)
        channel.sendall(self.server.greeting + done.stdout)
        channel.send_exit_status(done.returncode)
        channel.close()


class SshServer:
    """Listens on 127.0.0.1; `folder` becomes the client's ~/.ssh, with a host called `node1`.

    `greeting` is what its shell prints before each command's output, as a .bashrc may.
    """

    def __init__(self, folder: Path) -> None:
        self.host_key = paramiko.ECDSAKey.generate()
        self.user_key = paramiko.ECDSAKey.generate()
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
            self.logins += 1
            transport = paramiko.Transport(connection)
            transport.add_server_key(self.host_key)
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
