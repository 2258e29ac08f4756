"""Write durations, sizes and numbers for people, with units that suit how large they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def describe_duration(seconds: float) -> str:
    """Write a duration in its two largest units, rounded to the nearest of the smaller one.

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


def write_clock(seconds: float, *, is_short: bool = False) -> str:
    """Write a duration as m:ss or h:mm:ss, rounded to the second, for columns of fixed width.

    A short one has no seconds from an hour on.

    >>> [write_clock(s) for s in (7.4, 125, 14_694)], write_clock(14_694, is_short=True)
    (['0:07', '2:05', '4:04:54'], '4h04m')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if is_short else f"{hours}:{minutes:02}:{rest:02}"


def describe_bytes(count: float) -> str:
    """Write a size in powers of 1000, to three significant digits.

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


def describe_binary(count_bytes: float) -> str:
    """Write a size in powers of 1024, to a tenth.

    >>> describe_binary(102228384), describe_binary(500)
    ('97.5 MiB', '500 bytes')
    """
    size, units = float(count_bytes), iter(("KiB", "MiB", "GiB", "TiB"))
    if size < 1024:
        return f"{count_bytes:.0f} bytes"
    unit = ""
    while size >= 1024 and (following := next(units, "")):
        size, unit = size / 1024, following
    return f"{size:.1f} {unit}"


_FEW_S = 600  # shorter times are in seconds
_MOST = 10_000  # of a unit, before the next larger unit is used
_LARGEST = 1e9  # number that is written with all its digits


@dataclass(frozen=True)
class Unit:
    """A unit of time."""

    name: str
    short: str
    seconds: float

    def write(self, seconds: float) -> str:
        """Write a time in this unit, to a tenth."""
        count = seconds / self.seconds
        return f"{count:,.1f}" if count < _LARGEST else f"{count:.3g}"


SECONDS = Unit("seconds", "s", 1)
MINUTES = Unit("minutes", "min", 60)
HOURS = Unit("hours", "h", 3600)
LONGER = (
    MINUTES,
    HOURS,
    Unit("days", "days", 86_400),
    Unit("years", "years", 365.25 * 86_400),
)


def unit_of(seconds: float, units: Sequence[Unit] = LONGER) -> Unit:
    """Return the smallest of some units in which a time is at most 10,000, or else the largest.

    Below ten minutes it is seconds.

    >>> [unit_of(minutes * 60).name for minutes in (9, 245, 20_000, 10**6, 10**9)]
    ['seconds', 'minutes', 'hours', 'days', 'years']
    """
    if seconds < _FEW_S:
        return SECONDS
    return next((unit for unit in units if seconds <= _MOST * unit.seconds), units[-1])


def write_time(seconds: float) -> str:
    """Write a time in seconds, or in a longer unit from 10,000 s on, with the unit.

    >>> write_time(203.26), write_time(1_281_167)
    ('203.3 s', '355.9 h')
    """
    unit = unit_of(seconds, (SECONDS, *LONGER[1:]))
    return f"{unit.write(seconds)} {unit.short}"


def write_number(value: float, decimals: int = 0) -> str:
    """Write a number to some decimals, or to three significant digits if it is too large or small for that.

    >>> write_number(6303), write_number(0.031), write_number(1e12), write_number(0.0, 1)
    ('6,303', '0.031', '1e+12', '0.0')
    """
    is_plain = not value or 10**-decimals <= abs(value) < _LARGEST
    return f"{value:,.{decimals}f}" if is_plain else f"{value:.3g}"
