"""The argv of the programs that start ranks: Hydra's mpiexec, Slurm's srun, TACC's ibrun.

Asking the launcher that is really there: which it is, and whether it knows an option.

What the ssh that hydra starts itself is told: it asks nobody, adds no host key, forwards no agent.

Hydra calls `ssh -x` with what the user has configured. Without a terminal ssh still asks by SSH_ASKPASS,
where a graphical session has set it, and adds keys where `accept-new` or `no` stands in ~/.ssh/config.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from caffe_recipes.cluster.commands import Host
from caffe_recipes.errors import HostFailed

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


@dataclass(frozen=True)
class RankLaunch:
    """How ranks are started on hosts: what the argv, the words of run.sh and the environment are made of.

    The hostfile holds `hosts`, one a line: rank 0 is on the first. Each of `options` may be several words.
    `variables` stand in hydra's argv, as -genv, where every user of the node can read them; `environment` is
    what the launcher's process is given besides, and hands on to the ranks. Modules are loaded before the
    launcher, which looks through `path` after theirs; a container is entered by each rank.
    """

    program: str = HYDRA
    hosts: tuple[str, ...] = ("localhost",)
    ranks_per_node: int = 1
    hostfile: str = "hostfile"
    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    path: str = ""
    container: Container | None = None

    def argv(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return the argv that has the launcher start `command` on every rank.

        >>> launch = RankLaunch(hosts=("a", "b"), ranks_per_node=2, variables={"A": "1"}, options=("-PSM2",))
        >>> " ".join(launch.argv(["caffe"]))
        'mpiexec.hydra -PSM2 -l -n 4 -ppn 2 -f hostfile -genv A 1 caffe'
        """
        return with_modules((*_WORDS[self.program](self), *command), self.modules, self.path)

    def argv_alone(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return the argv that starts what a rank would be, on this machine and without a launcher."""
        return with_modules(self.contained(command), self.modules, self.path)

    def contained(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return a rank's command within the container, if there is one.

        Apptainer's user guide: `apptainer exec [OPTION]... IMAGE PROGRAM...` hands on its environment, and so
        what ranks are known by; starts in the folder that it is called in; shares the host's processes, so
        that the program can be sent signals; and mounts /tmp and the home. Options bind other folders.

        >>> RankLaunch().contained(["./caffe", "train"])
        ('./caffe', 'train')
        """
        if self.container is None:
            return tuple(command)
        return (self.container.program, "exec", *self.container.options, self.container.image, *command)

    def shell_lines(self) -> list[str]:
        """Return hydra's words up to the command, quoted for a shell: its options, then a variable a line."""
        words, count = _WORDS[self.program](self), 3 * len(self.variables)
        starts = [0, *range(len(words) - count, len(words), 3)]
        return [shlex.join(words[start:end]) for start, end in zip(starts, [*starts[1:], None], strict=True)]

    def process_environment(self) -> dict[str, str]:
        """Return what the launcher's own process is given, so that every rank gets what it is to have.

        All launchers hand on their own environment, hydra as long as it is not given -genvlist: a value may
        be a secret, and anybody can read an argv. What modules may change is set once more after them. ibrun
        is given what puts `[rank] ` before each line, too.

        >>> RankLaunch(program="ibrun", environment={"A": "1"}).process_environment()
        {'A': '1', 'MY_MPIRUN_OPTIONS': '-l'}
        """
        again = render_exports(self.environment) if self.modules else ""
        return {
            **self.environment,
            **self.variables,
            **({_AFTER_MODULES: again} if again else {}),
            **({"MY_MPIRUN_OPTIONS": "-l"} if self.program == "ibrun" else {}),
            **({"PATH": self.path} if self.path else {}),
        }

    @property
    def ranks(self) -> int:
        """How many ranks are started."""
        return len(self.hosts) * self.ranks_per_node

    @property
    def option_words(self) -> list[str]:
        """The options, word by word."""
        return [word for option in self.options for word in option.split()]


def _hydra_words(launch: RankLaunch) -> tuple[str, ...]:
    """Return hydra's words.

    `-l` puts `[rank] ` before each line of output. The hostfile must hold all hosts: with fewer, hydra wraps
    around without a word.
    """
    shape = ("-l", "-n", str(launch.ranks), "-ppn", str(launch.ranks_per_node), "-f", launch.hostfile)
    genv = (word for name, value in launch.variables.items() for word in ("-genv", name, value))
    return (HYDRA, *launch.option_words, *shape, *genv)


def _srun_words(launch: RankLaunch) -> tuple[str, ...]:
    """Return the words for a job step, whose ranks are in the order of the hosts.

    As srun(1) has it: an arbitrary distribution takes the tasks in the order of a node list that names a host
    once for each of its tasks; `--label` puts `rank: ` before each line of output; MPICH and Intel MPI meet
    Slurm by PMI-2. A rank gets srun's own environment: `--export` would cut a value at its commas.
    A rank may use all that the job has of its node, and the threads' own affinity decides, as elsewhere:
    `--cpus-per-task` would imply `--exact`, and take the cores beyond the threads from MLSL's servers.
    Without `--disable-status` a first SIGINT has srun print its status, and no rank is told to stop.

    >>> " ".join(_srun_words(RankLaunch("srun", ("c2", "c1"), 2)))
    'srun --mpi=pmi2 --label --export=ALL --disable-status --cpu-bind=none --ntasks=4 --nodes=2 \
--distribution=arbitrary --nodelist=c2,c2,c1,c1'
    """
    placed = ",".join(host for host in launch.hosts for _ in range(launch.ranks_per_node))
    shape = (f"--ntasks={launch.ranks}", f"--nodes={len(launch.hosts)}")
    places = ("--distribution=arbitrary", f"--nodelist={placed}")
    ways = ("--mpi=pmi2", "--label", "--export=ALL", "--disable-status", "--cpu-bind=none")
    return ("srun", *ways, *launch.option_words, *shape, *places)


def _ibrun_words(launch: RankLaunch) -> tuple[str, ...]:
    """Return the words for the first ranks of the job around us.

    TACC's user guides: `ibrun -n RANKS -o 0 PROGRAM`. It takes hosts and ranks a node from the Slurm job, and
    what its MPI's own mpiexec is to be given from MY_MPIRUN_OPTIONS.

    >>> " ".join(_ibrun_words(RankLaunch("ibrun", ("c1", "c2"), 2)))
    'ibrun -n 4 -o 0'
    """
    return ("ibrun", *launch.option_words, "-n", str(launch.ranks), "-o", "0")


_WORDS: Mapping[str, Callable[[RankLaunch], tuple[str, ...]]] = {
    HYDRA: _hydra_words,
    "srun": _srun_words,
    "ibrun": _ibrun_words,
}


def render_exports(environment: Mapping[str, str]) -> str:
    """Write variables as sh takes them, a line each.

    >>> print(render_exports({"A": "b c"}))
    export A='b c'
    """
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items())


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
    output = f"{done.stdout}\n{done.stderr}"
    if any(refusal in output for refusal in _REFUSALS):
        return False
    reason = next((line.strip() for line in output.splitlines() if line.strip()), f"code {done.returncode}")
    raise HostFailed(host.name, f"{program} {option} fails: {reason[:200]}", f"try `{program} -version`")


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
    starter = next((environment[name] for name in programs if environment.get(name)), None)
    return starter == "ssh" if starter else not any(environment.get(name) for name in _BATCH_SYSTEMS)
