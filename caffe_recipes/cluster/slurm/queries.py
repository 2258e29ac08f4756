"""Ask Slurm for jobs, partitions and nodes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.slurm.answers import (
    SACCT_FIELDS,
    SINFO_FORMAT,
    SQUEUE_FORMAT,
    parse_sacct,
    parse_scontrol_jobs,
    parse_sinfo,
    parse_squeue,
    raise_unreadable,
)
from caffe_recipes.cluster.slurm.calls import (
    NoCommand,
    SchedulerAway,
    ask,
    on_cluster,
    read_output,
    run_command,
)
from caffe_recipes.cluster.slurm.jobs import Job, JobState, NodeGroup, explain_state
from caffe_recipes.cluster.slurm.partitions import Partition, parse_partitions
from caffe_recipes.errors import InputError

_UNKNOWN = re.compile(r"invalid job id|job not found", re.IGNORECASE)
_NO_ACCOUNTING = "accounting storage is disabled"
# By default sacct searches only today's jobs by name.
_ACCOUNTED_SINCE = "--starttime=now-30days"


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
    return parse_partitions(ask(host, argv))


def ask_node_groups(host: Host, partition: str | None = None, cluster: str = "") -> tuple[NodeGroup, ...]:
    """Return the nodes of one partition or of all, grouped by state; empty for an unknown partition.

    Raises SchedulerAway.
    """
    which = "--all" if partition is None else f"--partition={partition}"  # sinfo accepts only one of the two
    argv = on_cluster(["sinfo", "--noheader", f"--format={SINFO_FORMAT}", which], cluster)
    return parse_sinfo(ask(host, argv))


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
    return parse_squeue(read_output(host, argv, done))


def _list_named(host: Host, names: Collection[str], cluster: str) -> list[Job]:
    if not names:
        return []
    argv = ["squeue", "--noheader", "--states=all", f"--format={SQUEUE_FORMAT}", *_own_by_name(host, names)]
    return [job for job in parse_squeue(ask(host, on_cluster(argv, cluster))) if job.name in names]


def _show(host: Host, job_id: int, cluster: str) -> list[Job]:
    argv = on_cluster(["scontrol", "--oneliner", "show", "job", str(job_id)], cluster)
    done = run_command(host, argv)
    if done.returncode != 0 and _UNKNOWN.search(done.stderr):
        return []
    return list(parse_scontrol_jobs(read_output(host, argv, done)))


def _ask_accounting(
    host: Host,
    live: Collection[Job],
    ids: Collection[int],
    names: Collection[str],
    cluster: str,
) -> tuple[Job, ...]:
    """Return the jobs in accounting with these names, or with ids not fully known to the controller."""
    complete = {job.job_id for job in live if job.state is not JobState.CANCELLED}
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
    return parse_sacct(read_output(host, argv, done))


def _own_by_name(host: Host, names: Collection[str]) -> tuple[str, ...]:
    """Return the options that select our own jobs, by name unless a name has a comma."""
    user_id = ask(host, ["id", "-u"]).strip()
    if not user_id.isdecimal():
        raise_unreadable("id", user_id)
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


@dataclass(frozen=True)
class Slurm:
    """Asks Slurm on a host about jobs; on `cluster` if that is not the host's own."""

    host: Host
    cluster: str = ""

    def __call__(self, ids: Collection[int], names: Collection[str]) -> Sequence[Job]:
        """Return the jobs with these ids or names; raises ClusterError if Slurm does not answer."""
        return find_jobs(self.host, ids=ids, names=names, cluster=self.cluster)


def check_after(host: Host, number: int, clusters: Sequence[str] = ()) -> None:
    """Raise InputError if a job that depends on this one would start at once, or never; SchedulerAway.

    sbatch accepts a dependency on a job that Slurm does not know, and ignores it.
    """
    found = [job for cluster in clusters or ("",) for job in find_jobs(host, ids=[number], cluster=cluster)]
    if not found:
        hint = "leave out --after if it has completed"
        raise InputError("--after", f"job {number} is unknown to Slurm", hint)
    for job in found:
        if job.state.is_over and job.state is not JobState.COMPLETED:
            what = f"a job after job {number} would never start: it {explain_state(job)[0]}"
            raise InputError("--after", what, "give a job that can still complete, or leave it out")
