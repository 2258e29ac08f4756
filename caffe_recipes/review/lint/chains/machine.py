"""What the machine must give: cores for threads and for MLSL's servers, and room in /tmp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.weights import weights_bytes
from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.chains.chain import Chain, Setting, fired_snapshots
from caffe_recipes.review.lint.rules import finding

_TMP = "/tmp/"


def busy_cores(setting: Setting) -> Sequence[int]:
    """Give the cores of MLSL's servers that the first OpenMP threads of each socket take too.

    Cores are taken to be numbered alternately over the sockets, so that the first ones of each are those of
    the lowest numbers; a second hardware thread is its core.

    >>> busy_cores(Setting(ranks_per_node=2, omp_num_threads=22, mlsl_cores=(39, 38, 43, 42)))
    (38, 39, 42, 43)
    >>> busy_cores(Setting(ranks_per_node=2, omp_num_threads=22, mlsl_cores=(44, 45, 46, 47)))
    ()
    """
    threads = (setting.ranks_per_node or 0) * (setting.omp_num_threads or 0)
    cores = (setting.sockets_per_node or 0) * (setting.cores_per_socket or 0)
    return tuple(sorted({core for core in setting.mlsl_cores if (core % cores if cores else core) < threads}))


def check_cores(setting: Setting, where: str) -> Iterator[Finding]:
    """Find MLSL servers on cores that OpenMP threads use."""
    busy = busy_cores(setting)
    if not busy:
        return
    ranks, threads = setting.ranks_per_node or 0, setting.omp_num_threads or 0
    shape = f"{ranks} ranks x {threads} OpenMP threads a node"
    if setting.sockets_per_node and setting.cores_per_socket:
        each = ranks * threads / setting.sockets_per_node
        shape = f"{each:g} OpenMP threads on each socket of {setting.cores_per_socket} cores"
    what = f"MLSL servers are pinned to cores {', '.join(map(str, busy))}, and {shape} may use them too"
    effect = (
        "where cores are numbered alternately over the sockets, a server and a thread share a core, "
        "unless MLSL keeps OpenMP off it"
    )
    first = ranks * threads
    last = (setting.sockets_per_node or 0) * (setting.cores_per_socket or 0)
    spare = f"cores from {first} on" if not last else f"cores of {first} to {last - 1}"
    write = f"MLSL_SERVER_AFFINITY: {spare}" if not last or first < last else "fewer OpenMP threads"
    cores = ",".join(map(str, busy))
    yield finding("mlsl-on-openmp-cores", where, what, effect, write, cores=cores, threads=first)


def check_threads(setting: Setting, where: str) -> Iterator[Finding]:
    """Find more OpenMP threads on a node than it has cores."""
    threads = (setting.ranks_per_node or 0) * (setting.omp_num_threads or 0)
    cores = (setting.sockets_per_node or 0) * (setting.cores_per_socket or 0)
    if not 0 < cores < threads:
        return
    what = (
        f"{setting.ranks_per_node} ranks x {setting.omp_num_threads} OpenMP threads, on {cores} cores a node"
    )
    effect = "threads wait for each other at every layer: training is many times slower"
    write = f"omp_num_threads: {max(cores // (setting.ranks_per_node or 1), 1)} or less"
    yield finding("threads-above-cores", where, what, effect, write, threads=threads, cores=cores)


def check_tmp(chain: Chain, where: str, tmp_gb: float, lmdb: str, lmdb_gb: float) -> Iterator[Finding]:
    """Find an LMDB and snapshots that together do not fit into the first node's /tmp."""
    data = lmdb_gb * 1e9 if lmdb.startswith(_TMP) else 0
    snapshots = sum(_snapshot_bytes(chain)) if chain.links else 0
    if data + snapshots <= tmp_gb * 1e9:
        return
    what = (
        f"/tmp holds {tmp_gb:g} GB, and the LMDB takes {data / 1e9:.1f} GB and the snapshots "
        f"{snapshots / 1e9:.1f} GB of it"
    )
    effect = "staging fails, or Caffe stops when it writes a snapshot"
    write = "snapshot_prefix on another disk, fewer snapshots, or another `lmdb`"
    yield finding(
        "tmp-too-small", where, what, effect, write, lmdb_gb=data / 1e9, snapshots_gb=snapshots / 1e9
    )


def _snapshot_bytes(chain: Chain) -> Iterator[float]:
    """Give the bytes of each phase's snapshots in /tmp: the weights, and in the solverstate as much again."""
    for link in chain.links:
        if link.net is None or not link.solver.message.snapshot_prefix.startswith(_TMP):
            continue
        try:
            weights = weights_bytes(link.net.message, pb.TRAIN)
        except PrototxtError:  # a rule of the net's own
            continue
        yield 2 * len(fired_snapshots(link)) * (weights or 0)
