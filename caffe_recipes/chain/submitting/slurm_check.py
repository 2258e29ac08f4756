"""Asking Slurm, before anything is submitted, whether it takes the jobs, and which nodes they go without."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from caffe_recipes.chain.status import Standing
from caffe_recipes.chain.submitting.bad_nodes import BadNodes, find_bad_nodes
from caffe_recipes.chain.submitting.limits import Asked, Verdict, check_slurm
from caffe_recipes.chain.submitting.planned import Planned, build_request
from caffe_recipes.cluster.hosts import Host
from caffe_recipes.cluster.slurm.jobs import NodeGroup
from caffe_recipes.cluster.slurm.queries import ask_node_groups, ask_partitions
from caffe_recipes.cluster.slurm.submission import try_submission
from caffe_recipes.cluster.slurm.times import describe_limit
from caffe_recipes.errors import ClusterError

_NO_NODES = "node configuration is not available"


def check_with_slurm(
    planned: Planned, standing: Standing | None, say: Callable[[str], None], host: Host
) -> tuple[str, ...]:
    """Ask Slurm whether it takes the jobs; return the nodes to exclude.

    Raises ClusterError if it does not, SchedulerAway.
    """
    verdict, groups = Verdict((), must_wait=False, partitions=()), tuple[NodeGroup, ...]()
    if len(planned.clusters) < 2:  # of several only sbatch knows which it takes
        cluster = "".join(planned.clusters)
        partitions, groups = ask_partitions(host, cluster), ask_node_groups(host, cluster=cluster)
        asked = Asked(planned.nodes, planned.longest_s, planned.batch)
        verdict = check_slurm(asked, partitions, groups)
    for note in verdict.notes:
        say(note)
    bad = BadNodes()
    if not planned.options.include_failed:
        bad = find_bad_nodes(standing, groups, verdict.partitions, planned.nodes)
    refused = _refusal(planned, bad.excluded, host)
    if refused is not None and bad.excluded and _NO_NODES in refused:
        # Those that are left may lack what the job asks for, which only Slurm knows.
        bad, refused = bad.with_all_needed(), _refusal(planned, (), host)
    # Of nodes that are drained the test says the same as of nodes that there are not.
    if refused is not None and not (verdict.must_wait and _NO_NODES in refused):
        raise ClusterError("sbatch", refused, "nothing was submitted")
    for line in bad.describe():
        say(line)
    if planned.options.time_s is None and planned.longest_s is not None:
        say(f"time: {describe_limit(planned.longest_s)}, by the images/s of the recipe; --time gives another")
    return bad.excluded


def _refusal(planned: Planned, exclude: Sequence[str], host: Host) -> str | None:
    """Return why Slurm would not take one of the jobs; None if it takes all."""
    for step in planned.steps:
        request = build_request(planned, step, "test", planned.options.after, exclude)
        refused = try_submission(host, request)
        if refused is not None:
            return refused
    return None
