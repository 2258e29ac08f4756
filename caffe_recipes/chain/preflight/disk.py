"""The first host's disk and ours: room for what is still to come, and snapshots that nobody can exchange."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.caffe.weights import weights_bytes
from caffe_recipes.chain.folder import RUNS
from caffe_recipes.chain.preflight.findings import Finding, Trouble, tell
from caffe_recipes.chain.preflight.look import Look, lmdb_path, snapshot_prefixes
from caffe_recipes.chain.preflight.nodes import Folder, NodeFacts, Stray
from caffe_recipes.chain.units import describe_bytes
from caffe_recipes.generate.nets import build_net
from caffe_recipes.recipe.phases import Phase

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


def check_snapshots(look: Look) -> list[Finding]:
    """Name what lies where Caffe will write snapshots and is not ours, and folders that we cannot trust."""
    facts = look.first
    if facts is None:
        return look.skip("snapshots", [look.setting.hosts[0].name])
    shown = ", ".join(look.setting.show(path) for path in _snapshot_folders(look))
    return tell("snapshots", judge_snapshots(look, facts), f"{facts.host}: in {shown}")


def judge_snapshots(look: Look, facts: NodeFacts) -> list[Trouble]:
    """Return what is wrong where Caffe would write the snapshots of unfinished phases on a host."""
    names = {name for phase in _unfinished_phases(look) for name in _written(look, phase)}
    troubles = [_judge(facts, stray) for stray in facts.strays if stray.path in names]
    for path in _snapshot_folders(look):
        if not facts.folders[path].writable:
            troubles.append(Trouble(facts.host, "cannot be written to", "mend its mode or owner", path))
        elif facts.folders[path].open_to_all:
            what = "anybody can exchange what is written there"
            troubles.append(Trouble(facts.host, what, "set its sticky bit: chmod +t", path))
    return troubles


def check_disk(look: Look, room_at: Callable[[Path], int] = _room_at) -> list[Finding]:
    """Count on what Caffe writes on the first host, what is kept of it here, and the LMDB to be staged.

    Our disk is a row of its own, unless Caffe writes to it, too; `room_at` tells the bytes free on it.
    """
    facts = look.first
    if facts is None:
        return look.skip("disk", [look.setting.hosts[0].name])
    sizes = _sizes(look)
    disks = _count(look, facts, sizes, room_at)
    found: list[Finding] = []
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
        found += tell(subject, troubles, f"{free} free on {rows[0].host} for {wanted}" if rows else "")
    return found or [Finding("disk", "nothing more to write")]


def judge_disk(look: Look, facts: NodeFacts) -> list[Trouble]:
    """Return the disks that lack room if Caffe writes the snapshots of unfinished phases on a host."""
    disks = _count(look, facts, _sizes(look), _room_at)
    return [_lacks_room(disk) for disk in disks.values() if disk.free_bytes < disk.needed_bytes]


def _sizes(look: Look) -> dict[str, int | None]:
    """Return the bytes of each unfinished net; None where only the images tell the number of channels."""
    return {step.net: weights_bytes(build_net(look.setting.recipe, step.net)) for step in look.unfinished}


def _count(
    look: Look, facts: NodeFacts, sizes: Mapping[str, int | None], room_at: Callable[[Path], int]
) -> dict[str, _Disk]:
    """Return the disks that are written to, with all that is still to come there."""
    keeps = _nearest(look.setting.root / RUNS)
    here = _Disk(_HERE, str(keeps), room_at(keeps))
    disks = _count_snapshots(look, facts, here, {net: size or 0 for net, size in sizes.items()})
    _add_lmdb(look, facts, disks)
    return disks


def _count_snapshots(look: Look, facts: NodeFacts, here: _Disk, sizes: Mapping[str, int]) -> dict[str, _Disk]:
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


def _is_ours(look: Look, path: str, folder: Folder, here: _Disk) -> bool:
    """Tell whether the first host writes to the disk on which we keep: it is us, or has that disk, too."""
    disk = Path(here.path).stat().st_dev
    if look.setting.hosts[0].is_local:
        return folder.disk == str(disk)
    # A file system has another number on each host, and the Caffe root is on one of all hosts.
    return Path(path).is_relative_to(look.setting.root) and _nearest(Path(path)).stat().st_dev == disk


def _nearest(path: Path) -> Path:
    """Return the nearest folder above a path that is there."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _lacks_room(disk: _Disk) -> Trouble:
    free, needed = describe_bytes(disk.free_bytes), describe_bytes(disk.needed_bytes)
    return Trouble(disk.host, f"{free} are free, {needed} are needed", "make room", disk.path)


def _add_lmdb(look: Look, facts: NodeFacts, disks: Mapping[str, _Disk]) -> None:
    """Count on the LMDB on its disk, if it is still to come there."""
    source, lmdb = look.setting.lmdb_source, look.setting.path(look.setting.recipe.data.train.lmdb)
    if source is None or facts.sizes[lmdb_path(look.setting)][0] is not None:
        return
    data, disk = source / "data.mdb", disks.get(facts.folders[lmdb].disk)
    if disk is not None and data.is_file():
        disk.lmdb_bytes = data.stat().st_size


def _judge(facts: NodeFacts, stray: Stray) -> Trouble:
    what = _STRAYS[stray.kind].format(stray.owner)
    return Trouble(facts.host, what, "have it removed, or snapshot to another folder", stray.path)


def _snapshot_folders(look: Look) -> list[str]:
    prefixes = snapshot_prefixes(look.setting)
    return list(dict.fromkeys(prefix.rpartition("/")[0] or "/" for prefix in prefixes))


def _unfinished_phases(look: Look) -> list[Phase]:
    names = {step.phase for step in look.unfinished}
    return [phase for phase in look.setting.recipe.phases if phase.name in names]


def _written(look: Look, phase: Phase) -> list[str]:
    """Return the snapshots that Caffe writes in a phase."""
    every = phase.snapshot_every_iter
    models = [phase.snapshot_at(at) for at in (*range(every, phase.last_iter, every), phase.last_iter)]
    paths = [look.setting.path(model) for model in models]
    return [*paths, *(f"{path.removesuffix('.caffemodel')}.solverstate" for path in paths)]
