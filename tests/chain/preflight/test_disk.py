"""The first host's disk: room for all that is still to come, and who may write under our names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.chain.journal import Finish, RunState
from caffe_recipes.chain.plan import plan_chain
from caffe_recipes.chain.preflight.disk import check_disk, check_snapshots
from caffe_recipes.chain.preflight.look import Look, lmdb_path
from caffe_recipes.chain.preflight.nodes import Folder, NodeFacts, Processors, Stray
from caffe_recipes.chain.setting import Options, find_setting
from caffe_recipes.cluster.testing import StandInHost
from caffe_recipes.recipe.source import load_recipe

if TYPE_CHECKING:
    from tests.chain.conftest import Place

ROOM = Folder("1", 10**9, writable=True, open_to_all=False)


@pytest.fixture
def look(place: Place) -> Look:
    """Look at one host whose disk has a gigabyte, before anything is trained."""
    recipe = load_recipe(place.recipe)
    setting = find_setting(recipe, Options(root=place.root), lambda name, copy_with: StandInHost(name))
    lmdb, snapshots = str(place.root / "tmp/train_lmdb"), str(place.root / "tmp")
    facts = NodeFacts(
        *("localhost", "here", 0.0, 0.0, 2, Processors(frozenset({0, 1}), 2, 1), 10**9, 10**9),
        sizes={lmdb_path(setting): (None, False)},
        folders={lmdb: ROOM, snapshots: ROOM},
    )
    return Look(setting, plan_chain(recipe, "runs/small-1"), RunState(), {"localhost": facts}, {})


def changed(look: Look, **values: object) -> Look:
    facts = replace(look.facts["localhost"], **values)  # type: ignore[arg-type]
    return replace(look, facts={"localhost": facts})


def with_room(look: Look, free_bytes: int, lmdb_disk: str = "1") -> Look:
    lmdb, snapshots = look.facts["localhost"].folders
    room = replace(ROOM, free_bytes=free_bytes)
    return changed(look, folders={lmdb: replace(room, disk=lmdb_disk), snapshots: room})


def marks(look: Look) -> list[str]:
    return [one.mark for one in check_disk(look)]


def test_the_lmdb_and_the_snapshots_need_room_on_one_disk(look: Look, place: Place) -> None:
    lmdb = (place.root / "data/train_lmdb/data.mdb").stat().st_size
    needed = next(
        room for room in range(lmdb, 50 * lmdb, 4096) if marks(with_room(look, room)) == ["ok"]
    )  # fmt: skip
    snapshots = needed - lmdb
    assert snapshots > 0
    # Of another disk it takes nothing, nor where it lies already.
    assert marks(with_room(look, snapshots, lmdb_disk="2")) == ["ok"]
    there = changed(look, sizes={lmdb_path(look.setting): (lmdb, True)})
    assert marks(with_room(there, snapshots)) == ["ok"]
    assert marks(with_room(there, snapshots - 4096)) == ["failed"]
    # A phase that is finished writes no more.
    finish = Finish("init", "runs/small-1/snapshots/small_init_iter_8.caffemodel", "", 1.0, None, None)
    state = RunState(finished={"init": finish})
    assert marks(with_room(replace(there, state=state), snapshots - 4096)) == ["ok"]


def test_files_under_the_names_of_snapshots_must_be_ours(look: Look, place: Place) -> None:
    mine, never = (place.root / f"tmp/small_init_iter_{number}.caffemodel" for number in (8, 7))
    assert [one.mark for one in check_snapshots(look)] == ["ok"]
    assert [
        one.mark for one in check_snapshots(changed(look, strays=(Stray("link", "eve", str(never)),)))
    ] == ["ok"]
    found = check_snapshots(changed(look, strays=(Stray("foreign", "eve", str(mine)),)))
    assert [(one.mark, one.hosts) for one in found] == [("failed", ("localhost",))]
    assert f"localhost:{mine}: belongs to user eve" in found[0].said


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        (replace(ROOM, writable=False), "cannot be written to"),
        (replace(ROOM, open_to_all=True), "anybody can exchange what is written there"),
    ],
)
def test_the_folder_of_snapshots_must_be_ours_to_write(look: Look, folder: Folder, said: str) -> None:
    folders = look.facts["localhost"].folders
    found = check_snapshots(changed(look, folders=dict.fromkeys(folders, folder)))
    assert [one.mark for one in found] == ["failed"]
    assert said in found[0].said
