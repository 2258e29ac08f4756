"""The manifest beside an LMDB may hold anything: a file with values of other types is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from caffe_recipes.data.build import build_lmdb
from caffe_recipes.data.check import check_lmdb
from caffe_recipes.data.manifest import load_manifest, manifest_path
from caffe_recipes.errors import DataError
from tests.data.conftest import plan_of

NO_COUNTS: tuple[object, ...] = (None, [], "x", -1, 1.5, True)
NO_NAMES: tuple[object, ...] = (-1, 1.5, [], {}, "x", [1])

NO_LABELS: tuple[object, ...] = ([], None, {"x": 1}, {"1": "x"}, {"1": None})


@pytest.fixture
def lmdb(listed: Path, tmp_path: Path) -> Path:
    build_lmdb(plan_of(listed), tmp_path / "lmdb")
    return tmp_path / "lmdb"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("images", value) for value in NO_COUNTS],
        *[("classes", value) for value in NO_NAMES],
        *[("labels", value) for value in NO_LABELS],
        *[("skipped", value) for value in ("x", None)],
        *[("seed", value) for value in NO_COUNTS[1:]],
        *[(key, None) for key in ("settings", "plan", "sha256")],
        ("size_bytes", "x"),
        ("strange", 1),
    ],
)
def test_a_value_of_another_type_is_bad_input(lmdb: Path, key: str, value: object) -> None:
    path = manifest_path(lmdb)
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(DataError, match="is not a manifest of an LMDB; remove it, or build the LMDB again"):
        check_lmdb(lmdb, decode=0)


@pytest.mark.parametrize("text", ["", "null", "[]", '{"format": 1}', "[" * 100_000])
def test_a_manifest_that_is_not_an_object_is_bad_input(lmdb: Path, text: str) -> None:
    manifest_path(lmdb).write_text(text)
    with pytest.raises(DataError, match="is not a manifest of an LMDB"):
        load_manifest(lmdb)


def test_a_manifest_of_another_format_is_bad_input(lmdb: Path) -> None:
    path = manifest_path(lmdb)
    assert path.read_text().startswith('{\n "format": 1,\n')
    path.write_text("{}")
    what = r"written by another version of caffe-recipes \(no format number; .*\); remove it, or build"
    with pytest.raises(DataError, match=what):
        load_manifest(lmdb)
