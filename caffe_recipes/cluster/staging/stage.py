"""Stage an LMDB: probe the hosts, plan, send and verify. Also remove staged copies."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import file_stamp
from caffe_recipes.cluster.remote import NodeRefusal
from caffe_recipes.cluster.staging.manifest import (
    Copy,
    Manifest,
    SourceFile,
    cache_folder,
    find_source,
    hash_source,
    load_copies,
    load_manifest,
    save_copies,
    save_manifest,
    staging_lock,
)
from caffe_recipes.cluster.staging.plan import (
    CopyRates,
    How,
    NodeState,
    StagingPlan,
    abandon_part,
    clean_node,
    hash_node,
    normalize_lmdb,
    on_each,
    plan_staging,
    plan_without,
    probe_node,
    render_plan,
)
from caffe_recipes.cluster.staging.relay import DATA
from caffe_recipes.cluster.staging.ways import (
    ChainEnv,
    Sent,
    StagingJob,
    send_by_chain,
    send_by_sbcast,
    send_to_each,
)
from caffe_recipes.errors import CaffeRecipesError
from caffe_recipes.wording import describe_count

Say = Callable[[str], None]
T = TypeVar("T")
# On a dead host unfinished copies remain; the next staging removes them.
_ABANDON_S = 15.0


@dataclass(frozen=True)
class StagedHost:
    """The outcome of staging on a host; `reason` says why it failed."""

    host: str
    outcome: Literal["there", "sent", "failed"]
    reason: str = ""


@dataclass(frozen=True)
class Cleaned:
    """The outcome of cleaning a host; `failed` if it is unknown what the host has now."""

    host: str
    outcome: str
    failed: bool = False


@dataclass(frozen=True)
class StagingEnv:
    """The settings of staging; chains need `chain`, and `how` requests a way regardless of its cost."""

    rates: CopyRates = field(default_factory=CopyRates)
    how: How | None = None
    chain: ChainEnv | None = None
    cache: Path | None = None
    here: str = ""


def stage(
    hosts: Sequence[Host], lmdb: str, folder: Path, env: StagingEnv, say: Say = lambda line: None
) -> tuple[StagedHost, ...]:
    """Copy the LMDB in a folder atomically to every host that lacks it; return the outcome of each host.

    Raises DataError if the source is not valid, ClusterError if another process is staging to the same path
    or no way is available, and InputError if the requested way is not. If a host fails, its outcome says so,
    and the others are still staged.
    """
    lmdb, source = normalize_lmdb(lmdb), find_source(folder)
    cache = env.cache or cache_folder()
    with staging_lock(lmdb, cache):
        states, manifest = survey(hosts, lmdb, source, cache)
        plan = plan_from(states, lmdb, source, manifest, env)
        for line in render_plan(plan):
            say(line)
        if plan.how is None:
            return host_results(hosts, plan, {})
        failed = _send_with_fallback(hosts, plan, source, manifest, replace(env, cache=cache), say)
        return host_results(hosts, plan, failed)


def survey(
    hosts: Sequence[Host], lmdb: str, source: SourceFile, cache: Path
) -> tuple[list[NodeState], Manifest | None]:
    """Return the state of every host, and the manifest if it is known or needed.

    Copies without one of our stamps are hashed.
    """
    seen = on_each(hosts, lambda host: probe_node(host, lmdb, str(source.data), source.size_bytes))
    states = [_state(host, state) for host, state in zip(hosts, seen, strict=True)]
    alike = {
        state.host for state in states if state.kind == "present" and state.size_bytes == source.size_bytes
    }
    manifest = load_manifest(source, cache)
    if not alike:
        return states, manifest
    unsure = [
        host for host, state in zip(hosts, states, strict=True) if host.name in alike and not state.digest
    ]
    with ThreadPoolExecutor(1) as pool:
        known = _completed_future(manifest) if manifest else pool.submit(hash_source, source, cache)
        digests = _digests(unsure, lmdb, source.size_bytes, cache)
        return [_with_digest(state, digests.get(state.host)) for state in states], known.result()


def _digests(
    hosts: Sequence[Host], lmdb: str, size_bytes: int, cache: Path
) -> dict[str, str | CaffeRecipesError | None]:
    """Return the digest of each host's copy, from the cache or by hashing it."""
    stamps = _by_name(hosts, on_each(hosts, lambda host: file_stamp(host, f"{lmdb}/{DATA}")))
    copies = load_copies(lmdb, cache)
    known = {name: copy.digest for name, copy in copies.items() if stamps.get(name) == copy.stamp}
    rest = [host for host in hosts if host.name not in known]
    found = _by_name(rest, on_each(rest, lambda host: hash_node(host, lmdb, size_bytes)))
    new = {
        name: Copy(stamp, digest)
        for name, digest in found.items()
        if isinstance(digest, str) and isinstance(stamp := stamps[name], str)
    }
    if new:
        save_copies(lmdb, new, cache)
    return {**known, **found}


def _by_name(hosts: Sequence[Host], answers: Sequence[T]) -> dict[str, T]:
    return dict(zip((host.name for host in hosts), answers, strict=True))


def plan_from(
    states: Sequence[NodeState], lmdb: str, source: SourceFile, manifest: Manifest | None, env: StagingEnv
) -> StagingPlan:
    """Return the plan, without the ways that this machine does not support; raises as `plan_staging`."""
    unavailable: dict[How, str] = {}
    if env.chain is None:
        unavailable["chain"] = "no launcher or no mpi4py"
    if "SLURM_JOB_ID" not in os.environ:
        unavailable["sbcast"] = "not inside a Slurm allocation"
    return plan_staging(
        states,
        lmdb=lmdb,
        source=str(source.data),
        size_bytes=source.size_bytes,
        digest=manifest.digest if manifest else None,
        rates=env.rates,
        how=env.how,
        unavailable=unavailable,
    )


def clean(
    hosts: Sequence[Host],
    lmdb: str,
    cache: Path | None = None,
    act: Callable[[Host, str], tuple[str, str]] = clean_node,
) -> list[Cleaned]:
    """Remove the staged copies from all hosts, and nothing else; return the outcome of each host.

    `act` cleans one host: `clean_node` for an LMDB, or `clean_set` for a set of files.
    """
    lmdb = normalize_lmdb(lmdb)
    with staging_lock(lmdb, cache or cache_folder()):
        done = on_each(hosts, lambda host: act(host, lmdb))
    return [_cleaned(host.name, lmdb, result) for host, result in zip(hosts, done, strict=True)]


def _send_with_fallback(
    hosts: Sequence[Host],
    plan: StagingPlan,
    source: SourceFile,
    manifest: Manifest | None,
    env: StagingEnv,
    say: Say,
) -> Mapping[str, str]:
    """Send the LMDB to the hosts that lack it; return reasons by host for those that failed.

    If a chain does not start, e.g. because a node lacks our Python, the next best way is used, unless a way
    was requested.
    """
    sent = _send(hosts, plan, source, manifest, env, say)
    if not sent.unstarted or env.how is not None:
        return sent.failed
    why = next(iter(sent.unstarted.values()))
    fallback = plan_without(plan, sent.unstarted.keys(), why)
    if fallback is None:
        return sent.failed
    hosts_left = describe_count(len(fallback.missing), "host")
    say(f"the {plan.how} did not start ({why}); using {fallback.how} for {hosts_left}")
    rest = _send_with_fallback(hosts, fallback, source, manifest, env, say)
    return {**{host: why for host, why in sent.failed.items() if host not in sent.unstarted}, **rest}


def _send(
    hosts: Sequence[Host],
    plan: StagingPlan,
    source: SourceFile,
    manifest: Manifest | None,
    env: StagingEnv,
    say: Say,
) -> Sent:
    """Send the LMDB to the hosts that lack it, by the plan's way, and remove unfinished copies."""
    cache = env.cache or cache_folder()
    job = StagingJob(
        hosts={host.name: host for host in hosts},
        plan=plan,
        part=f".data.mdb.part-{uuid.uuid4().hex[:12]}",
        here=env.here or socket.gethostname(),
        say=say,
    )
    try:
        if plan.how == "chain" and env.chain is not None:
            digest = manifest.digest if manifest else None
            sent = send_by_chain(job, env.chain, digest, is_requested=env.how is not None)
            if sent.digest and manifest is None:
                save_manifest(source, sent.digest, cache)
        else:
            send = send_by_sbcast if plan.how == "sbcast" else send_to_each
            with ThreadPoolExecutor(1) as pool:  # while the nodes are busy
                known = _completed_future(manifest) if manifest else pool.submit(hash_source, source, cache)
                sent = Sent(send(job, known))
    except BaseException:
        _abandon(job, [state.host for state in plan.missing])
        raise
    _abandon(job, [name for name in sent.failed if name not in sent.dead])
    return sent


def _abandon(job: StagingJob, names: Sequence[str]) -> None:
    on_each([job.hosts[name] for name in names], lambda host: abandon_part(host, job.plan.lmdb), _ABANDON_S)


def host_results(
    hosts: Sequence[Host], plan: StagingPlan, failed: Mapping[str, str]
) -> tuple[StagedHost, ...]:
    """Return the outcome of each host of a plan; `failed` holds reasons by host that failed."""
    reasons = {**dict(plan.refused), **failed}
    return tuple(
        StagedHost(host.name, "failed", reasons[host.name])
        if host.name in reasons
        else StagedHost(host.name, "there" if host.name in plan.present else "sent")
        for host in hosts
    )


def _completed_future(manifest: Manifest) -> Future[Manifest]:
    future: Future[Manifest] = Future()
    future.set_result(manifest)
    return future


def _state(host: Host, seen: NodeState | CaffeRecipesError | None) -> NodeState:
    if isinstance(seen, NodeState):
        return seen
    return NodeState(host.name, "unreachable", reason=seen.what if seen else "")


def _with_digest(state: NodeState, found: str | CaffeRecipesError | None) -> NodeState:
    if found is None:
        return state
    if isinstance(found, CaffeRecipesError):
        return NodeState(state.host, "refused", reason=found.what)
    return replace(state, digest=found)


def _cleaned(host: str, lmdb: str, result: tuple[str, str] | CaffeRecipesError | None) -> Cleaned:
    if isinstance(result, NodeRefusal):
        return Cleaned(host, f"not cleaned: {lmdb}: {result.what}", failed=True)
    if isinstance(result, CaffeRecipesError):
        return Cleaned(host, f"not cleaned: {result.what}", failed=True)
    word, rest = result or ("nothing", "")
    if word == "cleaned":
        return Cleaned(host, f"removed {int(rest):,} bytes")
    return Cleaned(host, f"kept: {rest}" if word == "kept" else "nothing to remove")
