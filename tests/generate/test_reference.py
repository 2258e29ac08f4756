"""What the 64-node recipe generates equals the authors' own files, as messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import caffe_recipes as cr
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import digest, load_prototxt, parse_prototxt

HERE = Path(__file__).resolve().parent
DIGESTS = json.loads((HERE.parent / "reference_digests.json").read_text())
PUBLISHED = HERE.parent.parent.parent / "shared" / "reference" / "surfsara" / "resnet50_custom_lr"
FOLDER = "prototxt/stampede2-64n-72ep"


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return cr.generate(cr.load_recipe("stampede2-64n-72ep"))


def message_class(name: str) -> type[pb.SolverParameter] | type[pb.NetParameter]:
    return pb.SolverParameter if name.startswith("solver_") else pb.NetParameter


def test_the_seven_published_files_are_generated_and_no_other_prototxt(files: dict[str, str]) -> None:
    assert {path for path in files if path.endswith(".prototxt")} == {f"{FOLDER}/{name}" for name in DIGESTS}
    assert len(DIGESTS) == 7


@pytest.mark.parametrize("name", DIGESTS)
def test_a_generated_file_has_the_published_digest(files: dict[str, str], name: str) -> None:
    assert digest(parse_prototxt(files[f"{FOLDER}/{name}"], message_class(name))) == DIGESTS[name]


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not beside this checkout")
@pytest.mark.parametrize("name", DIGESTS)
def test_a_generated_file_equals_the_published_message(files: dict[str, str], name: str) -> None:
    published = load_prototxt(PUBLISHED / name, message_class(name))
    assert parse_prototxt(files[f"{FOLDER}/{name}"], message_class(name)) == published
