"""The digest of a staged file: SHA-256 over the SHA-256 of its blocks.

A plain SHA-256 is bound to one core: at 0.1 GB/s of a slow one, the 42 GB of ImageNet take seven minutes.
Blocks are hashed by several cores, while the rest of the file is still on its way. Coreutils compute it too,
so that a node needs no Python of ours:

    split -b 16M --filter='sha256sum | cut -c 1-64' data.mdb | sha256sum
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

BLOCK_BYTES = 16 << 20
_PIECE_BYTES = 1 << 20
# More readers than this gain nothing on one disk.
MOST_HASHERS = 8


def combine_blocks(digests: Iterable[str]) -> str:
    """Return a file's digest from those of its blocks, in order.

    >>> combine_blocks([hashlib.sha256(b"records").hexdigest()])[:16]
    'c477d56a6c8271a5'
    """
    return hashlib.sha256("".join(f"{digest}\n" for digest in digests).encode()).hexdigest()


def count_blocks(size_bytes: int) -> int:
    """Return the number of blocks of a file, the last of which may be short.

    >>> [count_blocks(n) for n in (0, 1, BLOCK_BYTES, BLOCK_BYTES + 1)]
    [0, 1, 1, 2]
    """
    return -(-size_bytes // BLOCK_BYTES)


def block_digest(file: int, block: int, size_bytes: int) -> str:
    """Return the SHA-256 of a block of an open file; raises OSError, also where the file ends early."""
    digest, at = hashlib.sha256(), block * BLOCK_BYTES
    end = min(at + BLOCK_BYTES, size_bytes)
    while at < end:
        piece = os.pread(file, min(_PIECE_BYTES, end - at), at)
        if not piece:
            raise OSError(f"ends at byte {at} of {size_bytes}")
        digest.update(piece)
        at += len(piece)
    return digest.hexdigest()


def file_digest(file: int, size_bytes: int) -> str:
    """Return the digest of an open file, hashed by several threads; raises OSError."""
    with ThreadPoolExecutor(hasher_count()) as pool:
        return combine_blocks(
            pool.map(lambda block: block_digest(file, block, size_bytes), range(count_blocks(size_bytes)))
        )


def hasher_count() -> int:
    """Return how many threads hash: one for each core that this process may use, up to eight."""
    return min(MOST_HASHERS, len(os.sched_getaffinity(0)))
