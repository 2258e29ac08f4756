"""Stage a recipe's training data, an LMDB or TFRecords, on the hosts of a hostfile; remove it again.

Data that are not staged are checked: no other user may have put them there, as everybody can in /tmp.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from caffe_recipes.cluster import remote
from caffe_recipes.cluster.commands import COMMAND_S, Host, Say
from caffe_recipes.cluster.hosts import Answer, LocalHost, ask_all, first_error, opened
from caffe_recipes.cluster.launchers.launcher import RankLaunch
from caffe_recipes.cluster.profiles import LauncherDefaults, Profile
from caffe_recipes.cluster.staging import Way
from caffe_recipes.cluster.staging.file_sets import FileSet
from caffe_recipes.cluster.staging.method_choice import CopyRates
from caffe_recipes.cluster.staging.methods import RELAY, ChainEnv
from caffe_recipes.cluster.staging.relay import DATA
from caffe_recipes.cluster.staging.stage import Cleaned, StagedHost, StagingEnv, clean, stage
from caffe_recipes.errors import ClusterError, HostFailed, InputError, hint_for_reason
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.run.context import (
    Connect,
    FoundHosts,
    RunSetup,
    StageOptions,
    drop_refused_options,
    find_hosts,
    find_profile,
    name_hosts,
    search_path,
)
from caffe_recipes.run.events import RunState
from caffe_recipes.run.preflight.nodes import ASK_S, ask_facts
from caffe_recipes.run.process import describe_work
from caffe_recipes.run.training_plan import find_trainer


def stage_recipe(
    recipe: AnyRecipe, options: StageOptions, connect: Connect, say: Say
) -> tuple[StagedHost, ...]:
    """Stage a recipe's training data on the hosts of a hostfile; return the outcome for each host.

    Spares get an LMDB as well, but TFRecords only if every host gets all of them, since what a spare needs
    depends on the host that it replaces. Having fewer hosts than the recipe needs is reported but allowed.
    Raises InputError for the hostfile or the source before any host is reached, and for an impossible method;
    and ClusterError for a source that another user could have put there.
    """
    root = Path(os.path.realpath(options.root))
    trainer, given = find_trainer(recipe), options.lmdb_source
    profile = find_profile(recipe, options.profile)
    ways = find_staging_env(profile, options.how)
    names, found = find_staged_hosts(recipe, options)
    if found.stale:
        say(found.stale)
    trainer.data.check_source(root, given)
    sets = trainer.data.file_sets(root, names, given, is_whole=options.is_whole)
    for files in sets:
        check_source_access(root, files.read_paths)
    if len(names) < recipe.cluster.nodes:
        few = f"lists {len(names)} of the {recipe.cluster.nodes} hosts that a run needs"
        say(f"{found.where}: {few}; add the others before you start a run")
    with opened(names, lambda name: connect(name, profile.copy_with)) as hosts:
        return _stage_sets(hosts, sets, ways, say)


def stage_run(setting: RunSetup, ways: StagingEnv, say: Say) -> tuple[StagedHost, ...]:
    """Stage the training data on the hosts of a run that lack it, if the source exists.

    Raises ClusterError for a source that another user could have put there.
    """
    source = setting.lmdb_source
    if source is None:
        return ()
    hosts = setting.lmdb_hosts if setting.recipe.reads_lmdb else setting.hosts
    sets = setting.trainer.data.file_sets(setting.root, [host.name for host in hosts], source)
    for files in sets:
        check_source_access(setting.root, files.read_paths)
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


def find_staging_env(profile: Profile, how: Way | None) -> StagingEnv:
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
    if not profile.rank_launcher.chooses_hosts:  # nor the ranks per host, of which one is needed
        defaults = LauncherDefaults(environment=profile.launcher.environment)
        profile = profile.model_copy(update={"launcher": defaults})
    try:
        profile.rank_launcher.find(path, modules)
    except ClusterError:
        return None
    known, _ = drop_refused_options(profile, path)

    launch = RankLaunch(
        profile.rank_launcher,
        options=known.launcher.options,
        environment=profile.launcher.environment,
        modules=modules,
        path=path,
    )
    return ChainEnv(launch, needs=(sys.executable, *needs))


def staging_hint(reason: str) -> str:
    """Return what to do about a host that cannot be staged."""
    return hint_for_reason(reason, "free space, move the old data away, or repair the host")


def staging_error(failed: Sequence[tuple[str, str]], lmdb: str, hosts: int) -> ClusterError:
    """Return the error for hosts that cannot be staged, given (host, reason) pairs; it names the first.

    >>> staging_error([("a", "has a different LMDB"), ("c", "is down")], "/tmp/lmdb", 4).without_hint
    'a:/tmp/lmdb: has a different LMDB (and 1 more of 4 hosts failed)'
    """
    host, reason = failed[0]
    others = f" (and {len(failed) - 1} more of {hosts} hosts failed)" if len(failed) > 1 else ""
    return HostFailed(host, f"{reason}{others}", staging_hint(reason), lmdb)


def find_staged_hosts(recipe: AnyRecipe, options: StageOptions) -> tuple[tuple[str, ...], FoundHosts]:
    """Return the hosts, and where they were found; raises InputError as `name_hosts` does."""
    found = find_hosts(Path(os.path.realpath(options.root)), options.hostfile)
    return name_hosts(recipe, found), found


def clean_recipe(recipe: AnyRecipe, options: StageOptions, connect: Connect) -> list[Cleaned]:
    """Remove a recipe's staged training data; return the outcome for each host.

    Raises InputError, before any host is reached, if a run of the recipe is running here.
    """
    root = Path(os.path.realpath(options.root))
    places = [str(root / folder) for folder in find_trainer(recipe).data.staged_folders]
    files = [DATA] if recipe.reads_lmdb else []  # else all that were staged
    copy_with = find_profile(recipe, options.profile).copy_with
    names, found = find_staged_hosts(recipe, options)
    if found.stale:
        raise InputError("", found.stale_reason, "name the hosts to clean with --hostfile")
    work = describe_work(root, recipe.name, RunState())
    if work:
        raise InputError(places[0], f"is in use: {work}", "wait until it ends, or stop it")
    with opened(names, lambda name: connect(name, copy_with)) as hosts:
        done = [_clean(hosts, place, files, root) for place in places]
    return [
        Cleaned(
            each[0].host,
            "; ".join(dict.fromkeys(one.outcome for one in each)),
            any(one.failed for one in each),
        )
        for each in zip(*done, strict=True)
    ]


def _clean(hosts: Sequence[Host], place: str, files: Sequence[str], root: Path) -> list[Cleaned]:
    """Remove the data from hosts without ranks of any launch, since these may be about to open it.

    On this machine, ranks of another recipe do not matter. On any host, data that are open are kept.
    """
    distant = [host for host in hosts if not host.is_local]
    busy = {
        answer.host.name: answer.error.what if answer.error else "in use by a launch"
        for answer in ask_all(distant, lambda host: ask_facts(host, ()).ranks, ASK_S)
        if answer.error or answer.value
    }
    free = [host for host in hosts if host.name not in busy]
    cleaned = {each.host: each for each in clean(free, place, files, root=root)}
    return [
        cleaned.get(host.name) or Cleaned(host.name, f"not cleaned: {busy[host.name]}", failed=True)
        for host in hosts
    ]


DataPart = Literal["train", "test"]
_NAME_OWNER = "name its owner with --trust-owner, if you trust them"
_HINTS = {
    "train": f"stage your own copy (--lmdb-source), set another path in the recipe, or {_NAME_OWNER}",
    "test": f"set a folder with your own copy in the recipe, or {_NAME_OWNER}",
}


def ask_about_data(
    setting: RunSetup, part: DataPart, hosts: Sequence[Host], *, may_be_absent: bool = True
) -> tuple[Answer[object], ...]:
    """Ask hosts who could have put the data there; the error of an answer names the folder and its owner.

    Data that staging has not copied yet `may_be_absent`; ask about them again before they are read.
    Test data are asked about on this machine, which evaluates, and on the hosts only if ranks read them too.
    """
    trainer = setting.trainer
    folder = trainer.data.folder if part == "train" else trainer.data.test_folder
    if folder is None:
        return ()
    if part == "test":
        here = [host for host in hosts if host.is_local][:1] or [LocalHost()]
        hosts = [*here, *(host for host in hosts if trainer.data.tests_on_ranks and host not in here)]
    path, root, hint = setting.path(folder), str(setting.root), _HINTS[part]
    words = (path, root, *trainer.data.manifests(path))
    verb: remote.ReadVerb = "may-read-data" if may_be_absent else "read-data"
    return ask_all(hosts, lambda host: remote.check_trust(host, verb, *words, hint=hint), ASK_S)


_SOURCE_HINT = f"give the folder of your own copy with --lmdb-source, or {_NAME_OWNER}"
_CHECK_S_PER_FILE = 0.2


def check_source_access(root: Path, paths: Sequence[str]) -> None:
    """Raise NodeRefusal if another user could have put a source's folder, or files of it, on this machine."""
    folder, *rest = dict.fromkeys(paths)
    limit_s = COMMAND_S + len(rest) * _CHECK_S_PER_FILE
    remote.check_trust(LocalHost(), "read", folder, str(root), *rest, timeout_s=limit_s, hint=_SOURCE_HINT)


def check_data(setting: RunSetup, part: DataPart, *, may_be_absent: bool = False) -> None:
    """Raise ClusterError if another user could have put the data there that a run reads."""
    error = first_error(ask_about_data(setting, part, setting.hosts, may_be_absent=may_be_absent))
    if error is not None:
        raise error
