"""What the families' rows generate has the digests that are committed in its place."""

from __future__ import annotations

import json

import pytest

import caffe_recipes as cr
from caffe_recipes.generate.dialect import translate_whole
from tests.generate.family_digests import FILE, ROWS, file_digests, net_digests

DIGESTS = json.loads(FILE.read_text())


def test_every_row_has_digests_and_nothing_else_has() -> None:
    assert list(DIGESTS) == ["nets", *ROWS]


@pytest.mark.parametrize("name", ROWS)
def test_a_row_generates_what_its_digests_say(name: str) -> None:
    assert file_digests(cr.load_recipe(name)) == DIGESTS[name], "run `make generate`"


def test_equal_nets_have_one_digest_and_no_other_net_has_any() -> None:
    found: dict[str, str] = {}
    for name in ROWS:
        for key, digest in net_digests(cr.load_recipe(name)).items():
            assert found.setdefault(key, digest) == digest
    assert found == DIGESTS["nets"], "run `make generate`"


def test_a_derived_value_says_so_beside_it_in_the_solver() -> None:
    text = cr.generate(cr.load_recipe("paper-t2-8192-256n"))[
        "prototxt/paper-t2-8192-256n/solver_main.prototxt"
    ]
    assert "base_lr: 3.2 # derived: 0.1 for each 256 images\n" in text
    assert "warmup_iter: 782 # 5.00 epochs; derived: 5 epochs\n" in text
    assert "max_iter: 14200 # 90.80 epochs\n" in text


@pytest.mark.parametrize("name", ["paper-f4-4096-120ep", "paper-t8-4096-128n-collapse"])
def test_what_is_derived_of_a_field_that_another_caffe_lacks_is_left_out(name: str) -> None:
    translated = translate_whole(cr.load_recipe(name), "intel")
    solvers = [text for path, text in cr.generate(translated).items() if "/solver_" in path]
    assert len(solvers) == len(translated.phases)
    assert not any("\nlr_iter" in text for text in solvers)
