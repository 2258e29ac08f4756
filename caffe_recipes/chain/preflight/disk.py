"""The first host's disk: room for what is still to come, and snapshots that nobody else can exchange."""

from __future__ import annotations

from collections import defaultdict

from caffe_recipes.caffe.weights import weights_bytes
from caffe_recipes.chain.preflight.findings import Finding, Trouble, tell
from caffe_recipes.chain.preflight.look import Look, lmdb_path, snapshot_prefixes
from caffe_recipes.chain.preflight.nodes import NodeFacts, Stray
from caffe_recipes.chain.units import describe_bytes
from caffe_recipes.generate.nets import build_net
from caffe_recipes.recipe.phases import Phase

# Two pairs of files are kept on the way, and a third is being written.
_CHECKPOINTS = 6
_STRAYS = {
    "link": "is a link, of user {}: Caffe would write through it",
    "foreign": "belongs to user {}, who could exchange what we fetch",
    "other": "is no file, of user {}",
}


def check_snapshots(look: Look) -> list[Finding]:
    """Name what lies where Caffe will write snapshots and is not ours, and folders that we cannot trust."""
    facts = look.first
    if facts is None:
        return look.skip("snapshots", [look.setting.hosts[0].name])
    names = {name for phase in _unfinished_phases(look) for name in _written(look, phase)}
    troubles = [_judge(facts, stray) for stray in facts.strays if stray.path in names]
    folders = {prefix.rpartition("/")[0] or "/": None for prefix in snapshot_prefixes(look.setting)}
    for path in folders:
        if not facts.folders[path].writable:
            troubles.append(Trouble(facts.host, "cannot be written to", "mend its mode or owner", path))
        elif facts.folders[path].open_to_all:
            what = "anybody can exchange what is written there"
            troubles.append(Trouble(facts.host, what, "set its sticky bit: chmod +t", path))
    shown = ", ".join(look.setting.show(path) for path in folders)
    return tell("snapshots", troubles, f"{facts.host}: in {shown}")


def check_disk(look: Look) -> list[Finding]:
    """Count on all caffemodels and solverstates, on those that are kept here, and on the LMDB to be staged.

    A solverstate is about as large as its caffemodel. Checkpoints go when newer ones are whole.
    """
    facts, setting = look.first, look.setting
    if facts is None:
        return look.skip("disk", [setting.hosts[0].name])
    # None where only the images tell the number of channels.
    sizes = {step.net: weights_bytes(build_net(setting.recipe, step.net)) for step in look.unfinished}
    needed: dict[str, int] = defaultdict(int)
    on_the_way: dict[str, int] = defaultdict(int)
    rooms: dict[str, tuple[str, int]] = {}
    for step in look.unfinished:
        path = setting.path(step.snapshot).rpartition("/")[0] or "/"
        folder, kept = facts.folders[path], len(step.kept) if setting.hosts[0].is_local else 0
        rooms.setdefault(folder.disk, (path, folder.free_bytes))
        needed[folder.disk] += (2 * step.snapshots + kept) * (sizes[step.net] or 0)
        on_the_way[folder.disk] = max(on_the_way[folder.disk], _CHECKPOINTS * (sizes[step.net] or 0))
    for disk, size in on_the_way.items() if setting.policy.checkpoint_every else ():
        needed[disk] += size
    snapshots = sum(needed.values())
    _add_lmdb(look, facts, needed)
    troubles = [
        Trouble(
            facts.host,
            f"{describe_bytes(free)} are free, {describe_bytes(needed[disk])} are needed",
            "make room",
            path,
        )
        for disk, (path, free) in rooms.items()
        if free < needed[disk]
    ]
    undecided = None in sizes.values()
    wanted = (
        "snapshots, whose size the images decide"
        if undecided
        else f"{describe_bytes(snapshots)} of snapshots"
    )
    free = describe_bytes(min((free for _, free in rooms.values()), default=0))
    said = f"{free} free on {facts.host} for {wanted}" if rooms else "nothing more to write"
    return tell("disk", troubles, said)


def _add_lmdb(look: Look, facts: NodeFacts, needed: dict[str, int]) -> None:
    """Count on the LMDB on its disk, if it is still to come there."""
    source, lmdb = look.setting.lmdb_source, look.setting.path(look.setting.recipe.data.train.lmdb)
    if source is None or facts.sizes[lmdb_path(look.setting)][0] is not None:
        return
    data = source / "data.mdb"
    if data.is_file():
        needed[facts.folders[lmdb].disk] += data.stat().st_size


def _judge(facts: NodeFacts, stray: Stray) -> Trouble:
    what = _STRAYS[stray.kind].format(stray.owner)
    return Trouble(facts.host, what, "have it removed, or snapshot to another folder", stray.path)


def _unfinished_phases(look: Look) -> list[Phase]:
    names = {step.phase for step in look.unfinished}
    return [phase for phase in look.setting.recipe.phases if phase.name in names]


def _written(look: Look, phase: Phase) -> list[str]:
    """Return the snapshots that Caffe writes in a phase."""
    every = phase.snapshot_every_iter
    models = [phase.snapshot_at(at) for at in (*range(every, phase.last_iter, every), phase.last_iter)]
    paths = [look.setting.path(model) for model in models]
    return [*paths, *(f"{path.removesuffix('.caffemodel')}.solverstate" for path in paths)]
