"""How well records are shuffled, from their labels in order: by neighbours, and by what a batch sees.

Training on records that are sorted by class, or whose classes drift along the file, loses accuracy. One
number finds the first and another the second; each is 1 for a random order and 0 for a sorted one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_SHUFFLED = 0.9  # from here on an order counts as random
_SORTED = 0.1
_DEVIATIONS = 3
_FEWEST = 32


@dataclass(frozen=True)
class Shuffledness:
    """What `measure_shuffledness` found; `count` records of `labels` classes, batches of `batch` neighbours.

    `equal` is the fraction of neighbours with equal labels, `equal_random` what a random order is expected to
    have, `equal_sorted` what a sorted one has; `classes` is the mean number of classes in a batch.
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

    @property
    def mean_run(self) -> float:
        """Count the records between two changes of label, on average."""
        return self.count / (1 + (1 - self.equal) * (self.count - 1)) if self.count else 0.0

    @property
    def by_neighbours(self) -> float:
        """Give (equal_sorted - equal) / (equal_sorted - equal_random), from 0 to 1."""
        return _place(self.equal, self.equal_sorted, self.equal_random)

    @property
    def by_batches(self) -> float:
        """Give (classes - classes_sorted) / (classes_random - classes_sorted), from 0 to 1."""
        return _place(self.classes, self.classes_sorted, self.classes_random)

    @property
    def verdict(self) -> str:
        """Say `shuffled`, `partly shuffled`, `sorted by class`, `one class`, or `too few records to tell`.

        Shuffled is what either measure puts at 0.9 or more, or within three standard deviations of random.
        """
        if self.labels == 1 and self.count > 1:
            return "one class"
        deviation = self._deviation()
        if self.count < _FEWEST or self.equal_sorted - self.equal_random < 2 * _DEVIATIONS * deviation:
            return "too few records to tell"
        if max(self.by_neighbours, self.by_batches) <= _SORTED:
            return "sorted by class"
        is_mixed = (
            self.by_neighbours >= _SHUFFLED or self.equal - self.equal_random <= _DEVIATIONS * deviation
        )
        # Rare in a batch are classes that come twice, or never: the variance is at most the mean of either.
        rare = min(self.batch, self.labels) - self.classes_random + 1
        missed = _DEVIATIONS * math.sqrt(rare / (self.count // self.batch))
        is_spread = self.by_batches >= _SHUFFLED or self.classes_random - self.classes <= missed
        return "shuffled" if is_mixed and is_spread else "partly shuffled"

    def _deviation(self) -> float:
        """Give the standard deviation of `equal` in random orders, of at least one pair of neighbours."""
        pairs = self.count - 1
        return (
            math.sqrt((self.equal_random * (1 - self.equal_random) + 1 / pairs) / pairs) if pairs > 0 else 0
        )


def measure_shuffledness(labels: Sequence[int], batch: int = 256) -> Shuffledness:
    """Measure the order of `labels`, n of them, n_c of class c; batches follow each other without overlap.

    Of fewer than four batches of records the batch is made a quarter of them. Of a random order are expected

        equal_random   = sum_c n_c (n_c - 1) / (n (n - 1))              neighbours with equal labels
        classes_random = sum_c 1 - C(n - n_c, batch) / C(n, batch)      classes in a batch

    >>> found = measure_shuffledness([0, 0, 0, 0, 1, 1, 1, 1], batch=2)
    >>> found.by_neighbours, found.by_batches, found.verdict
    (0.0, 0.0, 'too few records to tell')
    """
    counts = list(Counter(labels).values())
    n = len(labels)
    size = max(1, min(batch, n // 4))
    pairs = max(1, n - 1)
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
    )


def _place(value: float, worst: float, best: float) -> float:
    return 1.0 if math.isclose(worst, best) else max(0.0, min(1.0, (value - worst) / (best - worst)))


def _equal(labels: Sequence[int]) -> float:
    return sum(left == right for left, right in pairwise(labels)) / max(1, len(labels) - 1)


def _classes(labels: Sequence[int], size: int) -> float:
    """Give the mean number of different labels in whole batches of `size`."""
    starts = range(0, len(labels) - size + 1, size)
    return sum(len(set(labels[start : start + size])) for start in starts) / max(1, len(starts))


def _chance_of_none(n: int, k: int, size: int) -> float:
    """Give the chance that `size` of n records hold none of k: the product of (n - k - i) / (n - i).

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
