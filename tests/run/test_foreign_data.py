"""Data that another user has put where a run reads it: neither trained from nor tested with."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.errors import CaffeRecipesError, ClusterError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.context import RunOptions, find_setting
from caffe_recipes.run.preflight.checks import preflight_recipe
from caffe_recipes.run.staging import DataPart, check_data

if TYPE_CHECKING:
    from tests.run.conftest import Place

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
SOURCE = "lmdb: tmp/train_lmdb, source: data/train_lmdb"


@pytest.fixture(params=["train", "test"])
def part(request: pytest.FixtureRequest) -> DataPart:
    """Give which LMDB is in a folder where everybody can create files."""
    part: DataPart = request.param
    return part


@pytest.fixture
def lmdb(place: Place, part: DataPart) -> Path:
    """Have the recipe read an LMDB in such a folder, without a source to stage it from."""
    shared = place.root.parent / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    lmdb = shared / f"{part}_lmdb"
    shutil.copytree(place.root / "data" / lmdb.name, lmdb)
    if part == "test":
        place.edit("lmdb: data/test_lmdb", f"lmdb: {lmdb}")
    place.edit(SOURCE, f"lmdb: {lmdb if part == 'train' else 'data/train_lmdb'}")
    return lmdb


def plant(lmdb: Path, how: str) -> None:
    """Have another user own the folder or its data, or have put a link there."""
    if how == "lock":
        (lmdb / "lock.mdb").unlink(missing_ok=True)
        (lmdb / "lock.mdb").symlink_to("/none")
        os.chown(lmdb / "lock.mdb", NOBODY, NOBODY, follow_symlinks=False)
    else:
        os.chown(lmdb if how == "folder" else lmdb / "data.mdb", NOBODY, NOBODY)


@pytest.mark.parametrize("how", ["folder", "data.mdb", "lock"])
def test_nothing_is_trained_from_or_tested_with_data_of_another_user(
    place: Place, lmdb: Path, part: DataPart, how: str
) -> None:
    plant(lmdb, how)
    inner = {"folder": "", "data.mdb": "contains data.mdb, which ", "lock": "contains lock.mdb, which "}[how]
    said = rf"localhost:{lmdb}: {inner}belongs to user \w+ \(65534\), who can change its contents; have it"
    with pytest.raises(CaffeRecipesError, match=said):
        place.run()
    assert place.trained() == []
    found = preflight_recipe(load_recipe(place.recipe), RunOptions(root=place.root), lambda *_: LocalHost())
    (error,) = [str(one.error) for one in found if one.error]
    assert re.match(said, error)


@pytest.mark.parametrize("how", ["folder", "lock"])
def test_the_data_are_asked_about_again_when_a_run_prepares(
    place: Place, lmdb: Path, part: DataPart, how: str
) -> None:
    setting = find_setting(load_recipe(place.recipe), RunOptions(root=place.root), lambda *_: LocalHost())
    check_data(setting, part)
    plant(lmdb, how)
    with pytest.raises(ClusterError, match=r"belongs to user .*; ask its owner to remove it"):
        check_data(setting, part)


def test_own_data_in_a_shared_folder_are_used(place: Place, lmdb: Path) -> None:
    assert place.run().outputs
