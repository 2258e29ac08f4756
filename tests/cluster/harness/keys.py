"""Keys of a cluster that lives for one test run: made here, since a process for each would take longer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat


def write_keys(folder: Path, addresses: Mapping[str, str]) -> None:
    """Write the user's key, each host's key, and the known_hosts and authorized_keys that go with them."""
    (folder / "ssh" / "authorized_keys").write_text(write_key(folder / "ssh" / "id") + "\n")
    lines = (
        f"{name},{address} {write_key(folder / 'hostkeys' / name)}\n" for name, address in addresses.items()
    )
    (folder / "ssh" / "known_hosts").write_text("".join(lines))


def write_key(path: Path) -> str:
    """Write a new private key, and its public one beside it; return the public one's line."""
    key = Ed25519PrivateKey.generate()
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    path.with_name(f"{path.name}.pub").write_text(f"{public}\n")
    return public
