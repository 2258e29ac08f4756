"""What the families' rows generate has the digests that are committed in its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import caffe_recipes as cr
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import digest, parse_prototxt
from caffe_recipes.recipe.source import load_any_recipe
from caffe_recipes.render.dialect import translate_whole
from caffe_recipes.render.prototxts import build_net
from caffe_recipes.render.recipe_files import generate_all, net_file
from caffe_recipes.render.tree import find_differences, find_stale, write_files
from tests.render.family_digests import DIGESTED, FILE, ROWS, file_digests, net_digests
from tests.shipped import OF_CAFFE

DIGESTS = json.loads(FILE.read_text())


def test_exactly_the_uncommitted_files_have_digests() -> None:
    assert list(DIGESTS) == ["nets", *DIGESTED]


@pytest.mark.parametrize("name", DIGESTED)
def test_a_recipe_generates_files_with_the_recorded_digests(name: str) -> None:
    assert file_digests(load_any_recipe(name)) == DIGESTS[name], "run `make generate`"


def test_equal_nets_have_one_digest_and_no_other_net_has_any() -> None:
    found: dict[str, str] = {}
    for name in ROWS:
        for key, found_digest in net_digests(cr.load_recipe(name)).items():
            assert found.setdefault(key, found_digest) == found_digest
    assert found == DIGESTS["nets"], "run `make generate`"


def test_a_derived_value_is_marked_in_the_solver() -> None:
    text = cr.generate(cr.load_recipe("paper-t2-8192-256n"))[
        "prototxt/paper-t2-8192-256n/solver_main.prototxt"
    ]
    assert "base_lr: 3.2 # derived: 0.1 for each 256 images\n" in text
    assert "warmup_iter: 782 # 5.00 epochs; derived: 5 epochs\n" in text
    assert "max_iter: 14200 # 90.80 epochs\n" in text


@pytest.mark.parametrize("name", ["paper-f4-4096-120ep", "paper-t8-4096-128n-collapse"])
def test_derived_values_of_a_field_that_another_caffe_lacks_are_omitted(name: str) -> None:
    translated = translate_whole(cr.load_recipe(name), "intel")
    solvers = [text for path, text in cr.generate(translated).items() if "/solver_" in path]
    assert len(solvers) == len(translated.phases)
    assert not any("\nlr_iter" in text for text in solvers)


def test_equal_nets_of_all_rows_are_written_once() -> None:
    rows = [cr.load_recipe(name) for name in ROWS]
    files = generate_all(rows)
    paths = {net_file(recipe, net) for recipe in rows for net in recipe.nets}
    messages = [digest(parse_prototxt(files[path], pb.NetParameter, path)) for path in paths]
    assert len(set(messages)) == len(messages) == 14
    assert sum(len(recipe.nets) for recipe in rows) == 37


@pytest.mark.parametrize("name", OF_CAFFE)
def test_no_two_nets_of_one_recipe_are_equal(name: str) -> None:
    recipe = cr.load_recipe(name)
    messages = [digest(build_net(recipe, net)) for net in recipe.nets]
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_s_solvers_name_the_nets_where_they_are_shared(name: str) -> None:
    recipe = cr.load_recipe(name)
    home, shared = recipe.prototxt_dirs
    for phase in recipe.phases:
        text = cr.generate(recipe)[f"prototxt/{name}/solver_{phase.name}.prototxt"]
        assert f'net: "{shared}/{phase.net}.prototxt"\n' in text
    assert home.rpartition("/")[0] == shared.rpartition("/")[0]


def test_rows_generated_one_by_one_agree_on_what_they_share(tmp_path: Path) -> None:
    plain, collapsed = (
        cr.generate(cr.load_recipe(f"paper-t8-4096-128n-{name}")) for name in ("decay5e-5", "collapse")
    )
    both = plain.keys() & collapsed.keys()
    assert both == {"prototxt/paper-vlab-batch-32/train_val.prototxt"}
    write_files(collapsed, tmp_path)
    assert not both & set(write_files(plain, tmp_path))
    # The net of the other one's collapse is in the folder, and not stale.
    assert find_stale(plain, tmp_path) == []
    assert find_differences(plain | collapsed, tmp_path) == []


def test_a_row_for_another_caffe_shares_the_same_nets() -> None:
    recipe = cr.load_recipe("paper-t8-4096-128n-collapse")
    ours, theirs = cr.generate(recipe), cr.generate(translate_whole(recipe, "intel"))
    shared = ours.keys() & theirs.keys()
    assert shared == {net_file(recipe, net) for net in recipe.nets}
    assert all(ours[path] == theirs[path] for path in shared)
