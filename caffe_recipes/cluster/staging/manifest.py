"""Cache the digests of sources, which every copy is checked against, and of copies not made by staging.

A copy that staging did not make has no stamp and gets none, since `--clean` must not remove it. Each run
checks it twice, and hashing 42 GB takes minutes, so its digest is cached until the copy changes. The cache is
in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from caffe_recipes.cluster.staging.relay import DATA, digest_of
from caffe_recipes.errors import ClusterError, DataError
from caffe_recipes.files import is_changed_by_group, lock, read_within, reading, write_whole

# A file modified more recently may be written again without a change of its mtime, which has a coarse clock.
_SETTLED_S = 2.0
_SAVING = threading.Lock()


@dataclass(frozen=True)
class SourceFile:
    """The source file on this machine, with the attributes that change when it is written."""

    data: Path
    size_bytes: int
    mtime_ns: int
    inode: int


def cache_folder() -> Path:
    """Return the path of our folder in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home.startswith("/") else Path.home() / ".cache") / "caffe-recipes"


def find_source(folder: Path) -> SourceFile:
    """Return the data file of the LMDB in a folder. Raises DataError if there is none."""
    data = folder.absolute() / DATA
    with reading(data, DataError, "give the LMDB's folder"):
        status = data.stat()
    if not data.is_file() or status.st_size == 0:
        raise DataError(data, "is not an LMDB", "give the LMDB's folder")
    return SourceFile(data, status.st_size, status.st_mtime_ns, status.st_ino)


def stat_source(path: Path) -> SourceFile:
    """Return a source file with its attributes. Raises DataError if it does not exist."""
    with reading(path, DataError, "copy or create the files again"):
        status = path.stat()
    return SourceFile(path, status.st_size, status.st_mtime_ns, status.st_ino)


def load_digest(source: SourceFile, cache: Path) -> str | None:
    """Return the cached digest of a source; None if the source was never hashed, or has changed since."""
    try:
        known = json.loads(read_within(private_cache(cache) / _manifest_name(source), "json-bytes"))
    except (OSError, ValueError):
        return None
    if not isinstance(known, dict) or {**known, "digest": ""} != _identity(source, ""):
        return None
    return str(known["digest"])


def hash_source(source: SourceFile, cache: Path) -> str:
    """Hash a source, and cache and return its digest. Raises DataError, also if the source changes."""
    with reading(source.data, DataError, "check its disk"):
        digest = digest_of(source.data)
    save_digest(source, digest, cache)
    return digest


def known_digest(source: SourceFile, cache: Path) -> str:
    """Return the digest of a source, from the cache or by hashing it. Raises DataError."""
    return load_digest(source, cache) or hash_source(source, cache)


def save_digest(source: SourceFile, digest: str, cache: Path) -> None:
    """Cache the digest of a source. Raises DataError if the source has changed."""
    if stat_source(source.data) != source:
        raise DataError(
            source.data,
            "changed while it was being staged",
            "stop the program that writes to it, and stage again",
        )
    if time.time() - source.mtime_ns / 1e9 > _SETTLED_S:
        with contextlib.suppress(OSError):  # without a cache it is hashed again next time
            write_cache_file(
                private_cache(cache) / _manifest_name(source), json.dumps(_identity(source, digest))
            )


@contextlib.contextmanager
def staging_lock(lmdb: str, cache: Path) -> Iterator[None]:
    """Hold the lock for staging to a path. Raises ClusterError if another process of the user holds it."""
    name = hashlib.sha256(lmdb.encode(errors="surrogateescape")).hexdigest()[:16]
    busy = ClusterError(lmdb, "is being staged by another process", "wait for it to end")
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # without a lock each node still verifies its copy
            held.enter_context(lock(private_cache(cache) / f"stage-{name}.lock", busy))
        yield


def private_cache(cache: Path) -> Path:
    """Return the cache folder, created if needed.

    Raises OSError if other users can write there, and so could plant a false digest.
    """
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = cache.stat()
    if status.st_uid != os.geteuid() or status.st_mode & stat.S_IWOTH or is_changed_by_group(cache):
        raise PermissionError(errno.EPERM, "other users can write there", str(cache))
    return cache


def write_cache_file(path: Path, text: str) -> None:
    """Write a file of the cache atomically, readable only by the user. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole({path: text.encode()}, mode=0o600)


def _manifest_name(source: SourceFile) -> Path:
    name = hashlib.sha256(os.fsencode(source.data)).hexdigest()[:32]
    return Path("manifests") / f"{name}.json"


def _identity(source: SourceFile, digest: str) -> dict[str, str | int]:
    return {
        "path": str(source.data),
        "bytes": source.size_bytes,
        "mtime_ns": source.mtime_ns,
        "inode": source.inode,
        "digest": digest,
    }


class Copy(NamedTuple):
    """A file on a host: its stamp, which changes whenever it is written, and its digest at that stamp."""

    stamp: str
    digest: str


def load_copies(lmdb: str, cache: Path) -> dict[str, Copy]:
    """Return the cached copies of an LMDB by host, or the cached files of a set on one host by name.

    The cache is ignored if other users can write to it.
    """
    try:
        known = json.loads(read_within(private_cache(cache) / _copies_name(lmdb), "json-bytes"))
        return {str(host): Copy(str(stamp), str(digest)) for host, (stamp, digest) in known.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def save_copies(lmdb: str, found: Mapping[str, Copy], cache: Path) -> None:
    """Add copies to the cache; the hosts that have an LMDB share one file."""
    with _SAVING, contextlib.suppress(OSError):  # without a cache they are hashed again next time
        copies = {**load_copies(lmdb, cache), **found}
        write_cache_file(private_cache(cache) / _copies_name(lmdb), json.dumps(copies))


def _copies_name(lmdb: str) -> Path:
    return Path("copies") / f"{hashlib.sha256(os.fsencode(lmdb)).hexdigest()[:32]}.json"
