"""Comments of a prototxt, and what each stands by."""

from __future__ import annotations

import re
from dataclasses import dataclass


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
        self._add(path, Comment(above=self._take(len(self.waiting))))

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
        self._add("", Comment(above=tuple(lines[:-1])))

    def beside(self, path: str, opening: int | None = None) -> None:
        """Put what shares a line with the field beside it.

        With several lines between the block's `opening` and the comment, that is the line of its end: below.
        """
        sharing = [count for count, comment in enumerate(self.waiting, 1) if not self._is_alone(comment)]
        if not sharing:
            return
        end = self.waiting[0].start("comment")
        *above, last = self._take(sharing[-1])
        if opening is not None and "\n" in self._text[opening:end]:
            self._add(path, Comment(below=(*above, last)))
        elif path in self.found and self.found[path].beside:
            self._add(path, Comment(above=(*above, last)))
        else:
            self._add(path, Comment(above=tuple(above), beside=last))

    def below(self, path: str) -> None:
        """Put all that wait below the last field of the block."""
        self._add(path, Comment(below=self._take(len(self.waiting))))

    def _take(self, count: int) -> tuple[str, ...]:
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return tuple(match["comment"][1:].removeprefix(" ").rstrip() for match in taken)

    def _is_alone(self, comment: re.Match[str]) -> bool:
        start = comment.start("comment")
        return not self._text[self._text.rfind("\n", 0, start) + 1 : start].strip()

    def _add(self, path: str, new: Comment) -> None:
        if new == Comment():
            return
        old = self.found.get(path, Comment())
        self.found[path] = Comment(old.above + new.above, old.beside or new.beside, old.below + new.below)
