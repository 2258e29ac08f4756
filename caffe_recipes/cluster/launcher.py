"""The argv of the programs that start ranks: Hydra's mpiexec, Slurm's srun, TACC's ibrun.

Asking the launcher that is really there: which it is, and whether it knows an option.

What the ssh that hydra starts itself is told: it asks nobody, adds no host key, forwards no agent.

Hydra calls `ssh -x` with what the user has configured. Without a terminal ssh still asks by SSH_ASKPASS,
where a graphical session has set it, and adds keys where `accept-new` or `no` stands in ~/.ssh/config.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from caffe_recipes.cluster.commands import Host
from caffe_recipes.errors import ClusterError

if TYPE_CHECKING:
    from caffe_recipes.cluster.profiles import Container


HYDRA = "mpiexec.hydra"

# How Intel MPI's hydra is told the fabric; other hydras refuse the option, so nothing is passed without one.
FABRIC_OPTIONS: Mapping[str, tuple[str, ...]] = {"psm2": ("-PSM2",)}
# PATH, number of modules, modules, command; what a module puts on PATH comes before what was there. The
# profile's variables are set once more, since a login and modules set some as well.
_AFTER_MODULES = "CAFFE_RECIPES_AFTER_MODULES"
_WITH_MODULES = (
    'path=$1 count=$2; shift 2; module load "${@:1:count}" || exit 126; shift "$count"; '
    f'eval "${{{_AFTER_MODULES}-}}"; unset {_AFTER_MODULES}; export PATH="$PATH:$path"; exec "$@"'
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

    `-l` puts `[rank] ` before each line of output; `environment` reaches every rank by `-genv`, where every
    user of the node can read it: what may be secret goes by launcher_environment. The hostfile must hold
    `nodes` hosts: with fewer, hydra wraps around without a word.

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


def launcher_environment(
    program: str, environment: Mapping[str, str], after_modules: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return what the launcher's own process is given, so that every rank gets `environment`.

    All of them hand on their own environment, hydra as long as it is not given -genvlist: a value may be a
    secret, and anybody can read an argv. `after_modules` is what with_modules is to set again. ibrun is given
    what puts `[rank] ` before each line, too.

    >>> launcher_environment("ibrun", {"A": "1"})
    {'A': '1', 'MY_MPIRUN_OPTIONS': '-l'}
    """
    again = render_exports(after_modules or {})
    return {
        **environment,
        **({_AFTER_MODULES: again} if again else {}),
        **({"MY_MPIRUN_OPTIONS": "-l"} if program == "ibrun" else {}),
    }


def render_exports(environment: Mapping[str, str]) -> str:
    """Write variables as sh takes them, a line each.

    >>> print(render_exports({"A": "b c"}))
    export A='b c'
    """
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items())


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


# How a launcher says its version; given behind an option, that is all it does, unless it refuses the option.
_VERSION: Mapping[str, str] = {"mpiexec.hydra": "-version", "srun": "--version"}
_REFUSALS = ("unrecognized argument", "unrecognized option", "invalid option")
_ASK_S = 20.0


def launcher_version(host: Host, program: str) -> str:
    """Return the line in which a launcher names its version; raises ClusterError if it does not answer."""
    done = host.run([program, _asks_version(program)], _ASK_S)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    version = next((line for line in lines if "ersion" in line or line.startswith("slurm")), None)
    if done.returncode != 0 or version is None:
        raise ClusterError(host.name, f"{program} does not say its version", f"try `{program} -version`")
    return version


def launcher_knows(
    host: Host,
    program: str,
    option: str,
    within: Callable[[Sequence[str]], Sequence[str]] = lambda argv: argv,
) -> bool:
    """Tell whether a launcher takes an option, without starting anything; raises ClusterError.

    Of Intel MPI's hydras only those of 2018 know -PSM2; MPICH's never did. `within` is what the launcher is
    called in, as modules.
    """
    done = host.run(within([program, *option.split(), _asks_version(program)]), _ASK_S)
    if done.returncode == 0:
        return True
    said = f"{done.stdout}\n{done.stderr}"
    if any(refusal in said for refusal in _REFUSALS):
        return False
    reason = next((line.strip() for line in said.splitlines() if line.strip()), f"code {done.returncode}")
    raise ClusterError(host.name, f"{program} {option} fails: {reason[:200]}", f"try `{program} -version`")


def _asks_version(program: str) -> str:
    return _VERSION.get(program.rpartition("/")[2], "-version")


# A known host may show further keys: UpdateHostKeys would write those down. ssh takes the first value given.
_STRICT = "-oBatchMode=yes -oStrictHostKeyChecking=yes -oUpdateHostKeys=no -oForwardAgent=no"
# Where MPICH's and Intel's hydra take words for the program that starts their proxies, and which that is.
_WORDS_AND_PROGRAM: Mapping[str, tuple[str, ...]] = {
    "HYDRA_LAUNCHER_EXTRA_ARGS": ("HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP"),
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": ("I_MPI_HYDRA_BOOTSTRAP", "HYDRA_LAUNCHER"),
}
# Within a job of one of these hydra starts its proxies by srun, blaunch, qrsh or llspawn, for whom the words
# would mean something else: to srun, `-o` is a file to write.
_BATCH_SYSTEMS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "LSB_MCPU_HOSTS", "PE_HOSTFILE", "LOADL_HOSTFILE")


def ssh_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make hydra's ssh strict; its words only where it is ssh that hydra starts.

    What `environment` has of words already is kept behind ours.

    >>> ssh_environment({"HYDRA_LAUNCHER_EXTRA_ARGS": "-p 2222"})["HYDRA_LAUNCHER_EXTRA_ARGS"][-7:]
    '-p 2222'
    >>> ssh_environment({"SLURM_JOB_NODELIST": "c401-[001-064]"})
    {'SSH_ASKPASS_REQUIRE': 'never'}
    """
    words_of = {
        words: " ".join(filter(None, (_STRICT, environment.get(words))))
        for words, programs in _WORDS_AND_PROGRAM.items()
        if _starts_ssh(environment, programs)
    }
    return {"SSH_ASKPASS_REQUIRE": "never", **words_of}


def _starts_ssh(environment: Mapping[str, str], programs: tuple[str, ...]) -> bool:
    said = next((environment[name] for name in programs if environment.get(name)), None)
    return said == "ssh" if said else not any(environment.get(name) for name in _BATCH_SYSTEMS)
