"""A recipe's training LMDB on the hosts of a hostfile, before a run or for itself.

Taking a recipe's training LMDB away again, where no training may read it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from caffe_recipes.caffe.datums import open_datums
from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import ask_all, open_all
from caffe_recipes.cluster.launcher import HYDRA, RankLaunch
from caffe_recipes.cluster.profiles import Launcher, Profile
from caffe_recipes.cluster.staging.plan import CopyRates, How
from caffe_recipes.cluster.staging.relay import DATA
from caffe_recipes.cluster.staging.stage import Cleaned, StagedHost, StagingEnv, clean, stage
from caffe_recipes.cluster.staging.ways import RELAY, ChainEnv
from caffe_recipes.errors import ClusterError, DataError, HostFailed, InputError
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.render.scripts import lmdb_hint
from caffe_recipes.run.context import (
    Connect,
    StageOptions,
    all_hosts,
    find_launcher,
    find_profile,
    search_path,
    split_options,
)
from caffe_recipes.run.events import RunState
from caffe_recipes.run.preflight.nodes import ask_node
from caffe_recipes.run.trainer import describe_work

Say = Callable[[str], None]
T = TypeVar("T")


def stage_recipe(recipe: Recipe, options: StageOptions, connect: Connect, say: Say) -> tuple[StagedHost, ...]:
    """Put a recipe's training LMDB on every host of a hostfile; what became of each.

    Spares are staged too; fewer hosts than the recipe's are reported, since they may be a beginning. Raises
    InputError for the hostfile, the source, both before any host is reached, and the way.
    """
    root = Path(os.path.realpath(options.root))
    source = options.lmdb_source or recipe.data.train.source
    if source is None:
        what = "has no LMDB to stage from"
        raise InputError(recipe.name, what, "give its folder with --lmdb-source")
    lmdb = str(root / recipe.data.train.lmdb)
    profile = find_profile(recipe, options.profile)
    ways = find_staging_env(profile, options.how)
    names, where, stale = find_staged_hosts(options)
    if stale:
        say(stale)
    _check_source(recipe, root / source, given=options.lmdb_source is not None)
    if len(names) < recipe.cluster.nodes:
        say(f"{where}: {len(names)} of the recipe's {recipe.cluster.nodes} hosts; a run needs all")
    return with_hosts(
        names,
        lambda name: connect(name, profile.copy_with),
        lambda hosts: stage(hosts, lmdb, root / source, ways, say),
    )


def find_staging_env(profile: Profile, how: How | None) -> StagingEnv:
    """Return what staging works with here: a launcher, and what the profile says."""
    return StagingEnv(
        rates=find_rates(profile), how=how, chain=find_chain_env(profile), here=profile.head or ""
    )


def find_rates(profile: Profile) -> CopyRates:
    """Return what the cluster moves, in bytes a second; modest where the profile does not say.

    >>> from caffe_recipes.cluster.profiles import load_profile
    >>> find_rates(load_profile("stampede2-skx")).link
    12500000000.0
    """
    known, modest = profile.rates, CopyRates()
    return CopyRates(
        link=known.link_gb_per_s * 1e9 if known.link_gb_per_s else modest.link,
        shared=known.shared_gb_per_s * 1e9 if known.shared_gb_per_s else modest.shared,
        disk=known.disk_gb_per_s * 1e9 if known.disk_gb_per_s else modest.disk,
    )


def find_chain_env(profile: Profile) -> ChainEnv | None:
    """Return what a chain is started with; None without a launcher or mpi4py."""
    imported = [find_spec(name) for name in ("mpi4py", RELAY)]
    needs = [spec.origin for spec in imported if spec is not None and spec.origin]
    if len(needs) < len(imported):
        return None
    path = search_path(ours_first=True)  # mpi4py and the launcher are of one MPI, if ours has one
    modules = profile.modules
    program: str = profile.launcher.program
    if program == "ibrun":  # places as many ranks on a host as the job was asked for; its MPI's hydra one
        launcher = Launcher(environment=profile.launcher.environment)
        profile, program = profile.model_copy(update={"launcher": launcher}), HYDRA
    try:
        find_launcher(path, program, modules)
    except ClusterError:
        return None
    known, _ = split_options(profile, path)

    launch = RankLaunch(
        program=program,
        options=known.launcher.options,
        environment=profile.launcher.environment,
        modules=modules,
        path=path,
    )
    return ChainEnv(launch, needs=(sys.executable, *needs))


STAGING_HINT = "make room, move it away, or repair the host"


def refusal(failed: Sequence[tuple[str, str]], lmdb: str, hosts: int) -> ClusterError:
    """Return the error of hosts that cannot be staged, each with why; it names the first.

    >>> refusal([("a", "holds another LMDB"), ("c", "is down")], "/tmp/lmdb", 4).without_hint
    'a:/tmp/lmdb: holds another LMDB (and 1 more of 4 hosts failed)'
    """
    host, reason = failed[0]
    others = f" (and {len(failed) - 1} more of {hosts} hosts failed)" if len(failed) > 1 else ""
    return HostFailed(host, f"{reason}{others}", STAGING_HINT, lmdb)


def find_staged_hosts(options: StageOptions) -> tuple[tuple[str, ...], str | Path, str]:
    """Return all hosts, where they are named, and what is stale; raises InputError if nothing names any."""
    names, where, stale = all_hosts(Path(os.path.realpath(options.root)), options.hostfile)
    if names is None:
        raise InputError(where, "no such file", "write one host a line there, or give --hostfile")
    return names, where, stale


def _check_source(recipe: Recipe, folder: Path, *, given: bool) -> None:
    """Raise DataError for what is no whole LMDB: nodes could only say that they hold what they were sent."""
    try:
        open_datums(folder).close()
    except DataError as error:
        if given or (folder / DATA).exists():
            raise
        raise DataError(folder, error.what, lmdb_hint(recipe, str(folder))) from None


def with_hosts(names: Sequence[str], connect: Callable[[str], Host], act: Callable[[Sequence[Host]], T]) -> T:
    """Open hosts, act on them, and let go of them."""
    hosts = open_all(names, connect)
    try:
        return act(hosts)
    finally:
        for host in hosts:
            host.close()


_ASK_S = 120.0


def clean_recipe(recipe: Recipe, options: StageOptions, connect: Connect) -> list[Cleaned]:
    """Take a recipe's training LMDB away where staging has put it; what was done on each host.

    Raises InputError while a run of the recipe is at work here, before any host is reached.
    """
    root = Path(os.path.realpath(options.root))
    lmdb = str(root / recipe.data.train.lmdb)
    copy_with = find_profile(recipe, options.profile).copy_with
    names, _, stale = find_staged_hosts(options)
    if stale:
        raise InputError("", stale.partition(";")[0], "name the hosts to clean with --hostfile")
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
