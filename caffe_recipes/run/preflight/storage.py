"""The files that a training names: prototxts and weights, the same on every host as here.

The folders of the Caffe root that a run writes to on this machine.

The LMDBs: there or to be staged, whole, and with labels that the net has classes for.

The first host's disk and ours: room for what is still to come, and snapshots that nobody can exchange.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from caffe_recipes.caffe.datums import check_datums
from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import LocalHost, ask_all, file_bytes, file_digest
from caffe_recipes.cluster.staging.manifest import cache_folder, find_source
from caffe_recipes.cluster.staging.stage import plan_from, survey
from caffe_recipes.errors import DataError, InputError
from caffe_recipes.files import is_changed_by_group
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.render.tree import find_differences
from caffe_recipes.run.context import Setting
from caffe_recipes.run.folders import RUNS
from caffe_recipes.run.lock import RecipeLock
from caffe_recipes.run.plan import find_step
from caffe_recipes.run.preflight.findings import CheckResult, HostProblem, as_findings, trouble_of
from caffe_recipes.run.preflight.nodes import Folder, NodeFacts, NodeView, Stray, lmdb_path, snapshot_prefixes
from caffe_recipes.run.snapshots import verify_kept
from caffe_recipes.run.staging import STAGING_HINT, find_staging_env
from caffe_recipes.run.steps import Training
from caffe_recipes.units import describe_bytes, describe_duration

# What a host reads in a second or two; of more the size has to do.
HASHED_BYTES = 1e9
_HASH_S = 600.0
_SHARED = "the Caffe root must be one folder that all hosts see"


def check_files(look: NodeView) -> list[CheckResult]:
    """Compare the trainer's files that are in place with the recipe's, and those of each host with ours.

    Raises InputError for one that differs from what the recipe generates, unless it is to be overwritten.
    """
    setting, differences = look.setting, find_differences(look.plan.files, look.setting.root)
    changed = [diff.path for diff in differences if diff.what == "changed"]
    if changed and not setting.overwrite:
        what = "differs from what the recipe generates"
        raise InputError(setting.path(changed[0]), what, "move it away, or give --overwrite")
    here = LocalHost()
    ours = {
        path: file_digest(here, path) for path in map(setting.path, look.plan.files) if Path(path).is_file()
    }
    troubles = [
        HostProblem(facts.host, "no such file there" if seen is None else "differs from ours", _SHARED, path)
        for facts in look.facts.values()
        for path, digest in ours.items()
        if (seen := facts.digests.get(path)) != digest
    ]
    placed = f"{len(look.plan.files)} in {', '.join(setting.trainer.folders())}"
    return as_findings(f"{setting.trainer.file_kind}s", _first_of_each_host(troubles), placed)


def check_start(look: NodeView) -> list[CheckResult]:
    """Look into what the unfinished phases start from, here and on every host that is to read it.

    What an unfinished phase is still to make is left out. Raises WeightsError.
    """
    setting, state = look.setting, look.state
    finished = state.snapshots
    made = {path for step in look.plan.trainings for path in step.kept} - finished.keys()
    trained = [(step.weights, step.net) for step in look.unfinished]
    needed = [*trained, *((testing.weights, testing.net) for testing in look.plan.testings)]
    given = dict.fromkeys((path, net) for path, net in needed if path and path not in made)
    for path, net in given:
        if path in finished:
            digest, phase = finished[path]
            before = find_step(setting.recipe, phase).trained_path(path)
            verify_kept(Path(setting.path(path)), digest, phase, before)
        setting.trainer.check_model(net, Path(setting.path(path)))
    read = dict.fromkeys(path for path, _ in trained if path and path not in made)
    first = needed[0][0] if needed else None
    troubles = unlike_here(look.hosts, [setting.path(path) for path in read])
    return as_findings("starts from", troubles, first or setting.trainer.initialization)


def unlike_here(hosts: Sequence[Host], paths: Sequence[str]) -> list[HostProblem]:
    """Compare files on hosts with those here, all hosts at once: their sizes, and their digests if small."""
    here, distant = LocalHost(), [host for host in hosts if not host.is_local]
    if not distant:
        return []
    troubles: list[HostProblem] = []
    for path in paths:
        size = file_bytes(here, path) or 0
        digest = file_digest(here, path) if size <= HASHED_BYTES else None

        def judge(host: Host, path: str = path, size: int = size, digest: str | None = digest) -> str | None:
            seen = file_bytes(host, path)
            if seen is None:
                return "no such file there"
            if seen != size:
                return f"has {seen:,} bytes there, {size:,} here"
            return "differs from ours" if digest and file_digest(host, path) != digest else None

        for answer in ask_all(distant, judge, _HASH_S):
            if answer.error is not None:
                troubles.append(trouble_of(answer.host.name, answer.error))
            elif answer.value is not None:
                hint = f"every rank reads it: {_SHARED}"
                troubles.append(HostProblem(answer.host.name, answer.value, hint, path))
    return troubles


def _first_of_each_host(troubles: Sequence[HostProblem]) -> list[HostProblem]:
    """Keep one trouble a host: where one file differs, others of the folder do."""
    return list({trouble.host: trouble for trouble in reversed(troubles)}.values())[::-1]


MayWrite = Callable[[Path], bool]


def may_write(folder: Path) -> bool:
    """Tell whether files can be made in a folder; on a read-only file system root cannot, either."""
    return os.access(folder, os.W_OK | os.X_OK)


def check_folders(look: NodeView, writes: MayWrite = may_write) -> list[CheckResult]:
    """Name where no run, no lock, or none of the trainer's files that are still lacking could be written."""
    setting = look.setting
    lacking = [one for one in find_differences(look.plan.files, setting.root) if one.what != "stale"]
    folders = [RUNS, setting.show(RecipeLock(setting.root, setting.recipe.name).folder)]
    folders += setting.trainer.folders() if lacking else []
    nearest: dict[Path, list[str]] = {}
    for name in folders:
        nearest.setdefault(_nearest_path(setting.root / name), []).append(name)
    errors = [error for near, names in nearest.items() if (error := _judge_folder(near, names, writes))]
    if errors:
        return [CheckResult("folders", str(error), error) for error in errors]
    found = f"{', '.join(folders)} can be written to"
    shared = [near for near in nearest if is_changed_by_group(near.stat())]
    if not shared:
        return [CheckResult("folders", found)]
    groups = f"by the group of {', '.join(map(str, shared))} too, whose members are believed like you"
    return [CheckResult("folders", f"{found}, {groups}", warns=True)]


def _nearest_path(folder: Path) -> Path:
    """Return the nearest thing above a folder, or the folder itself, that is there."""
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))


def _judge_folder(near: Path, names: Sequence[str], writes: MayWrite) -> InputError | None:
    needed = f"a run writes in {', '.join(names)}"
    if not near.is_dir():
        return InputError(near, f"is not a folder, and {needed}", "move it away")
    if not writes(near):
        return InputError(near, f"cannot be written to, and {needed}", "fix its mode, owner or mount")
    return None


# Of a huge LMDB so many records are looked at, evenly spread.
_SAMPLE = 2000


def check_train_lmdb(look: NodeView) -> list[CheckResult]:
    """Look into the LMDB that is to be staged, and at what lies at its place on each host.

    Without one to stage, each host must have it. Raises DataError.
    """
    setting, source = look.setting, look.setting.lmdb_source
    if source is not None and (source / "data.mdb").exists():
        seen = _count_records(source, look, setting.recipe.train_images)
        return _plan_staging(look, source, f"{setting.show(source)}: {seen}")
    if source in setting.built_data and not source.exists():
        return [CheckResult("training data", _builder(setting, source))]
    return _compare_lmdbs(look)


def check_test_lmdb(look: NodeView) -> list[CheckResult]:
    """Look into the test LMDB, where anything is tested; raises DataError."""
    setting, recipe = look.setting, _recipe_of(look)
    path = setting.root / recipe.data.test.lmdb
    phases = [recipe.phase(step.phase) for step in look.plan.trainings]
    if not look.plan.testings and not any(phase.test_iter for phase in phases):
        records = "none is needed"
    elif path in setting.built_data and not path.exists():
        records = _builder(setting, path)
    else:
        records = f"{setting.show(path)}: {_count_records(path, look, recipe.data.test.images)}"
    return [CheckResult("test data", records)]


def _plan_staging(look: NodeView, folder: Path, records: str) -> list[CheckResult]:
    """Say what staging would do, or where it cannot: another LMDB, no room, a folder that is not ours."""
    setting, hosts = look.setting, look.answered(look.setting.lmdb_hosts)
    if not hosts:
        return look.skip("training data", [host.name for host in setting.lmdb_hosts])
    lmdb, source = setting.path(setting.trainer.data_folder), find_source(folder)
    states, manifest = survey(hosts, lmdb, source, cache_folder())
    plan = plan_from(states, lmdb, source, manifest, find_staging_env(setting.profile, setting.how))
    chosen = next((option for option in plan.options if option.how == plan.how), None)
    if chosen is None:
        staged = "staged"
    else:
        takes = (
            f", some {describe_duration(chosen.seconds)}" if chosen.seconds and chosen.seconds >= 1 else ""
        )
        staged = f"to be staged on {len(plan.missing)} of {len(states)} hosts by {chosen.how}{takes}"
    troubles = [HostProblem(host, reason, STAGING_HINT, lmdb) for host, reason in plan.refused]
    return as_findings("training data", troubles, f"{records}; {staged}")


def _compare_lmdbs(look: NodeView) -> list[CheckResult]:
    """Compare the LMDBs that hosts have already: by their sizes, since hashing takes minutes."""
    setting, data, source = look.setting, _recipe_of(look).data.train, look.setting.lmdb_source
    sizes = {
        host.name: look.facts[host.name].sizes[lmdb_path(setting)][0] or 0
        for host in look.answered(setting.lmdb_hosts)
    }
    if not sizes:
        return look.skip("training data", [host.name for host in setting.lmdb_hosts])
    what = "no LMDB there, and none to stage" + (f" from {setting.show(source)}" if source else "")
    hint = "give the folder that holds data.mdb with --lmdb-source"
    troubles = [HostProblem(host, what, hint, data.lmdb) for host, size in sizes.items() if not size]
    common = max(sizes.values(), key=list(sizes.values()).count)
    troubles += [
        HostProblem(host, f"has {size:,} bytes, the others {common:,}", "stage it again", data.lmdb)
        for host, size in sizes.items()
        if size and common and size != common
    ]
    first = setting.lmdb_hosts[0]
    if troubles or not first.is_local:
        return as_findings("training data", troubles, f"{data.lmdb}: there")
    return [
        CheckResult(
            "training data",
            f"{data.lmdb}: {_count_records(Path(setting.path(data.lmdb)), look, data.images)}",
        )
    ]


def _builder(setting: Setting, path: Path) -> str:
    for module in ("sklearn", "cv2"):
        if find_spec(module) is None:
            hint = "install this project's extra 'local', as its README says"
            raise DataError(path, f"cannot be built without {module}", hint)
    return f"{setting.show(path)}: will be built"


def _recipe_of(look: NodeView) -> Recipe:
    recipe = look.setting.recipe
    assert isinstance(recipe, Recipe)  # only Caffe names these rows
    return recipe


def _count_records(path: Path, look: NodeView, images: int) -> str:
    seen = check_datums(path, look.setting.trainer.classes(), limit=_SAMPLE)
    counted = f"{seen.count:,} records" + (f" (the recipe says {images:,})" if seen.count != images else "")
    sampled = "" if seen.checked == seen.count else f" of {seen.checked:,}"
    return f"{counted}, labels{sampled} within the classes"


# Two pairs of files are kept on the way, and a third is being written.
_CHECKPOINTS = 6
_HERE = "this machine"
_STRAYS = {
    "link": "is a link, of user {}: Caffe would write through it",
    "foreign": "belongs to user {}, who could exchange what we fetch",
    "other": "is no file, of user {}",
}


@dataclass
class _Disk:
    """A disk that is written to: whose, a folder on it, its room, and what is still to be written."""

    host: str
    path: str
    free_bytes: int
    snapshot_bytes: int = 0
    lmdb_bytes: int = 0

    @property
    def needed_bytes(self) -> int:
        return self.snapshot_bytes + self.lmdb_bytes


def _room_at(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def check_snapshots(look: NodeView) -> list[CheckResult]:
    """Name what lies where Caffe will write snapshots and is not ours, and folders that we cannot trust."""
    facts = look.first
    if facts is None:
        return look.skip("snapshots", [look.setting.hosts[0].name])
    shown = ", ".join(look.setting.show(path) for path in _snapshot_folders(look))
    return as_findings("snapshots", judge_snapshots(look, facts), f"{facts.host}: in {shown}")


def judge_snapshots(look: NodeView, facts: NodeFacts) -> list[HostProblem]:
    """Return what is wrong where Caffe would write the snapshots of unfinished phases on a host."""
    names = {name for step in look.unfinished for name in _written(look, step)}
    troubles = [_judge_stray(facts, stray) for stray in facts.strays if stray.path in names]
    for path in _snapshot_folders(look):
        if not facts.folders[path].writable:
            troubles.append(HostProblem(facts.host, "cannot be written to", "fix its mode or owner", path))
        elif facts.folders[path].open_to_all:
            what = "anybody can exchange what is written there"
            troubles.append(HostProblem(facts.host, what, "set its sticky bit: chmod +t", path))
    return troubles


def check_disk(look: NodeView, room_at: Callable[[Path], int] = _room_at) -> list[CheckResult]:
    """Count on what Caffe writes on the first host, what is kept of it here, and the LMDB to be staged.

    Our disk is a row of its own, unless Caffe writes to it, too; `room_at` tells the bytes free on it.
    """
    facts = look.first
    if facts is None:
        return look.skip("disk", [look.setting.hosts[0].name])
    sizes = _sizes(look)
    disks = _count(look, facts, sizes, room_at)
    found: list[CheckResult] = []
    for subject, rows in (
        ("disk", [disk for name, disk in disks.items() if name != _HERE]),
        ("disk here", [disk for name, disk in disks.items() if name == _HERE]),
    ):
        troubles = [_lacks_room(disk) for disk in rows if disk.free_bytes < disk.needed_bytes]
        size = describe_bytes(sum(disk.snapshot_bytes for disk in rows))
        wanted = (
            "snapshots, whose size the images decide" if None in sizes.values() else f"{size} of snapshots"
        )
        free = describe_bytes(min((disk.free_bytes for disk in rows), default=0))
        found += as_findings(subject, troubles, f"{free} free on {rows[0].host} for {wanted}" if rows else "")
    return found or [CheckResult("disk", "nothing more to write")]


def judge_disk(look: NodeView, facts: NodeFacts) -> list[HostProblem]:
    """Return the disks that lack room if Caffe writes the snapshots of unfinished phases on a host."""
    disks = _count(look, facts, _sizes(look), _room_at)
    return [_lacks_room(disk) for disk in disks.values() if disk.free_bytes < disk.needed_bytes]


def _sizes(look: NodeView) -> dict[str, int | None]:
    """Return the bytes of each unfinished net; None where only the images tell the number of channels."""
    setting = look.setting
    return {step.net: setting.trainer.model_bytes(step.net) for step in look.unfinished}


def _count(
    look: NodeView, facts: NodeFacts, sizes: Mapping[str, int | None], room_at: Callable[[Path], int]
) -> dict[str, _Disk]:
    """Return the disks that are written to, with all that is still to come there."""
    keeps = _nearest_folder(look.setting.root / RUNS)
    here = _Disk(_HERE, str(keeps), room_at(keeps))
    disks = _count_snapshots(look, facts, here, {net: size or 0 for net, size in sizes.items()})
    _add_lmdb(look, facts, disks)
    return disks


def _count_snapshots(
    look: NodeView, facts: NodeFacts, here: _Disk, sizes: Mapping[str, int]
) -> dict[str, _Disk]:
    """Return the disks that are written to, with all caffemodels and solverstates, and those that are kept.

    A solverstate is about as large as its caffemodel. Checkpoints go when newer ones are whole.
    """
    setting = look.setting
    disks: dict[str, _Disk] = {}
    on_the_way: dict[tuple[str, str], int] = defaultdict(int)
    for step in look.unfinished:
        path, size = setting.path(step.snapshot).rpartition("/")[0] or "/", sizes[step.net]
        folder = facts.folders[path]
        keeps = folder.disk if _is_ours(look, path, folder, here) else _HERE
        written = disks.setdefault(folder.disk, _Disk(facts.host, path, folder.free_bytes))
        kept = disks.setdefault(keeps, here)
        written.snapshot_bytes += 2 * step.snapshots * size
        kept.snapshot_bytes += sum(not (setting.root / name).exists() for name in step.kept) * size
        left = _CHECKPOINTS - 2 * len(look.state.checkpoints.get(step.phase, ()))
        for use, disk, count in (("written", folder.disk, _CHECKPOINTS), ("kept", keeps, left)):
            on_the_way[use, disk] = max(on_the_way[use, disk], count * size)
    for (_, disk), size in on_the_way.items() if setting.policy.checkpoint_every else ():
        disks[disk].snapshot_bytes += size
    return disks


def _is_ours(look: NodeView, path: str, folder: Folder, here: _Disk) -> bool:
    """Tell whether the first host writes to the disk on which we keep: it is us, or has that disk, too."""
    disk = Path(here.path).stat().st_dev
    if look.setting.hosts[0].is_local:
        return folder.disk == str(disk)
    # A file system has another number on each host, and the Caffe root is on one of all hosts.
    return Path(path).is_relative_to(look.setting.root) and _nearest_folder(Path(path)).stat().st_dev == disk


def _nearest_folder(path: Path) -> Path:
    """Return the nearest folder above a path that is there."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _lacks_room(disk: _Disk) -> HostProblem:
    free, needed = describe_bytes(disk.free_bytes), describe_bytes(disk.needed_bytes)
    return HostProblem(disk.host, f"{free} are free, {needed} are needed", "make room", disk.path)


def _add_lmdb(look: NodeView, facts: NodeFacts, disks: Mapping[str, _Disk]) -> None:
    """Count on the LMDB on its disk, if it is still to come there."""
    source, lmdb = look.setting.lmdb_source, look.setting.path(look.setting.trainer.data_folder)
    if source is None or facts.sizes[lmdb_path(look.setting)][0] is not None:
        return
    data, disk = source / "data.mdb", disks.get(facts.folders[lmdb].disk)
    if disk is not None and data.is_file():
        disk.lmdb_bytes = data.stat().st_size


def _judge_stray(facts: NodeFacts, stray: Stray) -> HostProblem:
    what = _STRAYS[stray.kind].format(stray.owner)
    return HostProblem(facts.host, what, "have it removed, or snapshot to another folder", stray.path)


def _snapshot_folders(look: NodeView) -> list[str]:
    prefixes = snapshot_prefixes(look.setting, look.plan)
    return list(dict.fromkeys(prefix.rpartition("/")[0] or "/" for prefix in prefixes))


def _written(look: NodeView, step: Training) -> list[str]:
    """Return what the trainer writes in a phase."""
    iterations = (*range(step.every_iter, step.last_iter, step.every_iter), step.last_iter)
    written = (path for at in iterations for path in look.setting.trainer.written_at(step, at))
    return [look.setting.path(path) for path in written]
