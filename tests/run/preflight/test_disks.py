"""The first host's disk: space for what is still to be written, and who may write at our paths."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.context import RunOptions, find_setting
from caffe_recipes.run.events import Finish, RunState
from caffe_recipes.run.policy import Policy
from caffe_recipes.run.preflight.disks import check_disk, check_snapshots
from caffe_recipes.run.preflight.nodes import Folder, NodeFacts, NodeView, Processors, Stray, lmdb_path
from caffe_recipes.run.trainer import Checkpoint
from caffe_recipes.run.training_plan import plan_training
from tests.stand_in_host import StandInHost

if TYPE_CHECKING:
    from tests.run.conftest import Place

ROOM = Folder("1", 10**9, writable=True, open_to_all=False)


@pytest.fixture
def look(place: Place) -> NodeView:
    """Look at one host whose disk has a gigabyte, before anything is trained."""
    recipe = load_recipe(place.recipe)
    setting = find_setting(recipe, RunOptions(root=place.root), lambda name, copy_with: StandInHost(name))
    lmdb, snapshots = str(place.root / "tmp/train_lmdb"), str(place.root / "tmp")
    facts = NodeFacts(
        *("localhost", "here", 0.0, 0.0, 2, Processors(frozenset({0, 1}), 2, 1), 10**9, 10**9),
        sizes={lmdb_path(setting): (None, False)},
        folders={lmdb: ROOM, snapshots: ROOM},
    )
    return NodeView(setting, plan_training(recipe, "runs/small-1"), RunState(), {"localhost": facts}, {})


def changed(look: NodeView, **values: object) -> NodeView:
    facts = replace(look.facts["localhost"], **values)  # type: ignore[arg-type]
    return replace(look, facts={"localhost": facts})


def with_room(look: NodeView, free_bytes: int, lmdb_disk: str = "1") -> NodeView:
    lmdb, snapshots = look.facts["localhost"].folders
    room = replace(ROOM, free_bytes=free_bytes)
    return changed(look, folders={lmdb: replace(room, disk=lmdb_disk), snapshots: room})


def marks(look: NodeView) -> list[str]:
    return [one.mark for one in check_disk(look)]


def test_the_lmdb_and_the_snapshots_need_room_on_one_disk(look: NodeView, place: Place) -> None:
    lmdb = (place.root / "data/train_lmdb/data.mdb").stat().st_size
    needed = next(
        room for room in range(lmdb, 50 * lmdb, 4096) if marks(with_room(look, room)) == ["ok"]
    )  # fmt: skip
    snapshots = needed - lmdb
    assert snapshots > 0
    # It needs no space on another disk, nor where it already exists.
    assert marks(with_room(look, snapshots, lmdb_disk="2")) == ["ok"]
    there = changed(look, sizes={lmdb_path(look.setting): (lmdb, True)})
    assert marks(with_room(there, snapshots)) == ["ok"]
    assert marks(with_room(there, snapshots - 4096)) == ["failed"]
    # A finished phase writes no further snapshots.
    finish = Finish("init", "runs/small-1/snapshots/small_init_iter_8.caffemodel", "", 1.0, None, None, {})
    state = RunState(finished={"init": finish})
    assert marks(with_room(replace(there, state=state), snapshots - 4096)) == ["ok"]


def test_files_kept_here_count_for_our_disk_if_caffe_writes_to_another(look: NodeView) -> None:
    away = elsewhere(look)
    assert [(one.subject, one.mark) for one in check_disk(away)] == [("disk", "ok"), ("disk here", "ok")]
    full = check_disk(away, room_at=lambda folder: 4096)
    assert [(one.subject, one.mark) for one in full] == [("disk", "ok"), ("disk here", "failed")]
    root = look.setting.root
    assert full[1].message.startswith(f"this machine:{root}: has 4.1 kB free, ")
    assert [one.subject for one in check_disk(look, room_at=lambda folder: 4096)] == ["disk"]


def test_checkpoints_need_room_for_two_and_the_one_on_its_way_on_both_disks(look: NodeView) -> None:
    away = elsewhere(look)
    kept = counted(away, "disk here")
    model = kept / 3  # of as many phases
    assert counted(with_checkpoints(away), "disk here") == pytest.approx(kept + 6 * model, rel=0.01)
    written = counted(away, "disk")
    assert counted(with_checkpoints(away), "disk") == pytest.approx(written + 6 * model, rel=0.01)
    together = counted(look, "disk")
    assert together == pytest.approx(written + kept, rel=0.01)
    assert counted(with_checkpoints(look), "disk") == pytest.approx(together + 12 * model, rel=0.01)


def test_files_already_kept_need_no_more_space(look: NodeView, place: Place) -> None:
    away = elsewhere(look)
    model = counted(away, "disk here") / 3
    fetched = place.root / away.plan.trainings[0].fetched
    fetched.parent.mkdir(parents=True)
    fetched.touch()
    assert counted(away, "disk here") == pytest.approx(2 * model, rel=0.01)
    finish = Finish("cyc1", away.plan.trainings[1].fetched, "", 1.0, None, None, {})
    state = RunState(finished={"cyc1": finish})
    assert counted(replace(away, state=state), "disk here") == pytest.approx(model, rel=0.01)
    phases = ("init", "last")
    kept = {phase: (Checkpoint(phase, 2, "", "", "", "", "", ""),) for phase in phases}
    resumed = with_checkpoints(replace(away, state=replace(state, checkpoints=kept)))
    assert counted(resumed, "disk here") == pytest.approx(5 * model, rel=0.01)


def elsewhere(look: NodeView) -> NodeView:
    """Have Caffe write its snapshots to a folder that the first host alone has."""
    recipe = look.setting.recipe
    assert isinstance(recipe, Recipe)
    phases = tuple(
        phase.model_copy(update={"snapshot_prefix": f"/nowhere/{phase.name}"}) for phase in recipe.phases
    )
    recipe = recipe.model_copy(update={"phases": phases})
    lmdb = str(look.setting.root / "tmp/train_lmdb")
    away = changed(look, folders={lmdb: ROOM, "/nowhere": ROOM}, sizes={lmdb_path(look.setting): (1, True)})
    setting = replace(look.setting, recipe=recipe)
    return replace(away, setting=setting, plan=plan_training(recipe, "runs/small-1"))


def with_checkpoints(look: NodeView) -> NodeView:
    return replace(look, setting=replace(look.setting, policy=Policy(checkpoint_every=2)))


def counted(look: NodeView, subject: str) -> float:
    """Return the bytes that a row reserves for snapshots, to three digits."""
    message = next(one.message for one in check_disk(look) if one.subject == subject)
    found = re.search(r"for ([\d.]+) (k|M)B of snapshots", message)
    assert found, message
    return float(found[1]) * {"k": 1e3, "M": 1e6}[found[2]]


def test_files_under_the_names_of_snapshots_must_be_ours(look: NodeView, place: Place) -> None:
    mine, never = (place.root / f"tmp/small_init_iter_{number}.caffemodel" for number in (8, 7))
    look = replace(look, setting=replace(look.setting, hosts=(LocalHost("localhost"),)))
    assert [one.mark for one in check_snapshots(look)] == ["ok"]
    assert [
        one.mark for one in check_snapshots(changed(look, strays=(Stray("link", "eve", str(never)),)))
    ] == ["ok"]
    found = check_snapshots(changed(look, strays=(Stray("foreign", "eve", str(mine)),)))
    assert [(one.mark, one.hosts) for one in found] == [("failed", ("localhost",))]
    assert f"localhost:{mine}: belongs to user eve" in found[0].message


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        (replace(ROOM, writable=False), "cannot be written to"),
        (replace(ROOM, open_to_all=True), "anybody can replace the files in it"),
    ],
)
def test_the_folder_of_snapshots_must_be_ours_to_write(look: NodeView, folder: Folder, expected: str) -> None:
    folders = look.facts["localhost"].folders
    found = check_snapshots(changed(look, folders=dict.fromkeys(folders, folder)))
    assert [one.mark for one in found] == ["failed"]
    assert expected in found[0].message


@pytest.mark.promise("snapshots and staged copies are ours alone")
def test_too_many_files_of_others_to_check_are_a_separate_problem(look: NodeView) -> None:
    stray = Stray("more", "mallory", f"{look.setting.root}/tmp/small_init_iter_*")
    (found,) = check_snapshots(changed(look, strays=(stray,)))
    what = "over 100 of these files are not yours (one belongs to user mallory), and the rest are not checked"
    hint = "ask the owner to remove them, or set another snapshot_prefix"
    assert str(found.error) == f"localhost:{stray.path}: {what}; {hint}"
