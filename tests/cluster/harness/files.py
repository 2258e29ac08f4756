"""What a cluster has on disk: one folder in /var/tmp, locked while its cluster lives."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.harness.keys import write_keys

_BASE = Path("/var/tmp")
_PREFIX = "caffe-recipes-cluster-"
_SSHD_OPTIONS = {
    "PermitRootLogin": "prohibit-password",
    "PasswordAuthentication": "no",
    "KbdInteractiveAuthentication": "no",
    "UsePAM": "no",
    "StrictModes": "no",
    "UseDNS": "no",
    "PrintMotd": "no",
    # The default, sntrup761x25519, takes each login 0.1 s of CPU.
    "KexAlgorithms": "curve25519-sha256,curve25519-sha256@libssh.org",  # the second for paramiko
    "MaxStartups": "200",
    "MaxSessions": "200",
    "Subsystem": "sftp internal-sftp",
    "SetEnv": "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
}


def sweep() -> None:
    """Remove the folders of clusters whose keepers were killed: their locks are free."""
    for folder in _BASE.glob(f"{_PREFIX}*"):
        try:
            with (folder / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue


def make_folder() -> tuple[Path, int]:
    """Create a folder and lock it before it gets the name that `sweep` looks for."""
    made = Path(tempfile.mkdtemp(prefix="making-", dir=_BASE))
    lock = os.open(made / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return made.rename(made.with_name(_PREFIX + made.name.removeprefix("making-"))), lock


def write_files(folder: Path, addresses: Mapping[str, str], sshd: Mapping[str, str]) -> None:
    """Write what hosts and clients are configured by; `sshd` changes lines of sshd_config."""
    for name in ("shared", "ssh", "hostkeys", "logs"):
        (folder / name).mkdir(mode=0o700)
    (folder / "hosts").write_text(
        "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in addresses.items())
    )
    write_keys(folder, addresses)
    options = {**_SSHD_OPTIONS, "AuthorizedKeysFile": str(folder / "ssh" / "authorized_keys"), **sshd}
    (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in options.items()))
    hosts = "".join(f"Host {name}\n  HostName {address}\n" for name, address in addresses.items())
    common = {
        "IdentityFile": folder / "ssh" / "id",
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": folder / "ssh" / "known_hosts",
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "BatchMode": "yes",
        "ConnectTimeout": "5",
    }
    config = hosts + "Host *\n" + "".join(f"  {key} {value}\n" for key, value in common.items())
    for name in ("config", "ssh_config"):  # a user's folder, and /etc/ssh on the hosts
        (folder / "ssh" / name).write_text(config)
