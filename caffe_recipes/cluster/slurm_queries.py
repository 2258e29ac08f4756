"""Query Slurm for jobs, partitions and nodes, and check a job against a partition's limits.

The output of Slurm's commands is parsed strictly: text that cannot be parsed raises a ClusterError that
quotes it. A command that gets no answer raises SchedulerAway, which implies nothing about any job.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NoReturn

from caffe_recipes.cluster.commands import Completed, Host
from caffe_recipes.cluster.slurm_jobs import Job, NodeGroup, State, describe_limit, parse_limit, parse_moment
from caffe_recipes.errors import ClusterError, CommandTimedOut
from caffe_recipes.wording import describe_count

# The job name comes last, since only it may contain the separator. Without widths nothing is truncated.
SQUEUE_FORMAT = "%A|%i|%T|%D|%P|%l|%V|%S|%e|%N|%r|%j"
SACCT_FIELDS = (
    "JobIDRaw,JobID,State,ExitCode,NNodes,Partition,Timelimit,Submit,Start,End,NodeList,Reason,JobName"
)
_SCONTROL = re.compile(
    r"JobId=(\d+) (?:ArrayJobId=(\d+) ArrayTaskId=(\S+) (?:ArrayTaskThrottle=\d+ )?"
    r"|HetJobId=(\d+) HetJobOffset=(\d+) )?JobName=(.*?) (?:HetJobIdSet=\S+ )?(UserId=.*)"
)
# A path may contain spaces: it extends to the next field.
_STDOUT = re.compile(r" StdOut=(.*?)(?= [A-Z][A-Za-z]*=|$)")
_EXIT = re.compile(r"(\d{1,9}):(\d{1,9})(?:\s.*)?")
_CANCELLED = re.compile(r"CANCELLED by (\d{1,10})(?!\d)")
_STEP = re.compile(r"(\d+(?:_\d+|\+\d+)?)\.(\w+)")
# The columns of both formats, by scontrol's field names; the job name is last.
_SACCT_ROW = (
    *("JobId", "Label", "JobState", "ExitCode", "NumNodes", "Partition", "TimeLimit"),
    *("SubmitTime", "StartTime", "EndTime", "NodeList", "Reason", "JobName"),
)
_SQUEUE_ROW = tuple(name for name in _SACCT_ROW if name != "ExitCode")
_NO_JOB = "No jobs in the system"
_NO_VALUE = ("(null)", "None assigned", "N/A", "None")


def parse_squeue(stdout: str) -> tuple[Job, ...]:
    """Return the jobs in the output of `squeue --noheader --format=SQUEUE_FORMAT`. Raises ClusterError."""
    return tuple(
        _build_job("squeue", line, fields) for line, fields in _split_rows(stdout, "squeue", _SQUEUE_ROW)
    )


def parse_scontrol_jobs(stdout: str) -> tuple[Job, ...]:
    """Return the jobs in the output of `scontrol --oneliner show job`, with or without --details.

    Each task of an array, and each component of a heterogeneous job, is a job. Raises ClusterError.
    """
    lines = [line for line in stdout.splitlines() if line.strip()]
    return tuple(_read_scontrol(line) for line in lines if line.strip() != _NO_JOB)


def parse_sacct(stdout: str) -> tuple[Job, ...]:
    """Return the jobs in the output of `sacct --parsable2 --noheader --format=SACCT_FIELDS`.

    Job steps are skipped. Without --duplicates a requeued job appears once, in its latest state. Raises
    ClusterError.
    """
    rows = _split_rows(stdout, "sacct", _SACCT_ROW)
    return tuple(
        _build_job("sacct", line, fields) for line, fields in rows if not _STEP.fullmatch(fields["Label"])
    )


def _read_scontrol(line: str) -> Job:
    found = _SCONTROL.fullmatch(line.strip())
    if found is None:
        _unreadable("scontrol", line)
    job_id, array, task, het, offset, name, rest = found.groups()
    fields = parse_fields(rest)
    if not {"JobState", "ExitCode"} <= fields.keys():
        _unreadable("scontrol", line)
    label = f"{array}_{task}" if array else f"{het}+{offset}" if het else job_id
    output = _STDOUT.search(rest)
    own = {"JobId": job_id, "Label": label, "JobName": name, "StdOut": output[1] if output else ""}
    return _build_job("scontrol", line, {**fields, **own})


def _build_job(command: str, line: str, fields: Mapping[str, str]) -> Job:
    """Return the job with these `fields`, keyed by scontrol's names. Raises ClusterError."""
    known = defaultdict(str, fields)
    exit_code, signal = _exit(fields["ExitCode"], command) if "ExitCode" in fields else (None, None)
    by = _CANCELLED.match(known["JobState"])
    return Job(
        job_id=_integer(known["JobId"], line, command),
        name=known["JobName"],
        state=_state(known["JobState"], command),
        label=known["Label"],
        reason=_text(known["Reason"], keep=("None",)),
        partition=known["Partition"],
        nodes=_count(known["NumNodes"]),
        node_list=_text(known["NodeList"]),
        submit=parse_moment(known["SubmitTime"], command),
        start=parse_moment(known["StartTime"], command),
        end=parse_moment(known["EndTime"], command),
        limit_s=parse_limit(known["TimeLimit"], command),
        exit_code=exit_code,
        signal=signal,
        restarts=_count(known["Restarts"]),
        dependency=_text(known["Dependency"]),
        failed_node=_text(known["FailedNode"]),
        cancelled_by=int(by[1]) if by else None,
        stdout=_text(known["StdOut"]),
    )


def parse_fields(line: str) -> Mapping[str, str]:
    """Return the first value of each `Key=value` in a line from scontrol; other words are skipped.

    >>> parse_fields("UserId=a(1) GroupId=domain users(2) Reason=None NodeList=n[1-2] NodeList=x")["NodeList"]
    'n[1-2]'
    """
    fields: dict[str, str] = {}
    for word in line.split():
        key, found, value = word.partition("=")
        if found:
            fields.setdefault(key, value)
    return fields


def _split_rows(stdout: str, command: str, names: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each non-empty line with its fields by name; the last field may contain the separator."""
    for line in filter(str.strip, stdout.splitlines()):
        row = line.split("|", len(names) - 1)
        if len(row) != len(names):
            _unreadable(command, line)
        yield line, dict(zip(names, row, strict=True))


def _state(word: str, command: str) -> State:
    try:
        return State(word.split()[0])
    except (ValueError, IndexError):
        what = f"{command} reports the unknown state {word[:80]!r}"
        raise ClusterError(command, what, "report this, with the version of Slurm") from None


def _exit(text: str, command: str) -> tuple[int, int]:
    found = _EXIT.fullmatch(text.strip())
    if found is None:
        _unreadable(command, text)
    return int(found[1]), int(found[2])


def _integer(text: str, line: str, command: str) -> int:
    if not re.fullmatch(r"\d{1,10}", text.strip()):
        _unreadable(command, line)
    return int(text)


def _count(text: str) -> int | None:
    """Return a count, or the first number of a range; None if it is rounded, such as `1K`."""
    found = re.fullmatch(r"(\d{1,10})(?:-\d+)?", text.strip())
    return int(found[1]) if found else None


def _text(value: str, keep: tuple[str, ...] = ()) -> str:
    """Return a value without outer blanks; "" for Slurm's words for no value, except those in `keep`."""
    stripped = value.strip()
    return "" if stripped in _NO_VALUE and stripped not in keep else stripped


def _unreadable(command: str, line: str) -> NoReturn:
    what = f"its output cannot be parsed: {line[:300]!r}"
    raise ClusterError(command, what, "report this, with the version of Slurm")


SINFO_FORMAT = "%R|%a|%l|%D|%T|%N"
_ALL = ("ALL", "(null)", "")
# Marks that sinfo appends to a state: not responding, powering, reserved, planned, rebooting.
_MARKS = "*~#!%$@^+-"


@dataclass(frozen=True)
class Partition:
    """A partition and its limits; None means no limit, and an `allow_...` of None admits everyone.

    `total_nodes` includes broken nodes. `default_s` is the time limit of a job without --time.
    """

    name: str
    state: str
    total_nodes: int
    max_nodes: int | None = None
    min_nodes: int = 0
    max_s: float | None = None
    default_s: float | None = None
    is_default: bool = False
    allow_accounts: frozenset[str] | None = None
    deny_accounts: frozenset[str] = frozenset()
    allow_qos: frozenset[str] | None = None
    deny_qos: frozenset[str] = frozenset()


def parse_partitions(stdout: str) -> tuple[Partition, ...]:
    """Return the partitions in the output of `scontrol --oneliner show partition`. Raises ClusterError."""
    lines = [line for line in stdout.splitlines() if line.strip()]
    return tuple(_read_partition(line) for line in lines if "No partitions in the system" not in line)


def parse_sinfo(stdout: str) -> tuple[NodeGroup, ...]:
    """Return the nodes in the output of `sinfo --noheader --format=SINFO_FORMAT`. Raises ClusterError."""
    groups = []
    for line in filter(str.strip, stdout.splitlines()):
        row = line.split("|")
        if len(row) != 6 or not re.fullmatch(r"\d{1,10}", row[3].strip()):
            _unreadable("sinfo", line)
        name, _, _, nodes, state, node_list = (part.strip() for part in row)
        groups.append(
            NodeGroup(
                partition=name,
                nodes=int(nodes),
                state=state.rstrip(_MARKS),
                node_list=node_list,
                responds="*" not in state,
            )
        )
    return tuple(groups)


def _read_partition(line: str) -> Partition:
    fields = parse_fields(line)
    if not {"PartitionName", "State", "TotalNodes", "MaxNodes", "MaxTime"} <= fields.keys():
        _unreadable("scontrol", line)
    return Partition(
        name=fields["PartitionName"],
        state=fields["State"],
        total_nodes=_number(fields, "TotalNodes") or 0,
        max_nodes=_number(fields, "MaxNodes"),
        min_nodes=_number(fields, "MinNodes") or 0,
        max_s=parse_limit(fields["MaxTime"], "scontrol"),
        default_s=parse_limit(fields.get("DefaultTime", "NONE"), "scontrol"),
        is_default=fields.get("Default") == "YES",
        allow_accounts=_names(fields.get("AllowAccounts", "ALL")),
        deny_accounts=_names(fields.get("DenyAccounts", "")) or frozenset(),
        allow_qos=_names(fields.get("AllowQos", "ALL")),
        deny_qos=_names(fields.get("DenyQos", "")) or frozenset(),
    )


def _names(text: str) -> frozenset[str] | None:
    return None if text in _ALL else frozenset(text.split(","))


def _number(fields: Mapping[str, str], key: str) -> int | None:
    """Return the number at the start of a value, such as `300 sec`; None for others, such as UNLIMITED."""
    found = re.match(r"\d{1,10}(?!\d)", fields.get(key, ""))
    return int(found[0]) if found else None


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
_UNKNOWN = re.compile(r"invalid job id|job not found", re.IGNORECASE)
_NO_ACCOUNTING = "accounting storage is disabled"
# By default sacct searches only today's jobs by name.
_ACCOUNTED_SINCE = "--starttime=now-30days"


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


def has_slurm(host: Host) -> bool:
    """Return whether a host has Slurm's commands. Raises ClusterError if the host does not respond."""
    return host.run(["sh", "-c", "command -v sbatch"], ASK_S).returncode == 0


def find_jobs(
    host: Host,
    *,
    ids: Collection[int] = (),
    names: Collection[str] = (),
    cluster: str = "",
) -> tuple[Job, ...]:
    """Return the jobs with these ids, and our own with exactly these names, latest submission first.

    Jobs of other users are found by id only: anybody can give a job the name of one of ours.
    The controller knows live jobs, and ended jobs for some minutes (MinJobAge). Accounting, if the site has
    it, knows the rest, and who cancelled a job; it is searched for names in the last 30 days. Jobs unknown
    to both are omitted. `cluster` names a cluster other than the host's own. Raises SchedulerAway if a source
    that may know a missing job did not respond.
    """
    live = _ask_controller(host, ids, names, cluster)
    found = _merge([*live, *_ask_accounting(host, live, ids, names, cluster)])
    jobs = [replace(job, cluster=cluster) for job in found]
    return tuple(sorted(jobs, key=lambda job: (job.submit or datetime.min, job.job_id), reverse=True))


def ask_partitions(host: Host, cluster: str = "") -> tuple[Partition, ...]:
    """Return all partitions, including hidden ones. Raises SchedulerAway."""
    argv = on_cluster(["scontrol", "--all", "--oneliner", "show", "partition"], cluster)
    return parse_partitions(_ask(host, argv))


def ask_node_groups(host: Host, partition: str | None = None, cluster: str = "") -> tuple[NodeGroup, ...]:
    """Return the nodes of one partition or of all, grouped by state; empty for an unknown partition.

    Raises SchedulerAway.
    """
    which = "--all" if partition is None else f"--partition={partition}"  # sinfo accepts only one of the two
    argv = on_cluster(["sinfo", "--noheader", f"--format={SINFO_FORMAT}", which], cluster)
    return parse_sinfo(_ask(host, argv))


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


def _ask_controller(
    host: Host, ids: Collection[int], names: Collection[str], cluster: str
) -> tuple[Job, ...]:
    """Return the jobs known to the controller, with the fields of `scontrol show job`.

    Since scontrol shows a single job, it is asked only for those of several `ids` that squeue lists.
    """
    named = {job.job_id: job for job in _list_named(host, names, cluster)}
    listed = dict(named)
    if len({*ids}) > 1:
        by_id = _list_by_id(host, ids, cluster)
        listed |= {job.job_id: job for job in by_id}
        # The label of an array's task, or of a component, begins with the id that was submitted.
        known = {int(number) for job in by_id for number in (job.job_id, re.split("[_+]", job.label)[0])}
        ids = [job_id for job_id in ids if job_id in known]
    found = []
    for job_id in dict.fromkeys([*ids, *named]):
        shown = _show(host, job_id, cluster)
        found += shown or ([listed[job_id]] if job_id in listed else [])
    return tuple(found)


def _list_by_id(host: Host, ids: Collection[int], cluster: str) -> tuple[Job, ...]:
    which = f"--jobs={','.join(map(str, dict.fromkeys(ids)))}"
    words = ["squeue", "--all", "--noheader", "--states=all", f"--format={SQUEUE_FORMAT}", which]
    argv = on_cluster(words, cluster)
    done = run_command(host, argv)
    if done.returncode != 0 and _UNKNOWN.search(done.stderr):
        return ()
    return parse_squeue(_read(host, argv, done))


def _list_named(host: Host, names: Collection[str], cluster: str) -> list[Job]:
    if not names:
        return []
    argv = ["squeue", "--noheader", "--states=all", f"--format={SQUEUE_FORMAT}", *_own_by_name(host, names)]
    return [job for job in parse_squeue(_ask(host, on_cluster(argv, cluster))) if job.name in names]


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
    cluster: str,
) -> tuple[Job, ...]:
    """Return the jobs in accounting with these names, or with ids not fully known to the controller."""
    complete = {job.job_id for job in live if job.state is not State.CANCELLED}
    wanted = [str(job_id) for job_id in dict.fromkeys(ids) if job_id not in complete]
    try:
        by_id = _account(host, cluster, [f"--jobs={','.join(wanted)}"]) if wanted else ()
        found = _account(host, cluster, [*_own_by_name(host, names), _ACCOUNTED_SINCE]) if names else ()
    except SchedulerAway as error:
        if {*ids} <= {job.job_id for job in live} and {*names} <= {job.name for job in live}:
            return ()
        error.known = tuple(live)
        raise
    return (*by_id, *(job for job in found if job.name in names))


def _account(host: Host, cluster: str, which: Iterable[str]) -> tuple[Job, ...]:
    """Return the jobs that sacct lists; () if the site has no accounting."""
    argv = ["sacct", "--allocations", "--parsable2", "--noheader", f"--format={SACCT_FIELDS}", *which]
    try:
        done = run_command(host, on_cluster(argv, cluster))
    except NoCommand:
        return ()
    if done.returncode != 0 and _NO_ACCOUNTING in done.stderr:
        return ()
    return parse_sacct(_read(host, argv, done))


def _own_by_name(host: Host, names: Collection[str]) -> tuple[str, ...]:
    """Return the options that select our own jobs, by name unless a name has a comma."""
    user_id = _ask(host, ["id", "-u"]).strip()
    if not user_id.isdecimal():
        _unreadable("id", user_id)
    by_name = () if any("," in name for name in names) else (f"--name={','.join(names)}",)
    return (f"--user={user_id}", *by_name)


def _merge(jobs: Iterable[Job]) -> Iterable[Job]:
    """Return each job once, as first reported, with `cancelled_by` from a later report."""
    found: dict[int, Job] = {}
    for job in jobs:
        first = found.setdefault(job.job_id, job)
        if first.state is job.state and first.cancelled_by is None:
            found[job.job_id] = replace(first, cancelled_by=job.cancelled_by)
    return found.values()


def _ask(host: Host, argv: Sequence[str]) -> str:
    return _read(host, argv, run_command(host, argv))


def _read(host: Host, argv: Sequence[str], done: Completed) -> str:
    """Return a command's output. Raises SchedulerAway if the command failed."""
    if done.returncode != 0:
        reason = join_complaints(done.stderr) or f"exit code {done.returncode}"
        raise SchedulerAway(host.name, f"{argv[0]} got no answer from Slurm: {reason}")
    return _CLUSTER.sub("", done.stdout)


_CLOSED = {
    "DOWN": "accepts jobs but does not start them now",
    "DRAIN": "accepts no new jobs",
    "INACTIVE": "neither accepts nor starts jobs",
}


def check_limits(
    partition: Partition,
    *,
    nodes: int,
    time_s: float | None,
    account: str | None = None,
    qos: str | None = None,
) -> tuple[str, ...]:
    """Return a line for each limit of the partition that a job exceeds; `time_s` is its --time, if any.

    Without an account or QOS, Slurm uses the user's default, which only `sbatch --test-only` can check.
    """
    return (
        *_check_state(partition),
        *_check_nodes(partition, nodes),
        *_check_time(partition, time_s),
        *_check_names(partition, account, qos),
    )


def check_nodes_now(partition: Partition, groups: Iterable[NodeGroup], nodes: int) -> tuple[str, ...]:
    """Return a line if the job would have to wait because too few of the partition's nodes work now."""
    broken = sum(group.nodes for group in groups if group.partition == partition.name and group.is_broken)
    left = partition.total_nodes - broken
    if not left < nodes <= partition.total_nodes:
        return ()
    has = f"{partition.name} has {describe_count(left, 'working node')} now"
    return (f"{has}, but the job needs {nodes}; it will wait until more nodes are up; see sinfo -R",)


def _check_state(partition: Partition) -> Iterator[str]:
    if partition.state in _CLOSED:
        doing = f"{_CLOSED[partition.state]} (state {partition.state})"
        yield f"{partition.name} {doing}; wait, or use another partition"


def _check_nodes(partition: Partition, nodes: int) -> Iterator[str]:
    name = partition.name
    if nodes > partition.total_nodes:
        yield f"{name} has {partition.total_nodes} nodes, and the job needs {nodes}; it would never start"
    if partition.max_nodes is not None and partition.max_nodes < nodes <= partition.total_nodes:
        yield f"{name} allows at most {partition.max_nodes} nodes per job, and this job needs {nodes}"
    if nodes < partition.min_nodes:
        yield f"{name} requires at least {partition.min_nodes} nodes per job, and this job needs {nodes}"


def _check_time(partition: Partition, time_s: float | None) -> Iterator[str]:
    if partition.max_s is not None and time_s is not None and time_s > partition.max_s:
        most, needs = describe_limit(partition.max_s), describe_limit(time_s)
        yield f"{partition.name} runs a job for at most {most}, and this job needs {needs}"
    if partition.default_s is not None and time_s is None:
        yield (
            f"{partition.name} limits jobs without --time to {describe_limit(partition.default_s)}; "
            "give --time"
        )


def _check_names(partition: Partition, account: str | None, qos: str | None) -> Iterator[str]:
    for option, name, allowed, denied in (
        ("account", account, partition.allow_accounts, partition.deny_accounts),
        ("QOS", qos, partition.allow_qos, partition.deny_qos),
    ):
        if allowed is not None and name is not None and name not in allowed:
            names = ", ".join(sorted(allowed))
            yield f"{partition.name} accepts only {option} {names}, not {name!r}"
        elif name in denied:
            yield f"{partition.name} does not accept {option} {name!r}"
