"""The state of a job, and the reason that Slurm gives for it, in plain words with what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping

from caffe_recipes.cluster.slurm.jobs import Job, State
from caffe_recipes.cluster.slurm.times import describe_limit

# Slurm's word: what it means of a waiting job, and what to do; nothing where waiting is all.
REASONS: Mapping[str, tuple[str, str]] = {
    "Priority": ("jobs of higher priority go first", ""),
    "Resources": ("its nodes are still in use", ""),
    "Dependency": ("a job that it depends on has not ended", ""),
    "DependencyNeverSatisfied": (
        "a job that it depends on has failed, so it never starts",
        "cancel it, mend the other and submit again",
    ),
    "BeginTime": ("its time to begin has not come; a requeued job waits so for some minutes", ""),
    "Prolog": ("its nodes are being prepared", ""),
    "Cleaning": ("its last try is being cleaned up on the nodes", ""),
    "Licenses": ("a licence that it asks for is in use", ""),
    "Reservation": ("its reservation has not begun", ""),
    "ReservationDeleted": ("its reservation is gone", "submit it without"),
    "InvalidReservation": ("its reservation is not valid", "submit it without, or with another"),
    "ReqNodeNotAvail": (
        "a node that it needs is down, drained, or reserved, as for maintenance",
        "see scontrol show reservation; a shorter --time may fit before it",
    ),
    "Nodes required for job": ("nodes that it needs are down, drained or reserved", "see sinfo -R"),
    "NodeDown": ("a node that it needs is down", "exclude it, or ask the administrators"),
    "FrontEndDown": ("the front end is down", "ask the administrators"),
    "BadConstraints": (
        "no nodes can ever give what it asks for",
        "cancel it and ask for fewer nodes or another --constraint",
    ),
    "PartitionNodeLimit": (
        "it asks for more or fewer nodes than its partition allows, or has",
        "cancel it and submit to another partition",
    ),
    "PartitionTimeLimit": (
        "it asks for more time than its partition allows",
        "cancel it and give a shorter --time or another partition",
    ),
    "PartitionDown": ("its partition starts no jobs now", "wait, or submit to another partition"),
    "PartitionInactive": ("its partition is inactive", "wait, or submit to another partition"),
    "PartitionConfig": ("its partition does not give what it asks for", "submit to another partition"),
    "AccountNotAllowed": ("its account may not use the partition", "give another --account or partition"),
    "InvalidAccount": ("its account is not valid", "give a valid --account"),
    "QOSNotAllowed": ("its QOS may not be used there", "give another --qos or partition"),
    "InvalidQOS": ("its QOS is not valid", "give a valid --qos"),
    "JobHeldUser": ("it is held by its user", "release it: scontrol release"),
    "JobHeldAdmin": ("it is held by the administrators", "ask them"),
    "JobHoldMaxRequeue": ("it was requeued too often and is held", "see its log, then scontrol release"),
    "launch failed requeued held": (
        "a node could not start it, so it is held",
        "exclude the node, then scontrol release",
    ),
    "job requeued in held state": ("it was requeued and is held", "release it: scontrol release"),
    "JobArrayTaskLimit": ("as many of its array run as may at once", ""),
    "MaxRequeue": ("it was requeued too often", "see its log"),
    "SystemFailure": ("Slurm itself failed", "ask the administrators"),
    "JobLaunchFailure": (
        "it could not be started on its nodes",
        "exclude the node, or ask the administrators",
    ),
    "NonZeroExitCode": ("its script returned an error", "see its log"),
    "RaisedSignal": ("its script ended by a signal", "see its log"),
    "OutOfMemory": ("a process took more memory than the job has", "give it more --mem, or a smaller batch"),
    "TimeLimit": ("its time limit was reached", "submit again: it goes on from the last snapshot"),
    "InactiveLimit": ("it did nothing for longer than the site allows", "see its log"),
    "DeadLine": ("its deadline cannot be met", "give a later --deadline"),
    "BurstBufferResources": ("its burst buffer has no room yet", ""),
    "BurstBufferStageIn": ("its burst buffer is being filled", ""),
    "SchedDefer": ("Slurm defers the start of jobs", ""),
    "None": ("Slurm has not looked at it yet", ""),
}
# QOSMaxNodePerUserLimit, AssocGrpCPUMinutesLimit, MaxNodePerAccount, ...
_LIMIT = re.compile(r"(QOS|Assoc|Assn?)?(Grp|Max|Min)([A-Za-z/]+?)(Per(?:User|Account|Job|Node))?(?:Limit)?")
_WHOSE = {"QOS": "the QOS", "Assoc": "your account", "Ass": "your account", "Assn": "your account"}
_SPENT = ("Minutes", "Mins")

_OVER: Mapping[State, str] = {
    State.COMPLETED: "has ended well",
    State.TIMEOUT: "was ended at its time limit",
    State.OUT_OF_MEMORY: "was ended for want of memory",
    State.PREEMPTED: "was ended for a job that goes first",
    State.BOOT_FAIL: "was ended since a node did not boot",
    State.DEADLINE: "was ended at its deadline",
    State.LAUNCH_FAILED: "could not be started on its nodes",
    State.RECONFIG_FAIL: "was ended since a node could not be reconfigured",
}
_NEXT: Mapping[State, str] = {
    State.TIMEOUT: "submit again: it goes on from the last snapshot",
    State.OUT_OF_MEMORY: "give it more --mem, or a smaller batch",
    State.PREEMPTED: "submit again: it goes on from the last snapshot",
    State.NODE_FAIL: "submit again without that node",
    State.BOOT_FAIL: "submit again without that node",
    State.LAUNCH_FAILED: "submit again without that node",
    State.FAILED: "see its log",
}
_GOING: Mapping[State, str] = {
    State.RUNNING: "is running",
    State.CONFIGURING: "has its nodes, which are being prepared",
    State.POWER_UP_NODE: "has its nodes, which are being switched on",
    State.COMPLETING: "is ending: its nodes are being cleaned up",
    State.STAGE_OUT: "has ended, its burst buffer is being emptied",
    State.RESIZING: "is running, its size is being changed",
    State.SIGNALING: "is running and being sent a signal",
    State.SUSPENDED: "is suspended and keeps its nodes",
    State.STOPPED: "is stopped (SIGSTOP) and keeps its nodes",
    State.REVOKED: "went to another cluster of the federation, which alone knows more",
}
_WAITING: Mapping[State, str] = {
    State.REQUEUED: "is being requeued",
    State.REQUEUE_FED: "is being requeued",
    State.REQUEUE_HOLD: "was requeued and is held",
    State.SPECIAL_EXIT: "was requeued and is held",
    State.RESV_DEL_HOLD: "is held, since its reservation is gone",
}
_HELD = (State.REQUEUE_HOLD, State.SPECIAL_EXIT, State.RESV_DEL_HOLD)


def describe_state(job: Job) -> str:
    """Say in one line what a job does, or how it ended, why, and what to do where there is something to do.

    >>> describe_state(Job(7, "chain", State.PENDING, reason="Resources"))
    'waits: its nodes are still in use (Resources)'
    """
    if job.state.is_waiting:
        text, hint = _describe_waiting(job)
    elif job.state.is_over:
        text, hint = _describe_end(job)
    else:
        text, hint = _GOING[job.state], ""
        if job.restarts:
            text += f" (started again {_times(job.restarts)})"
    return f"{text}; {hint}" if hint else text


def explain_reason(reason: str) -> tuple[str, str]:
    """Return what a reason of Slurm's means, and what to do; its own word where we know no better.

    >>> explain_reason("QOSMaxNodePerUserLimit")[0]
    'a limit of the QOS on nodes for each user is reached'
    >>> explain_reason("AssocGrpCPUMinutesLimit")
    ('the CPU minutes that your account was granted are used up', 'ask for more, or give another --account')
    """
    words = reason.replace("_", " ").strip(" ()")
    for known in sorted(REASONS, key=len, reverse=True):
        if re.match(rf"{re.escape(known)}(?![A-Za-z])", words, re.IGNORECASE):
            return REASONS[known]
    found = _LIMIT.fullmatch(words)
    if found is None:
        return f"Slurm says: {' '.join(words.split())[:200]}", ""
    whose, _, what, each = found.groups()
    owner = _WHOSE.get(whose or "", "the site")
    thing = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", what)
    things = " ".join(word if word.isupper() else word.lower() for word in thing.split())
    if what.endswith(_SPENT):
        verb = "was granted are" if owner == "your account" else "grants are"
        return f"the {things} that {owner} {verb} used up", "ask for more, or give another --account"
    plural = things if things.endswith("s") else f"{things}s"
    per = f" for each {each.removeprefix('Per').lower()}" if each else ""
    hint = "" if each in ("PerUser", "PerAccount", None) else "cancel it and ask for less"
    return f"a limit of {owner} on {plural}{per} is reached", hint


def _describe_waiting(job: Job) -> tuple[str, str]:
    text = _WAITING.get(job.state, "waits")
    hint = "see its log, then scontrol release" if job.state in _HELD else ""
    if job.restarts and job.state is State.PENDING:
        text = f"waits to start again ({_times(job.restarts)} so far)"
    if job.reason and (job.reason != "None" or not hint):
        meaning, todo = explain_reason(job.reason)
        text += f": {meaning}{_named(job, meaning)}"
        hint = todo or hint
    if job.failed_node:
        text += f"; node {job.failed_node} had failed"
    return text, hint


def _describe_end(job: Job) -> tuple[str, str]:
    hint = _NEXT.get(job.state, "")
    if job.state is State.NODE_FAIL:
        node = f"node {job.failed_node}" if job.failed_node else "a node of its"
        return f"was ended since {node} failed", hint
    if job.state is State.CANCELLED:
        return _describe_cancelled(job)
    if job.state is State.FAILED:
        text = "has failed"
        if job.signal:
            text += f" by signal {job.signal}"
        elif job.exit_code:
            text += f" with exit code {job.exit_code}"
        if job.reason not in ("", "None", "NonZeroExitCode", "RaisedSignal"):
            meaning, todo = explain_reason(job.reason)
            return f"{text}: {meaning}{_named(job, meaning)}", todo or hint
        return text, hint
    text = _OVER[job.state]
    if job.state is State.TIMEOUT and job.limit_s is not None:
        text += f" of {describe_limit(job.limit_s)}"
    return text, hint


def _describe_cancelled(job: Job) -> tuple[str, str]:
    if job.reason.startswith(
        "DependencyNever"
    ):  # --kill-on-invalid-dep; with a mere Dependency a user did it
        return (
            "was cancelled by Slurm, since a job that it depends on failed",
            "mend that one and submit again",
        )
    by = {None: "", 0: " by root: by an administrator, or by Slurm itself"}.get(
        job.cancelled_by, f" by user {job.cancelled_by}"
    )
    when = "" if job.start is not None else " before it started"
    if job.end is not None and job.start is not None and job.end <= job.start and not job.node_list:
        when = " before it started"  # Slurm writes the end for both
    return f"was cancelled{when}{by}", ""


def _named(job: Job, meaning: str) -> str:
    """Name Slurm's own word behind its meaning, for whoever looks it up."""
    word = job.reason.replace("_", " ").strip(" ()")
    return "" if meaning.startswith("Slurm says") else f" ({' '.join(word.split())[:120]})"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
