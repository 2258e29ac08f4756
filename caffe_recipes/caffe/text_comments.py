"""Comments of a prototxt, and what each stands by."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Comment:
    """Comment one field: lines above it, text beside it, lines below the last field of its block.

    The file itself has lines above (its header) and below. No text holds a line break or the `#`.
    """

    above: tuple[str, ...] = ()
    beside: str = ""
    below: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse text that would not stay on its line."""
        for text in (*self.above, self.beside, *self.below):
            if "\n" in text:
                raise ValueError(f"a comment is one line, not {text!r}")


class CommentCollector:
    """Gathers the comments that a parser meets and gives each the path of what it stands by."""

    def __init__(self, text: str) -> None:
        """Start with the text that the comments are found in."""
        self.found: dict[str, Comment] = {}
        self.waiting: list[re.Match[str]] = []
        self._text = text

    def above(self, path: str) -> None:
        """Put all that wait above the field."""
        lines = tuple(self._take(len(self.waiting)))
        self._add(path, above=lines)

    def header(self, start: int) -> None:
        """Put what a blank line separates from the first field, at `start`, into the file's header."""
        ends = [comment.end() for comment in self.waiting]
        starts = [comment.start("comment") for comment in self.waiting[1:]] + [start]
        breaks = [self._text.count("\n", end, start) > 1 for end, start in zip(ends, starts, strict=False)]
        if True not in breaks:
            return
        count = len(breaks) - breaks[::-1].index(True)
        lines: list[str] = []
        for text, is_break in zip(self._take(count), breaks, strict=False):
            lines += [text, ""] if is_break else [text]
        self._add("", above=tuple(lines[:-1]))

    def beside(self, path: str, opening: int | None = None) -> None:
        """Put what shares a line with the field beside it; below, where its block opened on another line."""
        count = 0
        while count < len(self.waiting) and not self._is_alone(self.waiting[count]):
            count += 1
        if not count:
            return
        if opening is not None and "\n" in self._text[opening : self.waiting[0].start("comment")]:
            self._add(path, below=tuple(self._take(count)))
            return
        *above, beside = self._take(count)
        self._add(path, above=tuple(above), beside=beside)

    def below(self, path: str) -> None:
        """Put all that wait below the last field of the block."""
        self._add(path, below=tuple(self._take(len(self.waiting))))

    def _take(self, count: int) -> Iterable[str]:
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return [match["comment"][1:].removeprefix(" ").rstrip() for match in taken]

    def _is_alone(self, comment: re.Match[str]) -> bool:
        start = comment.start("comment")
        return not self._text[self._text.rfind("\n", 0, start) + 1 : start].strip()

    def _add(
        self, path: str, above: tuple[str, ...] = (), beside: str = "", below: tuple[str, ...] = ()
    ) -> None:
        if not (above or beside or below):
            return
        old = self.found.get(path, Comment())
        if beside and old.beside:
            above, beside = (*above, beside), old.beside
        self.found[path] = replace(
            old, above=old.above + above, beside=beside or old.beside, below=old.below + below
        )
