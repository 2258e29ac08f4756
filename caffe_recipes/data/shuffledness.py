"""Measure how well records are shuffled, from their labels in order.

Training on records that are sorted by class, or whose classes drift along the file, loses accuracy. Two
numbers measure the shuffling, by neighbours and by batches; each is 1 for a random order and 0 for a sorted
one. Neither detects that a class was merely appended. A third number does: how often two records of a batch
have the same class.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_SHUFFLED = 0.9  # an order with at least this value counts as random
_SORTED = 0.1
_DEVIATIONS, _APART = (
    4,
    6,
)  # in standard deviations: the maximum of a random order, the minimum of a sorted one
_MIN_RECORDS = 32
_ODDS = 10  # about one in e^10 random orders is not recognized as random


@dataclass(frozen=True)
class Shuffledness:
    """How well `count` records of `labels` classes are shuffled, in batches of `batch` consecutive records.

    `equal` is the fraction of neighbours with equal labels, `equal_random` its expectation in a random order,
    and `equal_sorted` its value in a sorted one. `classes` is the mean number of classes in a batch. `alike`
    is the fraction of all pairs in a batch with equal labels; its expectation is also `equal_random`, and
    `alike_most` is its upper limit for a random order.
    """

    count: int
    labels: int
    batch: int
    equal: float
    equal_random: float
    equal_sorted: float
    classes: float
    classes_random: float
    classes_sorted: float
    alike: float
    alike_most: float

    @property
    def mean_run(self) -> float:
        """The mean length of a run of records with equal labels."""
        return self.count / (1 + (1 - self.equal) * (self.count - 1)) if self.count else 0.0

    @property
    def by_neighbours(self) -> float:
        """(equal_sorted - equal) / (equal_sorted - equal_random), from 0 to 1."""
        return _fraction(self.equal, self.equal_sorted, self.equal_random)

    @property
    def by_batches(self) -> float:
        """(classes - classes_sorted) / (classes_random - classes_sorted), from 0 to 1."""
        return _fraction(self.classes, self.classes_sorted, self.classes_random)

    @property
    def times_alike(self) -> float:
        """alike / equal_random; 1 for a random order."""
        return self.alike / self.equal_random if self.equal_random else 1.0

    @property
    def verdict(self) -> str:
        """`shuffled`, `partly shuffled`, `sorted by class`, `one class`, or `too few records to judge`.

        An order is shuffled if it has no more equal pairs in batches than random orders have, and no more
        equal neighbours either, or hardly more (0.9 or above by neighbours).
        """
        if not self.is_judged:
            return "one class" if self.labels == 1 and self.count > 1 else "too few records to judge"
        deviation = self._deviation()
        if max(self.by_neighbours, self.by_batches) <= _SORTED:
            return "sorted by class"
        is_mixed = (
            self.by_neighbours >= _SHUFFLED or self.equal - self.equal_random <= _DEVIATIONS * deviation
        )
        return "shuffled" if is_mixed and self.alike <= self.alike_most else "partly shuffled"

    @property
    def is_judged(self) -> bool:
        """Whether there are several classes, and enough records to tell a random order from a sorted one."""
        is_apart = self.equal_sorted - self.equal_random >= _APART * self._deviation()
        return self.labels > 1 and self.count >= _MIN_RECORDS and is_apart

    def _deviation(self) -> float:
        """Return the standard deviation of `equal` in random orders, at least that of one pair."""
        pairs = self.count - 1
        return (
            math.sqrt((self.equal_random * (1 - self.equal_random) + 1 / pairs) / pairs) if pairs > 0 else 0
        )


def measure_shuffledness(labels: Sequence[int], batch: int = 256) -> Shuffledness:
    """Return the shuffledness of n `labels`, n_c of them of class c, in consecutive batches without overlap.

    If there are fewer than four batches, a batch is a quarter of the records. The expectations for a random
    order are

        equal_random   = sum_c n_c (n_c - 1) / (n (n - 1))              neighbours with equal labels
                       = pairs in a batch with equal labels
        classes_random = sum_c 1 - C(n - n_c, batch) / C(n, batch)      classes in a batch

    >>> found = measure_shuffledness([0, 0, 0, 0, 1, 1, 1, 1], batch=2)
    >>> found.by_neighbours, found.by_batches, found.verdict
    (0.0, 0.0, 'too few records to judge')
    """
    counts = list(Counter(labels).values())
    n = len(labels)
    size = max(1, min(batch, n // 4))
    pairs = max(1, n - 1)
    batches = [labels[start : start + size] for start in range(0, n, size)]
    alike_pairs = sum(len(each) * (len(each) - 1) // 2 for each in batches)
    return Shuffledness(
        count=n,
        labels=len(counts),
        batch=size,
        equal=_equal(labels),
        equal_random=sum(k * (k - 1) for k in counts) / (max(1, n) * pairs),
        equal_sorted=(n - len(counts)) / pairs,
        classes=_classes(labels, size),
        classes_random=sum(1 - _chance_of_none(n, k, size) for k in counts),
        classes_sorted=_classes(sorted(labels), size),
        alike=sum(k * (k - 1) // 2 for each in batches for k in Counter(each).values()) / max(1, alike_pairs),
        alike_most=_most_alike(counts, [len(each) for each in batches]),
    )


def _most_alike(counts: Sequence[int], sizes: Sequence[int]) -> float:
    """Return the upper limit, for a random order, of the fraction of equal pairs in batches of these `sizes`.

    The variance of the number of equal pairs is exact: its mean square is a sum over all pairs of pairs,
    which are equal, share a record, or share none. The number exceeds its mean by more than sqrt(2 variance
    x) + 2 weight x in at most one of e^x orders: Laurent and Massart, Annals of Statistics 28 (2000), lemma
    1, for sums of squares with the largest weight `weight`; with 1/2 this also holds for the Poisson
    distribution of rare pairs.
    """
    n, pairs = sum(counts), sum(size * (size - 1) // 2 for size in sizes)
    if n < 4 or not pairs:
        return 1.0
    twos, threes, fours = (sum(math.perm(k, times) for k in counts) for times in (2, 3, 4))
    both = fours + twos**2 - sum(math.perm(k, 2) ** 2 for k in counts)
    sharing = sum(size * (size - 1) * (size - 2) for size in sizes)  # ordered pairs of pairs with one record
    equal = twos / math.perm(n, 2)
    square = (
        pairs * equal
        + sharing * threes / math.perm(n, 3)
        + (pairs**2 - pairs - sharing) * both / math.perm(n, 4)
    )
    deviation = math.sqrt(max(square - (pairs * equal) ** 2, 0))
    weight = max(1, max(sizes) * max(counts) / n) / 2
    return equal + (deviation * math.sqrt(2 * _ODDS) + 2 * weight * _ODDS) / pairs


def _fraction(value: float, worst: float, best: float) -> float:
    return 1.0 if math.isclose(worst, best) else max(0.0, min(1.0, (value - worst) / (best - worst)))


def _equal(labels: Sequence[int]) -> float:
    return sum(left == right for left, right in pairwise(labels)) / max(1, len(labels) - 1)


def _classes(labels: Sequence[int], size: int) -> float:
    """Return the mean number of distinct labels in the full batches of `size`."""
    starts = range(0, len(labels) - size + 1, size)
    return sum(len(set(labels[start : start + size])) for start in starts) / max(1, len(starts))


def _chance_of_none(n: int, k: int, size: int) -> float:
    """Return the probability that `size` of n records contain none of k: prod of (n - k - i) / (n - i).

    >>> round(_chance_of_none(4, 2, 2), 4)
    0.1667
    """
    if n - k < size:
        return 0.0
    return math.exp(
        math.lgamma(n - k + 1)
        - math.lgamma(n - k - size + 1)
        - math.lgamma(n + 1)
        + math.lgamma(n - size + 1)
    )
