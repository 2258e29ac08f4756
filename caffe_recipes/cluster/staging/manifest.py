"""The manifest of an LMDB: the size and digest that every copy is held against, kept for the next staging.

What copies that staging did not make were found to be, kept as long as they do not change.

Such a copy has no stamp, and gets none: it is not ours to take away. A run looks at it twice, and so does the
next: of 42 GB that would be minutes each time. What is kept is in the user's cache, beside the manifests.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from caffe_recipes.cluster.staging.relay import DATA, file_digest
from caffe_recipes.errors import ClusterError, DataError
from caffe_recipes.files import is_changed_by_group, lock, read_within, reading, write_whole

# A file younger than this may be written again within one tick of its file system's clock.
_SETTLED_S = 2.0


@dataclass(frozen=True)
class Manifest:
    """What a whole copy is."""

    size_bytes: int
    digest: str


@dataclass(frozen=True)
class SourceFile:
    """The LMDB that is staged, as this machine sees it."""

    data: Path
    size_bytes: int
    mtime_ns: int
    inode: int


def cache_folder() -> Path:
    """Return where manifests are kept: the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home.startswith("/") else Path.home() / ".cache") / "caffe-recipes"


def find_source(folder: Path) -> SourceFile:
    """Return the LMDB in a folder; raises DataError where there is none."""
    data = folder.absolute() / DATA
    with reading(data, DataError, "give the LMDB's folder"):
        status = data.stat()
    if not data.is_file() or status.st_size == 0:
        raise DataError(data, "is no LMDB", "give the LMDB's folder")
    return SourceFile(data, status.st_size, status.st_mtime_ns, status.st_ino)


def load_manifest(source: SourceFile, cache: Path) -> Manifest | None:
    """Return what is known of a source that has not changed since; None if it has, or was never hashed."""
    try:
        known = json.loads(read_within(own_cache(cache) / _manifest_name(source), "json-bytes"))
    except (OSError, ValueError):
        return None
    if not isinstance(known, dict) or {**known, "digest": ""} != _identity(source, ""):
        return None
    return Manifest(source.size_bytes, str(known["digest"]))


def hash_source(source: SourceFile, cache: Path) -> Manifest:
    """Hash a source and keep what was found; raises DataError, also where it changes meanwhile."""
    with reading(source.data, DataError, "check its disk"), source.data.open("rb") as file:
        digest = file_digest(file.fileno(), source.size_bytes)
    return keep_manifest(source, digest, cache)


def keep_manifest(source: SourceFile, digest: str, cache: Path) -> Manifest:
    """Keep the digest of a source; raises DataError where the source is not what it was."""
    if find_source(source.data.parent) != source:
        raise DataError(
            source.data, "changed while it was staged", "let nothing write to it, and stage again"
        )
    if time.time() - source.mtime_ns / 1e9 > _SETTLED_S:
        with contextlib.suppress(OSError):  # without a home of ours it is hashed again
            write_kept(own_cache(cache) / _manifest_name(source), json.dumps(_identity(source, digest)))
    return Manifest(source.size_bytes, digest)


@contextlib.contextmanager
def only_one(lmdb: str, cache: Path) -> Iterator[None]:
    """Hold the right to stage to one place; raises ClusterError where another process of the user has it."""
    name = hashlib.sha256(lmdb.encode(errors="surrogateescape")).hexdigest()[:16]
    busy = ClusterError(lmdb, "is being staged by another process", "wait for it to end")
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # then each node still verifies what it takes
            held.enter_context(lock(own_cache(cache) / f"stage-{name}.lock", busy))
        yield


def own_cache(cache: Path) -> Path:
    """Return the cache, made if need be; raises OSError where others can write: they could plant a digest."""
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = cache.stat()
    if status.st_uid != os.geteuid() or status.st_mode & stat.S_IWOTH or is_changed_by_group(status):
        raise PermissionError(errno.EPERM, "others can write there", str(cache))
    return cache


def write_kept(path: Path, text: str) -> None:
    """Write a file of the cache, readable by us alone; it changes in one step. Raises OSError."""
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
    """A file on a host: what changes whenever it is written, and the digest that it had then."""

    stamp: str
    digest: str


def load_copies(lmdb: str, cache: Path) -> dict[str, Copy]:
    """Return what is known of an LMDB's copies, by host; nothing where others could have written it."""
    try:
        known = json.loads(read_within(own_cache(cache) / _copies_name(lmdb), "json-bytes"))
        return {str(host): Copy(str(stamp), str(digest)) for host, (stamp, digest) in known.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def keep_copies(lmdb: str, found: Mapping[str, Copy], cache: Path) -> None:
    """Keep what copies were found to be, beside what is known of others."""
    copies = {**load_copies(lmdb, cache), **found}
    with contextlib.suppress(OSError):  # without a cache of ours they are hashed again
        write_kept(own_cache(cache) / _copies_name(lmdb), json.dumps(copies))


def _copies_name(lmdb: str) -> Path:
    return Path("copies") / f"{hashlib.sha256(os.fsencode(lmdb)).hexdigest()[:32]}.json"
