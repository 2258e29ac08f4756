from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.errors import DataError
from caffe_recipes.file_format import FORMAT, take_format

ROOT = Path(__file__).resolve().parent.parent


def test_the_number_is_removed_and_the_other_values_stay() -> None:
    values = {"format": FORMAT, "images": 3}
    take_format(values, "x", "")
    assert values == {"images": 3}


@pytest.mark.parametrize(
    ("found", "seen"),
    [({}, "no format number"), ({"format": 2}, "format 2"), ({"format": True}, "no format number")],
)
def test_another_number_or_none_is_one_line_that_says_what_to_do(found: dict[str, object], seen: str) -> None:
    with pytest.raises(DataError) as caught:
        take_format(found, "a.json", "build it again", DataError)
    what = f"a.json: written by another version of caffe-recipes ({seen}; this version reads format 1)"
    assert str(caught.value) == f"{what}; build it again"


def test_programs_that_cannot_import_the_number_have_the_same() -> None:
    assert f"\nFORMAT = {FORMAT} " in (ROOT / "tensorflow_programs/record_files.py").read_text()
    assert f"\nformat={FORMAT} " in (ROOT / "caffe_recipes/cluster/sh/node.sh").read_text()
