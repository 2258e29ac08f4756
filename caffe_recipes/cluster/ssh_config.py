"""How ssh reaches a host: `~/.ssh/config`, then the system's, read by paramiko; `Include` is resolved here.

Read are HostName, Port, User, IdentityFile, IdentitiesOnly, IdentityAgent, ProxyJump, ProxyCommand,
UserKnownHostsFile, GlobalKnownHostsFile, HostKeyAlias, ConnectTimeout, ServerAliveInterval, under Host and
Match. What would weaken the connection, as StrictHostKeyChecking or ForwardAgent, is not.
"""

from __future__ import annotations

import getpass
import glob
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from caffe_recipes.cluster.nodelists import describe_no_host, is_host_name
from caffe_recipes.errors import ClusterError

if TYPE_CHECKING:
    import paramiko

CONNECT_S = 15.0
KEEPALIVE_S = 15.0
SYSTEM_FOLDER = Path("/etc/ssh")
_SYSTEM_KNOWN_HOSTS = (SYSTEM_FOLDER / "ssh_known_hosts", SYSTEM_FOLDER / "ssh_known_hosts2")
_USUAL_KEYS = ("id_rsa", "id_ecdsa", "id_ed25519")
_DEEPEST = 16
_LINE = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*?)\s*")


@dataclass(frozen=True)
class SshOptions:
    """What the configuration says of one host; `jumps` are hops as written, the first one reached first."""

    name: str
    host: str
    port: int
    user: str
    keys: tuple[Path, ...]
    only_these_keys: bool
    agent: bool
    jumps: tuple[str, ...]
    proxy_command: str | None
    known_hosts: tuple[Path, ...]
    key_alias: str | None
    connect_s: float
    keepalive_s: float


def default_folder() -> Path:
    """Return the user's own ~/.ssh."""
    return Path.home() / ".ssh"


def load_ssh_options(name: str, folder: Path, hop: str | None = None) -> SshOptions:
    """Read what is configured for a host in `folder`; the system's files count for the user's own folder.

    `hop` is a jump host as ProxyJump writes it, `user@host:port`, whose user and port go first. Raises
    ClusterError for a name that is none and a file that cannot be read.
    """
    user, name, port = _split_hop(hop) if hop is not None else (None, name, None)
    if not is_host_name(name):
        hint = describe_no_host(name, "write a name or an address")
        raise ClusterError("", f"{name[:80]!r} is no host's name", hint)
    found = _lookup(name, folder)
    try:
        return _options(name, folder, found, user, port)
    except ValueError as error:
        what = f"{name}: a value cannot be read: {' '.join(str(error).split())}"
        raise ClusterError(folder / "config", what, "mend it") from None


def expand_includes(path: Path, folder: Path, depth: int = 0, around: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield a configuration's lines with those of the files it includes, each under what it stands under.

    `around` holds conditions of the files around it, as words of Match. Relative names are those of `folder`.
    """
    if depth > _DEEPEST:
        raise ClusterError(path, "files include each other without end", "remove an Include")
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return  # as ssh does: a file that is not there says nothing
    under: tuple[str, ...] = around
    for line in lines:
        found = _LINE.fullmatch(line)
        key, value = (found[1].lower(), found[2]) if found else ("", "")
        if key in ("host", "match"):
            under = (*around, *_conditions(key, value))
            yield _header(under) if around else line
        elif key == "include":
            for name in shlex.split(value):
                for included in sorted(glob.glob(str(folder / Path(name).expanduser()))):  # noqa: PTH207 - absolute
                    yield from expand_includes(Path(included), folder, depth + 1, under)
                    yield _header(under)
        else:
            yield line


def _conditions(key: str, value: str) -> tuple[str, ...]:
    if key == "match":
        return () if value.strip().lower() == "all" else (value,)
    patterns = ",".join(shlex.split(value))
    return () if patterns == "*" else (f"originalhost {shlex.quote(patterns)}",)


def _header(conditions: tuple[str, ...]) -> str:
    return f"Match {' '.join(conditions)}" if conditions else "Host *"


def _lookup(name: str, folder: Path) -> paramiko.SSHConfigDict:
    import paramiko

    try:
        lines = list(expand_includes(folder / "config", folder))
        if folder == default_folder():
            lines += ["Host *", *expand_includes(SYSTEM_FOLDER / "ssh_config", SYSTEM_FOLDER)]
        return paramiko.SSHConfig.from_text("\n".join(lines)).lookup(name)
    except (paramiko.SSHException, OSError, ValueError, KeyError) as error:
        raise ClusterError(folder / "config", " ".join(str(error).split()), "mend it") from None


def _options(
    name: str, folder: Path, found: paramiko.SSHConfigDict, user: str | None, port: int | None
) -> SshOptions:
    first = next((key for key in found if key in ("proxyjump", "proxycommand")), None)
    jump = found["proxyjump"] if first == "proxyjump" else "none"  # the first of both counts
    user_files = found.get("userknownhostsfile")
    system_files = found.get("globalknownhostsfile")
    identities = cast("list[str] | None", found.get("identityfile"))  # whatever paramiko's types say
    alive = float(found.get("serveraliveinterval", 0) or 0)
    return SshOptions(
        name=name,
        host=found["hostname"],
        port=port or int(found.get("port", 22)),
        user=user or found.get("user") or getpass.getuser(),
        keys=tuple(_paths(identities)) if identities else tuple(folder / key for key in _USUAL_KEYS),
        only_these_keys=found.get("identitiesonly", "no").lower() in ("yes", "true"),
        agent=found.get("identityagent", "").lower() != "none",
        jumps=() if jump.lower() == "none" else tuple(part.strip() for part in jump.split(",")),
        proxy_command=found.get("proxycommand") if jump.lower() == "none" else None,
        known_hosts=(
            *(_paths(shlex.split(user_files)) if user_files else (folder / "known_hosts",)),
            *(_paths(shlex.split(system_files)) if system_files else _SYSTEM_KNOWN_HOSTS),
        ),
        key_alias=found.get("hostkeyalias"),
        connect_s=float(found.get("connecttimeout", 0) or 0) or CONNECT_S,
        keepalive_s=min(alive, KEEPALIVE_S) if alive > 0 else KEEPALIVE_S,
    )


def _paths(names: list[str]) -> list[Path]:
    return [Path(os.path.expandvars(name)).expanduser() for name in names if name.lower() != "none"]


def _split_hop(hop: str) -> tuple[str | None, str, int | None]:
    """Split `user@host:port` or an ssh:// address.

    >>> _split_hop("me@login:2222"), _split_hop("ssh://login")
    (('me', 'login', 2222), (None, 'login', None))
    """
    user, _, rest = hop.removeprefix("ssh://").rstrip("/").rpartition("@")
    host, _, port = rest.partition(":")
    if port and not port.isdecimal():
        raise ClusterError("", f"{hop[:80]!r} is no host to jump over", "write user@host:port")
    return user or None, host, int(port) if port else None
