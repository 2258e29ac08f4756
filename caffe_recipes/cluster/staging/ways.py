"""The ways an LMDB gets to nodes: each fills a part that a node has reserved, and then verifies and names."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path

from caffe_recipes.cluster.hosts import Completed, Host
from caffe_recipes.cluster.staging.chain import ChainEnd, ChainMeans, relay_command, run_chain
from caffe_recipes.cluster.staging.manifest import Manifest
from caffe_recipes.cluster.staging.nodes import (
    NodeState,
    abandon_part,
    commit_part,
    on_each,
    probe_node,
    reserve_part,
    seconds_for,
    take_part,
)
from caffe_recipes.cluster.staging.plan import ChainOrder, StagingPlan, plan_chain
from caffe_recipes.errors import CaffeRecipesError, ClusterError

_FIRST_MISSING = 'for file do test -r "$file" || { echo "$file"; exit 1; }; done'
# Besides the data: the stamp, and the lock file that every reader of an LMDB makes.
_ROOM_BESIDE_BYTES = 1 << 20
# A chain that breaks without a host that is dead or full is tried once more, not for ever.
_FRUITLESS_LAUNCHES = 2
# A host that was cut off gives no sign: that long it is waited for.
_LOOK_S = 15.0
# A digest that is known by then saves a command on every node; one of 42 GB takes as long as the copies.
_SOON_S = 0.5


@dataclass(frozen=True)
class Job:
    """One staging: the hosts by name, the plan, and the name of the part."""

    hosts: Mapping[str, Host]
    plan: StagingPlan
    part: str
    here: str
    say: Callable[[str], None]

    def lacking(self) -> list[Host]:
        """Return the hosts that lack a copy, in the hostfile's order."""
        return [self.hosts[state.host] for state in self.plan.missing]


@dataclass(frozen=True)
class Sent:
    """What a way did: why, for the hosts that failed, and the source's digest, if any host has it now.

    `dead` are those that gave no answer: asking them for anything more would be waiting for nothing.
    `unstarted` says why, for those of the failed that no chain has begun for: another way may reach them.
    """

    failed: Mapping[str, str]
    digest: str | None = None
    dead: frozenset[str] = frozenset()
    unstarted: Mapping[str, str] = field(default_factory=dict)


def send_to_each(job: Job, known: Future[Manifest]) -> dict[str, str]:
    """Have every node copy the source itself, or send it to each by sftp; why, for those that failed."""
    act = {"copy": _take, "sftp": _put}[str(job.plan.how)]
    return _failures(job.lacking(), on_each(job.lacking(), lambda host: act(job, host, known)))


def send_by_sbcast(job: Job, known: Future[Manifest]) -> dict[str, str]:
    """Have Slurm send it to the nodes of the allocation, and each verify it; why, for those that failed."""
    plan, hosts = job.plan, job.lacking()
    failed = _failures(hosts, on_each(hosts, lambda host: _reserve(job, host)))
    limit_s = seconds_for(plan.size_bytes * len(job.hosts))
    said = _call(sbcast_argv(plan.source, f"{plan.lmdb}/{job.part}"), limit_s)
    rest = [host for host in hosts if host.name not in failed]
    lost = _failures(rest, on_each(rest, lambda host: _commit(job, host, known)))
    # sbcast knows no subset: those that have the LMDB got another.
    on_each([job.hosts[name] for name in plan.present], lambda host: abandon_part(host, plan.lmdb))
    return failed | {name: f"{why}; sbcast said: {said}" if said else why for name, why in lost.items()}


def sbcast_argv(source: str, target: str) -> tuple[str, ...]:
    """Return the argv that puts a file on every node of the allocation; a part that is there is filled.

    >>> " ".join(sbcast_argv("/scratch/lmdb/data.mdb", "/tmp/lmdb/part"))
    'sbcast --force --size=8m /scratch/lmdb/data.mdb /tmp/lmdb/part'
    """
    return ("sbcast", "--force", "--size=8m", source, target)


def send_by_chain(job: Job, means: ChainMeans, digest: str | None, *, asked: bool = True) -> Sent:
    """Pass it through all nodes; where one dies the chain is formed anew, and goes on where it was.

    One that was asked for is tried again where it does not begin, and raises ClusterError where the launcher
    is none.
    """
    failed = _failures(job.lacking(), on_each(job.lacking(), lambda host: _reserve(job, host)))
    unfit = _unfit(means, [job.hosts[name] for name in _names(job) if name not in failed])
    missing = [state for state in job.plan.missing if state.host not in failed and state.host not in unfit]
    landed, moved = [name for name in job.plan.present if name not in unfit], False
    unstarted = {state.host: unfit[state.host] for state in job.plan.missing if state.host in unfit}
    dead, fruitless = set[str](), 0
    while missing:
        order = _order(job, missing, landed)
        end = _launch(job, means, order, digest, asked=asked)
        moved = moved or end.moved
        states = on_each([job.hosts[each.host] for each in missing], lambda host: _look(job, host), _LOOK_S)
        digest = digest or next((state.digest for state in _nodes(states) if state.digest), None)
        lost = _lost(missing, states, order, end)
        dead |= _silent(missing, states)
        arrived = {state.host for state in _nodes(states) if state.digest and state.digest == digest}
        left = [state for state in missing if state.host not in arrived and state.host not in lost]
        fruitless = fruitless + 1 if len(left) == len(missing) else 0
        failed |= lost
        # A reader that gets nothing through may be what is broken.
        landed = [host for host in landed if not (fruitless and host == order.hosts[0])] + sorted(arrived)
        missing = left
        if missing and fruitless == (_FRUITLESS_LAUNCHES if asked or moved else 1):
            names = [state.host for state in missing]
            failed |= dict.fromkeys(names, f"the chain broke: {_why(end, order)}")
            unstarted |= {} if moved else dict.fromkeys(names, _why(end, order))
            break
        if missing:
            without = f" without {', '.join(lost)}" if lost else ""
            hosts = f"{len(missing)} host{'' if len(missing) == 1 else 's'}"
            job.say(f"the chain broke ({_why(end, order)}); it goes on{without} to {hosts}")
    return Sent({**unstarted, **failed}, digest, frozenset(dead), unstarted)


def _names(job: Job) -> list[str]:
    return [*job.plan.present, *(state.host for state in job.plan.missing)]


def _unfit(means: ChainMeans, hosts: Sequence[Host]) -> dict[str, str]:
    """Return what hosts lack that a rank needs; one that gives no answer is for the chain to miss."""
    if not means.needs:
        return {}
    asked = on_each(hosts, lambda host: host.run(["sh", "-c", _FIRST_MISSING, "sh", *means.needs]), _LOOK_S)
    return {
        host.name: f"{host.name} has no {' '.join(done.stdout.split())[-200:] or means.needs[0]}"
        for host, done in zip(hosts, asked, strict=True)
        if isinstance(done, Completed) and done.returncode != 0
    }


def _order(job: Job, missing: Sequence[NodeState], landed: Sequence[str]) -> ChainOrder:
    plan = job.plan
    return plan_chain(
        missing, landed, lmdb=plan.lmdb, source=plan.source, size_bytes=plan.size_bytes, here=job.here
    )


def _launch(job: Job, means: ChainMeans, order: ChainOrder, digest: str | None, *, asked: bool) -> ChainEnd:
    size_bytes = job.plan.size_bytes
    command = relay_command(
        order, means, lmdb=job.plan.lmdb, part=job.part, size_bytes=size_bytes, digest=digest
    )
    try:
        return run_chain(order, means, command, size_bytes)
    except ClusterError as error:
        if asked:
            raise
        return ChainEnd(said=f"{error.where}: {error.what}")


def _look(job: Job, host: Host) -> NodeState:
    return probe_node(host, job.plan.lmdb, job.plan.source, job.plan.size_bytes)


def _nodes(states: Sequence[NodeState | CaffeRecipesError | None]) -> list[NodeState]:
    return [state for state in states if isinstance(state, NodeState)]


def _lost(
    missing: Sequence[NodeState],
    states: Sequence[NodeState | CaffeRecipesError | None],
    order: ChainOrder,
    end: ChainEnd,
) -> dict[str, str]:
    """Return why, for the hosts that a chain must do without: dead ones, and those that could not write."""
    said = {order.hosts[rank]: why for rank, why in end.failed.items() if rank < len(order.hosts)}
    lost = {host.host: said[host.host] for host in missing if host.host in said}
    for host, state in zip(missing, states, strict=True):
        if not isinstance(state, NodeState):
            lost[host.host] = f"was lost while the chain ran: {state.what if state else 'no answer'}"
        elif state.kind == "unreachable":
            lost[host.host] = f"was lost while the chain ran: {state.reason}"
        elif state.kind == "refused":
            lost[host.host] = state.reason
    return lost


def _silent(missing: Sequence[NodeState], states: Sequence[NodeState | CaffeRecipesError | None]) -> set[str]:
    return {
        host.host
        for host, state in zip(missing, states, strict=True)
        if not isinstance(state, NodeState) or state.kind == "unreachable"
    }


def _why(end: ChainEnd, order: ChainOrder) -> str:
    """Say who broke a chain: of those that saw nothing move, the first."""
    names = dict(enumerate(order.hosts))
    if not end.stopped:
        labelled = re.fullmatch(r"\[?(\d+)(?:\]|:) (.+)", end.said)
        said = f"{names.get(int(labelled[1]), labelled[1])}: {labelled[2]}" if labelled else end.said
        return said or "the launcher ended"
    rank = min(end.stopped)
    reason = re.sub(r"\brank (\d+)\b", lambda found: names.get(int(found[1]), found[0]), end.stopped[rank])
    return f"{names.get(rank, rank)}: {reason}"


def _reserve(job: Job, host: Host) -> None:
    reserve_part(host, job.plan.lmdb, job.part, _room_bytes(job))


def _room_bytes(job: Job) -> int:
    return job.plan.size_bytes + _ROOM_BESIDE_BYTES


def _take(job: Job, host: Host, known: Future[Manifest]) -> None:
    wait([known], _SOON_S)
    digest, plan = known.result().digest if known.done() else None, job.plan
    take_part(
        host, plan.lmdb, job.part, plan.source, plan.size_bytes, room_bytes=_room_bytes(job), digest=digest
    )
    if digest is None:
        _commit(job, host, known)


def _put(job: Job, host: Host, known: Future[Manifest]) -> None:
    _reserve(job, host)
    host.put(Path(job.plan.source), f"{job.plan.lmdb}/{job.part}")
    _commit(job, host, known)


def _commit(job: Job, host: Host, known: Future[Manifest]) -> None:
    commit_part(host, job.plan.lmdb, job.part, job.plan.size_bytes, known.result().digest)


def _failures(hosts: Sequence[Host], results: Sequence[object]) -> dict[str, str]:
    return {
        host.name: result.what
        for host, result in zip(hosts, results, strict=True)
        if isinstance(result, CaffeRecipesError)
    }


def _call(argv: Sequence[str], timeout_s: float) -> str:
    """Run a command of this machine; return what it complained of, or nothing."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done within {timeout_s:.0f} s"
    except OSError as error:
        return error.strerror or str(error)
    return "" if done.returncode == 0 else " ".join(done.stderr.decode(errors="replace").split())[:300]
