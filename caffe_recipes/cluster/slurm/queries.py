"""Ask Slurm for jobs, partitions and nodes. An answer that does not come is told as that: SchedulerAway."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from caffe_recipes.cluster.hosts import Completed, Host
from caffe_recipes.cluster.slurm.answers import (
    SACCT_FIELDS,
    SQUEUE_FORMAT,
    parse_sacct,
    parse_scontrol_jobs,
    parse_squeue,
)
from caffe_recipes.cluster.slurm.jobs import Job, NodeGroup, State
from caffe_recipes.cluster.slurm.partitions import SINFO_FORMAT, Partition, parse_partitions, parse_sinfo
from caffe_recipes.errors import ClusterError

# A command tries a controller that is away for up to 18 s by itself.
ASK_S = 20.0
# What users may have set for their own use of the commands: it would narrow or change what they tell.
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
# A job inherits the environment of its sbatch: called in a job, what that one was given, and the new one's
# srun would take for its own. What is the user's, such as SLURM_CONF, stays.
_OF_A_JOB = (
    *(f"ARRAY_{name}" for name in ("JOB_ID", "TASK_COUNT", "TASK_ID", "TASK_MAX", "TASK_MIN", "TASK_STEP")),
    *("CPU_BIND", "CPU_BIND_LIST", "CPU_BIND_TYPE", "CPU_BIND_VERBOSE", "CPUS_PER_GPU", "CPUS_PER_TASK"),
    *("DISTRIBUTION", "DIST_PLANESIZE", "EXPORT_ENV", "GPUS", "GPUS_PER_NODE", "GPUS_PER_TASK", "HET_SIZE"),
    *("MEM_BIND", "MEM_BIND_LIST", "MEM_BIND_TYPE", "MEM_PER_CPU", "MEM_PER_GPU", "MEM_PER_NODE"),
    *("NPROCS", "NTASKS", "NTASKS_PER_CORE", "NTASKS_PER_GPU", "NTASKS_PER_NODE", "NTASKS_PER_SOCKET"),
    *("OVERCOMMIT", "RESTART_COUNT", "STEPID", "STEP_ID", "THREADS_PER_CORE"),
)
# sbatch itself would wait for the job's end, or give another exit code.
SBATCH_UNSET = ("SBATCH_WAIT", "SLURM_EXIT_ERROR", *(f"SLURM_{name}" for name in _OF_A_JOB))
SBATCH_ENVIRONMENT = ("env", *(word for name in SBATCH_UNSET for word in ("-u", name)))
_AWAY = re.compile(
    r"unable to contact|unable to establish|could not establish|timed out|connection (?:refused|reset)"
    r"|zero bytes were transmitted|communication|not connected|no route to host|name or service not known"
    r"|temporarily un|standby|authentication error|munge|unexpected message|header lengths"
    r"|(?:connect|send|receive|shutdown) failure|problem talking to the database|slurmdbd|broken pipe",
    re.IGNORECASE,
)
# What squeue and sinfo write, headers or not, of a cluster that they are told to ask.
_CLUSTER = re.compile(r"^CLUSTER: \S+\n", re.MULTILINE)
_UNKNOWN = re.compile(r"invalid job id|job not found", re.IGNORECASE)
_NO_ACCOUNTING = "accounting storage is disabled"
# sacct by name looks through today alone, unless told.
_ACCOUNTED_SINCE = "--starttime=now-30days"


class SchedulerAway(ClusterError):
    """Slurm gave no answer, which says nothing about any job but those that are `known`: told by others."""

    def __init__(self, where: str, what: str, hint: str = "", known: tuple[Job, ...] = ()) -> None:
        """Keep the jobs that somebody else told."""
        self.known = known
        super().__init__(where, what, hint)


class NoCommand(SchedulerAway):
    """The host that was asked has no such command."""


def has_slurm(host: Host) -> bool:
    """Return whether a host has Slurm's commands; raises ClusterError if the host gives no answer."""
    return host.run(["sh", "-c", "command -v sbatch"], ASK_S).returncode == 0


def find_jobs(
    host: Host,
    *,
    ids: Collection[int] = (),
    names: Collection[str] = (),
    since: datetime | None = None,
    cluster: str = "",
) -> tuple[Job, ...]:
    """Return the jobs of these numbers, and those of exactly these names, the one submitted last first.

    The controller tells those that live and for some minutes (MinJobAge) those that have ended; accounting,
    where there is any, tells the rest and who cancelled. A job that neither knows is not there.
    `since`, on the clock of the host's Slurm, is how far back accounting looks for names: 30 days unless
    given; `cluster` is another than the host's own, by its name. Raises SchedulerAway where a job that is not
    found may be known to who gave no answer.
    """
    live = _ask_controller(host, ids, names, cluster)
    found = _merge([*live, *_ask_accounting(host, live, ids, names, since, cluster)])
    there = [replace(job, cluster=cluster) for job in found]
    return tuple(sorted(there, key=lambda job: (job.submit or datetime.min, job.job_id), reverse=True))


def ask_partitions(host: Host, cluster: str = "") -> tuple[Partition, ...]:
    """Return all partitions, hidden ones, too; raises SchedulerAway."""
    argv = on_cluster(["scontrol", "--all", "--oneliner", "show", "partition"], cluster)
    return parse_partitions(_told(host, argv))


def ask_node_groups(host: Host, partition: str | None = None, cluster: str = "") -> tuple[NodeGroup, ...]:
    """Return the nodes of one partition or of all, by their states; none for an unknown partition.

    Raises SchedulerAway.
    """
    which = "--all" if partition is None else f"--partition={partition}"  # sinfo takes but one of them
    argv = on_cluster(["sinfo", "--noheader", f"--format={SINFO_FORMAT}", which], cluster)
    return parse_sinfo(_told(host, argv))


def on_cluster(argv: Sequence[str], cluster: str) -> tuple[str, ...]:
    """Return a command as it asks a cluster of that name; of none, the host's own.

    >>> on_cluster(["squeue", "--noheader"], "cm4"), on_cluster(["sinfo"], "")
    (('squeue', '--clusters=cm4', '--noheader'), ('sinfo',))
    """
    return (argv[0], *([f"--clusters={cluster}"] if cluster else []), *argv[1:])


def run_command(
    host: Host, argv: Sequence[str], timeout_s: float = ASK_S, environment: Sequence[str] = _ENVIRONMENT
) -> Completed:
    """Run one of Slurm's commands as it speaks to programs, whatever its exit code.

    Raises NoCommand where there is none, SchedulerAway if the host gives no answer or it does not end.
    """
    try:
        done = host.run([*environment, *argv], timeout_s)
    except ClusterError as error:
        what = error.what.replace("env did not end", f"{argv[0]} did not end")
        raise SchedulerAway(error.where or host.name, what, "ask again later") from None
    if done.returncode == 127:
        what = f"{argv[0]} is not on its PATH"
        raise NoCommand(host.name, what, "ask on a host that has Slurm's commands")
    return done


def is_away(said: str) -> bool:
    """Tell whether a command complains that somebody whom it asked gave no answer.

    >>> is_away("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    True
    >>> is_away("Invalid job id specified")
    False
    """
    return _AWAY.search(said) is not None


def join_complaints(said: str) -> str:
    r"""Return what Slurm's commands write when they fail in one line, each complaint once.

    >>> join_complaints("sbatch: error: No --time\nsbatch: error: Batch job submission failed: No --time\n")
    'No --time; Batch job submission failed: No --time'
    """
    lines = (re.sub(r"^\w+: (?:(?:error|fatal): )?", "", line).strip() for line in said.splitlines())
    return "; ".join(dict.fromkeys(" ".join(line.split()) for line in lines if line))[:500]


def _ask_controller(
    host: Host, ids: Collection[int], names: Collection[str], cluster: str
) -> tuple[Job, ...]:
    """Return the jobs that the controller knows; by its longest answer, which no list of jobs gives."""
    listed = {job.job_id: job for job in _list_named(host, names, cluster)}
    found = []
    for job_id in dict.fromkeys([*ids, *listed]):
        shown = _show(host, job_id, cluster)
        found += shown or ([listed[job_id]] if job_id in listed else [])
    return tuple(found)


def _list_named(host: Host, names: Collection[str], cluster: str) -> list[Job]:
    if not names:
        return []
    argv = ["squeue", "--noheader", "--states=all", f"--format={SQUEUE_FORMAT}", *_by_name(names)]
    return [job for job in parse_squeue(_told(host, on_cluster(argv, cluster))) if job.name in names]


def _show(host: Host, job_id: int, cluster: str) -> list[Job]:
    argv = on_cluster(["scontrol", "--oneliner", "show", "job", str(job_id)], cluster)
    done = run_command(host, argv)
    if done.returncode != 0 and _UNKNOWN.search(done.stderr):
        return []
    return list(parse_scontrol_jobs(_read(host, argv, done)))


def _ask_accounting(
    host: Host,
    live: Collection[Job],
    ids: Collection[int],
    names: Collection[str],
    since: datetime | None,
    cluster: str,
) -> tuple[Job, ...]:
    """Return what accounting knows of the names, and of numbers that the controller does not tell whole."""
    whole = {job.job_id for job in live if job.state is not State.CANCELLED}
    wanted = [str(job_id) for job_id in dict.fromkeys(ids) if job_id not in whole]
    start = (f"--starttime={since.isoformat(timespec='seconds')}",) if since else ()
    try:
        by_id = _account(host, cluster, [f"--jobs={','.join(wanted)}", *start]) if wanted else ()
        found = _account(host, cluster, [*_by_name(names), *(start or (_ACCOUNTED_SINCE,))]) if names else ()
    except SchedulerAway as error:
        if {*ids} <= {job.job_id for job in live} and {*names} <= {job.name for job in live}:
            return ()
        raise SchedulerAway(error.where, error.what, error.hint, tuple(live)) from None
    return (*by_id, *(job for job in found if job.name in names))


def _account(host: Host, cluster: str, which: Iterable[str]) -> tuple[Job, ...]:
    """Return the jobs that sacct tells; none where there is no accounting."""
    argv = ["sacct", "--allocations", "--parsable2", "--noheader", f"--format={SACCT_FIELDS}", *which]
    try:
        done = run_command(host, on_cluster(argv, cluster))
    except NoCommand:
        return ()
    if done.returncode != 0 and _NO_ACCOUNTING in done.stderr:
        return ()
    return parse_sacct(_read(host, argv, done))


def _by_name(names: Collection[str]) -> tuple[str, ...]:
    """Return the option for names; none, which means all, where a name has what would part it in two."""
    return () if any("," in name for name in names) else (f"--name={','.join(names)}",)


def _merge(jobs: Iterable[Job]) -> Iterable[Job]:
    """Return each job once, as it is told first; who cancelled it may be told later."""
    found: dict[int, Job] = {}
    for job in jobs:
        first = found.setdefault(job.job_id, job)
        if first.state is job.state and first.cancelled_by is None:
            found[job.job_id] = replace(first, cancelled_by=job.cancelled_by)
    return found.values()


def _told(host: Host, argv: Sequence[str]) -> str:
    return _read(host, argv, run_command(host, argv))


def _read(host: Host, argv: Sequence[str], done: Completed) -> str:
    """Return what a command told; whatever it complains of is no news of any job."""
    if done.returncode != 0:
        said = join_complaints(done.stderr) or f"exit code {done.returncode}"
        raise SchedulerAway(host.name, f"Slurm gives {argv[0]} no answer: {said}", "ask again later")
    return _CLUSTER.sub("", done.stdout)
