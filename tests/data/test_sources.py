from __future__ import annotations

import os
from pathlib import Path

import pytest

from caffe_recipes.data.build import load_pictures, split_pictures
from caffe_recipes.data.images import Picture, Pictures
from caffe_recipes.errors import DataError, InputError


def test_a_pipe_is_refused_before_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "list")
    with pytest.raises(DataError, match="list: is a pipe or a device; write the list to a regular file"):
        load_pictures(tmp_path / "list")


def test_a_list_has_no_class_names(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("a.jpg 0\n")
    (tmp_path / "classes").write_text("a\n")
    with pytest.raises(InputError, match="leave it out: a list has no class names; those of a folder are"):
        load_pictures(tmp_path / "list", class_list=tmp_path / "classes")


def test_an_image_that_is_listed_twice_is_not_in_both_sets() -> None:
    pictures = [Picture(f"{index % 5}", 0, 1, f"/{index % 5}") for index in range(10)]
    train, test = split_pictures(Pictures(Path("list"), pictures), 0.4, 1)
    assert (len(train.pictures), len(test.pictures)) == (6, 4)
    assert {one.path for one in train.pictures}.isdisjoint(one.path for one in test.pictures)
