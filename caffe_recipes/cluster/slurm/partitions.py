"""Slurm's partitions, and whether they accept a job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from caffe_recipes.cluster.profiles import SbatchDefaults
from caffe_recipes.cluster.slurm.answers import parse_fields, raise_unreadable
from caffe_recipes.cluster.slurm.jobs import NodeGroup
from caffe_recipes.cluster.slurm.times import describe_limit, parse_limit
from caffe_recipes.errors import InputError
from caffe_recipes.wording import describe_count

_ALL = ("ALL", "(null)", "")


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


def _read_partition(line: str) -> Partition:
    fields = parse_fields(line)
    if not {"PartitionName", "State", "TotalNodes", "MaxNodes", "MaxTime"} <= fields.keys():
        raise_unreadable("scontrol", line)
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


@dataclass(frozen=True)
class Resources:
    """What a submit requests from a partition; `time_s` is the time of its longest job, None if not known."""

    nodes: int
    time_s: float | None
    batch: SbatchDefaults


@dataclass(frozen=True)
class JobVerdict:
    """What to report about a job that Slurm accepts; `must_wait` if too few nodes are up for it now.

    `partitions` are those that accept it.
    """

    notes: tuple[str, ...]
    must_wait: bool
    partitions: tuple[str, ...]


def check_slurm(
    resources: Resources, partitions: Sequence[Partition], groups: Sequence[NodeGroup]
) -> JobVerdict:
    """Return what to report about a job that Slurm accepts; raises InputError if it does not."""
    chosen = _find_partitions(resources.batch.partition, partitions)
    refusals = [_find_refusals(resources, each) for each in chosen]
    if all(refusals):  # of several partitions, Slurm uses the one that can start the job first
        refusal = "; ".join(line for lines in refusals for line in lines)
        raise InputError("", refusal, "nothing was submitted")
    fitting = [each for each, lines in zip(chosen, refusals, strict=True) if not lines]
    waits = [line for each in fitting for line in check_nodes_now(each, groups, resources.nodes)]
    notes = (*waits, *_describe_time(resources, fitting[0]))
    return JobVerdict(notes, len(waits) == len(fitting), tuple(each.name for each in fitting))


def _describe_time(resources: Resources, partition: Partition) -> Iterator[str]:
    if resources.time_s is None:
        time = describe_limit(partition.max_s if partition.default_s is None else partition.default_s)
        yield f"time: not known, using the default of {partition.name}, {time}; give --time to change it"


def _find_partitions(given: str | None, partitions: Sequence[Partition]) -> list[Partition]:
    """Return the given partitions, or the default one; raises InputError if there is none."""
    known = {each.name: each for each in partitions}
    names = ", ".join(known) or "none"
    if given is None:
        default = next((each for each in partitions if each.is_default), None)
        if default is None:
            raise InputError(
                "", "Slurm has no default partition", f"give --partition; the partitions are {names}"
            )
        return [default]
    for name in given.split(","):
        if name not in known:
            raise InputError("", f"Slurm has no partition {name[:80]!r}", f"the partitions are {names}")
    return [known[name] for name in given.split(",")]


def _find_refusals(resources: Resources, partition: Partition) -> tuple[str, ...]:
    """Return the limits of a partition that the job exceeds; a job without a time gets the default time."""
    time_s = partition.default_s if resources.time_s is None else resources.time_s
    return check_limits(
        partition,
        nodes=resources.nodes,
        time_s=time_s,
        account=resources.batch.account,
        qos=resources.batch.qos,
    )
