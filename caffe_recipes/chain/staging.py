"""A recipe's training LMDB on the hosts of a hostfile, before a run or for itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from caffe_recipes.chain.setting import Connect, find_launcher, search_path
from caffe_recipes.cluster.hostfile import load_hostfile
from caffe_recipes.cluster.hosts import Host
from caffe_recipes.cluster.staging.chain import ChainMeans, hydra_launcher
from caffe_recipes.cluster.staging.costs import How
from caffe_recipes.cluster.staging.stage import Placed, StagingMeans, clean, stage
from caffe_recipes.errors import ClusterError
from caffe_recipes.recipe.model import Recipe

Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class StageOptions:
    """What the user says of staging besides the recipe."""

    hostfile: Path
    root: Path = Path()
    lmdb_source: Path | None = None
    how: How | None = None


def stage_recipe(recipe: Recipe, options: StageOptions, connect: Connect, say: Say) -> tuple[Placed, ...]:
    """Put a recipe's training LMDB on every host of a hostfile; what became of each.

    Spares are staged too. Raises InputError for the hostfile, the source and the way.
    """
    root = Path(os.path.realpath(options.root))
    source = options.lmdb_source or recipe.data.train.source
    if source is None:
        what = "has no LMDB to stage from"
        raise ClusterError(recipe.name, what, "give its folder with --lmdb-source")
    lmdb = str(root / recipe.data.train.lmdb)
    means = StagingMeans(how=options.how, chain=find_chain_means())
    copy_with = recipe.cluster.copy_with
    return _with_hosts(
        options,
        lambda name: connect(name, copy_with),
        lambda hosts: stage(hosts, lmdb, root / source, means, say),
    )


def clean_recipe(recipe: Recipe, options: StageOptions, connect: Connect) -> list[tuple[str, str]]:
    """Take a recipe's training LMDB away where staging has put it; the hosts, and what was done there."""
    lmdb, copy_with = (
        str(Path(os.path.realpath(options.root)) / recipe.data.train.lmdb),
        recipe.cluster.copy_with,
    )
    return _with_hosts(options, lambda name: connect(name, copy_with), lambda hosts: clean(hosts, lmdb))


def find_chain_means() -> ChainMeans | None:
    """Return what a chain is started with; None without a launcher or mpi4py."""
    path = search_path(ours_first=True)  # mpi4py and the launcher are of one MPI, if ours has one
    try:
        find_launcher(path)
    except ClusterError:
        return None
    if find_spec("mpi4py") is None:
        return None
    return ChainMeans(hydra_launcher({}), {"PATH": path})


def refusal(failed: Sequence[tuple[str, str]], lmdb: str, hosts: int) -> ClusterError:
    """Return the error of hosts that cannot be staged, each with why; it names the first.

    >>> str(refusal([("a", "holds another LMDB"), ("c", "is down")], "/tmp/lmdb", 4))
    'a:/tmp/lmdb: holds another LMDB (and 1 more of 4 hosts failed); move it away, or mend the host'
    """
    host, reason = failed[0]
    others = f" (and {len(failed) - 1} more of {hosts} hosts failed)" if len(failed) > 1 else ""
    hint = "make room" if reason.startswith("no room") else "move it away, or mend the host"
    return ClusterError(f"{host}:{lmdb}", f"{reason}{others}", hint)


def _with_hosts(
    options: StageOptions, connect: Callable[[str], Host], act: Callable[[Sequence[Host]], T]
) -> T:
    hosts = [connect(name) for name in load_hostfile(options.hostfile)]
    try:
        return act(hosts)
    finally:
        for host in hosts:
            host.close()
