"""Rows of text as aligned columns, and text made to fit."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Sequence

# Puts text in a colour, or in bold.
Paint = Callable[[str, str], str]


def keep_plain(text: str, colour: str) -> str:
    """Return the text without a colour: the `Paint` of files and pipes."""
    return text


def align_columns(rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> list[str]:
    """Pad columns to one width; columns whose heading (in the first row) is in `right` are right-aligned.

    >>> align_columns([("phase", "epochs"), ("init", "9.5")], right={"epochs"})
    ['phase  epochs', 'init      9.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = {index for index, heading in enumerate(rows[0] if rows else ()) if heading in right}
    return [
        "  ".join(
            text.rjust(width) if index in numbers else text.ljust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def shorten_middle(text: str, most: int, mark: str = "...") -> str:
    """Replace the middle of a text of more than `most` characters by `mark`.

    >>> shorten_middle("conv1", 9), shorten_middle("inception_3a/5x5_reduce", 13)
    ('conv1', 'incep...educe')
    """
    if len(text) <= most:
        return text
    half = (most - len(mark)) // 2
    return f"{text[: most - len(mark) - half]}{mark}{text[len(text) - half :]}"


def wrap_line(line: str, width: int | None, indent: int = 4) -> list[str]:
    """Break a line at blanks so that it fits `width`, all but its first part indented; None breaks none."""
    if width is None:
        return [line]
    return textwrap.wrap(
        line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    ) or [""]
