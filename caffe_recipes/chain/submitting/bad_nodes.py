"""The nodes that the next try of a chain goes without."""

from __future__ import annotations

from collections.abc import Sequence

from caffe_recipes.chain.status import Standing
from caffe_recipes.cluster.nodelists import parse_nodelist
from caffe_recipes.cluster.slurm.jobs import NodeGroup, failed_nodes
from caffe_recipes.errors import ClusterError


def find_bad_nodes(standing: Standing | None, groups: Sequence[NodeGroup]) -> tuple[str, ...]:
    """Return the nodes that are not to be tried again: those that Slurm blames, or the run."""
    if standing is None:
        return ()
    known = {name for group in groups for name in _names(group.node_list)}
    blamed = [name for job in standing.jobs if job.job for name in failed_nodes(job.job, groups)]
    lost = list(standing.run.blamed) if standing.run is not None else []
    return tuple(dict.fromkeys(name for name in (*blamed, *lost) if name in known))


def _names(node_list: str) -> tuple[str, ...]:
    try:
        return parse_nodelist(node_list, "")
    except ClusterError:
        return ()
