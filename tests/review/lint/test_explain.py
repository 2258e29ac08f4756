"""`lint --explain`: each rule at length, in plain words."""

from __future__ import annotations

import pytest

from caffe_recipes.review.lint.check import _EXPLAINED, _PARTS, explain, judged_by
from caffe_recipes.review.lint.folders import all_rules
from caffe_recipes.review.lint.rules import RULES


@pytest.mark.parametrize("name", all_rules())
def test_every_rule_says_what_it_judges_and_how_it_is_accepted(name: str) -> None:
    text = explain(name, *all_rules()[name])
    heads = [line[:9].strip() for line in text.splitlines()[1:] if line[0] != " "]
    assert heads == ["finds", "judges", "happens", "write", "exit", "accept"]
    assert max(map(len, text.splitlines())) <= 110
    assert f"finding: {name}," in text
    assert judged_by(name)


def test_what_is_explained_exists() -> None:
    assert set(_EXPLAINED) <= set(all_rules())
    assert set(_PARTS) <= set(RULES)
    assert next(iter(RULES)) in _PARTS


@pytest.mark.parametrize(
    ("name", "judged"),
    [
        ("warmup-end-jump", "the rate of one solver"),
        ("weight-decay-large", "the values of one solver"),
        ("tmp-too-small", "a folder, or a recipe"),
        ("unused-top", "a net: a net's blobs and names: what nothing makes, what nothing reads"),
        ("dialect-field", "any prototxt, for the Caffe of --dialect"),
    ],
)
def test_a_rule_is_of_its_part_of_the_table(name: str, judged: str) -> None:
    assert judged_by(name).startswith(judged)


def test_a_note_fails_nothing_by_itself() -> None:
    assert "exit     0, unless with --fail-on note" in explain("zero-start-partly", "note", "x")
