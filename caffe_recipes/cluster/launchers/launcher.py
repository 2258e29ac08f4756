"""A program that starts ranks on hosts, and a launch of ranks by it.

Each launcher is a class in a module of this package, of which `LAUNCHER` is the instance. All that is known
of it is asked of that: nothing else compares its name.
"""

from __future__ import annotations

import shlex
import shutil
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from caffe_recipes.cluster.commands import Host
from caffe_recipes.errors import ClusterError, HostFailed

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


class RankExits:
    """Reads from a launcher's output which rank ended first, and how; this ends the other ranks, too.

    The `cause` is a sentence with the signal that ended a rank, and its host if known, or "". It `is_unsure`
    if the first rank that ended may have run on any host. `exit_string` is what the launcher prints when a
    signal has killed a rank, if it does. In a long log only lines that contain one of the `VITAL` words are
    read. One that `REPORTS_EACH` rank as it ends knows which was first.
    """

    VITAL: ClassVar[tuple[str, ...]] = ()
    REPORTS_EACH: ClassVar[bool] = True

    cause = exit_string = ""
    is_unsure = False

    def feed(self, line: str) -> None:
        """Process the next line, without its rank label."""


class Launcher(ABC):
    """A program that starts ranks, and all that differs between such programs.

    `hint` is what to do if it is not found. `version_option` prints its version, after another option only
    if it accepts that; empty if it cannot be asked without starting ranks. `bind_option` binds each of
    several ranks on a node to a socket, if it does not do so by itself. `variables` are added to the
    environment of its process, which it has to pass on to every rank, CAFFE_RECIPES_LAUNCH in particular.
    `not_started` matches what it prints if it cannot start ranks on a host. `exits` reads from its output
    how ranks ended.

    `processes` are patterns of the names of its own processes, which are not ranks, even if they have the
    variables of one; `proxies` are those of the processes that start the ranks of a host and end with them.

    One that `chooses_hosts` starts ranks on the hosts that it is given. Another gets the first ones of the
    Slurm job, so no spare can replace a failed host, and no branch can train beside the main line.
    """

    program: ClassVar[str]
    hint: ClassVar[str]
    chooses_hosts: ClassVar[bool] = True
    version_option: ClassVar[str] = "-version"
    bind_option: ClassVar[str] = ""
    variables: ClassVar[Mapping[str, str]] = {}
    not_started: ClassVar[str] = ""
    exits: ClassVar[type[RankExits]] = RankExits
    processes: ClassVar[tuple[str, ...]]
    proxies: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def words(self, launch: RankLaunch) -> tuple[str, ...]:
        """Return its argv up to the command of the ranks."""

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables with which it never prompts, and adds no host key, given its environment."""
        return {"SSH_ASKPASS_REQUIRE": "never"}

    def step_environment(self, name: str, environment: Mapping[str, str]) -> dict[str, str]:
        """Return its variables inside a Slurm job: its step, which has this name, shares its nodes.

        The step of a launch that was given up because a node is lost holds the other nodes until Slurm gives
        up that node. From srun(1): a step that overlaps shares all resources of its nodes with other steps.
        """
        return {"SLURM_OVERLAP": "1"}

    def asks_slurm(self, environment: Mapping[str, str]) -> bool:
        """Return whether, inside a Slurm job, it lets Slurm start the ranks, given its environment."""
        return True

    def check_path(self, path: str) -> None:  # noqa: B027 - most take any path
        """Raise ClusterError if it cannot be started from this path."""

    def find(self, path: str, modules: Sequence[str] = ()) -> str:
        """Return its path; raises ClusterError if neither the search path nor a module has it."""
        if not modules:
            found = shutil.which(self.program, path=path)
        else:
            from caffe_recipes.cluster.hosts import LocalHost  # scripts are generated without any host

            argv = with_modules(["bash", "-c", 'command -v "$0"', self.program], modules, path)
            done = LocalHost().run(argv)
            found = done.stdout.rstrip("\n").rpartition("\n")[2] if done.returncode == 0 else None
            if not found and done.stderr.strip():
                what = f"module load {' '.join(modules)} fails: {done.stderr.strip().splitlines()[0][:200]}"
                raise ClusterError(self.program, what, "check the profile's modules with `module avail`")
        if not found:
            raise ClusterError(self.program, "not found on PATH", self.hint)
        self.check_path(found)
        return found

    def accepts(
        self,
        host: Host,
        program: str,
        option: str,
        within: Callable[[Sequence[str]], Sequence[str]] = lambda argv: argv,
    ) -> bool:
        """Return whether it accepts an option, without starting any rank. Raises ClusterError.

        For example, only Intel MPI 2018 accepts -PSM2; MPICH never did. `program` is its path, and `within`
        wraps its argv, for example to load modules.
        """
        if not self.version_option:
            return True
        done = host.run(within([program, *option.split(), self.version_option]), _ASK_S)
        if done.returncode == 0:
            return True
        output = f"{done.stdout}\n{done.stderr}"
        if any(refusal in output for refusal in _REFUSED_OPTION):
            return False
        lines = (line.strip() for line in output.splitlines() if line.strip())
        what = f"{program} {option} failed: {next(lines, f'code {done.returncode}')[:200]}"
        raise HostFailed(host.name, what, f"try `{program} {self.version_option}`")


_REFUSED_OPTION = ("unrecognized argument", "unrecognized option", "invalid option")
_ASK_S = 20.0


@dataclass(frozen=True)
class RankLaunch:
    """How ranks are started on hosts: the source of the launcher's argv, environment and lines in run.sh.

    The hostfile lists `hosts`, one per line; rank 0 runs on the first. Each option may be several words.
    `variables` are passed to hydra as -genv arguments, which every user of the node can read. `environment`
    is added to the environment of the launcher, which passes it on to the ranks. `modules` are loaded before
    the launcher starts, and `path` is searched after their PATH. The words of `container` start a rank's
    command in an image, if there is one. `step` is the name of Slurm's step.
    """

    launcher: Launcher
    hosts: tuple[str, ...] = ("localhost",)
    ranks_per_node: int = 1
    hostfile: str = "hostfile"
    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    path: str = ""
    container: tuple[str, ...] = ()
    step: str = ""

    def argv(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return the argv that starts `command` on every rank."""
        return with_modules((*self.launcher.words(self), *command), self.modules, self.path)

    def argv_without_launcher(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return the argv that runs `command` on this machine as a rank would, but without a launcher."""
        return with_modules(self.in_container(command), self.modules, self.path)

    def in_container(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return the argv that runs a rank's command in the container; `command` if there is no container."""
        return (*self.container, *command)

    def process_environment(self) -> dict[str, str]:
        """Return the variables to set for the launcher's process, which passes them on to every rank.

        Values may be secrets, and any user can read an argv, so they are passed in the environment. All
        launchers pass it on, hydra unless -genvlist is given. If modules are loaded, the variables are set
        again afterwards.
        """
        again = render_exports(self.environment) if self.modules else ""
        return {
            **self.environment,
            **self.variables,
            **({_AFTER_MODULES: again} if again else {}),
            **self.launcher.variables,
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


# Without hydra's exit string, an exit code may be the rank's own, so only codes that programs rarely use
# are taken for signals.
SIGNAL_NAMES = {number: (signal.strsignal(number) or "").lower() for number in (4, 6, 7, 8, 9, 11, 15)}
SIGNAL_NAMES[9] = "out of memory?"


def describe_signal(number: int) -> str:
    """Return what to call the signal that ended a process.

    >>> describe_signal(9), describe_signal(35)
    ('signal 9 (out of memory?)', 'signal 35')
    """
    name = SIGNAL_NAMES.get(number)
    return f"signal {number}" + (f" ({name})" if name else "")


def name_rank(host: str, rank: str | None) -> str:
    """Return what to call a rank on a host, as far as both are known.

    >>> name_rank("node2", "3"), name_rank("node2", None), name_rank("", "3")
    ('node2: rank 3', 'node2: a rank', 'a rank')
    """
    if not host:
        return "a rank"
    return f"{host}: a rank" if rank is None else f"{host}: rank {rank}"
