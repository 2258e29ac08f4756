"""Parse what Slurm's commands print about jobs and nodes.

They are parsed strictly: text that cannot be parsed raises a ClusterError that quotes it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from caffe_recipes.cluster.slurm.jobs import Job, JobState, NodeGroup
from caffe_recipes.cluster.slurm.times import parse_limit, parse_moment
from caffe_recipes.errors import ClusterError

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
        raise_unreadable("scontrol", line)
    job_id, array, task, het, offset, name, rest = found.groups()
    fields = parse_fields(rest)
    if not {"JobState", "ExitCode"} <= fields.keys():
        raise_unreadable("scontrol", line)
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
            raise_unreadable(command, line)
        yield line, dict(zip(names, row, strict=True))


def _state(word: str, command: str) -> JobState:
    try:
        return JobState(word.split()[0])
    except (ValueError, IndexError):
        what = f"{command} reports the unknown state {word[:80]!r}"
        raise ClusterError(command, what, "report this, with the version of Slurm") from None


def _exit(text: str, command: str) -> tuple[int, int]:
    found = _EXIT.fullmatch(text.strip())
    if found is None:
        raise_unreadable(command, text)
    return int(found[1]), int(found[2])


def _integer(text: str, line: str, command: str) -> int:
    if not re.fullmatch(r"\d{1,10}", text.strip()):
        raise_unreadable(command, line)
    return int(text)


def _count(text: str) -> int | None:
    """Return a count, or the first number of a range; None if it is rounded, such as `1K`."""
    found = re.fullmatch(r"(\d{1,10})(?:-\d+)?", text.strip())
    return int(found[1]) if found else None


def _text(value: str, keep: tuple[str, ...] = ()) -> str:
    """Return a value without outer blanks; "" for Slurm's words for no value, except those in `keep`."""
    stripped = value.strip()
    return "" if stripped in _NO_VALUE and stripped not in keep else stripped


def raise_unreadable(command: str, line: str) -> NoReturn:
    """Raise the error for output that cannot be parsed."""
    what = f"its output cannot be parsed: {line[:300]!r}"
    raise ClusterError(command, what, "report this, with the version of Slurm")


SINFO_FORMAT = "%R|%a|%l|%D|%T|%N"
# Marks that sinfo appends to a state: not responding, powering, reserved, planned, rebooting.
_MARKS = "*~#!%$@^+-"


def parse_sinfo(stdout: str) -> tuple[NodeGroup, ...]:
    """Return the nodes in the output of `sinfo --noheader --format=SINFO_FORMAT`. Raises ClusterError."""
    groups = []
    for line in filter(str.strip, stdout.splitlines()):
        row = line.split("|")
        if len(row) != 6 or not re.fullmatch(r"\d{1,10}", row[3].strip()):
            raise_unreadable("sinfo", line)
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
