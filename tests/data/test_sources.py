from __future__ import annotations

import os
from pathlib import Path

import pytest

from caffe_recipes.data.build import load_pictures
from caffe_recipes.errors import DataError


def test_a_pipe_is_refused_before_anything_of_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "list")
    with pytest.raises(DataError, match="list: is a pipe or a device; write the list to a regular file"):
        load_pictures(tmp_path / "list")
