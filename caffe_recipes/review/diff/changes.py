"""What a comparison finds: values, with both sides of each change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

ChangeKind = Literal["changed", "added", "removed", "renamed", "moved"]
FileStatus = Literal["changed", "added", "removed", "renamed", "unreadable"]


@dataclass(frozen=True, slots=True)
class Given:
    """A value as text and as JSON; where `is_set` is false, the default that Caffe takes instead, if any."""

    text: str
    value: Json = None
    is_set: bool = True


NOT_SET = Given("not set", None, is_set=False)


@dataclass(frozen=True, slots=True)
class Change:
    """One change: of a field, or of a whole layer where `field` is empty.

    `layer` is the layer's name, with its phase if it has one; empty outside the layers. A layer renamed or
    moved holds its names, or what it stood behind, in `old` and `new`. `note` is what else goes with it.
    """

    kind: ChangeKind
    field: str
    old: Given = NOT_SET
    new: Given = NOT_SET
    layer: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class RateChange:
    """A number of the schedule on both sides: None where a side has none. `iterations` are those of each.

    `part` is the phase of a solver of several, by its field.
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
    """Everything that differs between two sides; `single` where each side is one file."""

    old: str
    new: str
    files: tuple[FileDiff, ...]
    values: tuple[Change, ...] = ()  # the recipe's own, which no prototxt holds
    single: bool = False

    @property
    def equal(self) -> bool:
        """Whether both sides mean the same."""
        return not self.files and not self.values

    @property
    def unreadable(self) -> bool:
        """Whether a file could not be compared."""
        return any(file.status == "unreadable" for file in self.files)
