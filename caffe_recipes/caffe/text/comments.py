"""The comments of a prototxt, and the field that each belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")


@dataclass(frozen=True, slots=True)
class Comment:
    """What a person put around one field: comments, and how the field is laid out.

    Lines `above` it; text `beside` it, for a block beside its opening brace; lines `below` the last field of
    its block; text beside the `closing` brace of its block; lines `after` it, which a blank line separates
    from what follows. `is_apart`: a blank line stands before the field, one of the outermost. `is_inline`:
    its block stands on one line.

    The file itself has lines above (its header) and below, and `is_apart` where a blank line stands before
    the latter. No text holds a line break or the `#`.
    """

    above: tuple[str, ...] = ()
    beside: str = ""
    below: tuple[str, ...] = ()
    closing: str = ""
    after: tuple[str, ...] = ()
    is_apart: bool = False
    is_inline: bool = False

    def __post_init__(self) -> None:
        """Refuse text that would not stay on its line."""
        for text in self.texts:
            if "\n" in text:
                raise ValueError(f"a comment is one line, not {text!r}")

    @property
    def texts(self) -> tuple[str, ...]:
        """All its lines, in the order of the file."""
        beside, closing = ((text,) if text else () for text in (self.beside, self.closing))
        return (*self.above, *beside, *self.below, *closing, *self.after)


def comment_text(comment: str) -> str:
    """Return what a comment says, without its `#` and one space; what is ruled with `#` keeps the space.

    >>> comment_text("# 90 epochs"), comment_text("## 90 epochs"), comment_text("# # old")
    ('90 epochs', '# 90 epochs', ' # old')
    """
    text = comment[1:].rstrip()
    return text if text.lstrip(" ").startswith("#") else text.removeprefix(" ")


def comment_line(text: str) -> str:
    """Write the comment that says `text`: the inverse of `comment_text`.

    >>> comment_line("90 epochs"), comment_line("# 90 epochs"), comment_line(" # old"), comment_line("")
    ('# 90 epochs', '## 90 epochs', '# # old', '#')
    """
    return f"#{'' if not text or text.lstrip(' ').startswith('#') else ' '}{text}"


_NOTHING, _APART, _INLINE = Comment(), Comment(is_apart=True), Comment(is_inline=True)


class CommentCollector:
    """Collects the comments that a parser finds, by the path of the field that each belongs to."""

    def __init__(self, text: str) -> None:
        """Start with the text that the comments are found in."""
        self.found: dict[str, Comment] = {}
        self.waiting: list[re.Match[str]] = []
        self._text = text
        self._taken_to = 0

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

    def above(self, path: str) -> None:
        """Put all that wait above the field."""
        self._add(path, Comment(above=self._take(len(self.waiting))))

    def opening(self, path: str) -> None:
        """Put what shares a line with the opening brace of a block beside it."""
        if not self._is_alone(self.waiting[0]):
            self._add(path, Comment(beside=self._take(1)[0]))

    def ending(self, path: str, opening: int | None, last: int, end: int) -> None:
        """Put what stands within a field, or on the line where it ends, by that field.

        Its value ends at `last`, and starts at `opening` if it is a block; the field ends at `end`, behind a
        bracket or comma. Within the value: above. On the line of its end: beside. Before the end: after.
        """
        starts = [comment.start("comment") for comment in self.waiting]
        inside, within = sum(start < last for start in starts), sum(start < end for start in starts)
        is_shared = inside < len(starts) and not self._is_alone(self.waiting[inside])
        texts = self._take(max(within, inside + is_shared))
        above, after = texts[:inside], texts[inside:]
        is_closing = opening is not None and "\n" in self._text[opening:last]
        old = self.found.get(path, Comment())
        if not is_shared or (old.closing if is_closing else old.beside):
            self._add(path, Comment(above=above, after=after))
        elif is_closing:
            self._add(path, Comment(above=above, closing=after[0], after=after[1:]))
        else:
            self._add(path, Comment(above=above, beside=after[0], after=after[1:]))

    def after(self, path: str, end: int, following: int | None) -> None:
        """Put what stands directly below a field, and above a blank line, after it; it ends at `end`.

        The next field starts at `following`, if the block does not end.
        """
        position, count = max(end, self._taken_to), 0
        for comment in self.waiting:
            if self._text.count("\n", position, comment.start("comment")) > 1:
                break
            position, count = comment.end(), count + 1
        else:
            if following is None or self._text.count("\n", position, following) < 2:
                return
        self._add(path, Comment(after=self._take(count)))

    def below(self, path: str) -> None:
        """Put all that wait below the last field of the block."""
        self._add(path, Comment(below=self._take(len(self.waiting))))

    def apart(self, path: str, start: int, end: int) -> None:
        """Note that a field is apart where a blank line stands between `start` and `end`."""
        if _BLANK_LINE.search(self._text, start, end):
            self._add(path, _APART)

    def inline(self, path: str, start: int, end: int) -> None:
        """Note that a block is inline where no line ends between `start` and `end`."""
        if self._text.find("\n", start, end) < 0:
            self._add(path, _INLINE)

    def _take(self, count: int) -> tuple[str, ...]:
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        if taken:
            self._taken_to = taken[-1].end()
        return tuple(comment_text(match["comment"]) for match in taken)

    def _is_alone(self, comment: re.Match[str]) -> bool:
        start = comment.start("comment")
        return not self._text[self._text.rfind("\n", 0, start) + 1 : start].strip()

    def _add(self, path: str, new: Comment) -> None:
        if new != _NOTHING:
            self.found[path] = join_comments(self.found[path], new) if path in self.found else new


def join_comments(first: Comment, second: Comment) -> Comment:
    """Put two comments on one field; of two beside it, the second goes above."""
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
