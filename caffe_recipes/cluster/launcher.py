"""Build the argv and environment of the programs that start ranks: mpiexec.hydra, srun and ibrun.

`RankExitReader` finds in their output why ranks ended.

Hydra starts `ssh -x` with the user's own configuration. Even without a terminal, this ssh would prompt for
passwords through SSH_ASKPASS in a graphical session, and add host keys if ~/.ssh/config sets
StrictHostKeyChecking to `accept-new` or `no`. `ssh_environment` makes it strict: no prompts, no new host
keys, no agent forwarding.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from caffe_recipes.cluster.commands import Host
from caffe_recipes.errors import HostFailed

if TYPE_CHECKING:
    from caffe_recipes.cluster.profiles import Container


HYDRA = "mpiexec.hydra"

# The option of Intel MPI's hydra for each fabric. Other hydras reject it, so none is passed by default.
FABRIC_OPTIONS: Mapping[str, tuple[str, ...]] = {"psm2": ("-PSM2",)}
# Arguments: PATH, number of modules, modules, command. What modules add to PATH comes first. The profile's
# variables are set again, since the login shell and the modules may have changed them.
_AFTER_MODULES = "CAFFE_RECIPES_AFTER_MODULES"
_WITH_MODULES = (
    'path=$1 count=$2; shift 2; module load "${@:1:count}" || exit 126; shift "$count"; '
    f'eval "${{{_AFTER_MODULES}-}}"; unset {_AFTER_MODULES}; export PATH="$PATH:$path"; exec "$@"'
)


def thread_environment(omp_num_threads: int | None, kmp_affinity: str | None = None) -> dict[str, str]:
    """Return the OpenMP variables of a rank that are given, in the order in which they are rendered.

    >>> thread_environment(22)
    {'OMP_NUM_THREADS': '22'}
    """
    pinning = {} if kmp_affinity is None else {"KMP_AFFINITY": kmp_affinity}
    return ({} if omp_num_threads is None else {"OMP_NUM_THREADS": str(omp_num_threads)}) | pinning


def mlsl_environment(num_servers: int | None, server_affinity: Sequence[int]) -> dict[str, str]:
    """Return the variables that set the number and cores of Intel MLSL's communication servers, if given.

    >>> mlsl_environment(2, (39, 38, 43, 42))
    {'MLSL_NUM_SERVERS': '2', 'MLSL_SERVER_AFFINITY': '39,38,43,42'}
    """
    cores = ",".join(str(core) for core in server_affinity)
    number = {} if num_servers is None else {"MLSL_NUM_SERVERS": str(num_servers)}
    return number | ({"MLSL_SERVER_AFFINITY": cores} if cores else {})


@dataclass(frozen=True)
class RankLaunch:
    """How ranks are started on hosts: the source of the launcher's argv, environment and lines in run.sh.

    The hostfile lists `hosts`, one per line; rank 0 runs on the first. Each option may be several words.
    `variables` are passed to hydra as -genv arguments, which every user of the node can read. `environment`
    is added to the environment of the launcher, which passes it on to the ranks. `modules` are loaded before
    the launcher starts, and `path` is searched after their PATH. Each rank runs in `container`, if given.
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
    step: str = ""

    def argv(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return the argv that starts `command` on every rank.

        >>> launch = RankLaunch(hosts=("a", "b"), ranks_per_node=2, variables={"A": "1"}, options=("-PSM2",))
        >>> " ".join(launch.argv(["caffe"]))
        'mpiexec.hydra -PSM2 -l -n 4 -ppn 2 -f hostfile -genv A 1 caffe'
        """
        return with_modules((*_LAUNCHER_ARGV[self.program](self), *command), self.modules, self.path)

    def argv_without_launcher(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return the argv that runs `command` on this machine as a rank would, but without a launcher."""
        return with_modules(self.in_container(command), self.modules, self.path)

    def in_container(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return the argv that runs a rank's command in the container; `command` if there is no container.

        From Apptainer's user guide: `apptainer exec [OPTION]... IMAGE PROGRAM...` passes on its environment,
        including the variable that identifies ranks. It keeps the working directory, shares the host's
        process ids, so that signals reach the program, and mounts /tmp and the home folder. Options bind
        other folders.

        >>> RankLaunch().in_container(["./caffe", "train"])
        ('./caffe', 'train')
        """
        if self.container is None:
            return tuple(command)
        return (self.container.program, "exec", *self.container.options, self.container.image, *command)

    def process_environment(self) -> dict[str, str]:
        """Return the variables to set for the launcher's process, which passes them on to every rank.

        Values may be secrets, and any user can read an argv, so they are passed in the environment. All
        launchers pass it on, hydra unless -genvlist is given. If modules are loaded, the variables are set
        again afterwards. For ibrun, MY_MPIRUN_OPTIONS prefixes each line of output with `[rank] `.

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
        """The total number of ranks."""
        return len(self.hosts) * self.ranks_per_node

    @property
    def option_words(self) -> list[str]:
        """The options, split into words."""
        return [word for option in self.options for word in option.split()]


def _hydra_words(launch: RankLaunch) -> tuple[str, ...]:
    """Return hydra's argv up to the command.

    `-l` prefixes each line of output with `[rank] `. The hostfile must list all hosts: if there are too few,
    hydra silently reuses them.
    """
    shape = ("-l", "-n", str(launch.ranks), "-ppn", str(launch.ranks_per_node), "-f", launch.hostfile)
    genv = (word for name, value in launch.variables.items() for word in ("-genv", name, value))
    return (HYDRA, *launch.option_words, *shape, *genv)


def _srun_words(launch: RankLaunch) -> tuple[str, ...]:
    """Return srun's argv up to the command; the ranks are in the order of the hosts.

    From srun(1): an arbitrary distribution assigns tasks in the order of a node list that names each host
    once per task; `--label` prefixes each line of output with `rank: `; MPICH and Intel MPI use PMI-2 with
    Slurm. Ranks inherit srun's own environment, since `--export` would split values at commas. As with the
    other launchers, a rank may use all cores that the job has on its node, and thread affinity pins its
    threads: `--cpus-per-task` would imply `--exact`, and deny MLSL's servers the other cores. Without
    `--disable-status`, srun responds to a first SIGINT by printing its status, and stops no rank.

    >>> " ".join(_srun_words(RankLaunch("srun", ("c2", "c1"), 2)))
    'srun --mpi=pmi2 --label --export=ALL --disable-status --cpu-bind=none --ntasks=4 --nodes=2 \
--distribution=arbitrary --nodelist=c2,c2,c1,c1'
    """
    placed = ",".join(host for host in launch.hosts for _ in range(launch.ranks_per_node))
    shape = (f"--ntasks={launch.ranks}", f"--nodes={len(launch.hosts)}")
    places = ("--distribution=arbitrary", f"--nodelist={placed}")
    ways = ("--mpi=pmi2", "--label", "--export=ALL", "--disable-status", "--cpu-bind=none")
    name = (f"--job-name={launch.step}",) if launch.step else ()
    return ("srun", *ways, *name, *launch.option_words, *shape, *places)


def _ibrun_words(launch: RankLaunch) -> tuple[str, ...]:
    """Return ibrun's argv up to the command, for the first ranks of the current job.

    From TACC's user guides: `ibrun -n RANKS -o 0 PROGRAM`. ibrun takes the hosts and the ranks per node from
    the Slurm job, and options for the underlying mpiexec from MY_MPIRUN_OPTIONS.

    >>> " ".join(_ibrun_words(RankLaunch("ibrun", ("c1", "c2"), 2)))
    'ibrun -n 4 -o 0'
    """
    return ("ibrun", *launch.option_words, "-n", str(launch.ranks), "-o", "0")


_LAUNCHER_ARGV: Mapping[str, Callable[[RankLaunch], tuple[str, ...]]] = {
    HYDRA: _hydra_words,
    "srun": _srun_words,
    "ibrun": _ibrun_words,
}


def render_exports(environment: Mapping[str, str]) -> str:
    """Return `export` lines for sh, one per variable.

    >>> print(render_exports({"A": "b c"}))
    export A='b c'
    """
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items())


def with_modules(argv: Sequence[str], modules: Sequence[str], path: str) -> tuple[str, ...]:
    """Return the argv that loads modules and then execs `argv`; `path` is appended to their PATH.

    `module` is a function of login shells. Without modules, no shell is needed.

    >>> with_modules(["caffe", "train"], (), "/usr/bin")
    ('caffe', 'train')
    """
    if not modules:
        return tuple(argv)
    return ("bash", "-lc", _WITH_MODULES, "caffe-recipes", path, str(len(modules)), *modules, *argv)


_REFUSED_OPTION = ("unrecognized argument", "unrecognized option", "invalid option")
_ASK_S = 20.0


def launcher_accepts(
    host: Host,
    program: str,
    option: str,
    within: Callable[[Sequence[str]], Sequence[str]] = lambda argv: argv,
) -> bool:
    """Return whether a launcher accepts an option, without starting any rank. Raises ClusterError.

    For example, only Intel MPI 2018 accepts -PSM2; MPICH never did. `within` wraps the launcher's argv, for
    example to load modules.
    """
    done = host.run(within([program, *option.split(), _version_option(program)]), _ASK_S)
    if done.returncode == 0:
        return True
    output = f"{done.stdout}\n{done.stderr}"
    if any(refusal in output for refusal in _REFUSED_OPTION):
        return False
    reason = next((line.strip() for line in output.splitlines() if line.strip()), f"code {done.returncode}")
    raise HostFailed(host.name, f"{program} {option} failed: {reason[:200]}", f"try `{program} -version`")


def _version_option(program: str) -> str:
    """Return the option that prints a version; after another option it shows whether that is accepted."""
    return "--version" if program.rpartition("/")[2] == "srun" else "-version"


# UpdateHostKeys would add other keys of a known host to known_hosts. ssh uses the first value of an option.
STRICT_SSH = "-oBatchMode=yes -oStrictHostKeyChecking=yes -oUpdateHostKeys=no -oForwardAgent=no"
# For MPICH's and Intel's hydra: the variable with options for the program that starts the proxies, and the
# variables that select this program.
_SSH_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "HYDRA_LAUNCHER_EXTRA_ARGS": ("HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP"),
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": ("I_MPI_HYDRA_BOOTSTRAP", "HYDRA_LAUNCHER"),
}
# Within a batch job hydra starts its proxies with srun, blaunch, qrsh or llspawn, for which the ssh options
# would have another meaning: for srun, `-o` names an output file.
_BATCH_SYSTEMS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "LSB_MCPU_HOSTS", "PE_HOSTFILE", "LOADL_HOSTFILE")


def ssh_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make hydra's ssh strict; ssh options are included only if hydra uses ssh.

    Options that are already in `environment` are kept, after ours.

    >>> ssh_environment({"HYDRA_LAUNCHER_EXTRA_ARGS": "-p 2222"})["HYDRA_LAUNCHER_EXTRA_ARGS"][-7:]
    '-p 2222'
    >>> ssh_environment({"SLURM_JOB_NODELIST": "c401-[001-064]"})
    {'SSH_ASKPASS_REQUIRE': 'never'}
    """
    options = {
        words: " ".join(filter(None, (STRICT_SSH, environment.get(words))))
        for words, programs in _SSH_VARIABLES.items()
        if _starts_ssh(environment, programs)
    }
    return {"SSH_ASKPASS_REQUIRE": "never", **options}


def step_environment(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a launcher inside a Slurm job: its step shares nodes, and hydra's has a name.

    The step of a launch that was given up because a node is lost holds the other nodes until Slurm gives up
    that node. From srun(1): a step that overlaps shares all resources of its nodes with other steps. Hydra
    splits its options for srun at blanks (MPICH, slurm_launch.c). Options in `environment` are kept.

    >>> step_environment("0123456789abcdef/init-1", {"I_MPI_HYDRA_BOOTSTRAP": "ssh"})
    {'SLURM_OVERLAP': '1', 'HYDRA_LAUNCHER_EXTRA_ARGS': '--job-name=0123456789abcdef/init-1'}
    """
    options = {
        words: " ".join(filter(None, (f"--job-name={name}", environment.get(words))))
        for words, programs in _SSH_VARIABLES.items()
        if _starter(environment, programs) in (None, "slurm")
    }
    return {"SLURM_OVERLAP": "1", **options}


def _starter(environment: Mapping[str, str], programs: tuple[str, ...]) -> str | None:
    """Return what hydra is told to start its proxies with, if it is told."""
    return next((environment[name] for name in programs if environment.get(name)), None)


def _starts_ssh(environment: Mapping[str, str], programs: tuple[str, ...]) -> bool:
    starter = _starter(environment, programs)
    return starter == "ssh" if starter else not any(environment.get(name) for name in _BATCH_SYSTEMS)


# MPICH's hydra names the host, and the process of its first rank; Intel's names the rank that ended.
_FAILED_RANK = re.compile(r"= +(?:RANK (\d{1,7}) )?PID \d+ RUNNING AT (\S{1,253})")
_EXIT_CODE = re.compile(r"= +EXIT CODE: (\d{1,5})\b.*")
_INTEL_SIGNAL = re.compile(r"= +KILLED BY SIGNAL: (\d{1,3})\b.*")
_EXIT_STRING = re.compile(r"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: ((.+) \(signal (\d{1,3})\)|.+)")
_SRUN = re.compile(
    r"srun: error: (\S{1,253}): (?:task (\d{1,7})|tasks? [][\d,-]+): (.{1,100}?)(?: \(core dumped\))?"
)
_CANCELLED = re.compile(r"slurmstepd: error: \*\*\* .*CANCELLED AT .*")
# What OpenSSH's client, and the remote shell, print if hydra's proxy cannot be started.
_NOT_STARTED = re.compile(
    r"ssh: .+|Host key verification failed\.|(?:\S+: )?Permission denied \(.+\)\.?|"
    r"(?:kex_exchange_identification|ssh_exchange_identification|banner exchange): .+|"
    r"Connection (?:closed|reset) by .+|Connection timed out during banner exchange|"
    r"(?:Received disconnect from|Unable to negotiate with|Bad owner or permissions on) .+|"
    r"Host key for \S+ has changed and you have requested strict checking\.|"
    r"No .+ host key is known for \S+ and you have requested strict checking\.|"
    r".*(?:pmi_proxy|hydra_\w{0,30}proxy)\S{0,99}: (?:.*[Nn]ot found|No such file or directory|"
    r"Permission denied|error while loading shared libraries.*|[Cc]annot execute.*|Is a directory)"
)
_MAX_LINE_LENGTH = 300
_MAX_ERROR_LENGTH = 2000  # of a line that may be matched; a rank can print any line
_MAX_LINES = 100
_OUT_OF_MEMORY = "Out Of Memory"
# Without hydra's exit string, an exit code may be the rank's own, so only codes that programs rarely use
# are taken for signals.
_SIGNAL_NAMES = {number: (signal.strsignal(number) or "").lower() for number in (4, 6, 7, 8, 9, 11, 15)}
_SIGNAL_NAMES[9] = "out of memory?"
# What launchers send to all ranks, on all hosts at once, when one has ended or they are told to end.
_SENT_BY_LAUNCHERS = (signal.SIGKILL, signal.SIGTERM)
_SIGNAL_BY_TEXT = {signal.strsignal(number): number for number in _SIGNAL_NAMES}


# The line that a run adds to the log of a launch when it ends it.
ENDED_BY_US = "caffe-recipes: ending the ranks"


class RankExitReader:
    """Reads from a launcher's output which rank ended first, and how; this ends the other ranks, too.

    >>> ends = RankExitReader()
    >>> ends.feed("srun: error: node2: task 3: Killed")
    >>> ends.cause
    'node2: rank 3 was killed by signal 9 (out of memory?)'
    """

    def __init__(self) -> None:
        """Start before the first line of output."""
        self.exit_string = ""  # what hydra printed when a signal has killed a rank
        self._host = self._string = self._by_slurm = ""
        self._rank: str | None = None
        self._code: int | None = None
        self._signal: int | None = None
        self._is_cancelled = False
        self.is_over = (
            False  # once the run itself ends the ranks; what the launcher then reports does not count
        )
        self.not_started: list[str] = []  # distinct error lines from ssh

    def feed(self, line: str) -> None:
        """Process the next line, without its rank label."""
        self.is_over = self.is_over or line == ENDED_BY_US
        if self.is_over:
            return
        is_error = len(line) <= _MAX_ERROR_LENGTH and _NOT_STARTED.fullmatch(line) is not None
        if is_error and line[:_MAX_LINE_LENGTH] not in self.not_started[-_MAX_LINES:]:
            self.not_started = [*self.not_started[-_MAX_LINES:], line[:_MAX_LINE_LENGTH]]
        if not line.startswith(("=", "YOUR APPLICATION", "srun: error: ", "slurmstepd: error: ")):
            return
        if found := _FAILED_RANK.fullmatch(line):
            if not self._host:
                self._rank, self._host = found.groups()
        elif found := _EXIT_CODE.fullmatch(line):
            self._code = int(found[1]) if self._code is None else self._code
        elif found := _INTEL_SIGNAL.fullmatch(line):
            self._signal = self._signal or int(found[1])
        elif found := _EXIT_STRING.fullmatch(line):
            self.exit_string, string, combined = found.groups()
            if string:
                self._string = string
                self._signal = self._signal or _pick_signal(self._code, int(combined))
        elif _CANCELLED.fullmatch(line):  # all ranks are ended, and srun reports each
            self._is_cancelled = True
        elif (found := _SRUN.fullmatch(line)) and not self._is_cancelled:
            self._read_srun(*found.groups())

    @property
    def cause(self) -> str:
        """A sentence with the signal that ended a rank, and its host if known; "" if none is reported."""
        if self._by_slurm or not self._host:
            return self._by_slurm
        number = self._number
        if number is None and self._string:
            return f"a rank was killed by a signal (the launcher reported: {self._string})"
        if number is None:
            return ""
        if number == signal.SIGTERM:  # a launcher that gets it passes it on to all ranks
            return f"the launcher or a rank was killed by {describe_signal(number)}"
        return _describe("" if self.is_unsure else self._host, self._rank, number)

    @property
    def is_unsure(self) -> bool:
        """Whether the first rank that ended may have run on any host.

        Hydra ends all ranks when a signal has killed one, and then reports those that it finds first, which
        may be any; srun reports each as it ends.
        """
        if self._by_slurm or not self._host:
            return False
        number = self._number
        return bool(self._string) if number is None else number in _SENT_BY_LAUNCHERS

    @property
    def _number(self) -> int | None:
        code = self._code
        if self._signal is not None or self._string or code is None:
            return self._signal
        return code % 128 if code % 128 in _SIGNAL_NAMES and code < 256 else None

    def _read_srun(self, host: str, rank: str | None, word: str) -> None:
        if word == _OUT_OF_MEMORY:
            cause = f"{_name_rank(host, rank)} was killed: out of memory"
        elif word in _SIGNAL_BY_TEXT:
            cause = _describe(host, rank, _SIGNAL_BY_TEXT[word])
        else:
            return
        self._by_slurm = self._by_slurm or cause


def _name_rank(host: str, rank: str | None) -> str:
    if not host:
        return "a rank"
    return f"{host}: a rank" if rank is None else f"{host}: rank {rank}"


def describe_signal(number: int) -> str:
    """Return what to call the signal that ended a process.

    >>> describe_signal(9), describe_signal(35)
    ('signal 9 (out of memory?)', 'signal 35')
    """
    name = _SIGNAL_NAMES.get(number)
    return f"signal {number}" + (f" ({name})" if name else "")


def _describe(host: str, rank: str | None, number: int) -> str:
    return f"{_name_rank(host, rank)} was killed by {describe_signal(number)}"


def _pick_signal(code: int | None, combined: int) -> int | None:
    """Return the signal that ended the first rank; None if hydra's two numbers are ambiguous.

    `code` is the exit code of the host's first rank, which may come from the SIGKILL that hydra sends to all
    ranks once one has died. `combined` is the bitwise or of the signals of all ranks on the host.

    >>> _pick_signal(6, 15), _pick_signal(9, 11), _pick_signal(9, 9), _pick_signal(9, 15)
    (6, 11, 9, None)
    """
    own = (code or 0) % 128
    if own and own != signal.SIGKILL:
        return own
    return combined if combined in (signal.SIGKILL, signal.SIGSEGV) or not combined & signal.SIGKILL else None
