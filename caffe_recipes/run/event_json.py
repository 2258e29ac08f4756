"""Create the dataclasses of events from the JSON of a journal, which may hold anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any


def _strings(value: Sequence[Any]) -> tuple[str, ...]:
    return tuple(str(each) for each in value)


def _floats(value: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(number) for name, number in value.items()}


def _whole(value: Any) -> int:  # noqa: ANN401 - any JSON
    number = int(value)
    if abs(number) >= 1 << 63:
        raise ValueError("too large for a count or a process id")
    return number


# A float that is printed as a duration or a speed, unlike a loss, which may be NaN.
Finite = float


def _finite(value: Any) -> float:  # noqa: ANN401 - any JSON
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not finite")
    return number


# The conversion from JSON for each field type. A journal may hold anything.
_FROM_JSON: Mapping[str, Callable[[Any], Any]] = {
    "bool": bool,
    "float": float,
    "Finite": _finite,
    "int": _whole,
    "str": str,
    "Sequence[str]": _strings,
    "tuple[str, ...]": _strings,
    "Mapping[str, float]": _floats,
    "Mapping[str, str]": dict,
    "Mapping[str, str | None]": dict,
}


def from_json(kind: Any, details: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any dataclass
    """Create a dataclass from JSON.

    Raises TypeError, KeyError, ValueError or OverflowError if they are invalid.
    """
    types = {each.name: str(each.type) for each in fields(kind)}
    values: dict[str, Any] = {}
    for name, value in details.items():
        is_none = value is None and types[name].endswith(" | None")
        convert = _FROM_JSON[types[name].removesuffix(" | None")]
        values[name] = None if is_none else convert(value)
    return kind(**values)
