"""Check the disks of the first host and of this machine: free space, and who can replace snapshots."""

from __future__ import annotations

import os
import posixpath
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.cluster.remote import own_file_stamp
from caffe_recipes.cluster.staging.relay import DATA
from caffe_recipes.errors import HostFailed
from caffe_recipes.run.preflight.findings import CheckResult, HostProblem, as_findings
from caffe_recipes.run.preflight.nodes import Folder, NodeFacts, NodeView, Stray, lmdb_path, snapshot_folders
from caffe_recipes.run.trainer import Training
from caffe_recipes.run_names import RUNS
from caffe_recipes.units import describe_bytes

# Files of checkpoints that exist at a time: two pairs are kept, and a third is being written.
_CHECKPOINTS = 6
_HERE = "this machine"
_STRAYS = {
    "link": "is a symbolic link owned by user {}; Caffe would write through it",
    "foreign": "belongs to user {}, who could replace the snapshot",
    "other": "is not a regular file, and belongs to user {}",
    "more": "over 100 of these files are not yours (one belongs to user {}), and the rest are not checked",
}


@dataclass
class _Disk:
    """A disk that is written to: its host, a folder on it, the free bytes, and the bytes to write."""

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


def check_snapshots(view: NodeView) -> list[CheckResult]:
    """Report files of others at the paths of snapshots, and folders that are not safe to write them to."""
    facts = view.first
    if facts is None:
        return view.skip_unreachable("snapshots", [view.setting.hosts[0].name])
    shown = ", ".join(view.setting.show(path) for path in snapshot_folders(view.setting, view.plan))
    problems = judge_snapshots(view, facts) or _find_unsafe(view, facts.host)
    return as_findings("snapshots", problems, f"{facts.host}: in {shown}")


def _find_unsafe(view: NodeView, name: str) -> list[HostProblem]:
    """Return the folders of snapshots on a host in which a run would not trust a snapshot."""
    host = next(host for host in view.hosts if host.name == name)
    problems = []
    for folder in snapshot_folders(view.setting, view.plan):
        try:
            own_file_stamp(host, f"{folder}/.caffe-recipes", view.setting.root)
        except HostFailed as error:
            problems.append(HostProblem(name, error.what, error.hint, folder))
    return problems


def judge_snapshots(view: NodeView, facts: NodeFacts) -> list[HostProblem]:
    """Return the problems at the paths on a host to which snapshots of unfinished phases would be written."""
    names = {name for step in view.unfinished for name in _written(view, step)}
    strays = [stray for stray in facts.strays if stray.path in names or stray.kind == "more"]
    problems = [_stray_problem(facts, stray) for stray in strays]
    for path in snapshot_folders(view.setting, view.plan):
        if not facts.folders[path].writable:
            problems.append(HostProblem(facts.host, "cannot be written to", "fix its mode or owner", path))
        elif facts.folders[path].open_to_all:
            what = "anybody can replace the files in it"
            problems.append(HostProblem(facts.host, what, "set its sticky bit: chmod +t", path))
    return problems


def check_disk(view: NodeView, room_at: Callable[[Path], int] = _room_at) -> list[CheckResult]:
    """Check the free space for snapshots on the first host, for those kept here, and for the LMDB to stage.

    Our own disk is a separate finding, unless the first host writes to it as well. `room_at` returns the
    free bytes of a local folder.
    """
    facts = view.first
    if facts is None:
        return view.skip_unreachable("disk", [view.setting.hosts[0].name])
    sizes = _sizes(view)
    disks = _count(view, facts, sizes, room_at)
    found: list[CheckResult] = []
    for subject, rows in (
        ("disk", [disk for name, disk in disks.items() if name != _HERE]),
        ("disk here", [disk for name, disk in disks.items() if name == _HERE]),
    ):
        problems = [_space_problem(disk) for disk in rows if disk.free_bytes < disk.needed_bytes]
        size = describe_bytes(sum(disk.snapshot_bytes for disk in rows))
        wanted = (
            "snapshots of a size that depends on the images"
            if None in sizes.values()
            else f"{size} of snapshots"
        )
        free = describe_bytes(min((disk.free_bytes for disk in rows), default=0))
        found += as_findings(subject, problems, f"{free} free on {rows[0].host} for {wanted}" if rows else "")
    return found or [CheckResult("disk", "nothing left to write")]


def judge_disk(view: NodeView, facts: NodeFacts) -> list[HostProblem]:
    """Return the disks that lack space if a host writes the snapshots of the unfinished phases."""
    disks = _count(view, facts, _sizes(view), _room_at)
    return [_space_problem(disk) for disk in disks.values() if disk.free_bytes < disk.needed_bytes]


def _sizes(view: NodeView) -> dict[str, int | None]:
    """Return the size in bytes of each unfinished net; None if it depends on images not here."""
    setting = view.setting
    size, data = setting.trainer.models.model_bytes, (setting.root, setting.lmdb_source)
    nets = dict.fromkeys(step.net for step in view.unfinished)  # each is parsed once
    return {net: size(view.plan.files, net, *data) for net in nets}


def _count(
    view: NodeView, facts: NodeFacts, sizes: Mapping[str, int | None], room_at: Callable[[Path], int]
) -> dict[str, _Disk]:
    """Return the disks that are written to, with the bytes that are still to be written to each."""
    keeps = _nearest_folder(view.setting.root / RUNS)
    here = _Disk(_HERE, str(keeps), room_at(keeps))
    disks = _count_snapshots(view, facts, here, {net: size or 0 for net, size in sizes.items()})
    _add_lmdb(view, facts, disks)
    return disks


def _count_snapshots(
    view: NodeView, facts: NodeFacts, here: _Disk, sizes: Mapping[str, int]
) -> dict[str, _Disk]:
    """Return the disks that are written to, with the bytes of all snapshots and of the copies that are kept.

    A solverstate is about as large as its caffemodel. Old checkpoints are deleted once a newer one is
    complete.
    """
    setting = view.setting
    disks: dict[str, _Disk] = {}
    on_the_way: dict[tuple[str, str], int] = defaultdict(int)
    for step in view.unfinished:
        path, size = posixpath.dirname(setting.path(step.snapshot)), sizes[step.net]
        folder = facts.folders[path]
        keeps = folder.disk if _is_ours(view, path, folder, here) else _HERE
        written = disks.setdefault(folder.disk, _Disk(facts.host, path, folder.free_bytes))
        kept = disks.setdefault(keeps, here)
        written.snapshot_bytes += 2 * step.snapshots * size
        kept.snapshot_bytes += sum(not (setting.root / name).exists() for name in step.kept) * size
        left = _CHECKPOINTS - 2 * len(view.state.checkpoints.get(step.phase, ()))
        for use, disk, count in (("written", folder.disk, _CHECKPOINTS), ("kept", keeps, left)):
            on_the_way[use, disk] = max(on_the_way[use, disk], count * size)
    for (_, disk), size in on_the_way.items() if setting.policy.checkpoint_every else ():
        disks[disk].snapshot_bytes += size
    return disks


def _is_ours(view: NodeView, path: str, folder: Folder, here: _Disk) -> bool:
    """Return whether the first host writes to our own disk, as this machine or over a shared file system."""
    disk = Path(here.path).stat().st_dev
    if view.setting.hosts[0].is_local:
        return folder.disk == str(disk)
    # Device numbers differ between hosts, but the Caffe root is on a shared file system.
    return Path(path).is_relative_to(view.setting.root) and _nearest_folder(Path(path)).stat().st_dev == disk


def _nearest_folder(path: Path) -> Path:
    """Return the nearest existing folder at or above a path."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _space_problem(disk: _Disk) -> HostProblem:
    free, needed = describe_bytes(disk.free_bytes), describe_bytes(disk.needed_bytes)
    return HostProblem(disk.host, f"has {free} free, but {needed} is needed", "free space there", disk.path)


def _add_lmdb(view: NodeView, facts: NodeFacts, disks: Mapping[str, _Disk]) -> None:
    """Add the LMDB to its disk, if it is still to be staged there."""
    source, lmdb = view.setting.lmdb_source, view.setting.data_path
    if source is None or facts.sizes[lmdb_path(view.setting)][0] is not None:
        return
    data, disk = source / DATA, disks.get(facts.folders[lmdb].disk)
    if disk is not None and data.is_file():
        disk.lmdb_bytes = data.stat().st_size


def _stray_problem(facts: NodeFacts, stray: Stray) -> HostProblem:
    what = _STRAYS[stray.kind].format(stray.owner)
    them = "them" if stray.kind == "more" else "it"
    hint = f"ask the owner to remove {them}, or set another snapshot_prefix"
    return HostProblem(facts.host, what, hint, stray.path)


def _written(view: NodeView, step: Training) -> list[str]:
    """Return the paths of all snapshots that the trainer writes in a phase."""
    iterations = (*range(step.every_iter, step.last_iter, step.every_iter), step.last_iter)
    written = (path for at in iterations for path in view.setting.trainer.models.written_at(step, at))
    return [view.setting.path(path) for path in written]
