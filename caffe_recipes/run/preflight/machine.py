"""Check the hosts: reachable, alike, with the cores and memory that a recipe needs, and with correct clocks.

Also: check the spares, while there is still time to find others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import opened
from caffe_recipes.cluster.ranks import LAUNCH_VARIABLE
from caffe_recipes.cluster.staging.relay import DATA
from caffe_recipes.run.journal import name_branch
from caffe_recipes.run.preflight.disks import judge_disk, judge_snapshots
from caffe_recipes.run.preflight.findings import CheckResult, HostProblem, as_findings, as_problem, fold_names
from caffe_recipes.run.preflight.lmdbs import judge_means
from caffe_recipes.run.preflight.nodes import NodeFacts, NodeView, RankOwner, lmdb_path, look_at_nodes
from caffe_recipes.run.preflight.trials import judge_programs, try_trainer
from caffe_recipes.run.training_plan import find_servers
from caffe_recipes.units import describe_bytes
from caffe_recipes.wording import describe_count, describe_names, plural

MOST_SKEW_S = 2.0
# The fraction of the others' or the profile's memory that a host must have.
_LEAST_PART = 0.9
_HINT_CORES = (
    "more threads than cores slow training down: lower the recipe's omp_num_threads or ranks_per_node"
)


def check_hosts(view: NodeView) -> list[CheckResult]:
    """Report the hosts that cannot be reached, each with its error, and those with a different Caffe root."""
    cluster = view.setting.recipe.cluster
    named = fold_names([host.name for host in view.setting.hosts])
    ranks = describe_count(cluster.ranks_per_node, "rank")
    images = describe_count(cluster.batch_per_rank, "image")
    found = as_findings("hosts", judge_hosts(view), f"{named}: {cluster.nodes} x {ranks} of {images}")
    stale = view.setting.stale
    return [*([CheckResult("hosts", stale, warns=True)] if stale else []), *found]


def judge_hosts(view: NodeView) -> list[HostProblem]:
    """Return the problems that keep ranks from starting, or from starting on the right hosts."""
    unreached = [as_problem(name, error) for name, error in view.errors.items()]
    return [*unreached, *_other_roots(view), *_duplicate_machines(view)]


def check_launches(view: NodeView) -> list[CheckResult]:
    """Report the hosts on which ranks of another launch are running; empty if there are none."""
    return as_findings("launches", judge_launches(view))


def judge_launches(view: NodeView) -> list[HostProblem]:
    """Return the hosts with ranks of other runs; ranks that our own run has left behind do not count.

    On this machine they are only a warning, since it may train several recipes; their processes are named.
    """
    ours = {view.state.id}
    ours |= {name_branch(view.state.id, phase) for phase in view.state.branches}
    local = {host.name for host in view.setting.hosts if host.is_local}
    problems: list[HostProblem] = []
    for facts in view.facts.values():
        owners: dict[str, list[RankOwner]] = {}
        for (launch_id, _), owner in sorted(facts.ranks.items()):
            owners.setdefault(launch_id, []).append(owner)
        for name, found in owners.items():
            if name.partition("/")[0] in ours:
                continue
            ranks = f"{describe_count(len(found), 'rank')} of another launch, {name}, "
            what = f"{ranks}{plural(len(found), 'is', 'are')} running here (user {found[0].user}"
            if facts.host in local:  # a line for each host would be too many on a cluster
                pids = describe_names([str(owner.pid) for owner in found])
                what += f", {plural(len(found), 'process', 'processes')} {pids}"
            what += ")"
            owned = f"the processes with {LAUNCH_VARIABLE}={name} in their environment, if they are yours"
            hint = f"wait until it ends, or kill {owned}"
            hint += "; until then both launches are slower" if facts.host in local else ""
            problems.append(HostProblem(facts.host, what, hint, fails=facts.host not in local))
    return problems


def check_cores(view: NodeView) -> list[CheckResult]:
    """Compare the hosts' cores with the recipe's pinning and needs, with the profile, and with each other."""
    seen = ", ".join(dict.fromkeys(str(facts.processors) for facts in view.facts.values()))
    cores = f"{seen} per host, {_needed_cores(view)} needed"
    return as_findings("cores", judge_cores(view), cores) if seen else view.skip_unreachable("cores")


def judge_cores(view: NodeView) -> list[HostProblem]:
    """Return the hosts whose cores are too few, unexpected, or different from the others'."""
    needed = _needed_cores(view)
    problems = [problem for facts in view.facts.values() for problem in _judge_cores(view, facts, needed)]
    return problems + _find_outliers({name: str(facts.processors) for name, facts in view.facts.items()})


def check_memory(view: NodeView) -> list[CheckResult]:
    """Report the hosts with less memory than the profile says, or less in total or free than the others."""
    totals, free = _memories(view)
    if not totals:
        return view.skip_unreachable("memory")
    least = f"{describe_bytes(min(totals.values()))} per host, {describe_bytes(min(free.values()))} free"
    return as_findings("memory", judge_memory(view), least)


def judge_memory(view: NodeView) -> list[HostProblem]:
    """Return the hosts that have less memory than expected, or than the others."""
    totals, free = _memories(view)
    expected_gb = view.setting.profile.node.memory_gb
    problems = [
        _memory_problem(
            host, f"has {describe_bytes(total)} of memory, but the profile says {expected_gb:g} GB"
        )
        for host, total in totals.items()
        if expected_gb and total < _LEAST_PART * expected_gb * 1e9
    ]
    typical, typically_free = (median(values.values() or [0]) for values in (totals, free))
    for host, total in totals.items():
        if abs(total - typical) > (1 - _LEAST_PART) * typical:
            what = f"has {describe_bytes(total)} of memory, but the others have {describe_bytes(typical)}"
            problems.append(_memory_problem(host, what))
        elif free[host] < _LEAST_PART * typically_free:
            has, others = describe_bytes(free[host]), describe_bytes(typically_free)
            problems.append(_memory_problem(host, f"has {has} of memory free, but the others {others}"))
    return problems


def check_tmp(view: NodeView) -> list[CheckResult]:
    """Compare the size of each host's /tmp with the profile or the recipe; empty if neither names one."""
    return (
        as_findings("/tmp", judge_tmp(view), f"{expected_gb:g} GB per host")
        if (expected_gb := _expected_tmp_gb(view))
        else []
    )


def judge_tmp(view: NodeView) -> list[HostProblem]:
    """Return the hosts whose /tmp is smaller than expected."""
    expected_gb = _expected_tmp_gb(view)
    return [
        HostProblem(
            facts.host,
            f"has {describe_bytes(facts.tmp_bytes)} in /tmp, but {expected_gb:g} GB is expected",
            "check the profile, the recipe's cluster.tmp_gb, and the host",
            fails=False,
        )
        for facts in view.facts.values()
        if expected_gb and facts.tmp_bytes and facts.tmp_bytes < _LEAST_PART * expected_gb * 1e9
    ]


def check_clocks(view: NodeView) -> list[CheckResult]:
    """Report the hosts whose clock differs from ours by more than MOST_SKEW_S."""
    if not view.facts:
        return view.skip_unreachable("clock")
    most = max(abs(facts.skew_s) + facts.doubt_s for facts in view.facts.values())
    return as_findings("clock", judge_clocks(view), f"within {most:.1f} s of this machine's")


def judge_clocks(view: NodeView) -> list[HostProblem]:
    """Return the hosts whose clock is wrong by more than the duration of the query explains."""
    return [
        HostProblem(
            facts.host,
            f"its clock is {abs(facts.skew_s):.1f} s "
            f"{'ahead of' if facts.skew_s > 0 else 'behind'} this machine's",
            "synchronize it with a time server",
            fails=False,
        )
        for facts in view.facts.values()
        if abs(facts.skew_s) - facts.doubt_s > MOST_SKEW_S
    ]


def _needed_cores(view: NodeView) -> int:
    cluster = view.setting.recipe.cluster
    return cluster.ranks_per_node * (cluster.omp_num_threads or 1) + len(set(_server_cores(view)))


def _memories(view: NodeView) -> tuple[dict[str, int], dict[str, int]]:
    """Return the total and the free memory of each host that reports them, in bytes."""
    known = [facts for facts in view.facts.values() if facts.memory_bytes and facts.available_bytes]
    totals = {facts.host: facts.memory_bytes or 0 for facts in known}
    return totals, {facts.host: facts.available_bytes or 0 for facts in known}


def _other_roots(view: NodeView) -> Iterator[HostProblem]:
    """Yield the hosts whose Caffe root is missing, or is a different folder from ours."""
    root = str(view.setting.root)
    shared = view.setting.profile.shared_folder
    hint = (
        f"the Caffe root must be {f'below {shared}' if shared else 'on a file system that all hosts share'}"
    )
    ours = str(Path(root).stat().st_ino)
    for facts in view.facts.values():
        if facts.root_inode is None:
            yield HostProblem(facts.host, "no such folder there", hint, root)
        elif facts.root_inode != ours:
            what = "seems to be a different folder from the one here"
            yield HostProblem(
                facts.host, what, "mount the same one; later phases need its snapshots", root, fails=False
            )


def _duplicate_machines(view: NodeView) -> Iterator[HostProblem]:
    """Yield the hosts that are the same machine as an earlier host, whose ranks would share its cores."""
    seen: dict[tuple[str, str], str] = {}
    for facts in view.facts.values():
        if facts.boot_id is None:
            continue
        first = seen.setdefault((facts.boot_id, facts.node_name), facts.host)
        if first != facts.host:
            what = f"is the same machine as {first}: {facts.node_name}"
            yield HostProblem(facts.host, what, "remove one of the two names from the hostfile")


def _judge_cores(view: NodeView, facts: NodeFacts, needed: int) -> Iterator[HostProblem]:
    cluster, there = view.setting.recipe.cluster, facts.processors
    last = max(there.numbers, default=-1)
    for what, hint, numbers in (
        ("MLSL's servers", "cluster.mlsl.server_affinity", _server_cores(view)),
        ("threads", "cluster.kmp_affinity", _listed_cores(view)),
    ):
        missing = sorted(set(numbers) - there.numbers)
        if missing:
            listed = ",".join(map(str, missing))
            problem = f"has no core {listed}, where {what} are pinned; its last is {last}"
            yield HostProblem(facts.host, problem, f"correct {hint} in the recipe, or give other hosts")
    yield from _judge_numbering(view, facts)
    if there.cores < needed:
        threads = f"{cluster.ranks_per_node} x {cluster.omp_num_threads or 1} threads"
        servers = f" and {len(set(_server_cores(view)))} cores of MLSL's"
        what = f"has {there}, but {threads}{servers if _server_cores(view) else ''} need {needed}"
        yield HostProblem(facts.host, what, _HINT_CORES, fails=False)
    elif facts.usable < min(needed, len(there.numbers)):
        what = f"makes {facts.usable} of {len(there.numbers)} processors available, but {needed} are needed"
        yield HostProblem(facts.host, what, "request whole nodes for the job", fails=False)
    expected_sockets, expected_cores = _expected_node(view)
    sockets = there.sockets or expected_sockets
    if expected_cores and (expected_cores, expected_sockets) != (there.cores, sockets):
        expected = f"{expected_sockets} x {expected_cores // (expected_sockets or 1)}"
        what = f"has {there}, but {expected} are expected"
        yield HostProblem(
            facts.host, what, "check the profile, the recipe's cluster, and the host", fails=False
        )


def _judge_numbering(view: NodeView, facts: NodeFacts) -> Iterator[HostProblem]:
    """Yield a host whose core numbering puts too many of MLSL's servers on a socket, or is not the profile's.

    The list of cores is the same for all hosts, and more servers on a socket slow its ranks down.
    """
    socket_of, sockets = facts.processors.socket_of, facts.processors.sockets or 1
    if sockets == 1 or not {0, 1} <= socket_of.keys():
        return
    servers = Counter(socket_of[core] for core in _server_cores(view) if core in socket_of)
    counts = [servers[socket] for socket in sorted(set(socket_of.values()))]
    numbering = "by-socket" if socket_of[0] == socket_of[1] else "alternate"
    if max(counts) - min(counts) > 1:
        cores = ",".join(map(str, _server_cores(view)))
        shares = " and ".join(map(str, counts))
        what = f"numbers its cores {numbering}: of MLSL's servers on cores {cores}, its sockets get {shares}"
        yield HostProblem(facts.host, what, "give each socket its share in mlsl.server_affinity", fails=False)
    elif view.setting.profile.node.core_numbering not in (None, numbering):
        other = view.setting.profile.node.core_numbering
        what = f"numbers its cores {numbering}, but the profile says {other}"
        yield HostProblem(facts.host, what, "check the profile, and where threads are pinned", fails=False)


def _expected_node(view: NodeView) -> tuple[int | None, int | None]:
    """Return the sockets and cores that a node should have, by the profile or else the recipe."""
    node, cluster = view.setting.profile.node, view.setting.recipe.cluster
    if node.cores:
        return node.sockets, node.cores
    if cluster.sockets_per_node and cluster.cores_per_socket:
        return cluster.sockets_per_node, cluster.sockets_per_node * cluster.cores_per_socket
    return None, None


def _expected_tmp_gb(view: NodeView) -> float | None:
    return view.setting.profile.node.tmp_gb or view.setting.recipe.cluster.tmp_gb


def _server_cores(view: NodeView) -> tuple[int, ...]:
    return find_servers(view.setting.recipe, view.setting.profile)[1]


def _listed_cores(view: NodeView) -> list[int]:
    """Return the numbers in the proclist of KMP_AFFINITY: of `proclist=[0-21,24]`, 0, 21 and 24."""
    affinity = view.setting.recipe.cluster.kmp_affinity or view.setting.profile.kmp_affinity or ""
    found = re.search(r"proclist=\[([^\]]*)\]", affinity)
    return [int(number) for number in re.findall(r"\d+", re.sub(r":\d+", "", found[1]))] if found else []


def _find_outliers(seen: dict[str, str]) -> list[HostProblem]:
    """Return the hosts whose value differs from that of most hosts."""
    if len(set(seen.values())) < 2:
        return []
    most, _ = Counter(seen.values()).most_common(1)[0]
    hint = "a run is as slow as its slowest host; use identical hosts"
    return [
        HostProblem(host, f"has {has}, but the others have {most}", hint, fails=False)
        for host, has in seen.items()
        if has != most
    ]


def _memory_problem(host: str, what: str) -> HostProblem:
    return HostProblem(host, what, "check what else is running there, and its memory modules", fails=False)


def check_spares(view: NodeView) -> list[CheckResult]:
    """Check the spares like the hosts. A failure is only a warning, but makes the spare unfit.

    The trainer is tried on them only if the policy may replace a host by one, or branches are trained on
    them. In the latter case each must have room for the branches' snapshots, as it may become the first of
    its group.
    """
    if not view.setting.spares:
        return []
    with opened(view.setting.spares, view.setting.connect) as spares:
        problems = _judge(view, spares)
    found = as_findings("spares", problems, f"{fold_names(view.setting.spares)}: no problems found")
    return [replace(one, error=None, warns=True, unfit=True) if one.error else one for one in found]


def _judge(view: NodeView, spares: Sequence[Host]) -> list[HostProblem]:
    there = look_at_nodes(replace(view.setting, hosts=tuple(spares)), view.plan, view.state)
    # Some checks compare a spare with the hosts.
    hosts = (*view.setting.hosts, *spares)
    whole = replace(there, setting=replace(view.setting, hosts=hosts), facts={**view.facts, **there.facts})
    names = set(view.setting.spares)
    problems = [problem for judge in _JUDGES for problem in judge(whole) if problem.host in names]
    problems += _without_room(there)
    if view.setting.side_by_side:
        problems += _unable_to_lead(there, {problem.host for problem in problems if problem.fails})
    unfit = {problem.host for problem in problems if problem.fails}
    gets_ranks = view.setting.side_by_side or view.setting.policy.on_failure == "replace"
    if gets_ranks and not view.under_way:
        fit = [spare for spare in spares if spare.name not in unfit]
        problems += try_trainer(view.setting, fit, view.commands)
    return problems


def _without_room(view: NodeView) -> Iterator[HostProblem]:
    """Yield the spares that have neither the LMDB nor enough free space for it."""
    source, lmdb = view.setting.lmdb_source, view.setting.data_path
    data = source / DATA if source is not None else None
    if data is None or not data.is_file():
        return
    size = data.stat().st_size
    for facts in view.facts.values():
        free = facts.folders[lmdb].free_bytes
        if facts.sizes[lmdb_path(view.setting)][0] is None and free < size:
            what = f"has {describe_bytes(free)} free, but the LMDB needs {describe_bytes(size)}"
            yield HostProblem(facts.host, what, "free space there", lmdb)


def _unable_to_lead(view: NodeView, unfit: Collection[str]) -> Iterator[HostProblem]:
    """Yield the problems of the spares, unless known to be unfit, as hosts to which snapshots are written."""
    branches = tuple(step for step in view.unfinished if not step.is_main)
    plan = replace(view.plan, trainings=branches)
    for spare in view.hosts if branches else ():
        lead = replace(view, setting=replace(view.setting, hosts=(spare,)), plan=plan)
        facts = view.facts[spare.name]
        if spare.name not in unfit:
            problems = (*judge_snapshots(lead, facts), *judge_disk(lead, facts))
            yield from (problem for problem in problems if problem.host == spare.name)


_JUDGES: Sequence[Callable[[NodeView], Sequence[HostProblem]]] = (
    *(judge_hosts, judge_launches, judge_cores, judge_memory, judge_tmp, judge_clocks, judge_programs),
    judge_means,
)
