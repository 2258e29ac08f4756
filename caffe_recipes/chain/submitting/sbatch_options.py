"""Options of sbatch's that a profile, or the user, gives word by word."""

from __future__ import annotations

import re
from collections.abc import Sequence

from caffe_recipes.errors import InputError

# sbatch's letters for its options.
_LETTERS = {"partition": "p", "account": "A", "qos": "q", "constraint": "C", "clusters": "M"}
# What a job is known by, waits for, is warned by and is measured by: with sbatch's letters, and what to do.
_OURS = (
    ("job-name", "J", "its jobs are known by names of its own"),
    ("dependency", "d", "give --after"),
    ("time", "t", "give --time"),
    ("nodes", "N", "give --spares, or change the recipe"),
    ("output", "o", "it is in runs/ under the Caffe root"),
    *(
        (name, letter, "submit the script with sbatch to do that")
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
    """Raise InputError for what sbatch would take for the script, and for what a submit itself says."""
    for word in words:
        if not re.fullmatch(r"-[A-Za-z].*|--[a-z].*", word):
            what = f"{word[:80]!r} is no option of sbatch's"
            raise InputError("--sbatch-option", what, "write --name=value")
        name = word.partition("=")[0]
        for own, letter, instead in _OURS:
            # sbatch takes the beginning of a name for the whole.
            if own.startswith(name[2:]) if word.startswith("--") else word[1] == letter:
                raise InputError("--sbatch-option", f"a submit says --{own} itself", instead)


def take_option(words: Sequence[str], name: str) -> tuple[str | None, tuple[str, ...]]:
    """Return what options of sbatch's say of one of them, the last word, and the others.

    >>> take_option(["-p", "long", "--exclusive", "--partition=debug"], "partition")
    ('debug', ('--exclusive',))
    """
    found, rest, left = None, [], iter(words)
    for word in left:
        if word in (f"--{name}", f"-{_LETTERS[name]}"):
            found = next(left, None)
        elif word.startswith(f"--{name}="):
            found = word.partition("=")[2]
        elif word.startswith(f"-{_LETTERS[name]}"):
            found = word[2:]
        else:
            rest.append(word)
    return found, tuple(rest)
