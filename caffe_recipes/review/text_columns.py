"""Align rows of text in columns, and fit text to a width."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

# Returns text in a colour, or in bold.
Paint = Callable[[str, str], str]


def keep_plain(text: str, colour: str) -> str:
    """Return the text unchanged: the `Paint` for files and pipes."""
    return text


_LEAST = 15  # columns that the last column keeps before others are dropped
_WIDEST = 200  # columns that all rows are padded to; a name of a megabyte would take one in each row


def align_columns(
    rows: Sequence[Sequence[str]],
    right: Collection[str] = (),
    width: int | None = None,
    drop: Sequence[str] = (),
) -> list[str]:
    """Pad each column to its widest cell; columns whose heading (first row) is in `right` are right-aligned.

    A cell of over 200 characters widens only its own row. Rows wider than `width` lose the columns headed
    `drop`, one by one; then the last column is wrapped.

    >>> align_columns([("phase", "epochs"), ("init", "9.5")], right={"epochs"})
    ['phase  epochs', 'init      9.5']
    >>> align_columns([("net", "ResNet-50 of 1000 classes")], width=22)
    ['net  ResNet-50 of 1000', '     classes']
    >>> [len(line) for line in align_columns([("a" * 1000, "b"), ("c", "d")])]
    [1003, 203]
    """
    widths = [min(max(map(len, column)), _WIDEST) for column in zip(*rows, strict=True)]
    if width is not None and rows and sum(widths) + 2 * (len(widths) - 1) > width:
        before = sum(widths[:-1]) + 2 * (len(widths) - 1)
        if drop and before + min(widths[-1], _LEAST) > width:
            at = list(rows[0]).index(drop[0])
            return align_columns([[*row[:at], *row[at + 1 :]] for row in rows], right, width, drop[1:])
        if rows[0][-1] not in right and width - before >= _LEAST:
            rows = [part for row in rows for part in _wrap_last(row, width - before)]
    right_aligned = {index for index, heading in enumerate(rows[0] if rows else ()) if heading in right}
    return [
        "  ".join(
            text.rjust(width) if index in right_aligned else text.ljust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _wrap_last(row: Sequence[str], width: int) -> list[list[str]]:
    """Return the row, and a row for each further line of its last cell."""
    text = row[-1]
    first, *rest = wrap_line(text, width, len(text) - len(text.lstrip()))
    return [[*row[:-1], first], *([*[""] * (len(row) - 1), part] for part in rest)]


def join_blocks(blocks: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of all blocks, with an empty line between them."""
    return [line for block in blocks for line in ("", *block)][1:]


def csv_rows(rows: Iterable[Iterable[object]]) -> list[str]:
    """Return rows of CSV without their line feeds; there may be others in their cells.

    >>> csv_rows([[1, "a,b", None], ["c"]])
    ['1,"a,b",', 'c']
    """
    texts: list[str] = []
    csv.writer(_Writable(texts.append), lineterminator="").writerows(rows)
    return texts


@dataclass(frozen=True)
class _Writable:
    """What csv writes to: each row by one call."""

    write: Callable[[str], None]


def csv_row(values: Iterable[object]) -> str:
    """Return a row of CSV as `csv_rows` does."""
    return csv_rows([values])[0]


def wrap_line(line: str, width: int | None, indent: int = 4) -> list[str]:
    """Wrap a line at spaces to `width`, and indent all parts but the first; None leaves the line whole."""
    if width is None:
        return [line]
    return textwrap.wrap(
        line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    ) or [""]
