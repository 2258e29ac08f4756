"""Staging: the training LMDB from the shared file system to the disk of every node, where it is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from caffe_recipes.cluster.hosts import COMMAND_S, Host, file_bytes
from caffe_recipes.errors import ClusterError

T = TypeVar("T")

# A tenth of gigabit Ethernet: a slower copy of an LMDB has come to a stop for all that anybody would wait.
SLOWEST_BYTES_PER_S = 10e6
_HOSTS_AT_ONCE = 64
# A shell's question: is there nothing, or a folder without data.mdb?
_IS_BARE = 'test ! -e "$1" || { test -d "$1" && test ! -e "$1/data.mdb"; }'


def on_all(hosts: Sequence[Host], act: Callable[[Host], T]) -> list[T]:
    """Call `act` on every host at once; results in the hosts' order, or the first host's error."""
    with ThreadPoolExecutor(_HOSTS_AT_ONCE) as pool:
        return list(pool.map(act, hosts))


def find_unstaged(hosts: Sequence[Host], source_bytes: int, lmdb: str) -> list[Host]:
    """Return the hosts that lack a copy of the LMDB at `lmdb`.

    Raises ClusterError where something else lies there: it is somebody's, and is never replaced.
    """
    lacking = on_all(hosts, lambda host: _lacks_copy(host, source_bytes, lmdb))
    return [host for host, lacks in zip(hosts, lacking, strict=True) if lacks]


def stage_lmdb(host: Host, source: Path, lmdb: str) -> None:
    """Copy the LMDB at `source` to `lmdb` on a host; a half copy never bears the final name.

    A node that sees `source` itself copies it; to one that does not, it is sent. Raises ClusterError.
    """
    records, data, part = source / "data.mdb", f"{lmdb}/data.mdb", f"{lmdb}/data.mdb.part"
    size = records.stat().st_size
    _do(host, lmdb, ["mkdir", "-p", "--", lmdb])
    try:
        if file_bytes(host, str(records)) == size:
            _do(host, lmdb, ["cp", "--", str(records), part], COMMAND_S + size / SLOWEST_BYTES_PER_S)
        else:
            host.put(records, part)
        copied = file_bytes(host, part)
        if copied != size:
            raise ClusterError(f"{host.name}:{lmdb}", f"{copied} of {size} bytes arrived", "check its disk")
        _do(host, lmdb, ["mv", "-n", "-T", "--", part, data])
        _lacks_copy(host, size, lmdb)  # what has come to lie there meanwhile was not replaced
    finally:
        host.run(["rm", "-f", "--", part])


def _lacks_copy(host: Host, source_bytes: int, lmdb: str) -> bool:
    size = file_bytes(host, f"{lmdb}/data.mdb")
    if size == source_bytes:
        return False
    if size is not None:
        what = f"holds another LMDB ({size:,} bytes, the source has {source_bytes:,})"
        raise ClusterError(f"{host.name}:{lmdb}", what, "move it away")
    if host.run(["sh", "-c", _IS_BARE, "sh", lmdb]).returncode != 0:
        raise ClusterError(f"{host.name}:{lmdb}", "holds what is no LMDB", "move it away")
    return True


def _do(host: Host, lmdb: str, argv: Sequence[str], timeout_s: float = COMMAND_S) -> None:
    done = host.run(argv, timeout_s)
    if done.returncode != 0:
        reason = " ".join(done.stderr.split()) or f"{argv[0]} returned {done.returncode}"
        raise ClusterError(
            f"{host.name}:{lmdb}", f"cannot be staged: {reason}", "check the disk and its rights"
        )
