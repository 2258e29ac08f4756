"""Rows of text as aligned columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def align_columns(rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> list[str]:
    """Pad columns to one width; those whose heading, in the first row, is in `right` to the right.

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
