"""What Slurm's commands write about jobs, read strictly: what cannot be read raises, with the text in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn

from caffe_recipes.cluster.slurm.jobs import Job, State
from caffe_recipes.cluster.slurm.times import parse_limit, parse_moment
from caffe_recipes.errors import ClusterError

# The job's name comes last: it alone may hold the separator. No widths, so that nothing is cut.
SQUEUE_FORMAT = "%A|%i|%T|%D|%P|%l|%V|%S|%e|%N|%r|%j"
SACCT_FIELDS = (
    "JobIDRaw,JobID,State,ExitCode,NNodes,Partition,Timelimit,Submit,Start,End,NodeList,Reason,JobName"
)
_SCONTROL = re.compile(
    r"JobId=(\d+) (?:ArrayJobId=(\d+) ArrayTaskId=(\S+) (?:ArrayTaskThrottle=\d+ )?"
    r"|HetJobId=(\d+) HetJobOffset=(\d+) )?JobName=(.*?) (?:HetJobIdSet=\S+ )?(UserId=.*)"
)
# A path may hold spaces: it goes on to the next field.
_STDOUT = re.compile(r" StdOut=(.*?)(?= [A-Z][A-Za-z]*=|$)")
_EXIT = re.compile(r"(\d+):(\d+)(?:\s.*)?")
_CANCELLED = re.compile(r"CANCELLED by (\d+)")
_STEP = re.compile(r"(\d+(?:_\d+|\+\d+)?)\.(\w+)")
_NO_JOB = "No jobs in the system"
_EMPTY = ("(null)", "None assigned", "N/A", "None")


def parse_squeue(said: str) -> tuple[Job, ...]:
    """Read what `squeue --noheader --format=SQUEUE_FORMAT` writes; raises ClusterError."""
    return tuple(_read_squeue(line) for line in said.splitlines() if line.strip())


def parse_scontrol_jobs(said: str) -> tuple[Job, ...]:
    """Read what `scontrol --oneliner show job` writes, also with --details; raises ClusterError.

    The tasks of an array come as several jobs, and so do the parts of a heterogeneous one.
    """
    lines = [line for line in said.splitlines() if line.strip()]
    return tuple(_read_scontrol(line) for line in lines if line.strip() != _NO_JOB)


def parse_sacct(said: str) -> tuple[Job, ...]:
    """Read the jobs in what `sacct --parsable2 --noheader --format=SACCT_FIELDS` writes; raises ClusterError.

    Steps are passed over; without --duplicates a requeued job comes once, as it was last.
    """
    rows = [_split(line, 13, "sacct") for line in said.splitlines() if line.strip()]
    return tuple(_read_accounted(row) for row in rows if not _STEP.fullmatch(row[1]))


def _read_squeue(line: str) -> Job:
    job_id, label, state, nodes, partition, limit, submit, start, end, node_list, reason, name = _split(
        line, 12, "squeue"
    )
    return Job(
        job_id=_whole(job_id, line, "squeue"),
        name=name,
        state=_state(state, "squeue"),
        label=label,
        reason=reason.strip(),
        partition=partition,
        nodes=_count(nodes),
        node_list=_text(node_list),
        submit=parse_moment(submit, "squeue"),
        start=parse_moment(start, "squeue"),
        end=parse_moment(end, "squeue"),
        limit_s=parse_limit(limit, "squeue"),
    )


def _read_scontrol(line: str) -> Job:
    found = _SCONTROL.fullmatch(line.strip())
    if found is None:
        _unreadable("scontrol", line)
    job_id, array, task, het, offset, name, rest = found.groups()
    fields = parse_fields(rest)
    if "JobState" not in fields or "ExitCode" not in fields:
        _unreadable("scontrol", line)
    exit_code, signal = _exit(fields["ExitCode"], "scontrol")
    output = _STDOUT.search(rest)
    return Job(
        job_id=int(job_id),
        name=name,
        state=_state(fields["JobState"], "scontrol"),
        label=f"{array}_{task}" if array else f"{het}+{offset}" if het else job_id,
        reason=_text(fields.get("Reason", ""), but=("None",)),
        partition=fields.get("Partition", ""),
        nodes=_count(fields.get("NumNodes", "")),
        node_list=_text(fields.get("NodeList", "")),
        submit=parse_moment(fields.get("SubmitTime", ""), "scontrol"),
        eligible=parse_moment(fields.get("EligibleTime", ""), "scontrol"),
        start=parse_moment(fields.get("StartTime", ""), "scontrol"),
        end=parse_moment(fields.get("EndTime", ""), "scontrol"),
        limit_s=parse_limit(fields.get("TimeLimit", ""), "scontrol"),
        exit_code=exit_code,
        signal=signal,
        restarts=_count(fields.get("Restarts", "")),
        may_requeue={"0": False, "1": True}.get(fields.get("Requeue", "")),
        dependency=_text(fields.get("Dependency", "")),
        failed_node=_text(fields.get("FailedNode", "")),
        stdout=_text(output[1]) if output else "",
    )


def _read_accounted(row: list[str]) -> Job:
    raw, label, state, exit_text, nodes, partition, limit, submit, start, end, node_list, reason, name = row
    exit_code, signal = _exit(exit_text, "sacct")
    by = _CANCELLED.match(state)
    return Job(
        job_id=_whole(raw, "|".join(row), "sacct"),
        name=name,
        state=_state(state, "sacct"),
        label=label,
        reason=_text(reason, but=("None",)),
        partition=partition,
        nodes=_count(nodes),
        node_list=_text(node_list),
        submit=parse_moment(submit, "sacct"),
        start=parse_moment(start, "sacct"),
        end=parse_moment(end, "sacct"),
        limit_s=parse_limit(limit, "sacct"),
        exit_code=exit_code,
        signal=signal,
        cancelled_by=int(by[1]) if by else None,
    )


def parse_fields(line: str) -> Mapping[str, str]:
    """Return the first value of each `Key=value` of a line of scontrol's, passing over words without a key.

    >>> parse_fields("UserId=a(1) GroupId=domain users(2) Reason=None NodeList=n[1-2] NodeList=x")["NodeList"]
    'n[1-2]'
    """
    fields: dict[str, str] = {}
    for word in line.split():
        key, found, value = word.partition("=")
        if found:
            fields.setdefault(key, value)
    return fields


def _split(line: str, count: int, command: str) -> list[str]:
    row = line.split("|", count - 1)
    if len(row) != count:
        _unreadable(command, line)
    return row


def _state(word: str, command: str) -> State:
    try:
        return State(word.split()[0])
    except (ValueError, IndexError):
        what = f"{command} writes {word[:80]!r}, which is no state that we know"
        raise ClusterError(command, what, "report which Slurm this is") from None


def _exit(text: str, command: str) -> tuple[int, int]:
    found = _EXIT.fullmatch(text.strip())
    if found is None:
        _unreadable(command, text)
    return int(found[1]), int(found[2])


def _whole(text: str, line: str, command: str) -> int:
    if not re.fullmatch(r"\d{1,10}", text.strip()):
        _unreadable(command, line)
    return int(text)


def _count(text: str) -> int | None:
    """Return a count, the first of a range; None for a rounded one, as `1K`."""
    found = re.fullmatch(r"(\d{1,10})(?:-\d+)?", text.strip())
    return int(found[1]) if found else None


def _text(value: str, but: tuple[str, ...] = ()) -> str:
    """Return a value, or nothing for a word that says there is none, unless it is one of `but`."""
    stripped = value.strip()
    return "" if stripped in _EMPTY and stripped not in but else stripped


def _unreadable(command: str, said: str) -> NoReturn:
    raise ClusterError(command, f"its answer cannot be read: {said[:300]!r}", "report which Slurm this is")
