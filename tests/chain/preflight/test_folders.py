"""Where a run is to write on this machine: looked at before anything is made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.chain.journal import RunState
from caffe_recipes.chain.plan import plan_chain
from caffe_recipes.chain.preflight.folders import check_folders, may_write
from caffe_recipes.chain.preflight.look import Look
from caffe_recipes.chain.setting import Options, find_setting
from caffe_recipes.cluster.testing import StandInHost
from caffe_recipes.generate.tree import write_files
from caffe_recipes.recipe.source import load_recipe

if TYPE_CHECKING:
    from tests.chain.conftest import Place


@pytest.fixture
def look(place: Place) -> Look:
    recipe = load_recipe(place.recipe)
    setting = find_setting(recipe, Options(root=place.root), lambda name, copy_with: StandInHost(name))
    return Look(setting, plan_chain(recipe, "runs/small-1"), RunState(), {}, {})


def test_folders_that_can_be_made_are_well(look: Look, place: Place) -> None:
    before = place.tree()
    (found,) = check_folders(look)
    assert (found.mark, found.said) == (
        "ok",
        "runs, logs/small, prototxt/small can be written to",
    )
    assert place.tree() == before


def test_a_root_that_is_read_only_is_named_once(look: Look, place: Place) -> None:
    (found,) = check_folders(look, writes=lambda folder: folder != place.root)
    assert str(found.error) == (
        f"{place.root}: cannot be written to, and a run writes in runs, logs/small, prototxt/small; "
        "mend its mode, owner or mount"
    )


def test_each_folder_that_cannot_be_written_to_is_named(look: Look, place: Place) -> None:
    for name in ("runs", "logs/small", "prototxt"):
        (place.root / name).mkdir(parents=True)
    found = check_folders(look, writes=lambda folder: folder == place.root)
    assert [one.error and one.error.where for one in found] == [
        f"{place.root}/runs",
        f"{place.root}/logs/small",
        f"{place.root}/prototxt",
    ]


def test_prototxts_that_are_all_in_place_may_be_read_only(look: Look, place: Place) -> None:
    write_files(look.plan.prototxts, place.root)
    (found,) = check_folders(look, writes=lambda folder: "prototxt" not in folder.parts)
    assert found.said == "runs, logs/small can be written to"


def test_who_may_write_is_asked_of_the_system(tmp_path: Path) -> None:
    assert may_write(tmp_path)
    assert not may_write(Path("/proc/self"))
