"""List and end the steps of a Slurm job: what an srun has started on some of its nodes.

A step whose node is lost ends only once Slurm gives up that node, which takes minutes, and it holds its other
nodes until then.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.slurm.calls import NoCommand, ask
from caffe_recipes.cluster.slurm.jobs import list_hosts
from caffe_recipes.cluster.slurm.sbatch import cancel_jobs
from caffe_recipes.errors import ClusterError

# The name comes last, since only it may contain the separator.
_FORMAT = "%i|%N|%j"
# Not the steps that Slurm names itself, such as `8.batch`.
_STEP = re.compile(r"(\d+(?:_\d+|\+\d+)?\.\d+)\|([^|]*)\|(.*)")
# A step ends within seconds, unless one of its nodes does not respond.
END_S = 10.0
_AGAIN_S = 1.0


@dataclass(frozen=True)
class Step:
    """A step of a job that has not ended; `id` is written as srun and scancel write it, such as `8.1`."""

    id: str
    hosts: tuple[str, ...]
    name: str

    def __str__(self) -> str:
        return f"step {self.id} ({self.name}) on {', '.join(self.hosts)}"


def parse_steps(stdout: str) -> tuple[Step, ...]:
    """Return the steps in the output of `squeue --steps`, without those that Slurm names itself.

    >>> parse_steps("8.1|node[1-2]|hydra_pmi_proxy\\n8.batch|node1|batch")
    (Step(id='8.1', hosts=('node1', 'node2'), name='hydra_pmi_proxy'),)
    """
    found = filter(None, (_STEP.fullmatch(line.strip()) for line in stdout.splitlines()))
    return tuple(Step(each[1], list_hosts(each[2]), each[3]) for each in found)


def find_steps(host: Host, job: str) -> tuple[Step, ...]:
    """Return the steps of a job that have not ended. Raises SchedulerAway."""
    argv = ("squeue", "--noheader", "--steps", f"--jobs={job}", f"--format={_FORMAT}")
    return parse_steps(ask(host, argv))


def end_steps(
    host: Host,
    job: str,
    prefix: str,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """Cancel the steps of a job that are named `prefix` and a number; return those, and those still there.

    Waits up to END_S for them. Raises ClusterError if Slurm does not answer, or refuses.
    """
    until = clock() + END_S
    ended = left = _find_named(host, job, prefix)
    if ended:
        cancel_jobs(host, [step.id for step in ended])
        while left := _find_named(host, job, prefix):
            if clock() >= until:
                break
            pause(_AGAIN_S)
    return ended, left


def end_given_up(
    job: str,
    phase: str,
    say: Callable[[str], None],
    end: Callable[[str, str], tuple[Sequence[Step], Sequence[Step]]] = lambda job, prefix: end_steps(
        LocalHost(), job, prefix
    ),
) -> None:
    """End the steps of launches that were given up, and report them; `phase` is as in `RUN/init`."""
    try:
        ended, left = end(job, f"{phase}-")
    except NoCommand:
        return
    except ClusterError as error:  # the next launch shares the nodes in any case
        say(f"the step of the launch before may still be there: {error.without_hint}")
        return
    for step in ended:
        stays = "; it does not end yet, so the next launch shares its nodes" if step in left else ""
        say(f"ended {step}{stays}")


def describe_steps(
    job: str,
    hosts: Collection[str],
    find: Callable[[str], Iterable[Step]] = lambda job: find_steps(LocalHost(), job),
) -> str:
    """Return the steps of a job on some hosts, and how to end them; "" if none is known."""
    try:
        steps = [step for step in find(job) if not set(hosts).isdisjoint(step.hosts)]
    except ClusterError:
        return ""
    ends = " ".join(step.id for step in steps)
    return f"{' and '.join(map(str, steps))}, which `scancel {ends}` ends" if steps else ""


def _find_named(host: Host, job: str, prefix: str) -> tuple[Step, ...]:
    # A phase may be named like the beginning of another one that trains at the same time.
    number = re.compile(re.escape(prefix) + r"\d+")
    return tuple(step for step in find_steps(host, job) if number.fullmatch(step.name))
