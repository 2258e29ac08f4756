"""Columns: padded to one width, numbers to the right."""

from __future__ import annotations

from caffe_recipes.review.text_columns import align_columns


def test_nothing_is_aligned_to_nothing() -> None:
    assert align_columns([]) == []


def test_no_line_ends_in_blanks() -> None:
    assert align_columns([("a", "long"), ("b", "")]) == ["a  long", "b"]


def test_a_table_too_wide_drops_columns_first_and_then_wraps_the_last() -> None:
    rows = [("n", "epoch", "by"), ("1", "203.3", "the recipe's reported rate")]
    assert align_columns(rows, width=24, drop=["epoch"]) == [
        "n  by",
        "1  the recipe's reported",
        "   rate",
    ]
    assert align_columns(rows, width=28, drop=["epoch"])[1:] == [
        "1  203.3  the recipe's",
        "          reported rate",
    ]
    assert align_columns(rows, width=None, drop=["epoch"]) == align_columns(rows)
