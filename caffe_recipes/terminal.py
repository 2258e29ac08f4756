"""Text of anybody's, for a terminal: names, logs and titles may move its cursor, or turn its text around."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    r"""Write what is not printable as Python would, but the characters of `keep`.

    Not printable are control characters, also those of 8 bits, all that turns the direction of text or has no
    width, blanks other than the space, and halves of surrogate pairs.

    >>> printable("a\x1b[2J\u202eb\n", keep="\n\t")
    'a\\x1b[2J\\u202eb\n'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text)
