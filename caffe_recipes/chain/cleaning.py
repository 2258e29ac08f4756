"""Taking a recipe's training LMDB away again, where no training may read it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from caffe_recipes.chain.journal import RunState
from caffe_recipes.chain.preflight.nodes import ask_node
from caffe_recipes.chain.preflight.under_way import describe_work
from caffe_recipes.chain.setting import Connect, StageOptions, find_profile
from caffe_recipes.chain.staging import find_staged_hosts, with_hosts
from caffe_recipes.cluster.hosts import Host
from caffe_recipes.cluster.parallel import ask_all
from caffe_recipes.cluster.staging.stage import Cleaned, clean
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import Recipe

_ASK_S = 120.0


def clean_recipe(recipe: Recipe, options: StageOptions, connect: Connect) -> list[Cleaned]:
    """Take a recipe's training LMDB away where staging has put it; what was done on each host.

    Raises InputError while a run of the recipe is at work here, before any host is reached.
    """
    root = Path(os.path.realpath(options.root))
    lmdb = str(root / recipe.data.train.lmdb)
    copy_with = find_profile(recipe, options.profile).copy_with
    names, _ = find_staged_hosts(options)
    work = describe_work(root, recipe.name, RunState())
    if work:
        raise InputError(lmdb, f"is in use: {work}", "wait for its end, or end it")
    return with_hosts(names, lambda name: connect(name, copy_with), lambda hosts: _clean(hosts, lmdb))


def _clean(hosts: Sequence[Host], lmdb: str) -> list[Cleaned]:
    """Take the LMDB away where no launch is at work: its ranks may be about to open it.

    This machine may well train something else: here it counts who has the LMDB open, as it does anywhere.
    """
    distant = [host for host in hosts if not host.is_local]
    busy = {
        answer.host.name: answer.error.what if answer.error else "in use by a launch"
        for answer in ask_all(distant, lambda host: ask_node(host, ()).ranks, _ASK_S)
        if answer.error or answer.value
    }
    free = [host for host in hosts if host.name not in busy]
    cleaned = {each.host: each for each in clean(free, lmdb)}
    return [
        cleaned.get(host.name) or Cleaned(host.name, f"not cleaned: {busy[host.name]}", failed=True)
        for host in hosts
    ]
