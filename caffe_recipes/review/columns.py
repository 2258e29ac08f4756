"""Align rows of text in columns, and fit text to a width."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Sequence

# Returns text in a colour, or in bold.
Paint = Callable[[str, str], str]


def keep_plain(text: str, colour: str) -> str:
    """Return the text unchanged: the `Paint` for files and pipes."""
    return text


def align_columns(rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> list[str]:
    """Pad each column to its widest cell; columns whose heading (first row) is in `right` are right-aligned.

    >>> align_columns([("phase", "epochs"), ("init", "9.5")], right={"epochs"})
    ['phase  epochs', 'init      9.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right_aligned = {index for index, heading in enumerate(rows[0] if rows else ()) if heading in right}
    return [
        "  ".join(
            text.rjust(width) if index in right_aligned else text.ljust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def shorten_middle(text: str, width: int, mark: str = "...") -> str:
    """Replace the middle of a text that is longer than `width` characters with `mark`.

    >>> shorten_middle("conv1", 9), shorten_middle("inception_3a/5x5_reduce", 13)
    ('conv1', 'incep...educe')
    """
    if len(text) <= width:
        return text
    half = (width - len(mark)) // 2
    return f"{text[: width - len(mark) - half]}{mark}{text[len(text) - half :]}"


def wrap_line(line: str, width: int | None, indent: int = 4) -> list[str]:
    """Wrap a line at spaces to `width`, and indent all parts but the first; None leaves the line whole."""
    if width is None:
        return [line]
    return textwrap.wrap(
        line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    ) or [""]
