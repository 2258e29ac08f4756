"""How names and counts stand in a sentence: made printable, counted, joined, cut short, corrected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def printable(text: str, keep: str = "") -> str:
    r"""Write what is not printable as Python would, but the characters of `keep`.

    Names, logs and titles of anybody's may move a terminal's cursor, or turn its text around. Not printable
    are control characters, also those of 8 bits, all that turns the direction of text or has no width, blanks
    other than the space, and halves of surrogate pairs.

    >>> printable("a\x1b[2J\u202eb\n", keep="\n\t")
    'a\\x1b[2J\\u202eb\n'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text)


def plural(count: int, one: str, many: str = "") -> str:
    """Return the form of a word that goes with a count; `many` is `one` with an s if it is not given.

    >>> plural(1, "host"), plural(0, "host"), plural(2, "has", "have")
    ('host', 'hosts', 'have')
    """
    return one if count == 1 else many or f"{one}s"


def describe_count(count: int, noun: str) -> str:
    """Write a number of things.

    >>> describe_count(1, "rank"), describe_count(4096, "rank")
    ('1 rank', '4,096 ranks')
    """
    return f"{count:,} {plural(count, noun)}"


def describe_names(names: Sequence[str]) -> str:
    """Write the first few of many names.

    >>> describe_names(["a", "b"]), describe_names(["a", "b", "c", "d"])
    ('a, b', 'a, b, ... (4 in all)')
    """
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]}, ... ({len(names)} in all)"


def join_names(names: Sequence[str], last: str = "and") -> str:
    """Write all of some names, with a word before the last.

    >>> join_names(["a"]), join_names(["a", "b", "c"], "or")
    ('a', 'a, b or c')
    """
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def find_nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that is most like one, in at least `cutoff` of it; None if none is.

    >>> find_nearest("kernal_size", ["kernel_size", "pad"]), find_nearest("x", ["pad"])
    ('kernel_size', None)
    """
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", cutoff: float = 0.6) -> str:
    """Suggest the known name that is most like one; `otherwise` if none is like it.

    >>> did_you_mean("gama", ["net", "gamma"]), did_you_mean("x", ["net"], "there are net")
    ("did you mean 'gamma'?", 'there are net')
    """
    near = find_nearest(name, known, cutoff)
    return otherwise if near is None else f"did you mean '{near}'?"
