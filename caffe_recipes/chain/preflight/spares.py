"""Spares: what a host must be that may get ranks later, looked at while there is time to find another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from caffe_recipes.chain.preflight.disk import judge_disk, judge_snapshots
from caffe_recipes.chain.preflight.findings import Finding, Trouble, fold_names, tell
from caffe_recipes.chain.preflight.look import Look, lmdb_path, look_at_nodes
from caffe_recipes.chain.preflight.machine import (
    judge_clocks,
    judge_cores,
    judge_hosts,
    judge_launches,
    judge_memory,
    judge_tmp,
)
from caffe_recipes.chain.preflight.trainer import judge_programs, try_trainer
from caffe_recipes.chain.units import describe_bytes
from caffe_recipes.cluster.hosts import Host
from caffe_recipes.recipe.graph import main_line


def check_spares(look: Look) -> list[Finding]:
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
    found = tell("spares", troubles, f"{fold_names(look.setting.spares)}: as the hosts are")
    return [replace(one, error=None, warns=True, unfit=True) if one.error else one for one in found]


def _judge(look: Look, spares: Sequence[Host]) -> list[Trouble]:
    there = look_at_nodes(replace(look.setting, hosts=tuple(spares)), look.plan, look.state)
    # What is said of a spare may be said in comparison with the hosts.
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


def _without_room(look: Look) -> Iterator[Trouble]:
    """Yield the spares that have neither the LMDB nor the room for it."""
    source, lmdb = look.setting.lmdb_source, look.setting.path(look.setting.recipe.data.train.lmdb)
    data = source / "data.mdb" if source is not None else None
    if data is None or not data.is_file():
        return
    size = data.stat().st_size
    for facts in look.facts.values():
        free = facts.folders[lmdb].free_bytes
        if facts.sizes[lmdb_path(look.setting)][0] is None and free < size:
            what = f"{describe_bytes(free)} are free, the LMDB needs {describe_bytes(size)}"
            yield Trouble(facts.host, what, "make room", lmdb)


def _unable_to_lead(look: Look, unfit: Collection[str]) -> Iterator[Trouble]:
    """Yield what is wrong on the spares that are not known to be unfit if they are to hold snapshots."""
    on_line = {phase.name for phase in main_line(look.setting.recipe)}
    branches = tuple(step for step in look.unfinished if step.phase not in on_line)
    plan = replace(look.plan, trainings=branches)
    for spare in look.hosts if branches else ():
        lead = replace(look, setting=replace(look.setting, hosts=(spare,)), plan=plan)
        facts = look.facts[spare.name]
        if spare.name not in unfit:
            troubles = (*judge_snapshots(lead, facts), *judge_disk(lead, facts))
            yield from (trouble for trouble in troubles if trouble.host == spare.name)


_JUDGES: Sequence[Callable[[Look], Sequence[Trouble]]] = (
    *(judge_hosts, judge_launches, judge_cores, judge_memory, judge_tmp, judge_clocks, judge_programs),
)
