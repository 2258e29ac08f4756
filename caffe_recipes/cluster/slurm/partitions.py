"""Partitions and nodes as Slurm itself tells them, read strictly."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from caffe_recipes.cluster.slurm.answers import parse_fields
from caffe_recipes.cluster.slurm.jobs import NodeGroup
from caffe_recipes.cluster.slurm.times import parse_limit
from caffe_recipes.errors import ClusterError

SINFO_FORMAT = "%R|%a|%l|%D|%T|%N"
_HINT = "report which Slurm this is"
_ALL = ("ALL", "(null)", "")
# What sinfo writes behind a state: not responding, powering, reserved, planned, rebooting.
_MARKS = "*~#!%$@^+-"


@dataclass(frozen=True)
class Partition:
    """A partition's limits; None where there is none. `allow_...` is None where all may use it.

    `total_nodes` counts broken ones, too. `default_s` is what a job gets that gives no time.
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


def parse_partitions(said: str) -> tuple[Partition, ...]:
    """Read what `scontrol --oneliner show partition` writes; raises ClusterError."""
    lines = [line for line in said.splitlines() if line.strip()]
    return tuple(_read_partition(line) for line in lines if "No partitions in the system" not in line)


def parse_sinfo(said: str) -> tuple[NodeGroup, ...]:
    """Read what `sinfo --noheader --format=SINFO_FORMAT` writes; raises ClusterError."""
    groups = []
    for line in filter(str.strip, said.splitlines()):
        row = line.split("|")
        if len(row) != 6 or not re.fullmatch(r"\d+", row[3].strip()):
            raise ClusterError("sinfo", f"its answer cannot be read: {line[:300]!r}", _HINT)
        name, available, limit, nodes, state, node_list = (part.strip() for part in row)
        groups.append(
            NodeGroup(
                partition=name,
                is_up=available == "up",
                limit_s=parse_limit(limit, "sinfo"),
                nodes=int(nodes),
                state=state.rstrip(_MARKS),
                node_list=node_list,
                responds="*" not in state,
            )
        )
    return tuple(groups)


def default_partition(partitions: Iterable[Partition]) -> Partition | None:
    """Return the partition of a job that names none; None where the site has no such."""
    return next((partition for partition in partitions if partition.is_default), None)


def _read_partition(line: str) -> Partition:
    fields = parse_fields(line)
    if not {"PartitionName", "State", "TotalNodes", "MaxNodes", "MaxTime"} <= fields.keys():
        raise ClusterError("scontrol", f"its answer cannot be read: {line[:300]!r}", _HINT)
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
    """Return the number that a value begins with, as in `300 sec`; None where it is none, as UNLIMITED."""
    found = re.match(r"\d{1,10}(?!\d)", fields.get(key, ""))
    return int(found[0]) if found else None
