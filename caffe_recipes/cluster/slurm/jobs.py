"""A job of Slurm's as a value, and its state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from caffe_recipes.cluster.nodelists import parse_nodelist
from caffe_recipes.errors import ClusterError


class State(Enum):
    """The state of a job by Slurm's own word; REQUEUED to STOPPED are what it shows over another state."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    REVOKED = "REVOKED"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    CONFIGURING = "CONFIGURING"
    POWER_UP_NODE = "POWER_UP_NODE"
    COMPLETING = "COMPLETING"
    STAGE_OUT = "STAGE_OUT"
    RESIZING = "RESIZING"
    SIGNALING = "SIGNALING"
    EXPEDITING = "EXPEDITING"
    STOPPED = "STOPPED"

    @property
    def is_waiting(self) -> bool:
        """Whether it has no nodes and may get some, be it only once somebody releases it."""
        return self in _WAITING

    @property
    def is_over(self) -> bool:
        """Whether Slurm will do nothing more for it by itself; COMPLETING still may requeue.

        REVOKED says that another cluster of the federation has it: there it waits, runs or is over.
        """
        return self in _OVER


_WAITING = frozenset(
    (
        State.PENDING,
        State.REQUEUED,
        State.REQUEUE_FED,
        State.REQUEUE_HOLD,
        State.SPECIAL_EXIT,
        State.RESV_DEL_HOLD,
        State.EXPEDITING,
    )
)
_OVER = frozenset(
    (
        State.COMPLETED,
        State.CANCELLED,
        State.FAILED,
        State.TIMEOUT,
        State.NODE_FAIL,
        State.PREEMPTED,
        State.BOOT_FAIL,
        State.DEADLINE,
        State.OUT_OF_MEMORY,
        State.LAUNCH_FAILED,
        State.RECONFIG_FAIL,
    )
)
# The states in which sinfo shows a node that no job should be given.
_BROKEN = frozenset(("down", "drained", "draining", "drain", "fail", "failing", "error", "unknown"))


@dataclass(frozen=True)
class Job:
    """A job as one of Slurm's commands told it; what that command does not tell is None, or empty.

    `label` names one of an array (`12_3`) or of a heterogeneous job (`12+1`), whose `job_id` is its own
    number. Times are on the clock of the machine that was asked; `limit_s` is infinite for no limit.
    `cancelled_by` is a user's number, `failed_node` the node whose failure ended it or requeued it; `cluster`
    is the one that was asked, where that is not the host's own.
    """

    job_id: int
    name: str
    state: State
    label: str = ""
    reason: str = ""
    partition: str = ""
    nodes: int | None = None
    node_list: str = ""
    submit: datetime | None = None
    eligible: datetime | None = None
    start: datetime | None = None
    end: datetime | None = None
    limit_s: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    restarts: int | None = None
    may_requeue: bool | None = None
    dependency: str = ""
    failed_node: str = ""
    cancelled_by: int | None = None
    stdout: str = ""
    cluster: str = ""


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition in one state, as sinfo tells them; `responds` is false where it writes a `*`."""

    partition: str
    is_up: bool
    limit_s: float | None
    nodes: int
    state: str
    node_list: str
    responds: bool = True

    @property
    def is_broken(self) -> bool:
        """Whether no job will be given these nodes until somebody mends them."""
        return self.state in _BROKEN or not self.responds


def failed_nodes(job: Job, groups: Iterable[NodeGroup] = ()) -> tuple[str, ...]:
    """Return the nodes that the next try is to exclude, in the job's order.

    They are the one that Slurm blames and, of a job that died of a node, those of its own that sinfo shows
    as broken now. A requeued job has no node list any more, but keeps the blamed one.
    """
    blamed = _hosts(job.failed_node)
    if job.state not in (State.NODE_FAIL, State.BOOT_FAIL, State.LAUNCH_FAILED) and not blamed:
        return ()
    broken = {host for group in groups if group.is_broken for host in _hosts(group.node_list)}
    own = [host for host in _hosts(job.node_list) if host in broken or host in blamed]
    return tuple(dict.fromkeys([*blamed, *own]))


def _hosts(node_list: str) -> tuple[str, ...]:
    """Return the hosts of a node list of Slurm's; none for what is no node list."""
    try:
        return parse_nodelist(node_list, "") if node_list else ()
    except ClusterError:
        return ()
