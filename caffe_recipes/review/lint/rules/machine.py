"""Rules for the machine: cores for OpenMP threads and MLSL servers, and space in /tmp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from caffe_recipes.caffe.chain import planned_snapshots
from caffe_recipes.caffe.weights import weights_bytes
from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.lint.registry import Explanation, finding
from caffe_recipes.review.lint.subjects import RecipeView, recipe_rule
from caffe_recipes.wording import describe_count

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import Chain, ChainFacts
    from caffe_recipes.review.lint.findings import Finding


_TMP = "/tmp/"


def busy_cores(facts: ChainFacts) -> Sequence[int]:
    """Return the cores that MLSL servers and OpenMP threads share.

    Assumes that core numbers alternate between sockets, so that the threads on a socket use its lowest
    numbers. A second hardware thread counts as its core.

    >>> from caffe_recipes.caffe.chain import ChainFacts
    >>> busy_cores(ChainFacts(ranks_per_node=2, omp_num_threads=22, mlsl_cores=(39, 38, 43, 42)))
    (38, 39, 42, 43)
    >>> busy_cores(ChainFacts(ranks_per_node=2, omp_num_threads=22, mlsl_cores=(44, 45, 46, 47)))
    ()
    """
    threads, cores = facts.threads_per_node, facts.cores_per_node
    return tuple(sorted({core for core in facts.mlsl_cores if (core % cores if cores else core) < threads}))


@recipe_rule(
    "mlsl-on-openmp-cores",
    "note",
    "MLSL servers on cores that OpenMP threads also use",
    what="MLSL servers are pinned to cores {listed}, and {shape} may use them too",
    effect="if core numbers alternate between sockets, a server and a thread share a core, unless MLSL keeps "
    "OpenMP off that core",
    values=("cores", "threads"),
    explanation=Explanation(
        "MLSL servers run on the cores in MLSL_SERVER_AFFINITY, and OpenMP threads may run there too.",
        "Pin the servers to cores that no thread uses, or start fewer threads.",
    ),
)
def _check_recipe_cores(view: RecipeView) -> Iterator[Finding]:
    yield from check_server_cores(view.chain.facts, view.locate(("cluster", "mlsl")))


def check_server_cores(facts: ChainFacts, where: str) -> Iterator[Finding]:
    """Find MLSL servers on cores that OpenMP threads use."""
    busy = busy_cores(facts)
    if not busy:
        return
    first, last = facts.threads_per_node, facts.cores_per_node
    threads = describe_count(facts.omp_num_threads or 0, "OpenMP thread")
    shape = f"{describe_count(facts.ranks_per_node or 0, 'rank')} x {threads} per node"
    if facts.sockets_per_node and facts.cores_per_socket:
        each = first / facts.sockets_per_node
        shape = f"{each:g} OpenMP threads on each socket of {facts.cores_per_socket} cores"
    spare = f"cores {first} and up" if not last else f"cores between {first} and {last - 1}"
    cores = ",".join(map(str, busy))
    yield finding(
        "mlsl-on-openmp-cores",
        where,
        write=f"MLSL_SERVER_AFFINITY: {spare}" if not last or first < last else "fewer OpenMP threads",
        cores=cores,
        threads=first,
        listed=", ".join(map(str, busy)),
        shape=shape,
    )


@recipe_rule(
    "threads-above-cores",
    "warning",
    "more OpenMP threads on a node than it has cores",
    what="{ranks} ranks x {omp_threads} OpenMP threads per node on {cores} cores",
    effect="threads wait for each other in every layer, so training is many times slower",
    write="omp_num_threads: {fewer} or less",
    values=("threads", "cores"),
)
def _check_threads(view: RecipeView) -> Iterator[Finding]:
    facts, where = view.chain.facts, view.locate(("cluster", "omp_num_threads"))
    threads, cores = facts.threads_per_node, facts.cores_per_node
    if not 0 < cores < threads:
        return
    yield finding(
        "threads-above-cores",
        where,
        threads=threads,
        cores=cores,
        ranks=facts.ranks_per_node,
        omp_threads=facts.omp_num_threads,
        fewer=max(cores // (facts.ranks_per_node or 1), 1),
    )


@recipe_rule(
    "tmp-too-small",
    "error",
    "an LMDB and snapshots that together do not fit into a node's /tmp",
    what="/tmp has {tmp_gb:g} GB, but the LMDB needs {lmdb_gb:.1f} GB and the snapshots "
    "{snapshots_gb:.1f} GB",
    effect="staging fails, or Caffe aborts when it writes a snapshot",
    write="set snapshot_prefix to another disk, write fewer snapshots, or set `lmdb` to another disk",
    values=("lmdb_gb", "snapshots_gb"),
)
def _check_recipe_tmp(view: RecipeView) -> Iterator[Finding]:
    tmp_gb, train = view.recipe.cluster.tmp_gb, view.recipe.data.train
    if tmp_gb is not None:
        where = view.locate(("cluster", "tmp_gb"))
        yield from check_tmp_holds_lmdb(view.chain, where, tmp_gb, train.lmdb, train.size_gb or 0)


def check_tmp_holds_lmdb(
    chain: Chain, where: str, tmp_gb: float, lmdb: str, lmdb_gb: float
) -> Iterator[Finding]:
    """Find an LMDB and snapshots that do not fit into the first node's /tmp together."""
    data = lmdb_gb * 1e9 if lmdb.startswith(_TMP) else 0
    snapshots = sum(_snapshot_bytes(chain)) if chain.links else 0
    if data + snapshots <= tmp_gb * 1e9:
        return
    yield finding(
        "tmp-too-small",
        where,
        lmdb_gb=data / 1000000000.0,
        snapshots_gb=snapshots / 1000000000.0,
        tmp_gb=tmp_gb,
    )


def _snapshot_bytes(chain: Chain) -> Iterator[float]:
    """Yield the bytes of each phase's snapshots in /tmp; a solverstate is as large as the weights."""
    weights: dict[str, int] = {}  # by the net's path, since phases share their nets
    for link in chain.links:
        if link.net is None or not link.solver.message.snapshot_prefix.startswith(_TMP):
            continue
        if link.net.path not in weights:
            with suppress(PrototxtError):  # a net rule reports this
                weights[link.net.path] = weights_bytes(link.net.message) or 0
        yield 2 * len(planned_snapshots(link)) * weights.get(link.net.path, 0)
