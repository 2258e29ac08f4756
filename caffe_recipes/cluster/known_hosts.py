"""The keys by which hosts are known: OpenSSH's known_hosts, with its patterns, hashes and revocations.

Paramiko reads these files too, but passes over wildcards and `@revoked`, so that a key somebody has taken
back would be believed.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Verdict = Literal["known", "unknown", "changed", "revoked"]


@dataclass(frozen=True)
class KnownKey:
    """One line: where it stands, whose key it is, the key's type and bytes."""

    where: str
    marker: str
    patterns: str
    kind: str
    key: bytes

    def is_of(self, name: str) -> bool:
        """Tell whether it speaks of a host: `name`, or `[name]:port` where the port is not 22."""
        if self.patterns.startswith("|1|"):
            return _hash_matches(self.patterns, name)
        matches = False
        for pattern in self.patterns.lower().split(","):
            negated = pattern.startswith("!")
            # Brackets stand for themselves here, around a name with a port.
            if fnmatch.fnmatchcase(name.lower(), pattern.removeprefix("!").replace("[", "[[]")):
                if negated:
                    return False
                matches = True
        return matches


def parse_known_hosts(text: str, where: str | Path) -> Iterator[KnownKey]:
    """Yield the keys of a file; like ssh, pass over lines that are none."""
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
    """Read the keys of the files that are there."""
    found: list[KnownKey] = []
    for path in paths:
        try:
            found += parse_known_hosts(path.read_text("utf-8", "replace"), path)
        except OSError:
            continue
    return tuple(found)


def known_name(host: str, port: int, alias: str | None = None) -> str:
    """Return the name under which a host stands in the files; an alias is taken as it is.

    >>> known_name("node1", 22), known_name("node1", 2222), known_name("node1", 2222, "all")
    ('node1', '[node1]:2222', 'all')
    """
    return alias or (host if port == 22 else f"[{host}]:{port}")


def keys_of(known: Iterable[KnownKey], name: str) -> tuple[KnownKey, ...]:
    """Return the lines that speak of a host."""
    return tuple(line for line in known if line.is_of(name))


def judge_key(known: Iterable[KnownKey], key: bytes) -> tuple[Verdict, str]:
    """Judge a key that a host has shown by the lines that speak of it; with where the deciding line stands.

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
