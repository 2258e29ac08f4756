"""mpiexec.hydra, of MPICH and of Intel MPI.

Hydra starts `ssh -x` with the user's own configuration. Even without a terminal, this ssh would prompt for
passwords through SSH_ASKPASS in a graphical session, and add host keys if ~/.ssh/config sets
StrictHostKeyChecking to `accept-new` or `no`. `Hydra.environment` makes it strict: no prompts, no new host
keys, no agent forwarding.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

from caffe_recipes.cluster.launchers.launcher import (
    SIGNAL_NAMES,
    Launcher,
    RankExits,
    RankLaunch,
    describe_signal,
    name_rank,
)
from caffe_recipes.errors import ClusterError

# The option of Intel MPI's hydra for each fabric. Other hydras reject it, so none is passed by default.
FABRIC_OPTIONS: Mapping[str, tuple[str, ...]] = {"psm2": ("-PSM2",)}
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
# What launchers send to all ranks, on all hosts at once, when one has ended or they are told to end.
_SENT_BY_LAUNCHERS = (signal.SIGKILL, signal.SIGTERM)


class HydraExits(RankExits):
    """Reads hydra's report of the ranks that it finds first once a signal has killed one, which may be any.

    >>> exits = HydraExits()
    >>> exits.feed("=   PID 3556 RUNNING AT node2")
    >>> exits.feed("=   EXIT CODE: 11")
    >>> exits.cause
    'node2: a rank was killed by signal 11 (segmentation fault)'
    """

    VITAL = ("EXIT STRING", "RUNNING AT")
    REPORTS_EACH = False

    def __init__(self) -> None:
        """Start before the first line of output."""
        self._host = self._string = ""
        self._rank: str | None = None
        self._code: int | None = None
        self._signal: int | None = None

    def feed(self, line: str) -> None:
        """Process the next line, without its rank label."""
        if not line.startswith(("=", "YOUR APPLICATION")):
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
        self.cause, self.is_unsure = self._judge()

    def _judge(self) -> tuple[str, bool]:
        """Return the cause, and whether it is unsure."""
        number = self._number
        if not self._host or (number is None and not self._string):
            return "", False
        if number is None:
            return f"a rank was killed by a signal (the launcher reported: {self._string})", True
        if number == signal.SIGTERM:  # a launcher that gets it passes it on to all ranks
            return f"the launcher or a rank was killed by {describe_signal(number)}", True
        is_unsure = number in _SENT_BY_LAUNCHERS
        rank = name_rank("" if is_unsure else self._host, self._rank)
        return f"{rank} was killed by {describe_signal(number)}", is_unsure

    @property
    def _number(self) -> int | None:
        code = self._code
        if self._signal is not None or self._string or code is None:
            return self._signal
        return code % 128 if code % 128 in SIGNAL_NAMES and code < 256 else None


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


_SHELL_SPECIAL = re.compile(r'["$`\\;&|<>\x00-\x1f\x7f]')


class Hydra(Launcher):
    """mpiexec.hydra. Its hostfile must list all hosts: if there are too few, it silently reuses them."""

    program = "mpiexec.hydra"
    # An mpiexec or mpirun on PATH may also be that of Open MPI.
    processes = ("mpiexec*", "mpirun*", "orterun", "orted", "prterun", "prted")
    proxies = ("hydra_*",)
    hint = "load an MPI that has it, or install the extra 'local' of caffe-recipes"
    # MPICH's binds no rank by default. Intel's does so by I_MPI_PIN, and ignores the option.
    bind_option = "-bind-to socket"
    not_started = (
        r".*(?:pmi_proxy|hydra_\w{0,30}proxy)\S{0,99}: (?:.*[Nn]ot found|No such file or directory|"
        r"Permission denied|error while loading shared libraries.*|[Cc]annot execute.*|Is a directory)"
    )
    exits = HydraExits

    def words(self, launch: RankLaunch) -> tuple[str, ...]:
        """Return its argv up to the command; `-l` prefixes each line of output with `[rank] `.

        >>> launch = RankLaunch(LAUNCHER, ("a", "b"), 2, variables={"A": "1"}, options=("-PSM2",))
        >>> " ".join(launch.argv(["caffe"]))
        'mpiexec.hydra -PSM2 -l -n 4 -ppn 2 -f hostfile -genv A 1 caffe'
        """
        shape = ("-l", "-n", str(launch.ranks), "-ppn", str(launch.ranks_per_node), "-f", launch.hostfile)
        genv = (word for name, value in launch.variables.items() for word in ("-genv", name, value))
        return (self.program, *launch.option_words, *shape, *genv)

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that make its ssh strict; ssh options are included only if it uses ssh.

        Options that are already in `environment` are kept, after ours.

        >>> LAUNCHER.environment({"HYDRA_LAUNCHER_EXTRA_ARGS": "-p 2222"})["HYDRA_LAUNCHER_EXTRA_ARGS"][-7:]
        '-p 2222'
        >>> LAUNCHER.environment({"SLURM_JOB_NODELIST": "c401-[001-064]"})
        {'SSH_ASKPASS_REQUIRE': 'never'}
        """
        options = {
            words: " ".join(filter(None, (STRICT_SSH, environment.get(words))))
            for words, programs in _SSH_VARIABLES.items()
            if _starts_ssh(environment, programs)
        }
        return super().environment(environment) | options

    def step_environment(self, name: str, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of its step in a Slurm job, with the options of the srun that it starts.

        Hydra splits these at blanks (MPICH, slurm_launch.c). Options in `environment` are kept.

        >>> LAUNCHER.step_environment("0123456789abcdef/init-1", {"I_MPI_HYDRA_BOOTSTRAP": "ssh"})
        {'SLURM_OVERLAP': '1', 'HYDRA_LAUNCHER_EXTRA_ARGS': '--job-name=0123456789abcdef/init-1'}
        """
        options = {
            words: " ".join(filter(None, (f"--job-name={name}", environment.get(words))))
            for words, programs in _SSH_VARIABLES.items()
            if _starter(environment, programs) in (None, "slurm")
        }
        return super().step_environment(name, environment) | options

    def asks_slurm(self, environment: Mapping[str, str]) -> bool:
        """Return whether it starts its proxies with srun, as it does in a job unless told to use ssh."""
        return "HYDRA_LAUNCHER_EXTRA_ARGS" not in environment

    def check_path(self, path: str) -> None:
        """Raise ClusterError for a path that a remote shell would change."""
        if _SHELL_SPECIAL.search(path):
            what = "has special characters in its path, which hydra passes unquoted to shells on the hosts"
            raise ClusterError(path, what, "install it in a folder with a plain name")


LAUNCHER = Hydra()
