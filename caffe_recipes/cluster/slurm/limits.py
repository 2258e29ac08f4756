"""What a partition, as Slurm itself tells it, does not give to a job: one line each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from caffe_recipes.cluster.slurm.jobs import NodeGroup
from caffe_recipes.cluster.slurm.partitions import Partition
from caffe_recipes.cluster.slurm.times import describe_limit

_CLOSED = {
    "DOWN": "starts no jobs now, though it takes them",
    "DRAIN": "takes no new jobs",
    "INACTIVE": "neither takes nor starts jobs",
}


def check_limits(
    partition: Partition,
    *,
    nodes: int,
    time_s: float | None,
    account: str | None = None,
    qos: str | None = None,
) -> tuple[str, ...]:
    """Return what the partition does not give to a job; `time_s` is its --time, None if it gives none.

    Of an account and a QOS that are not given Slurm takes the user's own, which `sbatch --test-only` judges.
    """
    return (
        *_check_state(partition),
        *_check_nodes(partition, nodes),
        *_check_time(partition, time_s),
        *_check_names(partition, account, qos),
    )


def check_nodes_now(partition: Partition, groups: Iterable[NodeGroup], nodes: int) -> tuple[str, ...]:
    """Return a line if so many of a partition's nodes are broken that the job waits for their repair."""
    broken = sum(group.nodes for group in groups if group.partition == partition.name and group.is_broken)
    left = partition.total_nodes - broken
    if not left < nodes <= partition.total_nodes:
        return ()
    return (
        f"{partition.name} has {left} nodes that work now, the job needs {nodes}: it waits until more do; "
        "see sinfo -R",
    )


def _check_state(partition: Partition) -> Iterator[str]:
    if partition.state in _CLOSED:
        yield f"{partition.name} {_CLOSED[partition.state]} (it is {partition.state}); wait or take another"


def _check_nodes(partition: Partition, nodes: int) -> Iterator[str]:
    name = partition.name
    if nodes > partition.total_nodes:
        yield f"{name} has {partition.total_nodes} nodes, the job needs {nodes}: it would be queued for ever"
    if partition.max_nodes is not None and partition.max_nodes < nodes <= partition.total_nodes:
        yield f"{name} gives a job at most {partition.max_nodes} nodes, this one needs {nodes}"
    if nodes < partition.min_nodes:
        yield f"{name} gives a job at least {partition.min_nodes} nodes, this one needs {nodes}"


def _check_time(partition: Partition, time_s: float | None) -> Iterator[str]:
    if partition.max_s is not None and time_s is not None and time_s > partition.max_s:
        most, needs = describe_limit(partition.max_s), describe_limit(time_s)
        yield f"{partition.name} runs a job for at most {most}, this one needs {needs}"
    if partition.default_s is not None and time_s is None:
        yield (
            f"{partition.name} gives a job that names no time {describe_limit(partition.default_s)}; "
            "give --time"
        )


def _check_names(partition: Partition, account: str | None, qos: str | None) -> Iterator[str]:
    for option, name, allowed, denied in (
        ("account", account, partition.allow_accounts, partition.deny_accounts),
        ("QOS", qos, partition.allow_qos, partition.deny_qos),
    ):
        if allowed is not None and name is not None and name not in allowed:
            names = ", ".join(sorted(allowed))
            yield f"{partition.name} takes {option} {names} only; {name!r} is none of them"
        elif name in denied:
            yield f"{partition.name} does not take {option} {name!r}"
