"""What the words after `diff` name: files, folders, recipes, their nets, or revisions of a git repository."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from caffe_recipes.errors import InputError
from caffe_recipes.review.diff import git
from caffe_recipes.review.naming import RECIPE_SUFFIXES, Named, find_named, nothing_named

Kind = Literal["file", "folder", "recipe", "revision"]

SUFFIX = ".prototxt"


@dataclass(frozen=True)
class Spec:
    """One argument: its kind, and the git object or the recipe's net that it is, if it is not on the disk."""

    text: str
    kind: Kind
    oid: str = ""
    net: Named | None = None


def read_words(words: Sequence[str]) -> tuple[list[Spec], list[str]]:
    """Tell what the words name, and which of them are paths that limit the comparison.

    What `naming` knows goes before a revision of that name. Raises InputError for what is none.
    """
    first, words = words[0], list(words[1:])
    if ".." in first and not os.path.exists(first):  # noqa: PTH110
        both = _read_range(first)
        if both:
            return both, words
    old = _classify(first)
    if not words:
        return [old], []
    if old.kind == "revision" and os.path.lexists(words[0]):
        return [old], words
    return [old, _classify(words[0])], words[1:]


def _read_range(text: str) -> list[Spec] | None:
    dots = "..." if "..." in text else ".."
    ends = [end or "HEAD" for end in text.split(dots, 1)]
    found = [git.find_object(end) for end in ends]
    if not found[0] or not found[1]:
        return None
    (old, _), (new, _) = found[0], found[1]
    if dots == "...":
        base = git.find_merge_base(old, new)
        if base is None:
            raise InputError("", f"'{text}': the two have no commit in common", "write two revisions apart")
        return [Spec(base[:12], "revision", base), Spec(ends[1], "revision", new)]
    return [Spec(ends[0], "revision", old), Spec(ends[1], "revision", new)]


def _classify(text: str) -> Spec:
    named = find_named(text)
    if named is not None:
        return Spec(text, "file", net=named) if named.kind == "net" else Spec(text, named.kind)
    found = git.find_object(text)
    if found is None:
        why = git.why_no_repository()
        hint = f"as to revisions: {why}" if why else ""
        raise nothing_named(text, "file, folder, recipe or revision", hint)
    oid, kind_of_object = found
    if kind_of_object == "blob":
        return Spec(text, "recipe" if text.endswith(RECIPE_SUFFIXES) else "file", oid)
    return Spec(text, "folder" if kind_of_object == "tree" and ":" in text else "revision", oid)


def file_now(old: Spec) -> Spec:
    """Give the file of the working tree that `REV:path` is compared with where nothing else is named."""
    path = old.text.partition(":")[2]
    if not old.oid or not path:
        raise InputError("", f"nothing to compare '{old.text}' with", "give two files, folders or recipes")
    file = Path(path) if path.startswith(("./", "../")) else git.top_folder() / path
    return _classify(os.path.relpath(file))
