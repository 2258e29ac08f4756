"""Which item of one sequence is which item of another: by keys, and by the longest common subsequence."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

T = TypeVar("T")

# Items times items; above it (30,000 each) the table of bits would take over 100 MB.
_MOST_BITS = 900_000_000


def match_by_keys(
    old: Sequence[T],
    new: Sequence[T],
    keys: Iterable[Callable[[T], Hashable]],
    known: Mapping[int, int] = MappingProxyType({}),
) -> dict[int, int]:
    """Pair items of equal key, the surest key first; of several with one key, the first with the first.

    Beyond the pairs that are `known`, which come along.

    >>> match_by_keys(["aX", "bX"], ["bY", "aX"], [str, lambda item: item[0]])
    {0: 1, 1: 0}
    """
    pairs = dict(known)
    taken = set(pairs.values())
    for key in keys:
        waiting: dict[Hashable, list[int]] = {}  # the first one last
        for j in range(len(new) - 1, -1, -1):
            if j not in taken:
                waiting.setdefault(key(new[j]), []).append(j)
        for i, item in enumerate(old):
            if waiting and i not in pairs and (places := waiting.get(key(item))):
                pairs[i] = places.pop()
                taken.add(pairs[i])
    return pairs


def match_unique(
    old: Sequence[T], new: Sequence[T], keys: Iterable[Callable[[T], Hashable]]
) -> dict[int, int]:
    """Pair items whose key only they have, the surest key first.

    >>> match_unique(["a", "b", "b"], ["b", "b", "a"], [str])
    {0: 2}
    """
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for key in keys:
        if len(pairs) == min(len(old), len(new)):
            break
        counts = [Counter(map(key, items)) for items in (old, new)]
        places = {key(item): j for j, item in enumerate(new) if j not in taken}
        for i, item in enumerate(old):
            name = key(item)
            if i not in pairs and name in places and counts[0][name] == counts[1][name] == 1:
                pairs[i] = places[name]
                taken.add(pairs[i])
    return pairs


def longest_common(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Find a longest common subsequence, as pairs of indices in order.

    Hyyrö's bit-parallel algorithm: a row of the table is one integer, so 3,000 against 3,000 items take
    3,000 additions. Where the table would not fit in memory, only what both begin and end with is paired.

    >>> longest_common("abcd", "bxd")
    [(1, 0), (3, 2)]
    """
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    head = [(k, k) for k in range(start)]
    tail = [(len(old) - k, len(new) - k) for k in range(end, 0, -1)]
    a, b = old[start : len(old) - end], new[start : len(new) - end]
    middle = _pairs(a, b) if len(a) * len(b) <= _MOST_BITS else []
    return [*head, *((i + start, j + start) for i, j in middle), *tail]


def _pairs(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    places: defaultdict[Hashable, int] = defaultdict(int)
    for j, item in enumerate(b):
        places[item] |= 1 << j
    full = (1 << len(b)) - 1
    row, rows = full, [full]
    for item in a:
        met = row & places.get(item, 0)
        row = ((row + met) | (row - met)) & full
        rows.append(row)
    # A zero at bit j of row i: a[:i] and b[:j+1] have one item more in common than a[:i] and b[:j].
    found = []
    i, j = len(a), len(b)
    while i and j:
        if rows[i] >> (j - 1) & 1:
            j -= 1
        elif rows[i - 1] >> (j - 1) & 1:
            found.append((i - 1, j - 1))
            i, j = i - 1, j - 1
        else:
            i -= 1
    return found[::-1]
