"""Two sets of files by path: what was added, removed, renamed, and what changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping

from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.review.diff.changes import FileDiff
from caffe_recipes.review.diff.messages import fingerprint
from caffe_recipes.review.diff.reading import kind_of, read_message
from caffe_recipes.review.diff.sources import TextFile, Tree

Compare = Callable[[TextFile, TextFile], FileDiff | None]


def compare_trees(old: Tree, new: Tree, compare: Compare) -> list[FileDiff]:
    """Give the files that differ, by path; a file that cannot be compared is told as that.

    A file that is gone and a new one of equal meaning are one file renamed.
    """
    common = old.files.keys() & new.files.keys()
    gone = {path: data for path, data in old.files.items() if path not in common}
    come = {path: data for path, data in new.files.items() if path not in common}
    renamed = _find_renamed(gone, come) if gone and come else {}
    found = [_compare_entry(path, old, new, compare) for path in common]
    found += [FileDiff(path, "renamed", renamed_from=origin) for path, origin in renamed.items()]
    found += [FileDiff(path, "removed") for path in gone.keys() - set(renamed.values())]
    found += [FileDiff(path, "added") for path in come.keys() - renamed.keys()]
    return sorted(filter(None, found), key=lambda file: file.path)


def _compare_entry(path: str, old: Tree, new: Tree, compare: Compare) -> FileDiff | None:
    sides = []
    for tree in (old, new):
        data = tree.files[path]
        if isinstance(data, PrototxtError):
            return FileDiff(path, "unreadable", note=str(data))
        sides.append(TextFile(f"{tree.prefix}{path}", path, data, tree.read))
    if sides[0].data == sides[1].data:
        return None
    try:
        return compare(*sides)
    except InputError as error:
        return FileDiff(path, "unreadable", note=str(error))


def _find_renamed(
    gone: Mapping[str, bytes | PrototxtError], come: Mapping[str, bytes | PrototxtError]
) -> dict[str, str]:
    """Give the new paths whose files mean what a file that is gone meant, with its old path."""
    waiting: defaultdict[Hashable, list[str]] = defaultdict(list)
    for path in sorted(gone, reverse=True):
        waiting[_meaning(gone[path], path)].append(path)
    found = {}
    for path in sorted(come):
        origins = waiting[_meaning(come[path], path)]
        if origins:
            found[path] = origins.pop()
    return found


def _meaning(data: bytes | PrototxtError, path: str) -> Hashable:
    """Give what is equal for files of equal meaning; what cannot be read equals nothing but its own bytes."""
    if isinstance(data, PrototxtError):
        return path, str(data)
    try:
        message = read_message(data, path)
    except PrototxtError:
        return data
    return kind_of(message), fingerprint(message)
