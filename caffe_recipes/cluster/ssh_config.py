"""Read the ssh configuration of a host, and its keys in known_hosts.

`~/.ssh/config` is read first, then the system's file, both by paramiko; `Include` is resolved here. The
following options are read, also in Host and Match blocks: HostName, Port, User, IdentityFile, IdentitiesOnly,
IdentityAgent, ProxyJump, ProxyCommand, UserKnownHostsFile, GlobalKnownHostsFile, HostKeyAlias,
ConnectTimeout, ServerAliveInterval; and the options that make the connection stricter: RevokedHostKeys,
RequiredRSASize, Ciphers, MACs, KexAlgorithms, HostKeyAlgorithms, PubkeyAcceptedAlgorithms,
PubkeyAuthentication, PreferredAuthentications. Options that would weaken the connection, such as
StrictHostKeyChecking or ForwardAgent, are ignored.

known_hosts is read with patterns, hashed names and revocations. Paramiko's own reader ignores wildcards and
`@revoked`, so it would trust a revoked key.
"""

from __future__ import annotations

import base64
import binascii
import errno
import fnmatch
import getpass
import glob
import hashlib
import hmac
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from caffe_recipes.cluster.hostfile import explain_bad_host_name, is_host_name
from caffe_recipes.errors import ClusterError, HostFailed

if TYPE_CHECKING:
    import paramiko


CONNECT_S = 15.0
KEEPALIVE_S = 15.0
SYSTEM_FOLDER = Path("/etc/ssh")
_SYSTEM_KNOWN_HOSTS = (SYSTEM_FOLDER / "ssh_known_hosts", SYSTEM_FOLDER / "ssh_known_hosts2")
_DEFAULT_KEYS = ("id_rsa", "id_ecdsa", "id_ed25519")
_MAX_DEPTH = 16
# Options that list algorithms, with paramiko's name for the kind. The last option is the old name of the one
# before it.
_ALGORITHMS = {
    "Ciphers": "ciphers",
    "MACs": "macs",
    "KexAlgorithms": "kex",
    "HostKeyAlgorithms": "keys",
    "PubkeyAcceptedAlgorithms": "pubkeys",
    "PubkeyAcceptedKeyTypes": "pubkeys",
}
_LINE = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*?)\s*")


@dataclass(frozen=True)
class AllowedAlgorithms:
    """The algorithms listed by an option; `kind` is ciphers, macs, kex, keys or pubkeys."""

    option: str
    kind: str
    listed: str

    def choose(self, ours: Sequence[str]) -> list[str]:
        """Return the algorithms in `ours` that the option allows, following ssh_config(5).

        >>> AllowedAlgorithms("Ciphers", "ciphers", "-*-cbc").choose(["aes128-ctr", "aes128-cbc"])
        ['aes128-ctr']
        """
        patterns = self.listed.lstrip("+-^").split(",")
        matched = [name for name in ours if any(fnmatch.fnmatchcase(name, one) for one in patterns)]
        if self.listed.startswith("-"):
            return [name for name in ours if name not in matched]
        return list(ours) if self.listed.startswith(("+", "^")) else matched


@dataclass(frozen=True)
class SshOptions:
    """The ssh configuration of one host; `jumps` are its jump hosts as written, in connection order."""

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
    algorithms: tuple[AllowedAlgorithms, ...] = ()
    revoked: Path | None = None
    rsa_bits: int = 0


def default_folder() -> Path:
    """Return the user's ~/.ssh folder."""
    return Path.home() / ".ssh"


def load_ssh_options(name: str, folder: Path, hop: str | None = None) -> SshOptions:
    """Return the configuration of a host from `folder`, and from the system's files if `folder` is ~/.ssh.

    `hop` is a jump host as written in ProxyJump, `user@host:port`; its user and port take precedence. Raises
    ClusterError if the name is not a host name, or if a file cannot be read.
    """
    user, name, port = _split_hop(hop) if hop is not None else (None, name, None)
    if not is_host_name(name):
        hint = explain_bad_host_name(name, "write a name or an address")
        raise ClusterError("", f"{name[:80]!r} is not a host name", hint)
    found = _lookup(name, folder)
    try:
        return _options(name, folder, found, user, port)
    except ValueError as error:
        what = f"{name}: invalid value: {' '.join(str(error).split())}"
        raise ClusterError(folder / "config", what, "fix it") from None


def expand_includes(path: Path, folder: Path, depth: int = 0, outer: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the lines of a configuration file and of the files it includes, each under its own conditions.

    `outer` holds the conditions of the including files, written as for Match. Relative names are relative to
    `folder`.
    """
    if depth > _MAX_DEPTH:
        raise ClusterError(path, "its Include lines form a loop", "remove one of them")
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return  # ssh ignores a missing file, too
    conditions: tuple[str, ...] = outer
    for line in lines:
        found = _LINE.fullmatch(line)
        key, value = (found[1].lower(), found[2]) if found else ("", "")
        if key in ("host", "match"):
            conditions = (*outer, *_conditions(key, value))
            yield _header(conditions) if outer else line
        elif key == "include":
            for name in shlex.split(value):
                for included in sorted(glob.glob(str(folder / Path(name).expanduser()))):  # noqa: PTH207 - absolute
                    yield from expand_includes(Path(included), folder, depth + 1, conditions)
                    yield _header(conditions)
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
        raise ClusterError(folder / "config", " ".join(str(error).split()), "fix it") from None


def _options(
    name: str, folder: Path, found: paramiko.SSHConfigDict, user: str | None, port: int | None
) -> SshOptions:
    first = next((key for key in found if key in ("proxyjump", "proxycommand")), None)
    jump = found["proxyjump"] if first == "proxyjump" else "none"  # the first one in the file counts
    user_files = found.get("userknownhostsfile")
    system_files = found.get("globalknownhostsfile")
    identities = cast("list[str] | None", found.get("identityfile"))  # paramiko's type stubs are wrong
    alive = float(found.get("serveraliveinterval", 0) or 0)
    _check_public_keys(name, found)
    revoked = _paths(shlex.split(found.get("revokedhostkeys", "")))
    return SshOptions(
        name=name,
        host=found["hostname"],
        port=port or int(found.get("port", 22)),
        user=user or found.get("user") or getpass.getuser(),
        keys=tuple(_paths(identities)) if identities else tuple(folder / key for key in _DEFAULT_KEYS),
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
        algorithms=tuple(
            AllowedAlgorithms(option, kind, found[option.lower()])
            for option, kind in _ALGORITHMS.items()
            if found.get(option.lower())
        ),
        revoked=revoked[0] if revoked else None,
        rsa_bits=int(found.get("requiredrsasize", 0) or 0),
    )


def _check_public_keys(name: str, found: paramiko.SSHConfigDict) -> None:
    """Raise ClusterError if the configuration forbids public keys, the only method we log in with."""
    hint = "allow it for this host; other methods would ask for a password"
    if found.get("pubkeyauthentication", "yes").lower() in ("no", "false"):
        raise HostFailed(name, "the ssh configuration sets PubkeyAuthentication no", hint)
    preferred = found.get("preferredauthentications", "publickey")
    if "publickey" not in preferred.lower().split(","):
        raise HostFailed(
            name, f"the ssh configuration sets PreferredAuthentications {preferred}, without publickey", hint
        )


def _paths(names: list[str]) -> list[Path]:
    return [Path(os.path.expandvars(name)).expanduser() for name in names if name.lower() != "none"]


def _split_hop(hop: str) -> tuple[str | None, str, int | None]:
    """Return the user, host and port of `user@host:port` or of an ssh:// URL. Raises ClusterError.

    >>> _split_hop("me@login:2222"), _split_hop("ssh://login")
    (('me', 'login', 2222), (None, 'login', None))
    """
    user, _, rest = hop.removeprefix("ssh://").rstrip("/").rpartition("@")
    host, _, port = rest.partition(":")
    if port and not port.isdecimal():
        raise ClusterError("", f"{hop[:80]!r} is not a jump host", "write user@host:port")
    return user or None, host, int(port) if port else None


_KRL = b"SSHKRL\n\0"
KeyVerdict = Literal["known", "unknown", "changed", "revoked"]


@dataclass(frozen=True)
class KnownKey:
    """A line of known_hosts: its `file:line`, marker and host patterns, and the key's type and bytes."""

    where: str
    marker: str
    patterns: str
    kind: str
    key: bytes

    def matches_host(self, name: str) -> bool:
        """Return whether the line applies to a host; `name` is `[name]:port` if the port is not 22."""
        if self.patterns.startswith("|1|"):
            return _hash_matches(self.patterns, name)
        matches = False
        for pattern in self.patterns.lower().split(","):
            negated = pattern.startswith("!")
            # Brackets are literal here: they enclose a host name that has a port.
            if fnmatch.fnmatchcase(name.lower(), pattern.removeprefix("!").replace("[", "[[]")):
                if negated:
                    return False
                matches = True
        return matches


def parse_known_hosts(text: str, where: str | Path) -> Iterator[KnownKey]:
    """Yield the keys of a known_hosts file; lines that are not keys are skipped, as in ssh."""
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        try:
            key = base64.b64decode(fields[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        yield KnownKey(f"{where}:{number}", marker, fields[0], fields[1], key)


def load_known_hosts(paths: Iterable[Path]) -> tuple[KnownKey, ...]:
    """Return the keys of all these files; unreadable files are skipped."""
    found: list[KnownKey] = []
    for path in paths:
        try:
            found += parse_known_hosts(path.read_text("utf-8", "replace"), path)
        except OSError:
            continue
    return tuple(found)


def known_hosts_name(host: str, port: int, alias: str | None = None) -> str:
    """Return the name under which known_hosts lists a host; an alias is used unchanged.

    >>> known_hosts_name("node1", 22), known_hosts_name("node1", 2222), known_hosts_name("node1", 2222, "all")
    ('node1', '[node1]:2222', 'all')
    """
    return alias or (host if port == 22 else f"[{host}]:{port}")


def keys_for_host(known: Iterable[KnownKey], name: str) -> tuple[KnownKey, ...]:
    """Return the lines that apply to a host."""
    return tuple(line for line in known if line.matches_host(name))


def judge_key(known: Iterable[KnownKey], key: bytes) -> tuple[KeyVerdict, str]:
    """Return the verdict on a key that a host presented, and the `file:line` in `known` that decides it.

    >>> judge_key([], b"key")
    ('unknown', '')
    """
    lines = tuple(known)
    for line in lines:
        if line.marker == "@revoked" and line.key == key:
            return "revoked", line.where
    plain = [line for line in lines if not line.marker]
    for line in plain:
        if line.key == key:
            return "known", line.where
    return ("changed", plain[0].where) if plain else ("unknown", "")


def is_revoked(key: bytes, path: Path) -> bool:
    """Return whether a key is in a RevokedHostKeys file: a list with one key per line, or an OpenSSH KRL.

    Raises OSError if the file cannot be read; ssh then trusts no host either.
    """
    data = path.read_bytes()
    if not data.startswith(_KRL):
        wanted = base64.b64encode(key)
        return any(wanted in line.split() for line in data.splitlines() if not line.startswith(b"#"))
    kind = key[4 : 4 + int.from_bytes(key[:4], "big")]
    with tempfile.NamedTemporaryFile(suffix=".pub") as shown:
        shown.write(kind + b" " + base64.b64encode(key) + b"\n")
        shown.flush()
        argv = ["ssh-keygen", "-Q", "-f", str(path), shown.name]
        done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    revoked = b": REVOKED" in done.stdout
    if not revoked and (done.returncode != 0 or b": ok" not in done.stdout):
        raise OSError(errno.EINVAL, "ssh-keygen -Q cannot read it", str(path))
    return revoked


def fingerprint(key: bytes) -> str:
    """Return a key's fingerprint as ssh-keygen -l prints it.

    >>> fingerprint(b"key")
    'SHA256:LHDhK3oGRvkiefQnx7OOczTY5Tic/xZ6HcMOc/gmtoM'
    """
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


def _hash_matches(hashed: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in hashed.split("|")[2:4])
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
