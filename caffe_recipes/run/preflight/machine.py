"""What the hosts are: reached, alike, with the cores and the memory that a recipe needs, and on time.

Spares: what a host must be that may get ranks later, looked at while there is time to find another.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.ranks import LAUNCH_VARIABLE
from caffe_recipes.run.journal import name_branch
from caffe_recipes.run.plan import find_servers
from caffe_recipes.run.preflight.findings import CheckResult, HostProblem, as_findings, fold_names, trouble_of
from caffe_recipes.run.preflight.nodes import NodeFacts, NodeView, lmdb_path, look_at_nodes
from caffe_recipes.run.preflight.storage import judge_disk, judge_snapshots
from caffe_recipes.run.preflight.trials import judge_programs, try_trainer
from caffe_recipes.units import describe_bytes
from caffe_recipes.wording import describe_count

MOST_SKEW_S = 2.0
# Of the others' memory, or of the profile's.
_LEAST_PART = 0.9
_HINT_CORES = "check the host, or the recipe's omp_num_threads and ranks_per_node"


def check_hosts(look: NodeView) -> list[CheckResult]:
    """Name the hosts that cannot be reached, each in its own words, and those with another Caffe root."""
    cluster = look.setting.recipe.cluster
    named = fold_names([host.name for host in look.setting.hosts])
    ranks = describe_count(cluster.ranks_per_node, "rank")
    images = describe_count(cluster.batch_per_rank, "image")
    found = as_findings("hosts", judge_hosts(look), f"{named}: {cluster.nodes} x {ranks} of {images}")
    stale = look.setting.stale
    return [*([CheckResult("hosts", stale, warns=True)] if stale else []), *found]


def judge_hosts(look: NodeView) -> list[HostProblem]:
    """Return what keeps ranks from starting on hosts, or from starting where they should."""
    unreached = [trouble_of(name, error) for name, error in look.errors.items()]
    return [*unreached, *_other_roots(look), *_same_machines(look)]


def check_launches(look: NodeView) -> list[CheckResult]:
    """Name the hosts where ranks of another launch are at work; nothing without any."""
    return as_findings("launches", judge_launches(look))


def judge_launches(look: NodeView) -> list[HostProblem]:
    """Return where ranks of other launches are: what a run that is gone on with has left is its own.

    This machine may well train several recipes.
    """
    launch = look.state.launch
    ours = {look.state.id or (launch.id.partition("/")[0] if launch else "")}
    ours |= {name_branch(look.state.id, phase) for phase in look.state.branches}
    local = {host.name for host in look.setting.hosts if host.is_local}
    troubles: list[HostProblem] = []
    for facts in look.facts.values():
        counts = Counter(launch for launch, _ in facts.ranks if launch.partition("/")[0] not in ours)
        for name, count in sorted(counts.items()):
            ranks = f"{count} rank{'s' if count > 1 else ''} of another launch, {name}, "
            what = f"{ranks}{'are' if count > 1 else 'is'} at work here"
            hint = f"wait for its end, or end what has {LAUNCH_VARIABLE}={name} in its environment"
            troubles.append(HostProblem(facts.host, what, hint, fails=facts.host not in local))
    return troubles


def check_cores(look: NodeView) -> list[CheckResult]:
    """Compare the hosts' cores with what the recipe pins and needs, the profile, and each other."""
    seen = ", ".join(dict.fromkeys(str(facts.processors) for facts in look.facts.values()))
    cores = f"{seen} a host, {_needed_cores(look)} are needed"
    return as_findings("cores", judge_cores(look), cores) if seen else _nobody(look, "cores")


def judge_cores(look: NodeView) -> list[HostProblem]:
    """Return the hosts whose cores are too few, not as expected, or unlike the others'."""
    needed = _needed_cores(look)
    troubles = [trouble for facts in look.facts.values() for trouble in _judge_cores(look, facts, needed)]
    return troubles + _unlike({name: str(facts.processors) for name, facts in look.facts.items()})


def check_memory(look: NodeView) -> list[CheckResult]:
    """Name hosts with less memory than the profile says, or than the others have or have free."""
    totals, free = _memories(look)
    if not totals:
        return _nobody(look, "memory")
    least = f"{describe_bytes(min(totals.values()))} a host, {describe_bytes(min(free.values()))} free"
    return as_findings("memory", judge_memory(look), least)


def judge_memory(look: NodeView) -> list[HostProblem]:
    """Return the hosts that have less memory than expected, or than the others."""
    totals, free = _memories(look)
    expected_gb = look.setting.profile.node.memory_gb
    troubles = [
        _lacks(host, f"has {describe_bytes(total)} of memory, the profile says {expected_gb:g} GB")
        for host, total in totals.items()
        if expected_gb and total < _LEAST_PART * expected_gb * 1e9
    ]
    typical, typically_free = (median(values.values() or [0]) for values in (totals, free))
    for host, total in totals.items():
        if abs(total - typical) > (1 - _LEAST_PART) * typical:
            what = f"has {describe_bytes(total)} of memory, the others {describe_bytes(typical)}"
            troubles.append(_lacks(host, what))
        elif free[host] < _LEAST_PART * typically_free:
            has, others = describe_bytes(free[host]), describe_bytes(typically_free)
            troubles.append(_lacks(host, f"has {has} of memory free, the others {others}"))
    return troubles


def check_tmp(look: NodeView) -> list[CheckResult]:
    """Compare the size of each host's /tmp with what the profile or the recipe says; nothing if none does."""
    return (
        as_findings("/tmp", judge_tmp(look), f"{expected_gb:g} GB a host")
        if (expected_gb := _expected_tmp_gb(look))
        else []
    )


def judge_tmp(look: NodeView) -> list[HostProblem]:
    """Return the hosts whose /tmp is smaller than expected."""
    expected_gb = _expected_tmp_gb(look)
    return [
        HostProblem(
            facts.host,
            f"has {describe_bytes(facts.tmp_bytes)} of /tmp, {expected_gb:g} GB are expected",
            "check the profile, the recipe's cluster.tmp_gb, and the host",
            fails=False,
        )
        for facts in look.facts.values()
        if expected_gb and facts.tmp_bytes and facts.tmp_bytes < _LEAST_PART * expected_gb * 1e9
    ]


def check_clocks(look: NodeView) -> list[CheckResult]:
    """Name the hosts whose clock differs from ours by more than MOST_SKEW_S."""
    if not look.facts:
        return _nobody(look, "clock")
    most = max(abs(facts.skew_s) + facts.doubt_s for facts in look.facts.values())
    return as_findings("clock", judge_clocks(look), f"within {most:.1f} s of ours")


def judge_clocks(look: NodeView) -> list[HostProblem]:
    """Return the hosts whose clock is wrong beyond what the question took."""
    return [
        HostProblem(
            facts.host,
            f"its clock is {abs(facts.skew_s):.1f} s {'ahead of' if facts.skew_s > 0 else 'behind'} ours",
            "let it ask a time server",
            fails=False,
        )
        for facts in look.facts.values()
        if abs(facts.skew_s) - facts.doubt_s > MOST_SKEW_S
    ]


def _needed_cores(look: NodeView) -> int:
    cluster = look.setting.recipe.cluster
    return cluster.ranks_per_node * cluster.omp_num_threads + len(set(_server_cores(look)))


def _memories(look: NodeView) -> tuple[dict[str, int], dict[str, int]]:
    """Return the memory of each host that tells it, in bytes, and what of it is free."""
    known = [facts for facts in look.facts.values() if facts.memory_bytes and facts.available_bytes]
    totals = {facts.host: facts.memory_bytes or 0 for facts in known}
    return totals, {facts.host: facts.available_bytes or 0 for facts in known}


def _other_roots(look: NodeView) -> Iterator[HostProblem]:
    """Yield the hosts whose Caffe root is missing, or is another folder than ours."""
    root = str(look.setting.root)
    shared = look.setting.profile.shared_folder
    hint = f"the Caffe root must be {f'below {shared}' if shared else 'on a file system of all hosts'}"
    ours = str(Path(root).stat().st_ino)
    for facts in look.facts.values():
        if facts.root_inode is None:
            yield HostProblem(facts.host, "no such folder there", hint, root)
        elif facts.root_inode != ours:
            what = "seems to be another folder there than here"
            yield HostProblem(
                facts.host, what, "later phases start from what a run keeps in it", root, fails=False
            )


def _same_machines(look: NodeView) -> Iterator[HostProblem]:
    """Yield the hosts that are one machine with a host before them: ranks of both would share its cores."""
    seen: dict[tuple[str, str], str] = {}
    for facts in look.facts.values():
        if facts.boot_id is None:
            continue
        first = seen.setdefault((facts.boot_id, facts.node_name), facts.host)
        if first != facts.host:
            what = f"is the machine that {first} is, too: {facts.node_name}"
            yield HostProblem(facts.host, what, "leave one of the two names out of the hostfile")


def _judge_cores(look: NodeView, facts: NodeFacts, needed: int) -> Iterator[HostProblem]:
    cluster, there = look.setting.recipe.cluster, facts.processors
    last = max(there.numbers, default=-1)
    for what, hint, numbers in (
        ("MLSL's servers", "cluster.mlsl.server_affinity", _server_cores(look)),
        ("threads", "cluster.kmp_affinity", _listed_cores(look)),
    ):
        missing = sorted(set(numbers) - there.numbers)
        if missing:
            listed = ",".join(map(str, missing))
            problem = f"has no core {listed}, where {what} are pinned; its last is {last}"
            yield HostProblem(facts.host, problem, f"correct {hint} in the recipe, or give other hosts")
    yield from _judge_numbering(look, facts)
    if there.cores < needed:
        threads = f"{cluster.ranks_per_node} x {cluster.omp_num_threads} threads"
        servers = f" and {needed - cluster.ranks_per_node * cluster.omp_num_threads} cores of MLSL's"
        what = f"has {there}, {threads}{servers if _server_cores(look) else ''} need {needed}"
        yield HostProblem(facts.host, what, _HINT_CORES, fails=False)
    elif facts.usable < min(needed, len(there.numbers)):
        what = f"lets us use {facts.usable} of {len(there.numbers)} processors, {needed} are needed"
        yield HostProblem(facts.host, what, "ask the job for whole nodes", fails=False)
    expected_sockets, expected_cores = _expected_node(look)
    sockets = there.sockets or expected_sockets
    if expected_cores and (expected_cores, expected_sockets) != (there.cores, sockets):
        what = f"has {there}, {expected_sockets} x {expected_cores // (expected_sockets or 1)} are expected"
        yield HostProblem(
            facts.host, what, "check the profile, the recipe's cluster, and the host", fails=False
        )


def _judge_numbering(look: NodeView, facts: NodeFacts) -> Iterator[HostProblem]:
    """Yield a host whose numbering of cores crowds MLSL's servers on a socket, or is not the profile's.

    One list of cores is for all hosts, and a socket's ranks are as slow as its servers leave them.
    """
    socket_of, sockets = facts.processors.socket_of, facts.processors.sockets or 1
    if sockets == 1 or not {0, 1} <= socket_of.keys():
        return
    servers = Counter(socket_of[core] for core in _server_cores(look) if core in socket_of)
    counts = [servers[socket] for socket in sorted(set(socket_of.values()))]
    numbering = "by-socket" if socket_of[0] == socket_of[1] else "alternate"
    if max(counts) - min(counts) > 1:
        cores = ",".join(map(str, _server_cores(look)))
        shares = " and ".join(map(str, counts))
        what = f"numbers its cores {numbering}: of MLSL's servers on {cores} {shares} are on its sockets"
        yield HostProblem(facts.host, what, "give each socket its part in mlsl.server_affinity", fails=False)
    elif look.setting.profile.node.core_numbering not in (None, numbering):
        what = f"numbers its cores {numbering}, the profile says {look.setting.profile.node.core_numbering}"
        yield HostProblem(facts.host, what, "check the profile, and where threads are pinned", fails=False)


def _expected_node(look: NodeView) -> tuple[int | None, int | None]:
    """Return the sockets and cores that a node should have: the profile says it, else the recipe."""
    node, cluster = look.setting.profile.node, look.setting.recipe.cluster
    if node.cores:
        return node.sockets, node.cores
    if cluster.sockets_per_node and cluster.cores_per_socket:
        return cluster.sockets_per_node, cluster.sockets_per_node * cluster.cores_per_socket
    return None, None


def _expected_tmp_gb(look: NodeView) -> float | None:
    return look.setting.profile.node.tmp_gb or look.setting.recipe.cluster.tmp_gb


def _server_cores(look: NodeView) -> tuple[int, ...]:
    return find_servers(look.setting.recipe, look.setting.profile)[1]


def _listed_cores(look: NodeView) -> list[int]:
    """Return the ends of what `proclist=[0-21,24]` of KMP_AFFINITY lists."""
    affinity = look.setting.recipe.cluster.kmp_affinity or look.setting.profile.kmp_affinity or ""
    found = re.search(r"proclist=\[([^\]]*)\]", affinity)
    return [int(number) for number in re.findall(r"\d+", re.sub(r":\d+", "", found[1]))] if found else []


def _unlike(seen: dict[str, str]) -> list[HostProblem]:
    """Name the hosts that have something else than most."""
    if len(set(seen.values())) < 2:
        return []
    most, _ = Counter(seen.values()).most_common(1)[0]
    hint = "a run goes at the pace of its slowest host: use hosts of one kind"
    return [
        HostProblem(host, f"has {has}, the others {most}", hint, fails=False)
        for host, has in seen.items()
        if has != most
    ]


def _lacks(host: str, what: str) -> HostProblem:
    return HostProblem(host, what, "check what runs there, and its memory", fails=False)


def _nobody(look: NodeView, subject: str) -> list[CheckResult]:
    return look.skip(subject, [host.name for host in look.setting.hosts])


def check_spares(look: NodeView) -> list[CheckResult]:
    """Look at the spares as at the hosts: what fails on one is a warning, and the spare unfit.

    The trainer is tried on them only if the policy may put one in a host's place, or branches train on them:
    then each must be able to hold the branches' snapshots, as any may come to be the first of its group.
    """
    if not look.setting.spares:
        return []
    spares = tuple(look.setting.connect(name) for name in look.setting.spares)
    try:
        troubles = _judge(look, spares)
    finally:
        for spare in spares:
            spare.close()
    found = as_findings("spares", troubles, f"{fold_names(look.setting.spares)}: as the hosts are")
    return [replace(one, error=None, warns=True, unfit=True) if one.error else one for one in found]


def _judge(look: NodeView, spares: Sequence[Host]) -> list[HostProblem]:
    there = look_at_nodes(replace(look.setting, hosts=tuple(spares)), look.plan, look.state)
    # A spare may be judged in comparison with the hosts.
    hosts = (*look.setting.hosts, *spares)
    whole = replace(there, setting=replace(look.setting, hosts=hosts), facts={**look.facts, **there.facts})
    names = set(look.setting.spares)
    troubles = [trouble for judge in _JUDGES for trouble in judge(whole) if trouble.host in names]
    troubles += _without_room(there)
    if look.setting.side_by_side:
        troubles += _unable_to_lead(there, {trouble.host for trouble in troubles if trouble.fails})
    unfit = {trouble.host for trouble in troubles if trouble.fails}
    gets_ranks = look.setting.side_by_side or look.setting.policy.on_failure == "replace"
    if gets_ranks and not look.under_way:
        fit = [spare for spare in spares if spare.name not in unfit]
        troubles += try_trainer(look.setting, fit, look.commands)
    return troubles


def _without_room(look: NodeView) -> Iterator[HostProblem]:
    """Yield the spares that have neither the LMDB nor the room for it."""
    source, lmdb = look.setting.lmdb_source, look.setting.path(look.setting.trainer.data_folder)
    data = source / "data.mdb" if source is not None else None
    if data is None or not data.is_file():
        return
    size = data.stat().st_size
    for facts in look.facts.values():
        free = facts.folders[lmdb].free_bytes
        if facts.sizes[lmdb_path(look.setting)][0] is None and free < size:
            what = f"{describe_bytes(free)} are free, the LMDB needs {describe_bytes(size)}"
            yield HostProblem(facts.host, what, "make room", lmdb)


def _unable_to_lead(look: NodeView, unfit: Collection[str]) -> Iterator[HostProblem]:
    """Yield what is wrong on the spares that are not known to be unfit if they are to hold snapshots."""
    on_line = look.setting.trainer.main_line()
    branches = tuple(step for step in look.unfinished if step.phase not in on_line)
    plan = replace(look.plan, trainings=branches)
    for spare in look.hosts if branches else ():
        lead = replace(look, setting=replace(look.setting, hosts=(spare,)), plan=plan)
        facts = look.facts[spare.name]
        if spare.name not in unfit:
            troubles = (*judge_snapshots(lead, facts), *judge_disk(lead, facts))
            yield from (trouble for trouble in troubles if trouble.host == spare.name)


_JUDGES: Sequence[Callable[[NodeView], Sequence[HostProblem]]] = (
    *(judge_hosts, judge_launches, judge_cores, judge_memory, judge_tmp, judge_clocks, judge_programs),
)
