from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import paramiko
import pytest

from caffe_recipes.cluster.commands import COMMAND_S, Completed, Host
from caffe_recipes.cluster.hosts import (
    LocalHost,
    file_bytes,
    is_this_machine,
    open_host,
    remote_sha256,
)
from caffe_recipes.cluster.remote import NodeRefusal, own_file_stamp
from caffe_recipes.cluster.ssh import SshHost
from caffe_recipes.errors import ClusterError, InputError
from tests.cluster.test_commands import appears, gone

if TYPE_CHECKING:
    from tests.cluster.conftest import SshServer


@pytest.fixture(params=["local", "ssh"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    if request.param == "local":
        yield LocalHost("here")
        return
    request.getfixturevalue("ssh_server")
    opened = SshHost("node1", tmp_path / "ssh")
    yield opened
    opened.close()


def test_a_command_keeps_its_arguments_and_returns_its_exit_code_and_output(host: Host) -> None:
    done = host.run(["sh", "-c", 'echo "$0"; echo "$1" >&2; exit 7', 'it\'s $HOME "x"', "é\t*"])
    assert (done.returncode, done.stdout, done.stderr) == (7, 'it\'s $HOME "x"\n', "é\t*\n")


def test_files_travel_both_ways_unchanged(host: Host, tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "a file").write_bytes(content)
    host.put(tmp_path / "a file", str(tmp_path / "there"))
    host.fetch(str(tmp_path / "there"), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content
    assert file_bytes(host, str(tmp_path / "back")) == len(content)
    assert remote_sha256(host, str(tmp_path / "back")) == hashlib.sha256(content).hexdigest()


def test_a_missing_file_and_a_folder_have_no_bytes_and_cannot_be_fetched(host: Host, tmp_path: Path) -> None:
    assert file_bytes(host, str(tmp_path / "none")) is None
    assert file_bytes(host, str(tmp_path)) is None
    with pytest.raises(ClusterError, match=r"none.*cannot be copied"):
        host.fetch(str(tmp_path / "none"), tmp_path / "back")
    with pytest.raises(ClusterError, match="none: cannot be read"):
        remote_sha256(host, str(tmp_path / "none"))


def test_a_stamp_changes_when_a_file_is_written_again_with_the_same_bytes(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(b"same")
    before = own_file_stamp(host, str(path), tmp_path)
    again = tmp_path / "again"
    again.write_bytes(b"same")
    again.replace(path)
    assert before is not None
    assert own_file_stamp(host, str(path), tmp_path) != before


def test_a_link_has_the_size_of_what_it_leads_to_and_no_stamp(host: Host, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert file_bytes(host, str(tmp_path / "link")) == 5
    with pytest.raises(NodeRefusal, match="is a symbolic link"):
        own_file_stamp(host, str(tmp_path / "link"), tmp_path)


def test_a_command_that_does_not_end_times_out(host: Host) -> None:
    with pytest.raises(ClusterError, match="sleep did not finish within"):
        host.run(["sleep", "2"], timeout_s=0.2)


def test_more_stderr_than_a_channel_holds_does_not_block(host: Host) -> None:
    done = host.run(["sh", "-c", "head -c 5000000 /dev/zero >&2; echo done"], timeout_s=10)
    assert done.stdout == "done\n"
    assert 900_000 < len(done.stderr) <= 1_000_000  # of standard error only the beginning is kept


def test_output_of_a_login_shell_is_not_part_of_the_answer(ssh_server: SshServer, tmp_path: Path) -> None:
    ssh_server.greeting = b"Welcome to node1\n\n"
    (tmp_path / "file").write_bytes(b"12345")
    host = SshHost("node1", tmp_path / "ssh")
    path = str(tmp_path / "file")
    assert own_file_stamp(host, path, tmp_path) == own_file_stamp(LocalHost(), path, tmp_path)
    assert file_bytes(host, str(tmp_path / "file")) == 5
    assert remote_sha256(host, str(tmp_path / "file")) == hashlib.sha256(b"12345").hexdigest()
    host.close()


@pytest.mark.parametrize("answer", ["", "Welcome\n", "8000 5\nbye\n", "ü" * 1000, "8000 " + "9" * 5000])
def test_an_answer_that_cannot_be_read_is_shown(answer: str) -> None:
    class OddHost(LocalHost):
        def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
            return Completed(0, answer, "")

    for ask in (file_bytes, remote_sha256):
        with pytest.raises(ClusterError, match=r"here:/a: cannot parse the output of .*: '") as caught:
            ask(OddHost("here"), "/a")
        assert repr(answer)[1:100].rstrip("'") in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


def test_a_program_that_is_missing_is_named() -> None:
    with pytest.raises(ClusterError, match="here: no-such-program does not start"):
        LocalHost("here").run(["no-such-program"])


def test_one_login_serves_many_commands(ssh_server: SshServer, tmp_path: Path) -> None:
    host = SshHost("node1", tmp_path / "ssh")
    for _ in range(3):
        assert host.run(["true"]).returncode == 0
    host.close()
    assert ssh_server.logins == 1


def test_a_connection_whose_end_is_seen_only_on_writing_is_replaced(
    ssh_server: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = SshHost("node1", tmp_path / "ssh")
    host.connect()
    assert host._login is not None

    def write_to_a_closed_socket(**_: float) -> paramiko.Channel:
        raise EOFError  # as paramiko does before its reader has had a turn

    monkeypatch.setattr(host._login.transport, "open_session", write_to_a_closed_socket)
    assert host.run(["echo", "over the second"]).stdout == "over the second\n"
    assert ssh_server.logins == 2
    host.close()


def test_an_unknown_host_key_is_refused(ssh_server: SshServer, tmp_path: Path) -> None:
    (tmp_path / "ssh" / "known_hosts").write_text("")
    with pytest.raises(
        ClusterError,
        match=r"node1: its host key is not in known_hosts as \[127\.0\.0\.1\]:\d+; it presents SHA256:",
    ):
        SshHost("node1", tmp_path / "ssh").run(["true"])


def test_a_key_that_the_host_does_not_accept_is_one_line(ssh_server: SshServer, tmp_path: Path) -> None:
    type(ssh_server.user_key).generate().write_private_key_file(str(tmp_path / "ssh" / "id"))
    with pytest.raises(ClusterError, match=r"node1: cannot be reached by ssh.*without a password") as caught:
        SshHost("node1", tmp_path / "ssh").run(["true"])
    assert "\n" not in str(caught.value)
    tried = rf"as tester at 127\.0\.0\.1:\d+: offered {re.escape(str(tmp_path))}/ssh/id; it accepts none"
    assert re.search(tried, str(caught.value))


def test_a_host_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    (tmp_path / "config").write_text(f"Host node1\n  HostName 127.0.0.1\n  Port {port}\n")
    with pytest.raises(ClusterError, match="node1: cannot be reached by ssh"):
        SshHost("node1", tmp_path, patience_s=0).run(["true"])


def test_this_machine_is_known_by_its_names_and_addresses() -> None:
    assert all(is_this_machine(name) for name in ("localhost", "127.0.0.1", socket.gethostname()))
    assert not is_this_machine("192.0.2.1")


def test_the_recipe_can_ask_for_ssh_even_to_this_machine() -> None:
    assert open_host("localhost").is_local
    assert not open_host("localhost", "ssh").is_local
    assert not open_host("192.0.2.1").is_local


def test_paramiko_is_not_imported_until_a_host_is_reached_by_ssh() -> None:
    code = "import sys, caffe_recipes.cluster.hosts as h; h.open_host('localhost').run(['true']);"
    code += "sys.exit('paramiko' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_copy_is_private_and_replaces_a_link(host: Host, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "target").write_text("theirs")
    for name in ("put", "fetched"):
        (tmp_path / name).symlink_to("target")
    host.put(tmp_path / "mine", str(tmp_path / "put"))
    host.fetch(str(tmp_path / "mine"), tmp_path / "fetched")
    for name in ("put", "fetched"):
        assert (tmp_path / name).read_text() == "mine"
        assert not (tmp_path / name).is_symlink()
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "target").read_text() == "theirs"
    assert not [*tmp_path.glob("*.part"), *tmp_path.glob("put?*")]


def test_a_failed_copy_keeps_the_previous_file(host: Host, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    with pytest.raises(ClusterError, match="none"):
        host.fetch(str(tmp_path / "none"), tmp_path / "old")
    with pytest.raises(ClusterError, match="none"):
        host.put(tmp_path / "none", str(tmp_path / "old"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(ClusterError, match="folder: cannot be"):
        host.put(tmp_path / "old", str(tmp_path / "folder"))
    assert (tmp_path / "old").read_text() == "old"
    assert not [*tmp_path.glob("*.part"), *tmp_path.glob("old?*"), *tmp_path.glob("folder?*")]


def test_a_program_that_is_missing_is_named_on_every_host(host: Host) -> None:
    with pytest.raises(ClusterError, match="no-such-program does not start: No such file or directory"):
        host.run(["no-such-program"])


@pytest.mark.parametrize("name", ["-oProxyCommand=x", "a b", "", "$(id)", "a\nb"])
def test_an_invalid_host_name_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="is not a host name"):
        open_host(name)


def test_from_a_server_with_several_keys_the_known_one_is_requested(
    ssh_server: SshServer, tmp_path: Path
) -> None:
    other = paramiko.RSAKey.generate(2048)
    ssh_server.more_keys.append(other)
    known = tmp_path / "ssh" / "known_hosts"
    name = known.read_text().split()[0]
    known.write_text(f"{name} {other.get_name()} {other.get_base64()}\n")
    host = SshHost("node1", tmp_path / "ssh")
    assert host.run(["true"]).returncode == 0
    host.close()


def test_a_host_that_is_still_connecting_is_dropped_at_once(ssh_server: SshServer, tmp_path: Path) -> None:
    ssh_server.hang_ups = 1000
    host = SshHost("node1", tmp_path / "ssh", patience_s=60)
    failed: list[ClusterError] = []

    def connect() -> None:
        try:
            host.connect()
        except ClusterError as error:
            failed.append(error)

    reaching = threading.Thread(target=connect)
    reaching.start()
    while ssh_server.hang_ups == 1000:
        time.sleep(0.01)
    host.close()
    assert reaching.is_alive()
    ssh_server.hang_ups = 0
    reaching.join()
    assert str(failed[0]).startswith("node1: the connection was closed while it was being opened")
    assert host.run(["true"]).returncode == 0  # a new login
    assert ssh_server.logins == 2
    host.close()


def test_a_server_that_hangs_up_at_first_is_tried_again(ssh_server: SshServer, tmp_path: Path) -> None:
    ssh_server.hang_ups = 2
    host = SshHost("node1", tmp_path / "ssh", patience_s=10)
    assert host.run(["true"]).returncode == 0
    host.close()
    ssh_server.hang_ups = 100
    with pytest.raises(ClusterError, match=r"node1: cannot be reached by ssh as tester"):
        SshHost("node1", tmp_path / "ssh", patience_s=0.5).run(["true"])


def test_nothing_of_a_failed_login_reaches_the_terminal(
    ssh_server: SshServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ssh_server.hang_ups = 100
    with pytest.raises(ClusterError):
        SshHost("node1", tmp_path / "ssh", patience_s=0).connect()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "config",
    [
        "Host *\n  ProxyJump login\n",
        "Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n",
        "Host a\n  ProxyJump b,c\nHost b\n  ProxyJump a\n",
    ],
)
def test_jump_hosts_that_lead_in_a_circle_are_refused(config: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(config)
    with pytest.raises(ClusterError, match=r"its jump host \w+ is configured to be reached through itself"):
        SshHost("a", tmp_path).connect()


def test_a_ctrl_c_while_a_command_runs_ends_it(tmp_path: Path) -> None:
    length = f"4243.{os.getpid()}{tmp_path.stat().st_ino}"
    code = f"from caffe_recipes.cluster.hosts import LocalHost; LocalHost().run(['sleep', '{length}'])"
    ours = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        assert appears(length)
        ours.send_signal(signal.SIGINT)
        assert ours.wait(10) != 0
        assert gone(length)
    finally:
        ours.kill()
        ours.wait()
