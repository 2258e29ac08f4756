"""The result of a comparison: the files that differ, and the old and new value of each change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

ChangeKind = Literal["changed", "added", "removed", "renamed", "moved"]
FileStatus = Literal["changed", "added", "removed", "renamed", "unreadable"]


@dataclass(frozen=True, slots=True)
class ShownValue:
    """A value as text and as JSON; if `is_set` is false, it is Caffe's default, or None without one."""

    text: str
    value: Json = None
    is_set: bool = True


NOT_SET = ShownValue("not set", None, is_set=False)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a field, or of a whole layer if `field` is empty.

    `layer` is the layer's name, with its phase if it is in only one; empty outside layers. For a renamed
    layer, `old` and `new` hold its names; for a moved one, the layer before it. `note` says what else
    changes with it.
    """

    kind: ChangeKind
    field: str
    old: ShownValue = NOT_SET
    new: ShownValue = NOT_SET
    layer: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class RateChange:
    """A number of the schedule on both sides, at the `iterations` of each; None if a side has none.

    `part` is the field that holds the phase, in a file of several solvers.
    """

    name: str
    old: float | None
    new: float | None
    iterations: tuple[int | None, int | None] = (None, None)
    part: str = ""


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One file that differs. `renamed_from` is its old path; `note` says why it could not be compared."""

    path: str
    status: FileStatus
    kind: str = ""
    changes: tuple[Change, ...] = ()
    rates: tuple[RateChange, ...] = ()
    renamed_from: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that differs between two sides; `single` if each side is one file.

    `untracked` are files that are not compared, since git does not track them.
    """

    old: str
    new: str
    files: tuple[FileDiff, ...]
    values: tuple[Change, ...] = ()  # values of the recipe that are in no prototxt
    single: bool = False
    untracked: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether both sides have the same meaning."""
        return not self.files and not self.values

    @property
    def unreadable(self) -> bool:
        """Whether a file could not be compared."""
        return any(file.status == "unreadable" for file in self.files)
