"""Run Slurm's commands, and tell one that gets no answer from one that refuses.

A command that gets no answer raises SchedulerAway, which implies nothing about any job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from caffe_recipes.cluster.commands import Completed, Host
from caffe_recipes.errors import ClusterError, CommandTimedOut

if TYPE_CHECKING:
    from caffe_recipes.cluster.slurm.jobs import Job

# The commands themselves retry for up to 18 s if the controller does not answer.
ASK_S = 20.0
# Variables that users may have set for these commands, and that would filter or change their output.
_UNSET = (
    *(f"SQUEUE_{name}" for name in ("ARRAY", "FORMAT", "FORMAT2", "LICENSES", "NAMES", "PARTITION", "QOS")),
    *(
        "SQUEUE_SORT",
        "SQUEUE_STATES",
        "SQUEUE_USERS",
        "SINFO_ALL",
        "SINFO_FORMAT",
        "SINFO_PARTITION",
        "SINFO_SORT",
    ),
    *(f"SCANCEL_{name}" for name in ("ACCOUNT", "BATCH", "FULL", "HURRY", "INTERACTIVE", "NAME", "QOS")),
    *("SCANCEL_PARTITION", "SCANCEL_STATE", "SCANCEL_USER", "SCANCEL_WCKEY"),
)
_ENVIRONMENT = (
    "env",
    *(word for name in _UNSET for word in ("-u", name)),
    *("LC_ALL=C", "SLURM_TIME_FORMAT=standard"),
)
# A job inherits the environment of sbatch. If sbatch runs inside a job, that includes the variables of this
# job, which the srun of the new job would use. Variables set by the user, such as SLURM_CONF, are kept.
_JOB_VARIABLES = (
    *(f"ARRAY_{name}" for name in ("JOB_ID", "TASK_COUNT", "TASK_ID", "TASK_MAX", "TASK_MIN", "TASK_STEP")),
    *("CPU_BIND", "CPU_BIND_LIST", "CPU_BIND_TYPE", "CPU_BIND_VERBOSE", "CPUS_PER_GPU", "CPUS_PER_TASK"),
    *("DISTRIBUTION", "DIST_PLANESIZE", "EXPORT_ENV", "GPUS", "GPUS_PER_NODE", "GPUS_PER_TASK", "HET_SIZE"),
    *("MEM_BIND", "MEM_BIND_LIST", "MEM_BIND_TYPE", "MEM_PER_CPU", "MEM_PER_GPU", "MEM_PER_NODE"),
    *("NPROCS", "NTASKS", "NTASKS_PER_CORE", "NTASKS_PER_GPU", "NTASKS_PER_NODE", "NTASKS_PER_SOCKET"),
    *("OVERCOMMIT", "RESTART_COUNT", "STEPID", "STEP_ID", "THREADS_PER_CORE"),
)
# The first two would make sbatch wait for the job to end, or change its exit code.
SBATCH_UNSET = ("SBATCH_WAIT", "SLURM_EXIT_ERROR", *(f"SLURM_{name}" for name in _JOB_VARIABLES))
SBATCH_ENVIRONMENT = ("env", *(word for name in SBATCH_UNSET for word in ("-u", name)))
_AWAY = re.compile(
    r"unable to contact|unable to establish|could not establish|timed out|connection (?:refused|reset)"
    r"|zero bytes were transmitted|communication|not connected|no route to host|name or service not known"
    r"|temporarily un|standby|authentication error|munge|unexpected message|header lengths"
    r"|(?:connect|send|receive|shutdown) failure|problem talking to the database|slurmdbd|broken pipe",
    re.IGNORECASE,
)
# The last line of a command that finds no slurm.conf, or not the one that SLURM_CONF names.
_UNCONFIGURED = re.compile(
    r"could not establish a configuration source|unable to process configuration file", re.I
)
# A line that squeue and sinfo print even without headers, if an option names a cluster.
_CLUSTER = re.compile(r"^CLUSTER: \S+\n", re.MULTILINE)


class SchedulerAway(ClusterError):
    """Raised when Slurm does not respond; nothing is known about any job except those in `known`."""

    def __init__(
        self, where: str, what: str, hint: str = "try again later", known: tuple[Job, ...] = ()
    ) -> None:
        """Store the jobs that another source reported as `known`."""
        self.known = known
        super().__init__(where, what, hint)


class NoCommand(SchedulerAway):
    """Raised when the command does not exist on the queried host."""


class NotConfigured(SchedulerAway):
    """Raised when the command exists on the queried host, but no configuration of Slurm."""


def on_cluster(argv: Sequence[str], cluster: str) -> tuple[str, ...]:
    """Return a command with the option that selects a cluster; "" is the host's own.

    >>> on_cluster(["squeue", "--noheader"], "cm4"), on_cluster(["sinfo"], "")
    (('squeue', '--clusters=cm4', '--noheader'), ('sinfo',))
    """
    return (argv[0], *([f"--clusters={cluster}"] if cluster else []), *argv[1:])


def run_command(
    host: Host, argv: Sequence[str], timeout_s: float = ASK_S, environment: Sequence[str] = _ENVIRONMENT
) -> Completed:
    """Run one of Slurm's commands in an environment that keeps its output parsable, and return the result.

    Raises NoCommand if the command does not exist, NotConfigured if Slurm is not configured on the host, and
    SchedulerAway if the host does not respond or the command does not end.
    """
    try:
        done = host.run([*environment, *argv], timeout_s)
    except ClusterError as error:
        named = CommandTimedOut(host.name, argv[0], timeout_s)
        what = (named if isinstance(error, CommandTimedOut) else error).what
        raise SchedulerAway(host.name, what) from None
    if done.returncode == 127:
        what = f"{argv[0]} not found on its PATH"
        raise NoCommand(host.name, what, "use a host that has Slurm's commands")
    reason = _UNCONFIGURED.search(done.stderr) if done.returncode else None
    if reason:
        raise NotConfigured(host.name, f"Slurm is not configured here ({reason[0]})", "use a login node")
    return done


def check_sbatch(host: Host) -> None:
    """Raise ClusterError if a host has no sbatch, or no configuration of Slurm."""
    hint = "submit on a login node of the Slurm cluster; --dry-run shows what would be submitted"
    try:
        run_command(host, ["sbatch", "--version"])
    except NoCommand:
        raise ClusterError("sbatch", "not found on PATH", hint) from None
    except NotConfigured as error:
        raise error.reworded(hint=hint) from None
    except SchedulerAway:
        return  # a controller that sends the configuration may be away for a moment


def is_away(complaint: str) -> bool:
    """Return whether an error message means that the controller or the database did not respond.

    >>> is_away("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    True
    >>> is_away("Invalid job id specified")
    False
    """
    return _AWAY.search(complaint) is not None


def join_complaints(stderr: str) -> str:
    r"""Return the errors printed by one of Slurm's commands, on one line and without repetition.

    >>> join_complaints("sbatch: error: No --time\nsbatch: error: Batch job submission failed: No --time\n")
    'No --time; Batch job submission failed: No --time'
    """
    lines = (re.sub(r"^\w+: (?:(?:error|fatal): )?", "", line).strip() for line in stderr.splitlines())
    return "; ".join(dict.fromkeys(" ".join(line.split()) for line in lines if line))[:500]


def ask(host: Host, argv: Sequence[str]) -> str:
    """Return a command's output. Raises SchedulerAway if it fails."""
    return read_output(host, argv, run_command(host, argv))


def read_output(host: Host, argv: Sequence[str], done: Completed) -> str:
    """Return a command's output. Raises SchedulerAway if the command failed."""
    if done.returncode != 0:
        reason = join_complaints(done.stderr) or f"exit code {done.returncode}"
        raise SchedulerAway(host.name, f"{argv[0]} got no answer from Slurm: {reason}")
    return _CLUSTER.sub("", done.stdout)
