"""The diagnosis of a failure, and the signature of the line that it explains."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# A rank can print a line of any length; what identifies a failure comes early.
MOST_CHARACTERS = 2000


@dataclass(frozen=True)
class Diagnosis:
    """The cause of a failure, what to do about it, and where that is known from.

    `repeats` is whether the same command would fail in the same way until something is changed. A guess is
    only one of several possible causes. A consequence follows from another failure: it is worth reading only
    where nothing explains that one.
    """

    name: str
    cause: str
    remedy: str
    source: str
    repeats: bool = True
    is_guess: bool = False
    is_consequence: bool = False

    def describe(self) -> str:
        """Return the cause in one sentence; a guess is called one.

        >>> Diagnosis("full", "the disk is full", "free space", "man 2 write", is_guess=True).describe()
        'this is a guess: the disk is full'
        """
        return f"this is a guess: {self.cause}" if self.is_guess else self.cause

    def as_lines(self) -> tuple[str, ...]:
        """Return the lines to print beneath the line that is explained."""
        return (f"  cause: {self.describe()}", f"  do:    {self.remedy}", f"  from:  {self.source}")


@dataclass(frozen=True)
class Signature:
    """A line that a program prints when it fails.

    `word` is in every such line, which `pattern`, searched in the line without its rank, decides where the
    word is not enough. A line that also belongs to a healthy run counts only if it comes `times` times in
    a run that has not reached its end, or last.
    """

    word: str
    diagnosis: Diagnosis
    pattern: str = ""
    times: int = 1
    _compiled: re.Pattern[str] | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the pattern once."""
        object.__setattr__(self, "_compiled", re.compile(self.pattern) if self.pattern else None)

    def matches(self, text: str) -> bool:
        """Return whether a line, without its rank, is one of these."""
        if self.word not in text:
            return False
        return self._compiled is None or self._compiled.search(text[:MOST_CHARACTERS]) is not None
