"""Describe Slurm jobs: what their states and reasons mean, and what to do about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from caffe_recipes.cluster.hostfile import parse_nodelist
from caffe_recipes.cluster.slurm.times import describe_limit
from caffe_recipes.errors import InputError


class JobState(Enum):
    """A job state as Slurm names it; REQUEUED to STOPPED are flags that Slurm shows in place of a state."""

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
        """Whether the job has no nodes yet but may still get some, perhaps only after it is released."""
        return self in _WAITING_STATES

    @property
    def is_over(self) -> bool:
        """Whether the state is final. A COMPLETING job may still be requeued.

        A REVOKED job is not over: it runs on another cluster of the federation.
        """
        return self in _OVER_STATES


_WAITING_STATES = frozenset(
    (
        JobState.PENDING,
        JobState.REQUEUED,
        JobState.REQUEUE_FED,
        JobState.REQUEUE_HOLD,
        JobState.SPECIAL_EXIT,
        JobState.RESV_DEL_HOLD,
        JobState.EXPEDITING,
    )
)
_OVER_STATES = frozenset(
    (
        JobState.COMPLETED,
        JobState.CANCELLED,
        JobState.FAILED,
        JobState.TIMEOUT,
        JobState.NODE_FAIL,
        JobState.PREEMPTED,
        JobState.BOOT_FAIL,
        JobState.DEADLINE,
        JobState.OUT_OF_MEMORY,
        JobState.LAUNCH_FAILED,
        JobState.RECONFIG_FAIL,
    )
)
# States of nodes, as shown by sinfo, that no job should be given.
_BROKEN = frozenset(("down", "drained", "draining", "drain", "fail", "failing", "error", "unknown"))


@dataclass(frozen=True)
class Job:
    """A job as reported by one of Slurm's commands; fields that it does not report are None or empty.

    `label` names one task of an array (`12_3`) or one component of a heterogeneous job (`12+1`); each has its
    own `job_id`. Times are on the clock of the queried machine; `limit_s` is infinite for no limit.
    `cancelled_by` is a user id, `failed_node` the node whose failure ended or requeued the job. `cluster` is
    the queried cluster, empty for the host's own.
    """

    job_id: int
    name: str
    state: JobState
    label: str = ""
    reason: str = ""
    partition: str = ""
    nodes: int | None = None
    node_list: str = ""
    submit: datetime | None = None
    start: datetime | None = None
    end: datetime | None = None
    limit_s: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    restarts: int | None = None
    dependency: str = ""
    failed_node: str = ""
    cancelled_by: int | None = None
    stdout: str = ""
    cluster: str = ""


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition in the same state, as listed by sinfo, which marks unresponsive nodes with `*`."""

    partition: str
    nodes: int
    state: str
    node_list: str
    responds: bool = True

    @property
    def is_broken(self) -> bool:
        """Whether no job can get these nodes until they are repaired."""
        return self.state in _BROKEN or not self.responds


def failed_nodes(job: Job, groups: Iterable[NodeGroup] = ()) -> tuple[str, ...]:
    """Return the nodes that the next attempt should exclude, in the job's order.

    These are the node that Slurm reports as failed and, if a node failure ended the job, its nodes that sinfo
    now shows as broken. A requeued job has lost its node list, but still names the failed node.
    """
    blamed = list_hosts(job.failed_node)
    if job.state not in (JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.LAUNCH_FAILED) and not blamed:
        return ()
    broken = {host for group in groups if group.is_broken for host in list_hosts(group.node_list)}
    own = [host for host in list_hosts(job.node_list) if host in broken or host in blamed]
    return tuple(dict.fromkeys([*blamed, *own]))


def list_hosts(node_list: str) -> tuple[str, ...]:
    """Return the hosts of a Slurm node list; () if the text is not a node list."""
    try:
        return parse_nodelist(node_list, "") if node_list else ()
    except InputError:
        return ()


# For each of Slurm's reasons: why the job waits or ended, and what to do; empty if there is nothing to do.
REASONS: Mapping[str, tuple[str, str]] = {
    "Priority": ("jobs of higher priority start first", ""),
    "Resources": ("its nodes are still in use", ""),
    "Dependency": ("a job that it depends on has not ended", ""),
    "DependencyNeverSatisfied": (
        "a job that it depends on has failed, so it never starts",
        "cancel it, fix the other job and submit again",
    ),
    "BeginTime": ("its begin time has not been reached; a requeued job waits like this for some minutes", ""),
    "Prolog": ("its nodes are being prepared", ""),
    "Cleaning": ("its last attempt is being cleaned up on the nodes", ""),
    "Licenses": ("a license that it requests is in use", ""),
    "Reservation": ("its reservation has not begun", ""),
    "ReservationDeleted": ("its reservation was deleted", "submit it without a reservation"),
    "InvalidReservation": (
        "its reservation is not valid",
        "submit it without a reservation, or with another one",
    ),
    "ReqNodeNotAvail": (
        "a node that it needs is down, drained, or reserved, e.g. for maintenance",
        "see scontrol show reservation; a shorter --time may fit before it",
    ),
    "Nodes required for job": ("nodes that it needs are down, drained or reserved", "see sinfo -R"),
    "NodeDown": ("a node that it needs is down", "exclude it, or ask your administrators"),
    "FrontEndDown": ("the front end is down", "ask your administrators"),
    "BadConstraints": (
        "no nodes can ever satisfy its request",
        "cancel it and ask for fewer nodes or another --constraint",
    ),
    "PartitionNodeLimit": (
        "it requests more or fewer nodes than its partition allows, or has",
        "cancel it and submit to another partition",
    ),
    "PartitionTimeLimit": (
        "it requests more time than its partition allows",
        "cancel it and give a shorter --time or another partition",
    ),
    "PartitionDown": ("its partition is down and starts no jobs", "wait, or submit to another partition"),
    "PartitionInactive": ("its partition is inactive", "wait, or submit to another partition"),
    "PartitionConfig": ("its partition does not allow its request", "submit to another partition"),
    "AccountNotAllowed": ("its account may not use the partition", "give another --account or partition"),
    "InvalidAccount": ("its account is not valid", "give a valid --account"),
    "QOSNotAllowed": ("its QOS is not allowed in the partition", "give another --qos or partition"),
    "InvalidQOS": ("its QOS is not valid", "give a valid --qos"),
    "JobHeldUser": ("it is held by its user", "release it: scontrol release"),
    "JobHeldAdmin": ("it is held by the administrators", "ask your administrators"),
    "JobHoldMaxRequeue": ("it was requeued too often and is held", "see its log, then scontrol release"),
    "launch failed requeued held": (
        "a node could not start it, so it is held",
        "exclude the node, then scontrol release",
    ),
    "job requeued in held state": ("it was requeued and is held", "release it: scontrol release"),
    "JobArrayTaskLimit": ("as many tasks of its array are running as are allowed", ""),
    "MaxRequeue": ("it was requeued too often", "see its log"),
    "SystemFailure": ("Slurm itself failed", "ask your administrators"),
    "JobLaunchFailure": (
        "it could not be started on its nodes",
        "exclude the node, or ask your administrators",
    ),
    "NonZeroExitCode": ("its script returned an error", "see its log"),
    "RaisedSignal": ("its script was killed by a signal", "see its log"),
    "OutOfMemory": ("a process used more memory than the job has", "give it more --mem, or a smaller batch"),
    "TimeLimit": ("its time limit was reached", "submit again: it resumes from the last snapshot"),
    "InactiveLimit": ("it did nothing for longer than the site allows", "see its log"),
    "DeadLine": ("its deadline cannot be met", "give a later --deadline"),
    "BurstBufferResources": ("the burst buffer has no room yet", ""),
    "BurstBufferStageIn": ("its burst buffer is being filled", ""),
    "SchedDefer": ("Slurm defers the start of jobs", ""),
    "None": ("Slurm has not considered it yet", ""),
}
# QOSMaxNodePerUserLimit, AssocGrpCPUMinutesLimit, MaxNodePerAccount, ...
_LIMIT = re.compile(r"(QOS|Assoc|Assn?)?(Grp|Max|Min)([A-Za-z/]+?)(Per(?:User|Account|Job|Node))?(?:Limit)?")
_WHOSE = {"QOS": "the QOS", "Assoc": "your account", "Ass": "your account", "Assn": "your account"}
_USED_UP = ("Minutes", "Mins")

_OVER_WORDS: Mapping[JobState, str] = {
    JobState.COMPLETED: "has completed",
    JobState.TIMEOUT: "was terminated at its time limit",
    JobState.OUT_OF_MEMORY: "was killed because it ran out of memory",
    JobState.PREEMPTED: "was preempted by a job of higher priority",
    JobState.BOOT_FAIL: "was terminated because a node did not boot",
    JobState.DEADLINE: "was terminated at its deadline",
    JobState.LAUNCH_FAILED: "could not be started on its nodes",
    JobState.RECONFIG_FAIL: "was terminated because a node could not be reconfigured",
}
_NEXT_STEP: Mapping[JobState, str] = {
    JobState.TIMEOUT: "submit again: it resumes from the last snapshot",
    JobState.OUT_OF_MEMORY: "give it more --mem, or a smaller batch",
    JobState.PREEMPTED: "submit again: it resumes from the last snapshot",
    JobState.NODE_FAIL: "submit again without that node",
    JobState.BOOT_FAIL: "submit again without that node",
    JobState.LAUNCH_FAILED: "submit again without that node",
    JobState.FAILED: "see its log",
}
_ACTIVE_WORDS: Mapping[JobState, str] = {
    JobState.RUNNING: "is running",
    JobState.CONFIGURING: "has been given nodes, which are being prepared",
    JobState.POWER_UP_NODE: "has been given nodes, which are being powered up",
    JobState.COMPLETING: "is ending: its nodes are being cleaned up",
    JobState.STAGE_OUT: "has ended; its burst buffer is being emptied",
    JobState.RESIZING: "is running; it is being resized",
    JobState.SIGNALING: "is running and is being sent a signal",
    JobState.SUSPENDED: "is suspended and keeps its nodes",
    JobState.STOPPED: "is stopped (SIGSTOP) and keeps its nodes",
    JobState.REVOKED: "was moved to another cluster of the federation; query that cluster",
}
_WAITING_WORDS: Mapping[JobState, str] = {
    JobState.REQUEUED: "is being requeued",
    JobState.REQUEUE_FED: "is being requeued",
    JobState.REQUEUE_HOLD: "was requeued and is held",
    JobState.SPECIAL_EXIT: "was requeued and is held",
    JobState.RESV_DEL_HOLD: "is held because its reservation was deleted",
}
_HELD = (JobState.REQUEUE_HOLD, JobState.SPECIAL_EXIT, JobState.RESV_DEL_HOLD)


def describe_state(job: Job) -> str:
    """Return one line with what a job is doing or how it ended, why, and what to do, if anything.

    >>> describe_state(Job(7, "chain", JobState.PENDING, reason="Resources"))
    'waits: its nodes are still in use (Resources)'
    """
    return "; ".join(filter(None, explain_state(job)))


def explain_state(job: Job) -> tuple[str, str]:
    """Return what a job is doing or how it ended and why, and what to do, or "" if nothing."""
    if job.state.is_waiting:
        return _describe_waiting(job)
    if job.state.is_over:
        return _describe_end(job)
    restarts = f" (started again {_times(job.restarts)})" if job.restarts else ""
    return f"{_ACTIVE_WORDS[job.state]}{restarts}", ""


def explain_reason(reason: str) -> tuple[str, str]:
    """Return what a Slurm reason means, and what to do; an unknown reason is returned as is.

    >>> explain_reason("QOSMaxNodePerUserLimit")[0]
    'a limit of the QOS on nodes per user is reached'
    >>> explain_reason("AssocGrpCPUMinutesLimit")
    ('the CPU minutes granted to your account are used up', 'request more, or give another --account')
    """
    words = _normalize_reason(reason)
    return _find_meaning(words) or (f"Slurm reports: {words[:200]}", "")


def _normalize_reason(reason: str) -> str:
    return " ".join(reason.replace("_", " ").strip(" ()").split())


def _find_meaning(words: str) -> tuple[str, str] | None:
    """Return the meaning of a normalized reason, and what to do; None if it is unknown."""
    for known in sorted(REASONS, key=len, reverse=True):
        if re.match(rf"{re.escape(known)}(?![A-Za-z])", words, re.IGNORECASE):
            return REASONS[known]
    found = _LIMIT.fullmatch(words)
    if found is None:
        return None
    whose, _, what, each = found.groups()
    owner = _WHOSE.get(whose or "", "the site")
    thing = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", what)
    things = " ".join(word if word.isupper() else word.lower() for word in thing.split())
    if what.endswith(_USED_UP):
        how = "granted to" if owner == "your account" else "granted by"
        return f"the {things} {how} {owner} are used up", "request more, or give another --account"
    plural = things if things.endswith("s") else f"{things}s"
    per = f" per {each.removeprefix('Per').lower()}" if each else ""
    hint = "" if each in ("PerUser", "PerAccount", None) else "cancel it and request less"
    return f"a limit of {owner} on {plural}{per} is reached", hint


def _describe_waiting(job: Job) -> tuple[str, str]:
    text = _WAITING_WORDS.get(job.state, "waits")
    hint = "see its log, then scontrol release" if job.state in _HELD else ""
    if job.restarts and job.state is JobState.PENDING:
        text = f"waits to start again (requeued {_times(job.restarts)} so far)"
    if job.reason and (job.reason != "None" or not hint):
        meaning, todo = explain_reason(job.reason)
        text += f": {meaning}{_raw_reason(job)}"
        hint = todo or hint
    if job.failed_node:
        text += f"; node {job.failed_node} had failed"
    return text, hint


def _describe_end(job: Job) -> tuple[str, str]:
    hint = _NEXT_STEP.get(job.state, "")
    if job.state is JobState.NODE_FAIL:
        node = f"node {job.failed_node}" if job.failed_node else "one of its nodes"
        return f"was terminated because {node} failed", hint
    if job.state is JobState.CANCELLED:
        return _describe_cancelled(job)
    if job.state is JobState.FAILED:
        text = "has failed"
        if job.signal:
            text += f" with signal {job.signal}"
        elif job.exit_code:
            text += f" with exit code {job.exit_code}"
        if job.reason not in ("", "None", "NonZeroExitCode", "RaisedSignal"):
            meaning, todo = explain_reason(job.reason)
            return f"{text}: {meaning}{_raw_reason(job)}", todo or hint
        return text, hint
    text = _OVER_WORDS[job.state]
    if job.state is JobState.TIMEOUT and job.limit_s is not None:
        text += f" of {describe_limit(job.limit_s)}"
    return text, hint


def _describe_cancelled(job: Job) -> tuple[str, str]:
    if job.reason.startswith(
        "DependencyNever"
    ):  # by --kill-on-invalid-dep; the reason Dependency alone means that a user cancelled it
        return (
            "was cancelled by Slurm because a job that it depends on failed",
            "fix that job and submit again",
        )
    by = {None: "", 0: " by root: by an administrator, or by Slurm itself"}.get(
        job.cancelled_by, f" by user {job.cancelled_by}"
    )
    when = "" if job.start is not None else " before it started"
    if job.end is not None and job.start is not None and job.end <= job.start and not job.node_list:
        when = " before it started"  # Slurm then sets the start to the end
    return f"was cancelled{when}{by}", ""


def _raw_reason(job: Job) -> str:
    """Return Slurm's own reason in parentheses, so that it can be looked up; "" if it is unknown."""
    words = _normalize_reason(job.reason)
    return f" ({words[:120]})" if _find_meaning(words) else ""


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
