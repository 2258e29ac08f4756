"""Columns: padded to one width, numbers to the right."""

from __future__ import annotations

import doctest

from caffe_recipes.review.columns import align_columns
from caffe_recipes.review.inspect import show


def test_nothing_is_aligned_to_nothing() -> None:
    assert align_columns([]) == []


def test_no_line_ends_in_blanks() -> None:
    assert align_columns([("a", "long"), ("b", "")]) == ["a  long", "b"]


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(show).failed == 0
