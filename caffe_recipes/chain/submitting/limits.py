"""What the machine gives no job: by its profile, which needs no Slurm, and by what Slurm itself says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from caffe_recipes.cluster.profiles import Batch, Profile, check_partition, find_partitions
from caffe_recipes.cluster.slurm.jobs import NodeGroup
from caffe_recipes.cluster.slurm.limits import check_limits, check_nodes_now
from caffe_recipes.cluster.slurm.partitions import Partition, default_partition
from caffe_recipes.cluster.slurm.times import describe_limit
from caffe_recipes.errors import ClusterError


@dataclass(frozen=True)
class Asked:
    """What a submit asks of its partition; `time_s` is its longest job's, None where that is not known."""

    nodes: int
    time_s: float | None
    batch: Batch


def choose_partition(profile: Profile, batch: Batch, nodes: int, time_s: float | None) -> Batch:
    """Return the batch with its partition: the one that is given, or the only one that takes the job.

    Raises ClusterError where the profile knows of none that does.
    """
    hours = None if time_s is None else time_s / 3600
    if not profile.partitions:
        return batch
    if batch.partition is not None:
        for name in batch.partition.split(","):
            for line in check_partition(profile, name, nodes=nodes, hours=hours):
                helps = not [*check_partition(profile, name, nodes=nodes, hours=None)]
                hint = f"take another --partition{', or a shorter --time' if helps else ''}"
                raise ClusterError(profile.name, line, hint)
        return batch
    fitting = find_partitions(profile, nodes, hours)
    if not fitting:
        lines = [
            line
            for name in profile.partitions
            for line in check_partition(profile, name, nodes=nodes, hours=hours)
        ]
        # A shorter time gets a job no more nodes.
        shorter = ", or a shorter --time" if find_partitions(profile, nodes, None) else ""
        raise ClusterError(profile.name, "; ".join(lines), f"take another machine{shorter}")
    return batch.model_copy(update={"partition": fitting[0]}) if len(fitting) == 1 else batch


@dataclass(frozen=True)
class Verdict:
    """What is to be told of a job that Slurm takes; `must_wait` if too few nodes work for it now.

    `partitions` are those that take it.
    """

    notes: tuple[str, ...]
    must_wait: bool
    partitions: tuple[str, ...]


def check_slurm(asked: Asked, partitions: Sequence[Partition], groups: Sequence[NodeGroup]) -> Verdict:
    """Return what is to be told of a job that Slurm takes; raises ClusterError for one that it does not."""
    chosen = _find(asked.batch.partition, partitions)
    complaints = [_complain(asked, each) for each in chosen]
    if all(complaints):  # of several, Slurm takes the one that begins first
        said = "; ".join(line for lines in complaints for line in lines)
        raise ClusterError("", said, "nothing was submitted")
    fitting = [each for each, lines in zip(chosen, complaints, strict=True) if not lines]
    waits = [line for each in fitting for line in check_nodes_now(each, groups, asked.nodes)]
    notes = (*waits, *_describe_time(asked, fitting[0]))
    return Verdict(notes, len(waits) == len(fitting), tuple(each.name for each in fitting))


def _describe_time(asked: Asked, partition: Partition) -> Iterator[str]:
    if asked.time_s is None:
        time = describe_limit(partition.max_s if partition.default_s is None else partition.default_s)
        what = f"it gets the time of {partition.name}, {time}"
        yield f"nobody knows how long it takes: {what}; --time gives another"


def _find(given: str | None, partitions: Sequence[Partition]) -> list[Partition]:
    known = {each.name: each for each in partitions}
    there = ", ".join(known) or "none"
    if given is None:
        default = default_partition(partitions)
        if default is None:
            raise ClusterError("", "Slurm has no default partition", f"give --partition; there are: {there}")
        return [default]
    for name in given.split(","):
        if name not in known:
            raise ClusterError("", f"Slurm has no partition {name[:80]!r}", f"there are: {there}")
    return [known[name] for name in given.split(",")]


def _complain(asked: Asked, partition: Partition) -> tuple[str, ...]:
    # One that names no time gets the default, which is told and no fault.
    time_s = partition.default_s if asked.time_s is None else asked.time_s
    return check_limits(
        partition, nodes=asked.nodes, time_s=time_s, account=asked.batch.account, qos=asked.batch.qos
    )
