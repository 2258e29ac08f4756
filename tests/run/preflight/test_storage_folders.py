"""Where a run will write on this machine: checked before anything is created."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.tree import write_files
from caffe_recipes.run.context import RunOptions, find_setting
from caffe_recipes.run.events import RunState
from caffe_recipes.run.preflight.nodes import NodeView
from caffe_recipes.run.preflight.storage import check_folders, may_write
from caffe_recipes.run.training_plan import plan_training
from tests.stand_in_host import StandInHost

if TYPE_CHECKING:
    from tests.run.conftest import Place


@pytest.fixture
def look(place: Place) -> NodeView:
    recipe = load_recipe(place.recipe)
    setting = find_setting(recipe, RunOptions(root=place.root), lambda name, copy_with: StandInHost(name))
    return NodeView(setting, plan_training(recipe, "runs/small-1"), RunState(), {}, {})


def test_folders_that_can_be_created_pass(look: NodeView, place: Place) -> None:
    before = place.tree()
    (found,) = check_folders(look)
    assert (found.mark, found.message) == (
        "ok",
        "runs, logs/small, prototxt/small can be written to",
    )
    assert place.tree() == before


def test_a_root_that_is_read_only_is_named_once(look: NodeView, place: Place) -> None:
    (found,) = check_folders(look, writes=lambda folder: folder != place.root)
    assert str(found.error) == (
        f"{place.root}: cannot be written to, and a run writes in runs, logs/small, prototxt/small; "
        "fix its mode, owner or mount"
    )


@pytest.mark.promise("a colleague's folder is used")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another group")
def test_a_group_writable_root_is_a_single_warning(look: NodeView, place: Place) -> None:
    os.chown(place.root, 0, 54321)
    place.root.chmod(0o775)
    (found,) = check_folders(look)
    assert found.mark == "warn"
    assert f"also by the group of {place.root}, whose members are trusted as you are" in found.message


def test_each_folder_that_cannot_be_written_to_is_named(look: NodeView, place: Place) -> None:
    for name in ("runs", "logs/small", "prototxt"):
        (place.root / name).mkdir(parents=True)
    found = check_folders(look, writes=lambda folder: folder == place.root)
    assert [one.error and one.error.where for one in found] == [
        f"{place.root}/runs",
        f"{place.root}/logs/small",
        f"{place.root}/prototxt",
    ]


def test_prototxts_that_are_all_in_place_may_be_read_only(look: NodeView, place: Place) -> None:
    write_files(look.plan.files, place.root)
    (found,) = check_folders(look, writes=lambda folder: "prototxt" not in folder.parts)
    assert found.message == "runs, logs/small can be written to"


def test_write_permission_is_checked_by_the_system(tmp_path: Path) -> None:
    assert may_write(tmp_path)
    assert not may_write(Path("/proc/self"))
