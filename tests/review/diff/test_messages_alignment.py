"""The longest common subsequence, against a plain table; pairs by key."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from caffe_recipes.review.diff.messages import longest_common, match_by_keys

words = st.text("abcd", max_size=14)


def length_by_table(old: str, new: str) -> int:
    row = [0] * (len(new) + 1)
    for a in old:
        before = row
        row = [0]
        for j, b in enumerate(new):
            row.append(before[j] + 1 if a == b else max(before[j + 1], row[j]))
    return row[-1]


@settings(max_examples=300, database=None, derandomize=True)
@given(words, words)
def test_pairs_are_equal_in_order_and_as_many_as_there_can_be(old: str, new: str) -> None:
    pairs = longest_common(old, new)
    assert len(pairs) == length_by_table(old, new)
    assert all(old[i] == new[j] for i, j in pairs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs))


def test_lists_too_large_for_memory_are_paired_at_their_ends_only() -> None:
    old, new = [0, *range(1, 40_000), 7], [0, *range(39_999, 0, -1), 7]
    assert longest_common(old, new) == [(0, 0), (40_000, 40_000)]


def test_the_surest_key_goes_first_and_equal_keys_pair_in_order() -> None:
    old, new = ["a1", "a2", "b1"], ["a2", "a3", "a4"]
    assert match_by_keys(old, new, [str, lambda item: item[0]]) == {1: 0, 0: 1}
