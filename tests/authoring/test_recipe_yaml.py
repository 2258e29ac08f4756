"""A recipe's YAML reads back as the recipe, in the shortest form, with its comments where they belong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from caffe_recipes.authoring.recipe_yaml import render_yaml, write_recipe
from caffe_recipes.config import parse_yaml
from caffe_recipes.errors import RecipeError
from caffe_recipes.recipe.source import load_recipe, parse_recipe
from tests.shipped import OF_CAFFE

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
SCALARS = st.one_of(
    TEXTS, st.booleans(), st.none(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)
)
PARTS = st.dictionaries(TEXTS, SCALARS | st.lists(SCALARS), max_size=3)
VALUES = st.dictionaries(
    TEXTS,
    st.recursive(
        SCALARS | st.lists(SCALARS, max_size=3) | st.lists(PARTS.filter(bool), max_size=3),
        lambda inner: st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=5,
    ),
    min_size=1,
    max_size=4,
)


def tuples(value: object) -> object:
    if isinstance(value, dict):
        return {key: tuples(item) for key, item in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value


@settings(max_examples=100)
@given(VALUES)
@example({"": [{"": None}, {"\xa0": None}]})
def test_whatever_is_written_reads_back(given_values: dict[str, object]) -> None:
    read = parse_yaml(render_yaml(given_values, {}), "x", "recipe", RecipeError).raw
    assert read == tuples(given_values)


@pytest.mark.parametrize("name", OF_CAFFE)
def test_a_recipe_that_ships_reads_back_from_its_values(name: str) -> None:
    recipe = load_recipe(name)
    again = parse_recipe(write_recipe(recipe, {}), name, Path())
    assert again.model_dump(exclude={"solver"}) == recipe.model_dump(exclude={"solver"})


def test_shared_fields_are_written_once_and_defaults_never() -> None:
    written = write_recipe(load_recipe("stampede2-64n-72ep"), {})
    assert written.count("momentum: 0.9") == 1
    assert written.count("weight_decay:") == 2
    assert "interp_mode" not in written
    assert "copy_with: ssh" in written


def test_a_comment_stands_above_what_it_is_about() -> None:
    comments = {
        (): ["Top."],
        ("net", "classes"): ["Ten."],
        ("phases", 1): ["Second."],
        ("phases", 1, "max_iter"): ["Long."],
    }
    written = render_yaml(
        {"name": "a", "net": {"classes": 10}, "phases": [{"name": "x"}, {"name": "y", "max_iter": 9}]},
        comments,
    )
    assert written == (
        "# Top.\nname: a\n\nnet:\n  # Ten.\n  classes: 10\n\n"
        "phases:\n  - name: x\n  # Second.\n  - name: y\n    # Long.\n    max_iter: 9\n"
    )
