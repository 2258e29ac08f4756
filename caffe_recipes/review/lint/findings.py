"""A finding of lint: what is wrong, where, and the edits that fix it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
# Most severe first. With an error, Caffe trains nothing or the wrong thing; with a warning, it probably does;
# a note may matter.
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Fix:
    """An edit of a field that fixes a finding: set the field to `new`, or remove it if `new` is empty.

    With a `comment`, that comment beside or above the field is replaced with `new` instead. `where` is a
    place as in `Finding`; `field` is the name of the field at that place.
    """

    where: str
    field: str
    new: str = ""
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake: where it is (`file:line:column`), what is wrong, what will happen, and what to write.

    `where` is the path of a field (`layer[3].top[0]`) until `located` replaces it with a place. `values`
    holds the numbers in the text by name, unrounded. `phase` is the phase of the chain that the finding is
    about, if any. `accepted` is the recipe's reason for accepting it, or empty. `fixes` holds the edits that
    `--fix` makes.
    """

    id: str
    severity: Severity
    where: str
    what: str
    effect: str
    write: str
    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    phase: str = ""
    accepted: str = ""
    fixes: tuple[Fix, ...] = ()

    def located(self, where: Callable[[str], str], phase: str = "") -> Finding:
        """Return this finding with its field paths replaced by places, and with its phase set."""
        fixes = tuple(replace(fix, where=where(fix.where)) for fix in self.fixes)
        return replace(self, where=where(self.where), phase=phase or self.phase, fixes=fixes)


_PLACE = re.compile(r"(.*?)(?::(\d+))?(?::(\d+))?", re.DOTALL)


def split_place(where: str) -> tuple[str, int, int]:
    """Split `file:line:column` into its parts; a missing line or column is 0.

    >>> split_place("a:b.prototxt:12:3"), split_place("net.prototxt")
    (('a:b.prototxt', 12, 3), ('net.prototxt', 0, 0))
    """
    match = _PLACE.fullmatch(where)
    assert match
    return match[1], int(match[2] or 0), int(match[3] or 0)
