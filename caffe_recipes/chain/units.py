"""Durations and sizes as people read them."""

from __future__ import annotations

from collections.abc import Sequence


def describe_duration(seconds: float) -> str:
    """Write a duration in the two units that matter, rounded to the nearest of the smaller.

    >>> [describe_duration(s) for s in (7.4, 125, 14_694)]
    ['7 s', '2 min 05 s', '4 h 05 min']
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min"


def describe_bytes(count: float) -> str:
    """Write a size in powers of 1000, three digits of it.

    >>> [describe_bytes(n) for n in (999, 4_222_976, 42e9)]
    ['999 bytes', '4.22 MB', '42 GB']
    """
    if count < 1000:
        return f"{count:.0f} bytes"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 999.5:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:,.3g} TB"


def describe_count(count: int, noun: str) -> str:
    """Write a number of things.

    >>> describe_count(1, "rank"), describe_count(4096, "rank")
    ('1 rank', '4,096 ranks')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def describe_names(names: Sequence[str]) -> str:
    """Write the first few of many names.

    >>> describe_names(["a", "b"]), describe_names(["a", "b", "c", "d"])
    ('a, b', 'a, b, ... (4 in all)')
    """
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]}, ... ({len(names)} in all)"
