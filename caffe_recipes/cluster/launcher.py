"""The argv of `mpiexec.hydra`, and the environment that its ranks get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

HYDRA = "mpiexec.hydra"

# How Intel MPI's hydra is told the fabric; other hydras refuse the option, so nothing is passed without one.
FABRIC_OPTIONS: Mapping[str, tuple[str, ...]] = {"psm2": ("-PSM2",)}


def thread_environment(omp_num_threads: int, kmp_affinity: str | None = None) -> dict[str, str]:
    """Return the OpenMP variables of a rank, in the order they are written.

    >>> thread_environment(22)
    {'OMP_NUM_THREADS': '22'}
    """
    pinning = {} if kmp_affinity is None else {"KMP_AFFINITY": kmp_affinity}
    return {"OMP_NUM_THREADS": str(omp_num_threads), **pinning}


def mlsl_environment(num_servers: int, server_affinity: Sequence[int]) -> dict[str, str]:
    """Return the variables of Intel MLSL's communication servers and the cores they run on.

    >>> mlsl_environment(2, (39, 38, 43, 42))
    {'MLSL_NUM_SERVERS': '2', 'MLSL_SERVER_AFFINITY': '39,38,43,42'}
    """
    return {
        "MLSL_NUM_SERVERS": str(num_servers),
        "MLSL_SERVER_AFFINITY": ",".join(str(core) for core in server_affinity),
    }


def hydra_argv(
    command: Sequence[str],
    *,
    nodes: int,
    ranks_per_node: int,
    environment: Mapping[str, str],
    hostfile: str = "hostfile",
    fabric: str | None = None,
) -> tuple[str, ...]:
    """Return the argv that runs `command` on nodes x ranks_per_node ranks.

    `-l` puts `[rank] ` before each line of output; `environment` reaches every rank by `-genv`. The hostfile
    must hold `nodes` hosts: with fewer, hydra wraps around without a word.

    >>> " ".join(hydra_argv(["caffe"], nodes=2, ranks_per_node=2, environment={"A": "1"}, fabric="psm2"))
    'mpiexec.hydra -PSM2 -l -n 4 -ppn 2 -f hostfile -genv A 1 caffe'
    """
    fabric_options = FABRIC_OPTIONS[fabric] if fabric else ()
    shape = ("-l", "-n", str(nodes * ranks_per_node), "-ppn", str(ranks_per_node), "-f", hostfile)
    genv = (word for name, value in environment.items() for word in ("-genv", name, value))
    return (HYDRA, *fabric_options, *shape, *genv, *command)
