"""The nodes that the next try of a chain goes without."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from caffe_recipes.chain.status import Standing
from caffe_recipes.chain.submitting.submissions import Submission
from caffe_recipes.cluster.nodelists import parse_nodelist
from caffe_recipes.cluster.slurm.jobs import NodeGroup, failed_nodes
from caffe_recipes.errors import ClusterError

_EXCLUDE = "--exclude="


@dataclass(frozen=True)
class BadNodes:
    """Nodes that failed: those that a job goes without, and those that it cannot do without."""

    excluded: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()

    def describe(self) -> Iterator[str]:
        """Yield a line for either."""
        if self.excluded:
            them = "it" if len(self.excluded) == 1 else "them"
            yield f"without {_list(self.excluded)}, which failed before; --include-failed tries {them} again"
        if self.needed:
            them, they = ("it", "it is") if len(self.needed) == 1 else ("them", "they are")
            what = f"without {them} too few nodes are left: {they} tried again"
            yield f"{_list(self.needed)} failed before, and {what}"

    def with_all_needed(self) -> BadNodes:
        """Return them with none left out."""
        return BadNodes((), (*self.excluded, *self.needed))


def find_bad_nodes(
    standing: Standing | None, groups: Sequence[NodeGroup], partitions: Collection[str], nodes: int
) -> BadNodes:
    """Return the nodes that are not to be tried again: those that Slurm blames, or the run, or did before.

    As many stay as one of the partitions needs for a job of `nodes`; who was blamed last goes first.
    """
    there = {
        name: {host for group in groups if group.partition == name for host in _names(group.node_list)}
        for name in partitions
    }
    excluded: list[str] = []
    needed: list[str] = []
    for host in _blamed(standing, groups):
        without = {*excluded, host}
        if any(len(hosts - without) >= nodes for hosts in there.values()):
            excluded.append(host)
        else:
            needed.append(host)
    return BadNodes(tuple(excluded), tuple(needed))


def nodes_excluded(submission: Submission) -> tuple[str, ...]:
    """Return the nodes that a submission went without."""
    words = [word.removeprefix(_EXCLUDE) for word in submission.argv if word.startswith(_EXCLUDE)]
    return tuple(words[0].split(",")) if words else ()


def _blamed(standing: Standing | None, groups: Sequence[NodeGroup]) -> tuple[str, ...]:
    if standing is None:
        return ()
    known = {name for group in groups for name in _names(group.node_list)}
    blamed = [name for job in standing.jobs if job.job for name in failed_nodes(job.job, groups)]
    lost = standing.run.blamed if standing.run is not None else ()
    before = [name for job in standing.jobs for name in nodes_excluded(job.submission)]
    return tuple(dict.fromkeys(name for name in (*blamed, *lost, *before) if name in known))


def _names(node_list: str) -> tuple[str, ...]:
    try:
        return parse_nodelist(node_list, "")
    except ClusterError:
        return ()


def _list(hosts: Sequence[str]) -> str:
    return ", ".join(hosts)
