from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from caffe_recipes.cluster.ssh_config import SshOptions, load_ssh_options
from caffe_recipes.errors import ClusterError

CONFIG = """\
# Names that are not in the config are looked up as they are.
Include {folder}/first.conf parts/*.conf
Host c401-* !c401-009
  HostName %h.example.org
  User me
  Port 2222
  ProxyJump login1,other@login2:2022
  Include nested.conf
Match originalhost c401-001
  HostKeyAlias racks
  UserKnownHostsFile {folder}/racks {folder}/more
Host login?
  IdentityFile {folder}/id_login
  IdentitiesOnly yes
Host proxied
  ProxyCommand nc -X 5 %h %p
  ConnectTimeout 7
  ServerAliveInterval 5
Host quoted
  User = "two words"
  ProxyJump none
Match all
  User everyone
  ProxyJump never-reached-by-c401
"""
PARTS = {
    "first.conf": "Host c401-002\n  Port 2200\n",
    "parts/a.conf": "Host login1\n  User deep\nMatch originalhost login1 user deep\n  Port 99\n",
    "parts/b.conf": "Host *\n  GlobalKnownHostsFile {folder}/global\n",
    "parts/not.txt": "Host *\n  Port 1\n",
    # A Host within a file that a Host includes counts for both only.
    "nested.conf": "IdentityFile {folder}/id_racks\nHost c401-003 login1\n  Port 3333\n",
}
NAMES = ["c401-001", "c401-002", "c401-003", "c401-009", "login1", "login2", "proxied", "quoted", "elsewhere"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir()
    (tmp_path / "config").write_text(CONFIG.format(folder=tmp_path))
    for name, text in PARTS.items():
        (tmp_path / name).write_text(text.format(folder=tmp_path))
    return tmp_path


def by_ssh(name: str, folder: Path) -> dict[str, list[str]]:
    """Ask ssh itself what it would do. It reads relative names from ~/.ssh: here they are made absolute."""
    whole = (folder / "config").read_text()
    absolute = whole.replace("parts/*", f"{folder}/parts/*").replace("nested.", f"{folder}/nested.")
    (folder / "absolute").write_text(absolute)
    done = subprocess.run(
        ["ssh", "-G", "-F", folder / "absolute", name], capture_output=True, text=True, check=True
    )
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key, []).append(value)
    return found


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh here")
@pytest.mark.parametrize("name", NAMES)
def test_hosts_are_read_as_ssh_reads_them(name: str, folder: Path) -> None:
    ours, ssh = load_ssh_options(name, folder), by_ssh(name, folder)
    assert ours.host == ssh["hostname"][0]
    assert str(ours.port) == ssh["port"][0]
    assert ours.user == ssh["user"][0]
    assert ",".join(ours.jumps) == ssh.get("proxyjump", [""])[0]
    command = ssh.get("proxycommand", ["none"])[0].replace("%h", ours.host).replace("%p", str(ours.port))
    assert (ours.proxy_command or "none") == command
    assert (ours.key_alias or "none") == ssh.get("hostkeyalias", ["none"])[0]
    assert ours.only_these_keys == (ssh["identitiesonly"][0] == "yes")
    configured = [str(key) for key in ours.keys if not str(key).startswith(f"{folder}/id_rsa")]
    if any(key.endswith(("id_login", "id_racks")) for key in configured):
        assert configured == ssh["identityfile"]
    if name == "c401-001":
        assert [str(path) for path in ours.known_hosts[:2]] == ssh["userknownhostsfile"][0].split()
    assert [str(path) for path in ours.known_hosts[-1:]] == ssh["globalknownhostsfile"][0].split()


def test_without_a_config_a_host_is_reached_by_its_name(tmp_path: Path) -> None:
    options = load_ssh_options("node1", tmp_path)
    assert (options.host, options.port, options.jumps, options.proxy_command) == ("node1", 22, (), None)
    assert options.known_hosts[0] == tmp_path / "known_hosts"
    assert tmp_path / "id_ed25519" in options.keys
    assert options.agent
    assert (options.connect_s, options.keepalive_s) == (15, 15)


def test_keepalives_are_sent_at_least_every_15_s(tmp_path: Path) -> None:
    for interval, kept in [("0", 15), ("5", 5), ("300", 15)]:
        (tmp_path / "config").write_text(f"ServerAliveInterval {interval}\nConnectTimeout 4\n")
        options = load_ssh_options("node1", tmp_path)
        assert (options.keepalive_s, options.connect_s) == (kept, 4)


@pytest.mark.parametrize("name", ["-oProxyCommand=touch x", "-l", "a b", "a;b", "a\nb", "", "$(id)", "a'"])
def test_a_name_that_is_not_a_hosts_is_refused_before_anything_reads_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="is not a host name"):
        load_ssh_options(name, tmp_path)
    with pytest.raises(ClusterError, match="is not a host name"):
        load_ssh_options("", tmp_path, hop=f"user@{name}")


def test_a_jump_host_has_its_own_user_and_port(folder: Path) -> None:
    def read(hop: str) -> SshOptions:
        return replace(load_ssh_options("", folder, hop=hop), keys=())

    assert (read("you@login1:77").user, read("you@login1:77").port) == ("you", 77)
    assert (read("login1").user, read("ssh://me@login1:8/").port) == ("deep", 8)
    with pytest.raises(ClusterError, match="is not a jump host"):
        read("login1:ssh")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Port many\n", "node1: invalid value: invalid literal"),
        ("Match host\n", "Missing parameter"),
        ("Include config\n", "its Include lines form a loop"),
        ("Include 'x\n", "No closing quotation"),
        ("Nonsense\n", "Unparsable line"),
    ],
)
def test_a_config_that_cannot_be_read_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(ClusterError, match=message) as caught:
        load_ssh_options("node1", tmp_path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "config"))


@pytest.mark.parametrize(
    ("listed", "left"),
    [
        ("aes256-ctr,chacha20-poly1305@openssh.com", ["aes256-ctr"]),
        ("aes*-ctr", ["aes128-ctr", "aes256-ctr"]),
        ("-*-cbc,aes128-*", ["aes256-ctr"]),
        ("+3des-cbc", ["aes128-ctr", "aes256-ctr", "aes128-cbc"]),
        ("^aes128-cbc", ["aes128-ctr", "aes256-ctr", "aes128-cbc"]),
        ("chacha20-poly1305@openssh.com", []),
    ],
)
def test_a_list_of_algorithms_allows_what_it_allows_in_ssh(
    listed: str, left: list[str], tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(f"Host node1\n  Ciphers {listed}\n")
    (allowed,) = load_ssh_options("node1", tmp_path).algorithms
    assert (allowed.option, allowed.kind) == ("Ciphers", "ciphers")
    assert allowed.choose(["aes128-ctr", "aes256-ctr", "aes128-cbc"]) == left
    assert load_ssh_options("node2", tmp_path).algorithms == ()


def test_options_that_make_a_connection_stricter_are_honoured(tmp_path: Path) -> None:
    lines = ("MACs a", "KexAlgorithms a", "HostKeyAlgorithms a", "PubkeyAcceptedKeyTypes a")
    (tmp_path / "config").write_text("\n".join([*lines, "RevokedHostKeys /etc/gone", "RequiredRSASize 3072"]))
    options = load_ssh_options("node1", tmp_path)
    assert [allowed.kind for allowed in options.algorithms] == ["macs", "kex", "keys", "pubkeys"]
    assert (options.revoked, options.rsa_bits) == (Path("/etc/gone"), 3072)


@pytest.mark.parametrize("line", ["PubkeyAuthentication no", "PreferredAuthentications password,hostbased"])
def test_a_user_who_allows_no_login_by_key_is_not_logged_in_by_one(line: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(line)
    with pytest.raises(ClusterError, match=line.split()[0]) as caught:
        load_ssh_options("node1", tmp_path)
    assert caught.value.where == "node1"
