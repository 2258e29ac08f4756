"""How long each way of staging would take: a small model, printed, so that a choice can be argued with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

How = Literal["copy", "chain", "sbcast", "sftp"]
WAYS: tuple[How, ...] = ("copy", "chain", "sbcast", "sftp")

# A launcher logs in on every host, and starts Python there: seconds, and seconds a host.
_LAUNCH_S, _LAUNCH_S_A_HOST = 2.0, 0.1
_LEAST_CHUNK_BYTES, _MOST_CHUNK_BYTES = 256 << 10, 4 << 20
# The last node of a chain begins one chunk a hop late: of the whole at most this part is lost.
_FILL = 0.01


@dataclass(frozen=True)
class Rates:
    """What a cluster moves, in bytes a second; what a profile or a measurement does not say, is modest."""

    link: float = 1.25e9
    shared: float = 5e9
    disk: float = 0.5e9


@dataclass(frozen=True)
class Option:
    """A way, what it would take, or why it cannot be had."""

    how: How
    why: str
    seconds: float | None = None


def chunk_bytes(size_bytes: int, hosts: int) -> int:
    """Return the size of a chain's messages, a power of two from 256 KiB to 4 MiB.

    >>> [chunk_bytes(n, hosts) >> 10 for n, hosts in ((256 * 10**6, 4), (42 * 10**9, 64), (42 * 10**9, 4))]
    [512, 4096, 4096]
    """
    most = min(_MOST_CHUNK_BYTES, _FILL * size_bytes / max(1, hosts - 1))
    chunk = _LEAST_CHUNK_BYTES
    while chunk * 2 <= most:
        chunk *= 2
    return chunk


def copy_s(size_bytes: int, hosts: int, rates: Rates) -> float:
    """Return the seconds of `copy`: every node reads the shared file system, which serves them all.

    >>> round(copy_s(42 * 10**9, 64, Rates()))
    538
    """
    return max(hosts * size_bytes / rates.shared, size_bytes / min(rates.link, rates.disk))


def chain_s(size_bytes: int, hosts: int, rates: Rates) -> float:
    """Return the seconds of `chain`: one copy, and one chunk a hop until the last node begins.

    >>> round(chain_s(42 * 10**9, 64, Rates()))
    93
    """
    rate = min(rates.link, rates.shared, rates.disk)
    fill_s = (hosts - 1) * chunk_bytes(size_bytes, hosts) / rates.link
    return _LAUNCH_S + _LAUNCH_S_A_HOST * hosts + fill_s + size_bytes / rate


def star_s(size_bytes: int, hosts: int, rates: Rates) -> float:
    """Return the seconds of `sftp`, and of `sbcast`, which waits for every node after every block.

    >>> round(star_s(42 * 10**9, 64, Rates()))
    2150
    """
    return max(hosts * size_bytes / rates.link, size_bytes / rates.disk)


def render_rate(bytes_per_s: float) -> str:
    """Write a rate.

    >>> render_rate(1.25e9), render_rate(12.5e6)
    ('1.25 GB/s', '12.5 MB/s')
    """
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.3g} MB/s"
