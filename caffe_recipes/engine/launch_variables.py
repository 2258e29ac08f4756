"""A process's place among the ranks of a run, from the environment variables that launchers set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from caffe_recipes.errors import InputError
from caffe_recipes.wording import join_names, plural

# The variables of a rank, of the number of ranks, and of the rank's number on its host, by who sets them.
_OF_HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")  # also Intel MPI, and `srun --mpi=pmi2`
_OF_OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")  # also set by hand
_OF_SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")  # SLURM_NTASKS is also set in a script
_ONLY_TORCHRUN = "TORCHELASTIC_RUN_ID"
_OF_STORE = ("MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class RankPlace:
    """A rank, the number of ranks, and whether they meet by MPI, or in a store at MASTER_ADDR."""

    rank: int = 0
    size: int = 1
    by_mpi: bool = False


def find_place(environment: Mapping[str, str]) -> RankPlace:
    """Return this process's place among the ranks, that of a single one without a launcher.

    Launchers may be nested. A process of torchrun has torchrun's place, since torchrun starts no other
    launcher. Any other has that of the first that started several: MPI, RANK and WORLD_SIZE by hand, and srun
    if there is a store to meet in, since a step may also start commands that have nothing to do with each
    other. Raises InputError if MPI and variables set by hand contradict each other.

    >>> find_place({"PMI_RANK": "3", "PMI_SIZE": "8"}), find_place({})
    (RankPlace(rank=3, size=8, by_mpi=True), RankPlace(rank=0, size=1, by_mpi=False))
    """
    return _find_launcher(environment)[0]


def rank_on_host(environment: Mapping[str, str]) -> int:
    """Return this process's number among the ranks of its host, from the variables of its launcher.

    >>> rank_on_host({"MPI_LOCALRANKID": "1"}), rank_on_host({})
    (1, 0)
    """
    _, launcher = _find_launcher(environment)
    names = [of[2] for of in (launcher, _OF_HYDRA, _OF_OPEN_MPI, _OF_TORCHRUN, _OF_SRUN)]
    name = next((name for name in names if name in environment), "")
    number = _integer(environment, name) if name else 0
    if number < 0:
        raise InputError(name, f"is {number}", "give 0 or more")
    return number


def _find_launcher(environment: Mapping[str, str]) -> tuple[RankPlace, tuple[str, str, str]]:
    """Return this process's place, and the variables of the launcher that it is from."""
    torchrun = _read(environment, _OF_TORCHRUN)
    if _ONLY_TORCHRUN in environment:
        return RankPlace(*(torchrun or (0, 1))), _OF_TORCHRUN
    for launcher in (_OF_HYDRA, _OF_OPEN_MPI):
        mpi = _read(environment, launcher)
        if mpi and torchrun and mpi != torchrun:
            (rank, size), (other, others) = mpi, torchrun
            what = (
                f"RANK {other} of WORLD_SIZE {others} contradicts rank {rank} of {size} of the MPI launcher"
            )
            raise InputError("", what, "unset RANK and WORLD_SIZE, or the variables of MPI")
        if mpi:
            return RankPlace(*mpi, by_mpi=True), launcher
    srun = _read(environment, _OF_SRUN) if any(map(environment.get, _OF_STORE)) else None
    if srun and not torchrun:
        return RankPlace(*srun), _OF_SRUN
    return RankPlace(*(torchrun or (0, 1))), _OF_TORCHRUN if torchrun else _OF_HYDRA


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


def count_lone_tasks(environment: Mapping[str, str]) -> int:
    """Return the number of tasks in this srun step if this one trains alone, as for commands without ranks.

    >>> count_lone_tasks({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "8"}), count_lone_tasks({})
    (8, 1)
    """
    try:
        tasks = None if _ONLY_TORCHRUN in environment else _read(environment, _OF_SRUN)
    except InputError:  # left over from another step
        return 1
    return tasks[1] if tasks and find_place(environment).size == 1 else 1


def _read(environment: Mapping[str, str], launcher: tuple[str, str, str]) -> tuple[int, int] | None:
    """Return the rank and the number of ranks in a launcher's variables, if there are several ranks."""
    rank, size, _ = launcher
    if rank not in environment or size not in environment:
        return None
    number, count = _integer(environment, rank), _integer(environment, size)
    if count < 1:
        raise InputError(size, f"is {count}", "give 1 or more")
    if not 0 <= number < count:
        raise InputError(rank, f"is {number}, but {size} is {count}", f"give 0 to {count - 1}")
    return (number, count) if count > 1 else None


def _integer(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        hint = "unset it, or start the ranks with a launcher"
        raise InputError(name, f"'{environment[name][:80]}' is not an integer", hint) from None
