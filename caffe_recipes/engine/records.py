"""Which records of an LMDB a rank reads, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random


def record_order(count: int, rank: int, ranks: int, shuffle: int | None) -> Iterator[int]:
    """Yield the records that a rank reads, without end: rank, rank + ranks, ... of one list that repeats.

    All ranks walk the same list, so that together they read what one rank would. With a `shuffle` seed (the
    same on all ranks) the list is shuffled before it is first read, and again each time it ends.

    >>> from itertools import islice
    >>> list(islice(record_order(5, 0, 2, None), 6)), list(islice(record_order(5, 1, 2, None), 6))
    ([0, 2, 4, 1, 3, 0], [1, 3, 0, 2, 4, 1])
    """
    records = list(range(count))
    random = None if shuffle is None else Random(shuffle)
    if random:
        random.shuffle(records)
    place = rank
    while True:
        while place >= count:
            place -= count
            if random:
                random.shuffle(records)
        yield records[place]
        place += ranks
