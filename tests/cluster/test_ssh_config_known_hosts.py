from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from caffe_recipes.cluster.ssh_config import (
    is_revoked,
    judge_key,
    keys_for_host,
    load_known_hosts,
    parse_known_hosts,
)
from tests.cluster.harness.keys import write_key

KEY, OTHER = b"\0\0\0\x0bssh-ed25519key", b"\0\0\0\x0bssh-ed25519other"


def line(names: str, key: bytes = KEY, marker: str = "") -> str:
    return f"{marker} {names} ssh-ed25519 {base64.b64encode(key).decode()} a comment\n".lstrip()


def judge(text: str, name: str, key: bytes = KEY) -> tuple[str, str]:
    return judge_key(keys_for_host(parse_known_hosts(text, "known"), name), key)


@pytest.mark.parametrize(
    ("names", "name", "verdict"),
    [
        ("node1", "node1", "known"),
        ("node1", "node11", "unknown"),
        ("node1,10.0.0.1", "10.0.0.1", "known"),
        ("Node1", "node1", "known"),
        ("node1", "NODE1", "known"),
        ("node*", "node17", "known"),
        ("node?", "node17", "unknown"),
        ("*,!node1", "node1", "unknown"),
        ("!node1,*", "node2", "known"),
        ("[node1]:2222", "[node1]:2222", "known"),
        ("[node1]:2222", "node1", "unknown"),
        ("node1", "[node1]:2222", "unknown"),
        ("[node*]:2222", "[node1]:2222", "known"),
    ],
)
def test_names_match_as_in_ssh(names: str, name: str, verdict: str) -> None:
    assert judge(line(names), name)[0] == verdict


def test_another_key_of_a_known_host_is_a_change_and_the_line_is_named() -> None:
    assert judge("# mine\n" + line("node1", OTHER), "node1") == ("changed", "known:2")
    assert judge(line("node1", OTHER) + line("node1"), "node1") == ("known", "known:2")


def test_a_revoked_key_is_never_accepted_wherever_its_line_is() -> None:
    revoked = line("*", KEY, "@revoked")
    for text in (revoked + line("node1"), line("node1") + revoked):
        assert judge(text, "node1")[0] == "revoked"
    assert judge(revoked + line("node1", OTHER), "node1", OTHER)[0] == "known"


def test_a_certificate_authority_vouches_for_no_plain_key() -> None:
    assert judge(line("*", KEY, "@cert-authority"), "node1")[0] == "unknown"


def test_invalid_lines_are_skipped() -> None:
    text = "\n#x y z\nnode1\nnode1 ssh-rsa\nnode1 ssh-rsa !!!\n|1|x|y ssh-rsa AAAA\n|1|x ssh-rsa AAAA\n"
    assert keys_for_host(parse_known_hosts(text, "known"), "node2") == ()


def test_files_are_read_in_order_and_missing_ones_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "b").write_text(line("node1"))
    (tmp_path / "c").write_bytes(b"\xff\xfe\n" + line("node1", OTHER).encode())
    known = load_known_hosts([tmp_path / "a", tmp_path / "b", tmp_path / "c", tmp_path])
    assert [key.where for key in known] == [f"{tmp_path}/b:1", f"{tmp_path}/c:2"]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen here")
def test_names_that_ssh_keygen_has_hashed_are_known(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    public = (tmp_path / "key.pub").read_text().split()
    known = tmp_path / "known"
    known.write_text(f"node1,[node2]:2222 {public[0]} {public[1]}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", known], check=True, capture_output=True)
    assert "node" not in known.read_text()
    key = base64.b64decode(public[1])
    for name, verdict in (("node1", "known"), ("[node2]:2222", "known"), ("node2", "unknown")):
        assert judge(known.read_text(), name, key)[0] == verdict


@pytest.mark.parametrize("is_krl", [False, True])
def test_a_key_in_the_file_of_revoked_ones_is_revoked(tmp_path: Path, is_krl: bool) -> None:
    for name in ("good", "bad"):
        write_key(tmp_path / name)
    good, bad = ((tmp_path / f"{name}.pub").read_text() for name in ("good", "bad"))
    revoked = tmp_path / "revoked"
    if is_krl:
        argv = ["ssh-keygen", "-q", "-k", "-f", str(revoked), str(tmp_path / "bad.pub")]
        subprocess.run(argv, check=True)
    else:
        revoked.write_text(f"# taken back\n{bad}")
    assert is_revoked(base64.b64decode(bad.split()[1]), revoked)
    assert not is_revoked(base64.b64decode(good.split()[1]), revoked)


def test_an_unreadable_file_of_revoked_keys_refuses_every_host(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        is_revoked(KEY, tmp_path / "gone")
    (tmp_path / "krl").write_bytes(b"SSHKRL\n\0cut")
    with pytest.raises(OSError, match="cannot read it"):
        is_revoked(KEY, tmp_path / "krl")
