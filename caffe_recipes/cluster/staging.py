"""Staging: the training LMDB from the shared file system to the disk of every node, where it is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from caffe_recipes.cluster.hosts import Host, file_bytes
from caffe_recipes.errors import ClusterError

T = TypeVar("T")

# 42 GB at 10 MB/s, the slowest link that anybody would wait for.
COPY_S = 4200.0
_HOSTS_AT_ONCE = 64


def on_all(hosts: Sequence[Host], act: Callable[[Host], T]) -> list[T]:
    """Call `act` on every host at once; results in the hosts' order, or the first host's error."""
    with ThreadPoolExecutor(_HOSTS_AT_ONCE) as pool:
        return list(pool.map(act, hosts))


def find_unstaged(hosts: Sequence[Host], source_bytes: int, lmdb: str) -> list[Host]:
    """Return the hosts whose copy of the LMDB at `lmdb` is missing or of another size than the source."""
    sizes = on_all(hosts, lambda host: file_bytes(host, f"{lmdb}/data.mdb"))
    return [host for host, size in zip(hosts, sizes, strict=True) if size != source_bytes]


def stage_lmdb(host: Host, source: Path, lmdb: str) -> None:
    """Copy the LMDB at `source` to `lmdb` on a host; a half copy never bears the final name.

    A node that sees `source` itself copies it; to one that does not, it is sent. Raises ClusterError.
    """
    size = (source / "data.mdb").stat().st_size
    part = f"{lmdb}.part"
    data = f"{part}/data.mdb"
    _do(host, lmdb, ["rm", "-rf", "--", part])
    _do(host, lmdb, ["mkdir", "-p", "--", part])
    try:
        if file_bytes(host, str(source / "data.mdb")) == size:
            _do(host, lmdb, ["cp", "--", str(source / "data.mdb"), data])
        else:
            host.put(source / "data.mdb", data)
        copied = file_bytes(host, data)
        if copied != size:
            raise ClusterError(f"{host.name}:{lmdb}", f"{copied} of {size} bytes arrived", "check its disk")
        _do(host, lmdb, ["rm", "-rf", "--", lmdb])
        _do(host, lmdb, ["mv", "-T", "--", part, lmdb])
    finally:
        host.run(["rm", "-rf", "--", part])


def _do(host: Host, lmdb: str, argv: Sequence[str]) -> None:
    done = host.run(argv, timeout_s=COPY_S)
    if done.returncode != 0:
        reason = " ".join(done.stderr.split()) or f"{argv[0]} returned {done.returncode}"
        raise ClusterError(
            f"{host.name}:{lmdb}", f"cannot be staged: {reason}", "check the disk and its rights"
        )
