"""Check and take apart the options of sbatch that a user or a profile gives."""

from __future__ import annotations

import re
from collections.abc import Sequence

from caffe_recipes.errors import InputError

# The one-letter forms of sbatch options.
_LETTERS = {"partition": "p", "account": "A", "qos": "q", "constraint": "C", "clusters": "M", "exclude": "x"}
# The options that `submit` itself gives to sbatch, with their letters and what the user can do instead.
_RESERVED = (
    ("job-name", "J", "submit identifies its jobs by their names"),
    ("dependency", "d", "give --after"),
    ("time", "t", "give --time"),
    ("nodes", "N", "give --spares, or change the recipe"),
    ("output", "o", "the output is in runs/ under the Caffe root"),
    *(
        (name, letter, "submit the script with sbatch to use it")
        for name, letter in (
            ("array", "a"),
            ("wrap", ""),
            ("wait", "W"),
            ("test-only", ""),
            ("export", ""),
            ("signal", ""),
        )
    ),
)


def check_options(words: Sequence[str]) -> None:
    """Raise InputError for words that sbatch would take for the script, and for reserved options."""
    for word in words:
        if not re.fullmatch(r"-[A-Za-z].*|--[a-z].*", word):
            what = f"{word[:80]!r} is not an option of sbatch"
            raise InputError("--sbatch-option", what, "write --name=value")
        name = word.partition("=")[0]
        for reserved, letter, instead in _RESERVED:
            # sbatch accepts any prefix of the name of an option.
            if reserved.startswith(name[2:]) if word.startswith("--") else word[1] == letter:
                raise InputError("--sbatch-option", f"--{reserved} is set by submit", instead)


def pop_option(words: Sequence[str], name: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the value of an sbatch option, the last one if it is repeated, and the other options.

    >>> pop_option(["-p", "long", "--exclusive", "--partition=debug"], "partition")
    ('debug', ('--exclusive',))
    """
    found, rest, remaining = None, [], iter(words)
    for word in remaining:
        if word in (f"--{name}", f"-{_LETTERS[name]}"):
            found = next(remaining, "")  # without a value, sbatch would take the next word
        elif word.startswith(f"--{name}="):
            found = word.partition("=")[2]
        elif word.startswith(f"-{_LETTERS[name]}"):
            found = word[2:]
        else:
            rest.append(word)
    return found, tuple(rest)


def check_mail(address: str | None) -> None:
    """Raise InputError for an invalid mail address: sbatch accepts anything, and no mail would arrive."""
    if address is not None and not (address.isprintable() and re.fullmatch(r"[^\s-]\S*", address)):
        what = f"{address[:80]!r} is not a mail address"
        raise InputError("--mail", what, "write it as you@example.org")
