"""SshHost against real OpenSSH servers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from caffe_recipes.cluster.commands import Running
from caffe_recipes.cluster.ssh import SshHost
from caffe_recipes.errors import ClusterError
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.keys import write_key

pytestmark = pytest.mark.cluster

SHELLS = [f"/bin/{shell}" for shell in ("bash", "dash", "tcsh", "zsh", "fish") if shutil.which(shell)]
HOSTILE = [
    "plain",
    "two words",
    "it's",
    'say "hi"',
    "$(touch /tmp/owned)",
    "`touch /tmp/owned`",
    "; touch /tmp/owned",
    "a\nb\n\n",
    "\\n \\ \\\\",
    "-n",
    "--help",
    "!history",
    "%s%n",
    "*",
    "~",
    "größe",
    "",
    "\x01\x7f\t",
]


def change_config(cluster: Cluster, folder: Path, first: str) -> Path:
    """Make an ssh folder with the cluster's keys, whose config begins with `first`."""
    folder.mkdir()
    (folder / "config").write_text(f"{first}\n{(cluster.ssh / 'config').read_text()}")
    return folder


def test_words_reach_a_command_unchanged_whatever_they_hold(cluster: Cluster) -> None:
    host = SshHost("node1", cluster.ssh)
    done = host.run(["printf", "<%s>", *HOSTILE])
    assert done.stdout == "".join(f"<{word}>" for word in HOSTILE)
    assert host.run(["test", "-e", "/tmp/owned"]).returncode == 1
    host.close()


@pytest.mark.parametrize(
    "shell",
    [shell for shell in ("/bin/bash", "/bin/dash", "/bin/tcsh", "/usr/bin/fish") if Path(shell).exists()],
)
def test_words_survive_other_login_shells(cluster: Cluster, shell: str) -> None:
    passwd = Path("/etc/passwd").read_text()
    cluster.replace("node2", "/etc/passwd", re.sub(r"(?m)^(root:.*):[^:]*$", rf"\1:{shell}", passwd))
    host = SshHost("node2", cluster.ssh)
    output = host.run(["printf", "<%s>", *HOSTILE]).stdout
    host.close()
    cluster.restore("node2", "/etc/passwd")
    assert output == "".join(f"<{word}>" for word in HOSTILE)


@pytest.mark.parametrize("word", [word.replace("/", "") for word in HOSTILE if word and word != "*"])
def test_files_travel_under_names_a_shell_would_read(cluster: Cluster, word: str, tmp_path: Path) -> None:
    host = SshHost("node1", cluster.ssh)
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(os.urandom(100_000))
    host.put(source, f"/tmp/{word}")
    host.fetch(f"/tmp/{word}", back)
    assert back.read_bytes() == source.read_bytes()
    assert host.run(["stat", "-c", "%a %F", "--", f"/tmp/{word}"]).stdout == "600 regular file\n"
    assert host.run(["rm", "--", f"/tmp/{word}"]).returncode == 0
    assert host.run(["ls", "-A", "/tmp"]).stdout == ""
    host.close()


def test_a_command_that_times_out_is_killed_with_all_its_children(cluster: Cluster) -> None:
    host = SshHost("node1", cluster.ssh)
    with pytest.raises(ClusterError, match=r"node1: sh did not finish within"):
        host.run(["sh", "-c", 'trap "" TERM; sleep 600 & sleep 600'], timeout_s=0.5)
    assert cluster.leftovers() == {}
    assert host.run(["true"]).returncode == 0
    host.close()


def test_a_command_ends_when_its_connection_does(cluster: Cluster) -> None:
    host = SshHost("node1", cluster.ssh)
    command = host.start(["sleep", "600"])
    host.close()
    with pytest.raises(ClusterError, match="node1: the connection was lost"):
        command.wait()
    assert cluster.leftovers(within_s=4) == {}


def test_a_command_ends_when_we_are_killed(cluster: Cluster) -> None:
    code = (
        "import sys; from pathlib import Path; from caffe_recipes.cluster.ssh import SshHost;"
        "c = SshHost('node1', Path(sys.argv[1])).start(['sh', '-c', 'echo up; sleep 600']);"
        "print(c.read(), flush=True); c.read()"
    )
    process = cluster.popen("head", [sys.executable, "-c", code, str(cluster.ssh)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"b'up\\n'\n"
    assert "node1" in cluster.processes()
    inner = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
    os.kill(int(inner.stdout), 9)
    process.wait()
    process.stdout.close()
    assert cluster.leftovers(within_s=4) == {}


def test_input_and_output_flow_while_a_command_runs(cluster: Cluster) -> None:
    host = SshHost("node1", cluster.ssh)
    with host.start(["sed", "-u", "s/^/got /"]) as command:
        for word in (b"one\n", b"two\n"):
            command.send(word)
            assert command.read() == b"got " + word
        command.end_input()
        assert command.read() == b""
        assert command.wait() == 0
    host.close()


def test_a_silent_link_is_noticed_within_three_keepalives(cluster: Cluster, tmp_path: Path) -> None:
    folder = change_config(cluster, tmp_path / "ssh", "Host *\n  ServerAliveInterval 1")
    host = SshHost("node1", folder, patience_s=0)
    command = host.start(["sleep", "600"], limit_s=1)
    cluster.cut("node1")
    started = time.monotonic()
    command.read()
    with pytest.raises(ClusterError, match="node1: did not respond for 3 s"):
        command.wait()
    assert time.monotonic() - started < 10
    cluster.reconnect("node1")
    assert host.run(["true"]).returncode == 0
    host.close()
    assert cluster.leftovers(within_s=10) == {}  # the host itself ends it, after limit_s and a little


def test_an_sshd_with_one_session_per_connection_works(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(1, MaxSessions="1")
    host = SshHost("node1", cluster.ssh)
    with host.start(["cat"]) as waiting:
        assert host.run(["hostname"]).stdout == "node1\n"
        waiting.send(b"there")
        waiting.end_input()
        assert waiting.read() == b"there"
    first, second = host.start(["sleep", "600"]), host.start(["cat"])
    first.stop()
    second.send(b"still here")
    second.end_input()
    assert second.read() == b"still here"
    second.stop()
    with host.start(["sleep", "600"]), host.start(["sleep", "600"]):
        assert host.run(["hostname"]).stdout == "node1\n"
    host.close()
    assert cluster.leftovers(within_s=10) == {}


@pytest.mark.parametrize("act", [Running.end_input, lambda command: command.send(b"x")], ids=["end", "data"])
def test_input_that_is_sent_after_a_command_has_ended_leaves_the_other_commands_alone(
    cluster: Cluster, act: Callable[[Running], None]
) -> None:
    host = SshHost("node1", cluster.ssh)
    command: Any = host.start(["sleep", "0.5"])
    channel, login, sender = command._wire.channel, host._login, threading.current_thread()
    assert login is not None
    transport: Any = login.transport
    send = transport._send_user_message

    def send_late(message: object) -> None:  # as a thread that long waits for a processor
        while threading.current_thread() is sender and not channel.closed:
            time.sleep(0.01)
        send(message)

    with host.start(["cat"]) as other:
        transport._send_user_message = send_late
        act(command)
        transport._send_user_message = send
        other.send(b"still here")
        other.end_input()
        assert other.read() == b"still here"
    assert host._login is login
    host.close()


def test_a_host_that_crashes_is_an_error_and_comes_back(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(1)
    host = SshHost("node1", cluster.ssh, patience_s=10)
    command = host.start(["sleep", "600"])
    cluster.crash("node1")
    with pytest.raises(ClusterError, match="node1: the connection was lost"):
        command.wait()
    cluster.boot("node1")
    assert host.run(["hostname"]).stdout == "node1\n"
    host.close()


def test_an_sshd_that_refuses_for_a_while_is_waited_for(cluster: Cluster) -> None:
    host = SshHost("node3", cluster.ssh, patience_s=20)
    cluster.stop_sshd("node3")
    with pytest.raises(ClusterError, match=r"node3: cannot be reached.*10\.77\.0\.4:22: Connection refused"):
        SshHost("node3", cluster.ssh, patience_s=0.5).run(["true"])
    threading.Timer(2.0, cluster.start_sshd, ["node3"]).start()
    assert host.run(["hostname"]).stdout == "node3\n"
    host.close()


def test_an_sshd_with_too_many_logins_at_once_is_waited_for(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(1, MaxStartups="1", PerSourceMaxStartups="1")
    hosts = [SshHost("node1", cluster.ssh) for _ in range(8)]
    threads = [threading.Thread(target=host.connect) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(host.run(["true"]).returncode == 0 for host in hosts)
    for host in hosts:
        host.close()


def test_an_unknown_and_a_changed_host_key_are_refused_and_not_added(
    cluster: Cluster, tmp_path: Path
) -> None:
    known = tmp_path / "known"
    folder = change_config(
        cluster, tmp_path / "ssh", f"Host *\n  UserKnownHostsFile {known}\n  StrictHostKeyChecking no"
    )
    host = SshHost("node1", folder)
    with pytest.raises(
        ClusterError, match=r"node1: its host key is not in known_hosts as 10\.77\.0\.2; it presents"
    ):
        host.connect()
    assert not known.exists()
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(cluster.folder / "hostkeys" / "node1.pub")], capture_output=True, text=True
    ).stdout.split()[1]
    known.write_text(f"10.77.0.2 {write_key(tmp_path / 'other')}\n")
    with pytest.raises(ClusterError, match="node1: its host key has CHANGED") as caught:
        host.connect()
    assert shown in str(caught.value)
    assert f"{known}:1" in str(caught.value)
    assert known.read_text().count("\n") == 1


def test_the_command_in_the_message_makes_an_unknown_host_known(cluster: Cluster, shared: Path) -> None:
    known = shared / "known"
    folder = change_config(cluster, shared / "ssh", f"Host *\n  UserKnownHostsFile {known}")
    host = SshHost("node1", folder)
    with pytest.raises(ClusterError) as caught:
        host.connect()
    command = caught.value.hint.split("`")[1]
    cluster.run("head", ["sh", "-c", command])
    assert host.run(["hostname"]).stdout == "node1\n"
    host.close()


def test_hashed_names_wildcards_aliases_and_revoked_keys_are_read_as_ssh_does(
    cluster: Cluster, shared: Path
) -> None:
    public = " ".join((cluster.folder / "hostkeys" / "node1.pub").read_text().split()[:2])
    known = shared / "known"
    folder = change_config(cluster, shared / "ssh", f"Host *\n  UserKnownHostsFile {known}")
    known.write_text(f"10.77.0.2 {public}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
    assert "10.77" not in known.read_text()
    for text, works in [
        (known.read_text(), True),
        (f"10.77.* {public}\n", True),
        (f"10.77.*,!10.77.0.2 {public}\n", False),
        (f"10.77.0.2 {public}\n@revoked * {public}\n", False),
    ]:
        known.write_text(text)
        by_ssh = cluster.run("head", ["ssh", "-F", str(folder / "config"), "node1", "true"], check=False)
        assert (by_ssh.returncode == 0) == works
        host = SshHost("node1", folder)
        if works:
            assert host.run(["true"]).returncode == 0
            host.close()
        else:
            with pytest.raises(ClusterError, match="host key is"):
                host.connect()
    known.write_text(f"everyone {public}\n")
    other = change_config(
        cluster, shared / "alias", f"Host *\n  HostKeyAlias everyone\n  UserKnownHostsFile {known}"
    )
    host = SshHost("node1", other)
    host.connect()
    host.close()


@pytest.mark.promise("connections are as strict as your ssh")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "Ciphers chacha20-poly1305@openssh.com",
            "sets Ciphers chacha20-poly1305@openssh.com, of which",
        ),
        ("HostKeyAlgorithms ssh-dss", "sets HostKeyAlgorithms ssh-dss, of which"),
        ("RevokedHostKeys {folder}/revoked", "is revoked in"),
        ("RevokedHostKeys {folder}/gone", "no host key can be trusted: RevokedHostKeys"),
        ("Ciphers aes256-ctr\nMACs hmac-sha2-512\nRevokedHostKeys none", ""),
    ],
)
def test_options_that_make_ssh_stricter_are_honoured_or_the_host_is_refused(
    cluster: Cluster, shared: Path, line: str, message: str
) -> None:
    folder = change_config(cluster, shared / "ssh", line.format(folder=shared / "ssh"))
    public = (cluster.folder / "hostkeys" / "node1.pub").read_text()
    (folder / "revoked").write_text(public)
    host = SshHost("node1", folder)
    try:
        if message:
            with pytest.raises(ClusterError, match=message) as caught:
                host.run(["true"])
            assert caught.value.where == "node1"
        else:
            host.connect()
            assert host._login is not None
            attributes = vars(host._login.transport)
            assert (attributes["remote_cipher"], attributes["remote_mac"]) == ("aes256-ctr", "hmac-sha2-512")
    finally:
        host.close()


def test_jump_hosts_are_used_in_order_with_one_login_each(cluster: Cluster, tmp_path: Path) -> None:
    folder = change_config(cluster, tmp_path / "ssh", "Host node3 node4\n  ProxyJump node1,root@node2:22")
    hosts = [SshHost(name, folder) for name in ("node3", "node4")]

    def logged_in() -> set[str]:  # the other ends; one that an earlier test left may be about to close
        listed = cluster.run("node1", ["ss", "-Htn", "state", "established", "sport = :22"]).stdout
        return {line.split()[-1] for line in listed.splitlines()}

    before = logged_in()
    assert [host.run(["hostname"]).stdout for host in hosts] == ["node3\n", "node4\n"]
    came_from = hosts[0].run(["sh", "-c", "echo $SSH_CONNECTION"]).stdout.split()[0]
    assert came_from == cluster.addresses["node2"]
    assert len(logged_in() - before) == 1
    hosts[0].close()
    assert hosts[1].run(["true"]).returncode == 0
    hosts[1].close()


def test_a_jump_host_with_an_unknown_key_is_refused_by_its_own_name(cluster: Cluster, tmp_path: Path) -> None:
    folder = change_config(
        cluster, tmp_path / "ssh", "Host node2\n  UserKnownHostsFile none\nHost node3\n  ProxyJump node2"
    )
    with pytest.raises(ClusterError, match="node2: its host key is not in known_hosts"):
        SshHost("node3", folder).connect()


def test_a_jump_host_that_cannot_reach_the_next_one_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    first = "Host node3\n  ProxyJump node2\n  Port 23\n  ConnectTimeout 5"
    folder = change_config(cluster, tmp_path / "ssh", first)
    with pytest.raises(ClusterError, match=r"node3: cannot be reached .*: jump host node2 cannot reach it"):
        SshHost("node3", folder, patience_s=0).connect()


def test_a_proxy_command_carries_the_connection_and_ends_with_it(cluster: Cluster, shared: Path) -> None:
    config = cluster.ssh / "config"
    folder = change_config(
        cluster, shared / "ssh", f"Host node3\n  ProxyCommand ssh -F {config} -W %h:%p node2 2>/dev/null"
    )
    host = SshHost("node3", folder)
    assert host.run(["hostname"]).stdout == "node3\n"
    login = host._login
    assert login is not None
    assert login.proxy is not None
    host.close()
    assert login.proxy.poll() is not None


def test_no_agent_is_forwarded_whatever_is_configured(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = subprocess.run(["ssh-agent", "-s", "-a", str(tmp_path / "agent")], capture_output=True, text=True)
    pid = int(re.findall(r"SSH_AGENT_PID=(\d+)", agent.stdout)[0])
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    try:
        subprocess.run(["ssh-add", "-q", str(cluster.ssh / "id")], check=True)
        first = f"Host *\n  ForwardAgent yes\n  IdentityFile {tmp_path / 'none'}\n  IdentitiesOnly no"
        folder = change_config(cluster, tmp_path / "ssh", first)
        text = (folder / "config").read_text()
        (folder / "config").write_text(text.replace(f"  IdentityFile {cluster.ssh / 'id'}\n", ""))
        host = SshHost("node1", folder)  # only the agent holds a key that is taken
        assert host.run(["sh", "-c", "echo ${SSH_AUTH_SOCK-none}"]).stdout == "none\n"
        host.close()
    finally:
        os.kill(pid, 15)


def test_a_key_with_a_passphrase_is_reported_without_a_prompt(cluster: Cluster, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked)], check=True)
    folder = change_config(cluster, tmp_path / "ssh", f"Host *\n  IdentityFile {locked}")
    text = (folder / "config").read_text().replace(f"  IdentityFile {cluster.ssh / 'id'}\n", "")
    (folder / "config").write_text(text)
    with pytest.raises(ClusterError, match=r"offered .*locked \(needs its passphrase: ssh-add it\)"):
        SshHost("node1", folder).connect()


def test_a_put_that_fills_the_disk_leaves_no_half_file(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(1, tmp="8m")
    host = SshHost("node1", cluster.ssh)
    big = tmp_path / "big"
    big.write_bytes(bytes(20_000_000))
    host.run(["sh", "-c", "echo old >/tmp/file"])
    with pytest.raises(ClusterError, match=r"node1:/tmp/file: cannot be copied: No space left on device"):
        host.put(big, "/tmp/file")
    assert host.run(["sh", "-c", "ls -A /tmp; cat /tmp/file"]).stdout == "file\nold\n"
    host.close()


def test_a_link_in_a_files_place_is_replaced_not_written_through(cluster: Cluster, tmp_path: Path) -> None:
    host = SshHost("node1", cluster.ssh)
    (tmp_path / "mine").write_text("mine")
    host.run(["sh", "-c", "echo precious >/tmp/target; ln -s target /tmp/file"])
    host.put(tmp_path / "mine", "/tmp/file")
    assert (
        host.run(["sh", "-c", "cat /tmp/target /tmp/file; rm /tmp/target /tmp/file"]).stdout
        == "precious\nmine"
    )
    host.close()


def test_commands_and_transfers_work_for_a_user_other_than_root(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(1, AuthorizedKeysFile="/tmp/keys")
    passwd = Path("/etc/passwd").read_text()
    cluster.replace("node1", "/etc/passwd", f"{passwd}tester:x:4242:4242::/tmp:/bin/sh\n")
    keys = (cluster.ssh / "authorized_keys").read_text()
    cluster.run("node1", ["sh", "-c", "cat >/tmp/keys; chmod 644 /tmp/keys"], stdin=keys)
    folder = change_config(cluster, tmp_path / "ssh", "Host node1\n  User tester")
    host = SshHost("node1", folder)
    assert host.run(["id", "-u"]).stdout == "4242\n"
    time.sleep(1.5)
    assert host.run(["sh", "-c", "sleep 2.5; echo slept"]).stdout == "slept\n"  # no guard thinks sshd gone
    (tmp_path / "file").write_text("mine")
    host.put(tmp_path / "file", "/tmp/file")
    assert host.run(["stat", "-c", "%U %a", "/tmp/file"]).stdout == "tester 600\n"
    command = host.start(["sleep", "600"])
    host.close()
    with pytest.raises(ClusterError, match="lost"):
        command.wait()
    assert cluster.leftovers(within_s=4) == {}


def test_a_file_that_another_user_put_there_is_not_written_to(cluster: Cluster, tmp_path: Path) -> None:
    host = SshHost("node2", cluster.ssh)
    (tmp_path / "mine").write_text("mine")
    host.run(["sh", "-c", "echo theirs >/tmp/file; ln /tmp/file /tmp/other; chmod 666 /tmp/file"])
    host.put(tmp_path / "mine", "/tmp/file")
    seen = host.run(["sh", "-c", "cat /tmp/other; stat -c %a /tmp/file; rm /tmp/other /tmp/file"]).stdout
    assert seen == "theirs\n600\n"
    host.close()


@pytest.mark.parametrize("kind", ["mkdir", "mkfifo"])
def test_a_path_that_is_not_a_file_is_neither_fetched_nor_overwritten(
    cluster: Cluster, tmp_path: Path, kind: str
) -> None:
    host = SshHost("node2", cluster.ssh)
    host.run([kind, "/tmp/odd"])
    with pytest.raises(ClusterError, match="node2:/tmp/odd: cannot be copied: is not a file"):
        host.fetch("/tmp/odd", tmp_path / "back")
    assert list(tmp_path.iterdir()) == []
    host.run(["rm", "-rf", "/tmp/odd"])
    host.close()


def test_a_transfer_over_a_link_that_goes_silent_ends_and_leaves_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    folder = change_config(cluster, tmp_path / "ssh", "Host *\n  ServerAliveInterval 1\n  ConnectTimeout 2")
    host = SshHost("node4", folder, patience_s=0)
    host.connect()
    cluster.rate("40mbit")
    host.run(["sh", "-c", "head -c 50000000 /dev/zero >/tmp/big"])
    timer = threading.Timer(1.0, cluster.cut, ["node4"])
    timer.start()
    with pytest.raises(ClusterError, match="node4"):
        host.fetch("/tmp/big", tmp_path / "back")
    timer.join()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ssh"]
    cluster.rate(None)
    cluster.reconnect("node4")
    again = SshHost("node4", cluster.ssh)
    again.fetch("/tmp/big", tmp_path / "back")
    assert (tmp_path / "back").stat().st_size == 50_000_000
    again.run(["rm", "/tmp/big"])
    again.close()
    host.close()
    # What sent the file finds its connection gone only when TCP has given up: its own host ends it.
    cluster.run("node4", ["sh", "-c", "kill $(pidof cat) 2>/dev/null; true"])
