"""Stage a set of files or an LMDB: survey the hosts, plan, send and verify. Also remove staged files."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from caffe_recipes.cluster.commands import MAX_TRANSFER_S, Host, Say
from caffe_recipes.cluster.hosts import Answer, ask_all
from caffe_recipes.cluster.remote import NodeRefusal
from caffe_recipes.cluster.slurm.this_job import this_job
from caffe_recipes.cluster.staging import Way
from caffe_recipes.cluster.staging.file_sets import (
    Copy,
    FileSet,
    FoundFile,
    NodeState,
    SetFile,
    ask_files,
    clean_host,
    known_digest,
    load_copies,
    load_digest,
    normalize_folder,
    save_copies,
    save_digest,
    staging_lock,
    survey_hosts,
    to_state,
)
from caffe_recipes.cluster.staging.method_choice import (
    CopyRates,
    StagingPlan,
    plan_staging,
    plan_without,
    render_plan,
)
from caffe_recipes.cluster.staging.methods import (
    ChainEnv,
    Sent,
    StagingJob,
    abandon,
    send_by_chain,
    send_by_sbcast,
    send_to_each,
)
from caffe_recipes.files.user_cache import cache_folder
from caffe_recipes.wording import describe_count

_ONE_FILE = "sends the same files to every host, but each host needs different ones"


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
    how: Way | None = None
    chain: ChainEnv | None = None
    cache: Path = field(default_factory=cache_folder)
    here: str = ""


def stage(
    hosts: Sequence[Host], files: FileSet, env: StagingEnv, say: Say = lambda line: None
) -> tuple[StagedHost, ...]:
    """Send every host the files that it lacks, each atomically; return the outcome of each host.

    Raises DataError if the source is not valid, ClusterError if another process is staging to the same folder
    or no way is available, and InputError if the requested way is not. If a host fails, its outcome says so,
    and the others are still staged.
    """
    with staging_lock(files.folder, env.cache):
        states, files = survey(hosts, files, env.cache)
        plan = plan_from(states, files, env)
        for line in render_plan(plan):
            say(line)
        if plan.how is None:
            return _host_results(hosts, plan, {})
        job = StagingJob(
            hosts={host.name: host for host in hosts},
            plan=plan,
            token=uuid.uuid4().hex[:12],
            here=env.here or socket.gethostname(),
            say=say,
        )
        return _host_results(hosts, plan, _send_with_fallback(job, env))


def survey(hosts: Sequence[Host], files: FileSet, cache: Path) -> tuple[list[NodeState], FileSet]:
    """Return the state of every host, and the files; an LMDB's digest is added if it is known or needed.

    Copies without one of our stamps are hashed. Raises DataError if the source cannot be hashed.
    """
    lmdb, states = files.lmdb, survey_hosts(hosts, files, MAX_TRANSFER_S)
    alike = {state.host: _find_alike(state, files) for state in states}
    unsure = {
        state.host: [file for file in alike[state.host] if state.found[file.name].digest is None]
        for state in states
    }
    known = {state.host: state for state in states}
    with ThreadPoolExecutor(1) as pool:
        find_digest = known_digest if any(alike.values()) else load_digest
        digest = pool.submit(find_digest, lmdb.source, cache) if lmdb else None
        for answer in ask_all(
            [host for host in hosts if unsure.get(host.name)],
            lambda host: _hash_copies(host, known[host.name], files, unsure[host.name], cache),
            MAX_TRANSFER_S,
        ):
            known[answer.host.name] = to_state(answer)
        return list(known.values()), files.with_digest(digest.result()) if digest else files


def _find_alike(state: NodeState, files: FileSet) -> list[SetFile]:
    """Return the files on a host that may be right by their sizes; none if any of the sizes is wrong."""
    there = [file for file in files.wanted[state.host] if file.name in state.found]
    is_alike = all(state.found[file.name].size_bytes == file.size_bytes for file in there)
    return there if is_alike else []


def _hash_copies(
    host: Host, state: NodeState, files: FileSet, some: Sequence[SetFile], cache: Path
) -> NodeState:
    """Return the state of a host with the digests of some files, from the cache or by hashing them.

    One cache holds the copies of an LMDB by host, or the files of a set on one host by name.
    """
    place = files.folder if files.lmdb else f"{host.name}:{files.folder}"
    keys = {file: host.name if files.lmdb else file.name for file in some}
    known = load_copies(place, cache)
    stamps = dict(zip(some, map(" ".join, ask_files(host, "identify", files, some)), strict=True))
    copies = {f: copy for f in some if (copy := known.get(keys[f])) and copy.stamp == stamps[f]}
    rest = [file for file in some if file not in copies]
    for file, (_, digest) in zip(rest, ask_files(host, "digest", files, rest, passes=1), strict=True):
        copies[file] = Copy(stamps[file], digest)
    if rest:
        save_copies(place, {keys[file]: copies[file] for file in rest}, cache)
    found = {file.name: FoundFile(file.size_bytes, copy.digest) for file, copy in copies.items()}
    return replace(state, found={**state.found, **found})


def plan_from(states: Sequence[NodeState], files: FileSet, env: StagingEnv) -> StagingPlan:
    """Return the plan, without the ways that this machine does not support; raises as `plan_staging`."""
    unavailable: dict[Way, str] = {}
    if env.chain is None:
        unavailable["chain"] = "no launcher or no mpi4py"
    if not this_job(os.environ).job:
        unavailable["sbcast"] = "not inside a Slurm allocation"
    if files.lmdb is None:
        unavailable = {"chain": _ONE_FILE, "sbcast": _ONE_FILE}
    return plan_staging(states, files, rates=env.rates, how=env.how, unavailable=unavailable)


def clean(
    hosts: Sequence[Host],
    folder: str,
    names: Sequence[str] = (),
    cache: Path | None = None,
    root: Path = Path("/"),
) -> list[Cleaned]:
    """Remove what was staged to a folder from all hosts, and nothing else; return the outcome of each host.

    Without `names`, all files that were staged are removed. The owner of the Caffe root, `root`, is trusted.
    """
    folder = normalize_folder(folder)
    with staging_lock(folder, cache or cache_folder()):
        answers = ask_all(hosts, lambda host: clean_host(host, folder, names, root), MAX_TRANSFER_S)
    return [_cleaned(answer, folder) for answer in answers]


def _send_with_fallback(job: StagingJob, env: StagingEnv) -> Mapping[str, str]:
    """Send the files to the hosts that lack them; return reasons by host for those that failed.

    If a chain does not start, e.g. because a node lacks our Python, the next best way is used, unless a way
    was requested.
    """
    sent = _send(job, env)
    if not sent.unstarted or env.how is not None:
        return sent.failed
    why = next(iter(sent.unstarted.values()))
    fallback = plan_without(job.plan, sent.unstarted.keys(), why)
    if fallback is None:
        return sent.failed
    hosts_left = describe_count(len(fallback.missing), "host")
    job.say(f"the {job.plan.how} did not start ({why}); using {fallback.how} for {hosts_left}")
    rest = _send_with_fallback(replace(job, plan=fallback), env)
    return {**{host: why for host, why in sent.failed.items() if host not in sent.unstarted}, **rest}


def _send(job: StagingJob, env: StagingEnv) -> Sent:
    """Send the files to the hosts that lack them, by the plan's way, and remove unfinished copies."""
    lmdb, how = job.plan.files.lmdb, job.plan.how
    unknown = lmdb if lmdb and lmdb.digest is None else None
    try:
        if how == "chain" and env.chain is not None:
            sent = send_by_chain(job, env.chain, is_requested=env.how is not None)
            if sent.digest and unknown:
                save_digest(unknown.source, sent.digest, env.cache)
        else:
            send = send_by_sbcast if how == "sbcast" else send_to_each
            with ThreadPoolExecutor(1) as pool:  # while the nodes are busy
                hashing = {unknown: pool.submit(known_digest, unknown.source, env.cache)} if unknown else {}
                sent = Sent(send(replace(job, hashing=hashing)))
    except BaseException:
        abandon(job, [state.host for state in job.plan.missing])
        raise
    abandon(job, [name for name in sent.failed if name not in sent.dead])
    return sent


def _host_results(
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


def _cleaned(answer: Answer[tuple[str, str]], folder: str) -> Cleaned:
    host, error = answer.host.name, answer.error
    if error is not None:
        place = f"{folder}: " if isinstance(error, NodeRefusal) else ""
        return Cleaned(host, f"not cleaned: {place}{error.what}", failed=True)
    word, rest = answer.value or ("nothing", "")
    if word == "cleaned":
        return Cleaned(host, f"removed {describe_count(int(rest), 'byte')}")
    return Cleaned(host, f"kept: {rest}" if word == "kept" else "nothing to remove")
