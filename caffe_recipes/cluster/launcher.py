"""The argv of the programs that start ranks: Hydra's mpiexec, Slurm's srun, TACC's ibrun."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # pydantic is slow to come, and not needed to write a command
    from caffe_recipes.cluster.profiles import Container

HYDRA = "mpiexec.hydra"

# How Intel MPI's hydra is told the fabric; other hydras refuse the option, so nothing is passed without one.
FABRIC_OPTIONS: Mapping[str, tuple[str, ...]] = {"psm2": ("-PSM2",)}
# PATH, number of modules, modules, command; what a module puts on PATH comes before what was there.
_WITH_MODULES = (
    'path=$1 count=$2; shift 2; module load "${@:1:count}" || exit 126; shift "$count"; '
    'export PATH="$PATH:$path"; exec "$@"'
)


def thread_environment(omp_num_threads: int, kmp_affinity: str | None = None) -> dict[str, str]:
    """Return the OpenMP variables of a rank, in the order they are written.

    >>> thread_environment(22)
    {'OMP_NUM_THREADS': '22'}
    """
    pinning = {} if kmp_affinity is None else {"KMP_AFFINITY": kmp_affinity}
    return {"OMP_NUM_THREADS": str(omp_num_threads), **pinning}


def mlsl_environment(num_servers: int | None, server_affinity: Sequence[int]) -> dict[str, str]:
    """Return the variables of Intel MLSL's communication servers and the cores they run on, if said.

    >>> mlsl_environment(2, (39, 38, 43, 42))
    {'MLSL_NUM_SERVERS': '2', 'MLSL_SERVER_AFFINITY': '39,38,43,42'}
    """
    cores = ",".join(str(core) for core in server_affinity)
    number = {} if num_servers is None else {"MLSL_NUM_SERVERS": str(num_servers)}
    return number | ({"MLSL_SERVER_AFFINITY": cores} if cores else {})


def hydra_argv(
    command: Sequence[str],
    *,
    nodes: int,
    ranks_per_node: int,
    environment: Mapping[str, str],
    hostfile: str = "hostfile",
    fabric: str | None = None,
    options: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the argv that runs `command` on nodes x ranks_per_node ranks.

    `-l` puts `[rank] ` before each line of output; `environment` reaches every rank by `-genv`. The hostfile
    must hold `nodes` hosts: with fewer, hydra wraps around without a word.

    >>> " ".join(hydra_argv(["caffe"], nodes=2, ranks_per_node=2, environment={"A": "1"}, fabric="psm2"))
    'mpiexec.hydra -PSM2 -l -n 4 -ppn 2 -f hostfile -genv A 1 caffe'
    """
    given = (*(FABRIC_OPTIONS[fabric] if fabric else ()), *options)
    shape = ("-l", "-n", str(nodes * ranks_per_node), "-ppn", str(ranks_per_node), "-f", hostfile)
    genv = (word for name, value in environment.items() for word in ("-genv", name, value))
    return (HYDRA, *given, *shape, *genv, *command)


def srun_argv(
    command: Sequence[str],
    *,
    hosts: Sequence[str],
    ranks_per_node: int,
    options: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the argv that runs `command` on the ranks of a job step, in the order of `hosts`.

    As srun(1) has it: an arbitrary distribution takes the tasks in the order of a node list that names a host
    once for each of its tasks; `--label` puts `rank: ` before each line of output; MPICH and Intel MPI meet
    Slurm by PMI-2. A rank gets srun's own environment: `--export` would cut a value at its commas.
    A rank may use all that the job has of its node, and the threads' own affinity decides, as elsewhere:
    `--cpus-per-task` would imply `--exact`, and take the cores beyond the threads from MLSL's servers.
    Without `--disable-status` a first SIGINT has srun print its status, and no rank is told to stop.

    >>> " ".join(srun_argv(["caffe"], hosts=["c2", "c1"], ranks_per_node=2))
    'srun --mpi=pmi2 --label --export=ALL --disable-status --cpu-bind=none --ntasks=4 --nodes=2 \
--distribution=arbitrary --nodelist=c2,c2,c1,c1 caffe'
    """
    placed = ",".join(host for host in hosts for _ in range(ranks_per_node))
    shape = (f"--ntasks={len(hosts) * ranks_per_node}", f"--nodes={len(hosts)}")
    places = ("--distribution=arbitrary", f"--nodelist={placed}")
    ways = ("--mpi=pmi2", "--label", "--export=ALL", "--disable-status", "--cpu-bind=none")
    return ("srun", *ways, *options, *shape, *places, *command)


def ibrun_argv(command: Sequence[str], *, ranks: int, options: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the argv that runs `command` on the first ranks of the job around us.

    TACC's user guides: `ibrun -n RANKS -o 0 PROGRAM`. It takes hosts and ranks a node from the Slurm job, and
    what its MPI's own mpiexec is to be given from MY_MPIRUN_OPTIONS.

    >>> " ".join(ibrun_argv(["caffe"], ranks=4))
    'ibrun -n 4 -o 0 caffe'
    """
    return ("ibrun", *options, "-n", str(ranks), "-o", "0", *command)


def launcher_argv(
    program: str,
    command: Sequence[str],
    *,
    hosts: Sequence[str],
    ranks_per_node: int,
    environment: Mapping[str, str],
    hostfile: str,
    options: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the argv that has a launcher start `command` on every rank; rank 0 is on the first host.

    The hostfile holds `hosts`, one a line. Each of `options` may be several words.
    """
    words = [word for option in options for word in option.split()]
    argv: Mapping[str, Callable[[], tuple[str, ...]]] = {
        HYDRA: lambda: hydra_argv(
            command,
            nodes=len(hosts),
            ranks_per_node=ranks_per_node,
            environment=environment,
            hostfile=hostfile,
            options=words,
        ),
        "srun": lambda: srun_argv(command, hosts=hosts, ranks_per_node=ranks_per_node, options=words),
        "ibrun": lambda: ibrun_argv(command, ranks=len(hosts) * ranks_per_node, options=words),
    }
    return argv[program]()


def launcher_environment(program: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the launcher's own process is given, so that every rank gets `environment`.

    All of them hand on their own environment. ibrun is given by it what puts `[rank] ` before each line, too.

    >>> launcher_environment("ibrun", {"A": "1"})
    {'A': '1', 'MY_MPIRUN_OPTIONS': '-l'}
    """
    return {**environment, **({"MY_MPIRUN_OPTIONS": "-l"} if program == "ibrun" else {})}


def in_container(argv: Sequence[str], container: Container | None) -> tuple[str, ...]:
    """Return the argv that runs `argv` in a container, if there is one.

    Apptainer's user guide: `apptainer exec [OPTION]... IMAGE PROGRAM...` hands on its environment, and so
    what ranks are known by; starts in the folder that it is called in; shares the host's processes, so that
    the program can be sent signals; and mounts /tmp and the home. Other folders are bound by its options.

    >>> in_container(["./caffe", "train"], None)
    ('./caffe', 'train')
    """
    if container is None:
        return tuple(argv)
    return (container.program, "exec", *container.options, container.image, *argv)


def with_modules(argv: Sequence[str], modules: Sequence[str], path: str) -> tuple[str, ...]:
    """Return the argv that loads modules and then becomes `argv`; `path` is looked through after theirs.

    `module` is a function of login shells. Without modules there is no shell.

    >>> with_modules(["caffe", "train"], (), "/usr/bin")
    ('caffe', 'train')
    """
    if not modules:
        return tuple(argv)
    return ("bash", "-lc", _WITH_MODULES, "caffe-recipes", path, str(len(modules)), *modules, *argv)
