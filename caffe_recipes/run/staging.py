"""Stage a recipe's training data, an LMDB or TFRecords, on the hosts of a hostfile; remove it again."""

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
from caffe_recipes.cluster.staging.sets import FileSet, lmdb_set
from caffe_recipes.cluster.staging.stage import Cleaned, StagedHost, StagingEnv, clean, stage
from caffe_recipes.cluster.staging.ways import RELAY, ChainEnv
from caffe_recipes.errors import ClusterError, DataError, HostFailed, InputError
from caffe_recipes.recipe.model import AnyRecipe, Recipe
from caffe_recipes.render.scripts import lmdb_hint
from caffe_recipes.run.context import (
    Connect,
    Setting,
    StageOptions,
    drop_refused_options,
    find_hosts,
    find_launcher,
    find_profile,
    search_path,
)
from caffe_recipes.run.events import RunState
from caffe_recipes.run.preflight.nodes import ask_node
from caffe_recipes.run.process import describe_work
from caffe_recipes.run.records import find_record_sets

Say = Callable[[str], None]
T = TypeVar("T")


def stage_recipe(
    recipe: AnyRecipe, options: StageOptions, connect: Connect, say: Say
) -> tuple[StagedHost, ...]:
    """Stage a recipe's training data on the hosts of a hostfile; return the outcome for each host.

    Spares get an LMDB as well, but TFRecords only if every host gets all of them, since what a spare needs
    depends on the host that it replaces. Having fewer hosts than the recipe needs is reported but allowed.
    Raises InputError for the hostfile or the source before any host is reached, and for an impossible method.
    """
    root = Path(os.path.realpath(options.root))
    if isinstance(recipe, Recipe) and not (options.lmdb_source or recipe.data.train.source):
        what = "names no LMDB to stage from"
        raise InputError(recipe.name, what, "give its folder with --lmdb-source")
    profile = find_profile(recipe, options.profile)
    ways = find_staging_env(profile, options.how)
    names, where, stale = find_staged_hosts(options)
    if stale:
        say(stale)
    if isinstance(recipe, Recipe):
        source = root / (options.lmdb_source or recipe.data.train.source or "")
        _check_source(recipe, source, given=options.lmdb_source is not None)
        sets = [lmdb_set(str(root / recipe.data.train.lmdb), source, names)]
    else:
        sets = find_record_sets(recipe, root, names, source=options.lmdb_source, is_whole=options.is_whole)
    if len(names) < recipe.cluster.nodes:
        say(f"{where}: {len(names)} of the recipe's {recipe.cluster.nodes} hosts; a run needs all of them")
    return with_hosts(
        names,
        lambda name: connect(name, profile.copy_with),
        lambda hosts: _stage_sets(hosts, sets, ways, say),
    )


def stage_run(setting: Setting, ways: StagingEnv, say: Say) -> tuple[StagedHost, ...]:
    """Stage the training data on the hosts of a run that lack it, if the source exists."""
    recipe, source = setting.recipe, setting.lmdb_source
    if source is None:
        return ()
    if isinstance(recipe, Recipe):
        hosts = setting.lmdb_hosts
        if not (source / DATA).exists():
            return ()
        place = setting.path(recipe.data.train.lmdb)
        sets = [lmdb_set(place, source, [host.name for host in hosts])]
    else:
        hosts = setting.hosts
        sets = find_record_sets(recipe, setting.root, [host.name for host in hosts], source=source)
    return _stage_sets(hosts, sets, ways, say)


_OUTCOMES = ("there", "sent", "failed")


def _stage_sets(
    hosts: Sequence[Host], sets: Sequence[FileSet], ways: StagingEnv, say: Say
) -> tuple[StagedHost, ...]:
    """Stage the files of all sets; return the outcome for each host that needs any of them."""
    found: dict[str, StagedHost] = {}
    for files in sets:
        for each in stage([host for host in hosts if host.name in files.wanted], files, ways, say):
            before = found.get(each.host, each)
            found[each.host] = max(before, each, key=lambda one: _OUTCOMES.index(one.outcome))
    return tuple(found[host.name] for host in hosts if host.name in found)


def find_staging_env(profile: Profile, how: How | None) -> StagingEnv:
    """Return how staging can work here, by the launchers that are found and by the profile."""
    return StagingEnv(
        rates=find_rates(profile), how=how, chain=find_chain_env(profile), here=profile.head or ""
    )


def find_rates(profile: Profile) -> CopyRates:
    """Return the copy rates of the cluster in bytes/s, with low defaults for what the profile leaves out.

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
    """Return how to start a relay chain; None without a launcher or mpi4py."""
    imported = [find_spec(name) for name in ("mpi4py", RELAY)]
    needs = [spec.origin for spec in imported if spec is not None and spec.origin]
    if len(needs) < len(imported):
        return None
    path = search_path(ours_first=True)  # mpi4py and the launcher must be of the same MPI, ours if installed
    modules = profile.modules
    program: str = profile.launcher.program
    if program == "ibrun":  # it starts as many ranks per host as the job asked for, where one is needed
        launcher = Launcher(environment=profile.launcher.environment)
        profile, program = profile.model_copy(update={"launcher": launcher}), HYDRA
    try:
        find_launcher(path, program, modules)
    except ClusterError:
        return None
    known, _ = drop_refused_options(profile, path)

    launch = RankLaunch(
        program=program,
        options=known.launcher.options,
        environment=profile.launcher.environment,
        modules=modules,
        path=path,
    )
    return ChainEnv(launch, needs=(sys.executable, *needs))


STAGING_HINT = "free space, move the old data away, or repair the host"


def refusal(failed: Sequence[tuple[str, str]], lmdb: str, hosts: int) -> ClusterError:
    """Return the error for hosts that cannot be staged, given (host, reason) pairs; it names the first.

    >>> refusal([("a", "has a different LMDB"), ("c", "is down")], "/tmp/lmdb", 4).without_hint
    'a:/tmp/lmdb: has a different LMDB (and 1 more of 4 hosts failed)'
    """
    host, reason = failed[0]
    others = f" (and {len(failed) - 1} more of {hosts} hosts failed)" if len(failed) > 1 else ""
    return HostFailed(host, f"{reason}{others}", STAGING_HINT, lmdb)


def find_staged_hosts(options: StageOptions) -> tuple[tuple[str, ...], str | Path, str]:
    """Return the hosts, the file that names them, and a warning if it is stale.

    Raises InputError if none is named.
    """
    names, where, stale = find_hosts(Path(os.path.realpath(options.root)), options.hostfile)
    if names is None:
        raise InputError(where, "no such file", "write one host a line there, or give --hostfile")
    return names, where, stale


def _check_source(recipe: Recipe, folder: Path, *, given: bool) -> None:
    """Raise DataError unless a folder holds a complete LMDB, since nodes can only compare copies with it."""
    try:
        open_datums(folder).close()
    except DataError as error:
        if given or (folder / DATA).exists():
            raise
        raise DataError(folder, error.what, lmdb_hint(recipe, str(folder))) from None


def with_hosts(names: Sequence[str], connect: Callable[[str], Host], act: Callable[[Sequence[Host]], T]) -> T:
    """Open hosts, call `act` with them, and close them; return its result."""
    hosts = open_all(names, connect)
    try:
        return act(hosts)
    finally:
        for host in hosts:
            host.close()


_ASK_S = 120.0


def clean_recipe(recipe: AnyRecipe, options: StageOptions, connect: Connect) -> list[Cleaned]:
    """Remove a recipe's staged training data; return the outcome for each host.

    Raises InputError, before any host is reached, if a run of the recipe is running here.
    """
    root = Path(os.path.realpath(options.root))
    files: Sequence[str] = ()  # all that were staged
    if isinstance(recipe, Recipe):
        folders, files = [recipe.data.train.lmdb], [DATA]
    else:
        data = recipe.tensorflow.data
        folders = [part.folder for part in (data.train, data.validation) if part is data.train or part.source]
    places = [str(root / folder) for folder in folders]
    copy_with = find_profile(recipe, options.profile).copy_with
    names, _, stale = find_staged_hosts(options)
    if stale:
        raise InputError("", stale.partition(";")[0], "name the hosts to clean with --hostfile")
    work = describe_work(root, recipe.name, RunState())
    if work:
        raise InputError(places[0], f"is in use: {work}", "wait for its end, or end it")

    def act(hosts: Sequence[Host]) -> list[Cleaned]:
        done = [_clean(hosts, place, files) for place in places]
        return [
            Cleaned(
                each[0].host,
                "; ".join(dict.fromkeys(one.outcome for one in each)),
                any(one.failed for one in each),
            )
            for each in zip(*done, strict=True)
        ]

    return with_hosts(names, lambda name: connect(name, copy_with), act)


def _clean(hosts: Sequence[Host], place: str, files: Sequence[str]) -> list[Cleaned]:
    """Remove the data from hosts without ranks of any launch, since these may be about to open it.

    On this machine, ranks of another recipe do not matter. On any host, data that are open are kept.
    """
    distant = [host for host in hosts if not host.is_local]
    busy = {
        answer.host.name: answer.error.what if answer.error else "in use by a launch"
        for answer in ask_all(distant, lambda host: ask_node(host, ()).ranks, _ASK_S)
        if answer.error or answer.value
    }
    free = [host for host in hosts if host.name not in busy]
    cleaned = {each.host: each for each in clean(free, place, files)}
    return [
        cleaned.get(host.name) or Cleaned(host.name, f"not cleaned: {busy[host.name]}", failed=True)
        for host in hosts
    ]
