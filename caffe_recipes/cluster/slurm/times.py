"""Parse and render Slurm's times: limits such as `2-03:04:05`, `UNLIMITED` or minutes, and timestamps.

Timestamps are on the clock of the queried machine.
"""

from __future__ import annotations

import math
import re
from datetime import datetime

from caffe_recipes.errors import ClusterError

_MAX_S = 10 * 366 * 86_400
_UNLIMITED = ("unlimited", "infinite")
_NOT_SET = ("", "none", "n/a", "(null)", "partition_limit", "not_set", "invalid", "unknown")
_DAYS = re.compile(r"(\d{1,6})-(\d{1,6})(?::(\d{1,2}))?(?::(\d{1,2}))?")
_CLOCK = re.compile(r"(?:(\d{1,8}):)?(\d{1,8})(?::(\d{1,2}))")
_HINT = "write minutes, e.g. 90, or days-hours:minutes:seconds, e.g. 1-12:00:00"


def parse_limit(text: str, where: str) -> float | None:
    """Return a time limit in seconds: infinity for no limit, None if Slurm reports it as not set.

    The formats are those of sbatch(1): minutes, minutes:seconds, hours:minutes:seconds, days-hours,
    days-hours:minutes and days-hours:minutes:seconds. Raises ClusterError for any other text.

    >>> [parse_limit(text, "") for text in ("90", "90:30", "1:30:00", "2-03", "2-03:04", "2-03:04:05")]
    [5400.0, 5430.0, 5400.0, 183600.0, 183840.0, 183845.0]
    >>> parse_limit("UNLIMITED", ""), parse_limit("Partition_Limit", "")
    (inf, None)
    """
    word = text.strip()
    if word.lower() in _UNLIMITED:
        return math.inf
    if word.lower() in _NOT_SET:
        return None
    if re.fullmatch(r"\d{1,8}", word):
        return 60.0 * int(word)
    if found := _DAYS.fullmatch(word):
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    elif found := _CLOCK.fullmatch(word):
        days, (hours, minutes, seconds) = 0, (int(part or 0) for part in found.groups())
    else:
        raise ClusterError(where, f"{text[:80]!r} is not a Slurm time", _HINT)
    return float(((24 * days + hours) * 60 + minutes) * 60 + seconds)


def render_limit(seconds: float) -> str:
    """Return a time limit for sbatch, rounded up to whole minutes, the unit that Slurm uses.

    Raises ClusterError for 0, which Slurm would read as unlimited, and for more than ten years.

    >>> [render_limit(seconds) for seconds in (30, 5400, 183_845)]
    ['00:01:00', '01:30:00', '2-03:05:00']
    """
    if not 0 < seconds <= _MAX_S:
        raise ClusterError(
            "--time", f"{seconds:,.10g} s is not a time limit", "give more than 0 s and at most ten years"
        )
    hours, minutes = divmod(math.ceil(seconds / 60), 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes:02}:00"


def describe_limit(seconds: float | None) -> str:
    """Return a time limit as text with at most two units, rounded down.

    >>> [describe_limit(seconds) for seconds in (45, 1800, 5400, 183_845, float("inf"), None)]
    ['45 s', '30 min', '1 h 30 min', '2 d 03 h', 'no limit', 'no time set']
    """
    if seconds is None:
        return "no time set"
    if math.isinf(seconds):
        return "no limit"
    minutes, rest = divmod(int(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours == 0:
        return f"{minutes} min"
    return f"{hours} h {minutes:02} min" if hours < 24 else f"{hours // 24} d {hours % 24:02} h"


def parse_moment(text: str, where: str) -> datetime | None:
    """Return a timestamp on the clock of the queried machine; None if Slurm does not know it.

    Raises ClusterError for any format other than SLURM_TIME_FORMAT=standard.

    >>> parse_moment("2026-11-20T20:56:50", "")
    datetime.datetime(2026, 11, 20, 20, 56, 50)
    """
    if text.strip().lower() in _NOT_SET:
        return None
    try:
        return datetime.strptime(text.strip(), "%Y-%m-%dT%H:%M:%S")
    except ValueError:
        raise ClusterError(where, f"{text[:80]!r} is not a Slurm timestamp", "report this output") from None
