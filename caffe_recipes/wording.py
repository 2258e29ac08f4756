"""Write names and counts in messages: escape, pluralize, join and shorten them, and suggest corrections."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence


def printable(text: str, keep: str = "") -> str:
    r"""Escape unprintable characters as Python's repr does, except those in `keep`.

    A file name, log or title from elsewhere could move the terminal's cursor or reverse its text. Unprintable
    are control characters (7-bit and 8-bit), characters that change the direction of text or have no width,
    white space other than the space itself, and lone surrogates. The log of a job on GitHub obeys `##[`.

    >>> printable("a\x1b[2J\u202eb\n", keep="\n\t")
    'a\\x1b[2J\\u202eb\n'
    """
    text = text.replace("##[", r"#\x23[")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text)


def is_unicode(text: str) -> bool:
    r"""Return whether a text can be stored as UTF-8; Python has lone surrogates for other bytes of names.

    >>> is_unicode("é"), is_unicode("\udcff")
    (True, False)
    """
    return not _SURROGATE.search(text)


_SURROGATE = re.compile("[\ud800-\udfff]")
_COMMAND = re.compile(r"^(\s*+):(?=:|\Z)", re.MULTILINE)


def escape_commands(text: str) -> str:
    r"""Escape the commands that the log of a job on GitHub obeys at the start of a line, as in `::error::`.

    >>> escape_commands("::error::a\n  ::b c::d")
    '\\x3a:error::a\n  \\x3a:b c::d'
    """
    return _COMMAND.sub(r"\1\\x3a", text) if ":" in text else text


def plural(count: int, one: str, many: str = "") -> str:
    """Return the singular or the plural of a word, as a count requires; `many` defaults to `one` plus "s".

    >>> plural(1, "host"), plural(0, "host"), plural(2, "has", "have")
    ('host', 'hosts', 'have')
    """
    return one if count == 1 else many or f"{one}s"


def describe_count(count: int, noun: str, many: str = "") -> str:
    """Write a count with its noun, whose plural is `many` if an "s" does not make it.

    >>> describe_count(1, "rank"), describe_count(4096, "rank"), describe_count(2, "class", "classes")
    ('1 rank', '4,096 ranks', '2 classes')
    """
    return f"{count:,} {plural(count, noun, many)}"


def shorten(text: str, most: int = 80) -> str:
    """Return at most `most` characters of a text; dots stand for the rest.

    >>> shorten("a long name", 11), shorten("a long name", 8), shorten("a long name", 2)
    ('a long name', 'a lon...', '..')
    """
    return text if len(text) <= most else f"{text[: max(0, most - 3)]}..."[:most]


HIDDEN = "(hidden)"
# A shorter text is not a secret, and hiding it would hide parts of words.
SHORTEST_SECRET = 4


def shorten_without(text: str, most: int, secrets: Iterable[str]) -> str:
    """Return a text of at most `most` characters whole, or the beginning of a longer one without the secrets.

    A secret in a whole text is found later by its digest; a part of a secret would not be.

    >>> [shorten_without(text, 10, ["hunter2"]) for text in ("TOKEN=hunter2 is bad", "a hunter2")]
    ['TOKEN=(hid', 'a hunter2']
    """
    if len(text) <= most:
        return text
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, HIDDEN)
    return text[:most]


def shorten_middle(text: str, most: int, mark: str = "...") -> str:
    """Replace the middle of a text that is longer than `most` characters with `mark`.

    >>> shorten_middle("conv1", 9), shorten_middle("inception_3a/5x5_reduce", 13)
    ('conv1', 'incep...educe')
    """
    if len(text) <= most:
        return text
    half = (most - len(mark)) // 2
    return f"{text[: most - len(mark) - half]}{mark}{text[len(text) - half :]}"


_LONGEST_WORD = 5_000  # characters; no path is longer
_LONGEST_MESSAGE = 10_000
LONGEST_LINE = 100_000  # of a list of many names


def one_line(text: str, most: int = _LONGEST_MESSAGE, keep: str = "") -> str:
    r"""Return a text as one line for people: printable, and without the middle of a word that no path can be.

    Of a line that is still longer than `most` characters, the middle is left out, too.

    >>> one_line("a\nb", 80), len(one_line("x" * 1_000_000)), len(one_line("x " * 1_000_000))
    ('a\\nb', 80, 10000)
    """
    if len(text) > _LONGEST_WORD:
        words = text.split(" ")
        text = " ".join(shorten_middle(word, 80) if len(word) > _LONGEST_WORD else word for word in words)
    return shorten_middle(printable(text, keep), most)


def describe_names(names: Sequence[str]) -> str:
    """Join up to three names; of a longer list, give the first two and the total.

    >>> describe_names(["a", "b"]), describe_names(["a", "b", "c", "d"])
    ('a, b', 'a, b, ... (4 in all)')
    """
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]}, ... ({len(names)} in all)"


def join_names(names: Sequence[str], last: str = "and") -> str:
    """Join all names with commas, and with the word `last` before the last one.

    >>> join_names(["a"]), join_names(["a", "b", "c"], "or")
    ('a', 'a, b or c')
    """
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


_LONGEST_NAME = 200  # characters; the time to compare two names grows with the product of their lengths


def find_similar(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name most similar to `name`; None if no similarity reaches `cutoff` (0 to 1).

    Names of over 200 characters are similar to none.

    >>> find_similar("kernal_size", ["kernel_size", "pad"]), find_similar("a" * 300, ["a" * 300])
    ('kernel_size', None)
    """
    short = [each for each in known if len(each) <= _LONGEST_NAME]
    near = difflib.get_close_matches(name, short, n=1, cutoff=cutoff) if len(name) <= _LONGEST_NAME else []
    return near[0] if near else None


_LEAST_PREFIX = 3  # letters; fewer begin too many names by chance


def find_nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the only known name that begins with `name`, or else the most similar one.

    None if no similarity reaches `cutoff` (0 to 1).

    >>> find_nearest("kernal_size", ["kernel_size", "pad"]), find_nearest("x", ["pad"])
    ('kernel_size', None)
    >>> find_nearest("gen", ["generate", "new"])
    'generate'
    """
    known = list(known)
    longer = [each for each in known if each.startswith(name)] if len(name) >= _LEAST_PREFIX else []
    if len(longer) == 1:
        return longer[0]
    return find_similar(name, known, cutoff)


_SHORT_NAME = 5  # letters; of so few, two that differ make another name


def find_slip(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` is a slip of the keyboard for, or None.

    A slip is another case, or a letter or two that are wrong, missing, added or swapped; in a short name, one
    letter. The beginning of a name is not a slip for it, unless the name is long and lacks one letter, and
    neither is a name with another digit. A `_param` at the end is not compared, but may itself be misspelt.

    >>> find_slip("Convolutoin", ["Convolution"]), find_slip("relu", ["ReLU"]), find_slip("BN", ["BNLL"])
    ('Convolution', 'ReLU', None)
    >>> find_slip("ReLU6", ["ReLU"]), find_slip("bn_param", ["mvn_param"])
    (None, None)
    >>> find_slip("lr_mul", ["lr_mult"]), find_slip("mvn_prm", ["mvn_param"])
    ('lr_mult', 'mvn_param')
    """
    known = list(known)
    same = next((each for each in known if each.lower() == name.lower()), None)
    if same is not None or len(name) > _LONGEST_NAME:
        return same
    head, _, tail = name.rpartition("_")
    is_tail = tail.startswith("p") and tail.isalpha() and _count_slips(tail, "param") <= 2
    if is_tail and f"{head}_param" in known:
        return f"{head}_param"
    stem, best = name.removesuffix("_param"), (3, "")
    for each in known:
        other = each.removesuffix("_param")
        is_param = (stem == name) == (other == each)
        most = min(2 if len(stem) > _SHORT_NAME else 1, best[0] - 1)
        lacking = len(other) - len(stem)
        is_start = other.startswith(stem) and (lacking > 1 or len(stem) <= _SHORT_NAME)
        if not is_param or abs(lacking) > most or is_start:
            continue
        if _digits(stem) == _digits(other) and (count := _count_slips(stem, other)) <= most:
            best = count, each
    return best[1] or None


def _digits(text: str) -> list[str]:
    return [char for char in text if char.isdigit()]


def _count_slips(one: str, other: str) -> int:
    """Return the letters that are wrong, missing, added or swapped: the optimal string alignment distance."""
    before, last = [0] * (len(other) + 1), list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (a != b)))
            if i > 1 and j > 1 and (a, b) == (other[j - 2], one[i - 2]):
                row[-1] = min(row[-1], before[j - 2] + 1)
        before, last = last, row
    return last[-1]


def did_you_mean(name: str, known: Iterable[str], fallback: str = "", cutoff: float = 0.6) -> str:
    """Suggest the known name most similar to `name`; return `fallback` if none is similar.

    >>> did_you_mean("gama", ["net", "gamma"]), did_you_mean("x", ["net"], "there are net")
    ("did you mean 'gamma'?", 'there are net')
    """
    near = find_nearest(name, known, cutoff)
    return fallback if near is None else f"did you mean '{near}'?"
