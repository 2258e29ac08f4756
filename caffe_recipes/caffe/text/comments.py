"""Collect the comments of a prototxt, with the field that each belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")


@dataclass(frozen=True, slots=True)
class Comment:
    """The comments around one field, and how the author laid the field out.

    Comments are lines `above` the field; text `beside` it (if it is a block, beside its opening brace); lines
    `below` the last field of its block; text beside the `closing` brace of its block; and lines `after` it,
    which a blank line separates from the next field. `is_apart` means that a blank line precedes the field,
    which is an outermost one; `is_inline`, that its block is on one line.

    The file itself has lines above (its header) and below it; `is_apart` means that a blank line precedes the
    latter. The texts contain neither line breaks nor the leading `#`.
    """

    above: tuple[str, ...] = ()
    beside: str = ""
    below: tuple[str, ...] = ()
    closing: str = ""
    after: tuple[str, ...] = ()
    is_apart: bool = False
    is_inline: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError if a text has a line break."""
        for text in self.texts:
            if "\n" in text:
                raise ValueError(f"a comment must be one line, not {text!r}")

    @property
    def texts(self) -> tuple[str, ...]:
        """All lines of comments, in the order of the file."""
        beside, closing = ((text,) if text else () for text in (self.beside, self.closing))
        return (*self.above, *beside, *self.below, *closing, *self.after)


def comment_text(comment: str) -> str:
    """Return the text of a comment without its `#` and one space; the space stays if another `#` follows.

    >>> comment_text("# 90 epochs"), comment_text("## 90 epochs"), comment_text("# # old")
    ('90 epochs', '# 90 epochs', ' # old')
    """
    text = comment[1:].rstrip()
    return text if text.lstrip(" ").startswith("#") else text.removeprefix(" ")


def comment_line(text: str) -> str:
    """Return a comment with the given text: the inverse of `comment_text`.

    >>> comment_line("90 epochs"), comment_line("# 90 epochs"), comment_line(" # old"), comment_line("")
    ('# 90 epochs', '## 90 epochs', '# # old', '#')
    """
    return f"#{'' if not text or text.lstrip(' ').startswith('#') else ' '}{text}"


_NOTHING, _APART, _INLINE = Comment(), Comment(is_apart=True), Comment(is_inline=True)


class CommentCollector:
    """Collects the comments that a parser finds, by the path of the field that each belongs to."""

    def __init__(self, text: str) -> None:
        """Start without comments, for the text that is being parsed."""
        self.found: dict[str, Comment] = {}
        self.pending: list[re.Match[str]] = []
        self._text = text
        self._attached_to = 0

    def attach_header(self, start: int) -> None:
        """Attach the comments that a blank line separates from the first field, at `start`, to the file."""
        ends = [comment.end() for comment in self.pending]
        starts = [comment.start("comment") for comment in self.pending[1:]] + [start]
        breaks = [self._text.count("\n", end, start) > 1 for end, start in zip(ends, starts, strict=False)]
        if True not in breaks:
            return
        count = len(breaks) - breaks[::-1].index(True)
        lines: list[str] = []
        for text, is_break in zip(self._pop(count), breaks, strict=False):
            lines += [text, ""] if is_break else [text]
        self._add("", Comment(above=tuple(lines[:-1])))

    def attach_above(self, path: str) -> None:
        """Attach all pending comments above the field."""
        self._add(path, Comment(above=self._pop(len(self.pending))))

    def attach_opening(self, path: str) -> None:
        """Attach a comment on the same line as the opening brace of a block beside it."""
        if not self._is_alone(self.pending[0]):
            self._add(path, Comment(beside=self._pop(1)[0]))

    def attach_inside(self, path: str, opening: int | None, last: int, end: int) -> None:
        """Attach the comments that are inside a field, or on the line where it ends.

        The field's value ends at `last`, and starts at `opening` if it is a block; the field ends at `end`,
        after a bracket or comma. Comments inside the value go above the field, one on the line where the
        value ends goes beside it, and those before the field's end go after it.
        """
        starts = [comment.start("comment") for comment in self.pending]
        inside, within = sum(start < last for start in starts), sum(start < end for start in starts)
        is_shared = inside < len(starts) and not self._is_alone(self.pending[inside])
        texts = self._pop(max(within, inside + is_shared))
        above, after = texts[:inside], texts[inside:]
        is_closing = opening is not None and "\n" in self._text[opening:last]
        old = self.found.get(path, Comment())
        if not is_shared or (old.closing if is_closing else old.beside):
            self._add(path, Comment(above=above, after=after))
        elif is_closing:
            self._add(path, Comment(above=above, closing=after[0], after=after[1:]))
        else:
            self._add(path, Comment(above=above, beside=after[0], after=after[1:]))

    def attach_after(self, path: str, end: int, following: int | None) -> None:
        """Attach the comments directly below a field, which ends at `end`, if a blank line follows them.

        The next field starts at `following`, which is None at the end of the block.
        """
        position, count = max(end, self._attached_to), 0
        for comment in self.pending:
            if self._text.count("\n", position, comment.start("comment")) > 1:
                break
            position, count = comment.end(), count + 1
        else:
            if following is None or self._text.count("\n", position, following) < 2:
                return
        self._add(path, Comment(after=self._pop(count)))

    def attach_below(self, path: str) -> None:
        """Attach all pending comments below the last field of the block."""
        self._add(path, Comment(below=self._pop(len(self.pending))))

    def note_apart(self, path: str, start: int, end: int) -> None:
        """Record `is_apart` for a field if there is a blank line between `start` and `end`."""
        if _BLANK_LINE.search(self._text, start, end):
            self._add(path, _APART)

    def note_inline(self, path: str, start: int, end: int) -> None:
        """Record `is_inline` for a block if there is no line break between `start` and `end`."""
        if self._text.find("\n", start, end) < 0:
            self._add(path, _INLINE)

    def _pop(self, count: int) -> tuple[str, ...]:
        taken, self.pending = self.pending[:count], self.pending[count:]
        if taken:
            self._attached_to = taken[-1].end()
        return tuple(comment_text(match["comment"]) for match in taken)

    def _is_alone(self, comment: re.Match[str]) -> bool:
        start = comment.start("comment")
        return not self._text[self._text.rfind("\n", 0, start) + 1 : start].strip()

    def _add(self, path: str, new: Comment) -> None:
        if new != _NOTHING:
            self.found[path] = join_comments(self.found[path], new) if path in self.found else new


def join_comments(first: Comment, second: Comment) -> Comment:
    """Combine two comments of one field; of two texts beside it, or beside its brace, the second moves."""
    is_crowded = bool(first.beside and second.beside)
    beside = (second.beside,) if is_crowded else ()
    is_closed = bool(first.closing and second.closing)
    closing = (second.closing,) if is_closed else ()
    return Comment(
        first.above + second.above + beside,
        first.beside or second.beside,
        first.below + second.below,
        first.closing or second.closing,
        closing + first.after + second.after,
        first.is_apart or second.is_apart,
        first.is_inline or second.is_inline,
    )
