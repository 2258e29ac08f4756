"""A process's place among the ranks of a run, from the environment variables that launchers set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from caffe_recipes.errors import InputError
from caffe_recipes.wording import join_names, plural

# Of hydra, Intel MPI and `srun --mpi=pmi2`, and of Open MPI.
_OF_MPI = (("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))
_OF_TORCHRUN = ("RANK", "WORLD_SIZE")
_ONLY_TORCHRUN = "TORCHELASTIC_RUN_ID"  # the others are also set by hand
_OF_SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")  # SLURM_NTASKS is also set in a job's script
_OF_STORE = ("MASTER_ADDR", "MASTER_PORT")
_ON_HOST = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID")


@dataclass(frozen=True)
class RankPlace:
    """A rank, the number of ranks, and whether they meet by MPI, or in a store at MASTER_ADDR."""

    rank: int = 0
    size: int = 1
    by_mpi: bool = False


def find_place(environment: Mapping[str, str]) -> RankPlace:
    """Return this process's place among the ranks, that of a single one without a launcher.

    Launchers may be nested: torchrun's variables hold within `srun --mpi=pmi2`, which starts one on each
    node, and those of srun only without others, and with a store: a step may also start several commands that
    have nothing to do with each other. Raises InputError if they contradict each other.

    >>> find_place({"PMI_RANK": "3", "PMI_SIZE": "8"}), find_place({})
    (RankPlace(rank=3, size=8, by_mpi=True), RankPlace(rank=0, size=1, by_mpi=False))
    """
    mpi = next(filter(None, (_read(environment, *names) for names in _OF_MPI)), None)
    torchrun = _read(environment, *_OF_TORCHRUN)
    is_inner = torchrun is not None and _ONLY_TORCHRUN in environment
    if mpi and torchrun and mpi != torchrun and not is_inner:
        (rank, size), (other, others) = mpi, torchrun
        what = f"RANK {other} of WORLD_SIZE {others} contradicts rank {rank} of {size} of the MPI launcher"
        raise InputError("", what, "unset RANK and WORLD_SIZE, or the variables of MPI")
    if mpi and not is_inner:
        return RankPlace(*mpi, by_mpi=True)
    meets = _ONLY_TORCHRUN not in environment and any(map(environment.get, _OF_STORE))
    srun = _read(environment, *_OF_SRUN) if meets else None
    return RankPlace(*(torchrun or srun or (0, 1)))


def check_store(environment: Mapping[str, str]) -> None:
    """Raise InputError if several ranks have neither MPI nor the address of a store to meet in."""
    place = find_place(environment)
    if place.size < 2 or place.by_mpi:
        return
    missing = [name for name in _OF_STORE if not environment.get(name)]
    if missing:
        names = f"{join_names(missing)} {plural(len(missing), 'is', 'are')} not set"
        hint = "start them with mpiexec.hydra, torchrun or srun --mpi=pmi2"
        raise InputError("", f"this is one of {place.size} ranks, but {names}", hint)
    port = _integer(environment, "MASTER_PORT")
    if not 0 < port < 2**16:
        raise InputError("MASTER_PORT", f"is {port}", "give 1 to 65535")


def _read(environment: Mapping[str, str], rank: str, size: str) -> tuple[int, int] | None:
    """Return the rank and the number of ranks in two variables, if there are several ranks."""
    if rank not in environment or size not in environment:
        return None
    number, count = _integer(environment, rank), _integer(environment, size)
    if count < 1:
        raise InputError(size, f"is {count}", "give 1 or more")
    if not 0 <= number < count:
        raise InputError(rank, f"is {number}, but {size} is {count}", f"give 0 to {count - 1}")
    return (number, count) if count > 1 else None


def rank_on_host(environment: Mapping[str, str]) -> int:
    """Return this process's number among the ranks of its host, from the launcher's environment variables.

    >>> rank_on_host({"MPI_LOCALRANKID": "1"}), rank_on_host({})
    (1, 0)
    """
    names = ("LOCAL_RANK", *_ON_HOST) if _ONLY_TORCHRUN in environment else _ON_HOST
    name = next((name for name in names if name in environment), "")
    number = _integer(environment, name) if name else 0
    if number < 0:
        raise InputError(name, f"is {number}", "give 0 or more")
    return number


def _integer(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        hint = "unset it, or start the ranks with a launcher"
        raise InputError(name, f"'{environment[name][:80]}' is not an integer", hint) from None
