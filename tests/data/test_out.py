from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.data.build import build_lmdb, check_output
from caffe_recipes.errors import DataError
from tests.data.conftest import plan_of


@pytest.mark.parametrize("out", ["images/lmdb", "images/a/lmdb", "images", "link/lmdb", "images/../images/x"])
def test_no_lmdb_may_stand_within_the_folder_of_its_classes(tmp_path: Path, out: str) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "link").symlink_to("images")
    with pytest.raises(
        DataError, match=r"is inside .*images, whose folders are classes; give a path outside"
    ):
        check_output(tmp_path / out, tmp_path / "images")


def test_it_may_stand_beside_the_folder_and_beside_a_list(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "list").touch()
    check_output(tmp_path / "images_lmdb", tmp_path / "images")
    check_output(tmp_path / "lmdb", tmp_path / "list")
    check_output(tmp_path / "images" / "lmdb", tmp_path / "list")


def test_a_name_too_long_for_what_is_made_of_it_is_refused_and_the_longest_is_built(listed: Path) -> None:
    folder = listed.parent.parent
    with pytest.raises(DataError, match="the name has 232 bytes; at most 231 fit with its manifest"):
        check_output(folder / ("é" * 115 + "xx"), listed)
    check_output(folder / ("é" * 115 + "x"), listed)
    assert build_lmdb(plan_of(listed), folder / ("é" * 115 + "x")).images == 10
