"""A finding: what lint has to say about one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Severity = Literal["error", "warning", "note"]

# Gravest first: an error trains nothing or the wrong thing, a warning likely does, a note is to be known.
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: where (`file:line:column`), what, what will happen, and what to write.

    `values` are the numbers it speaks of by name, unrounded. `phase` is the phase of a chain that it belongs
    to, if any. `accepted` is the reason for which a recipe accepts it, empty if it does not.
    """

    id: str
    severity: Severity
    where: str
    what: str
    effect: str
    write: str
    values: Mapping[str, float | str] = field(default_factory=lambda: MappingProxyType({}))
    phase: str = ""
    accepted: str = ""
