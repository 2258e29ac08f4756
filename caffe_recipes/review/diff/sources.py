"""What the two sides of a comparison are: files, folders, recipes, or revisions of a git repository."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from caffe_recipes.caffe.prototxt import MOST_BYTES
from caffe_recipes.caffe.text.source import read_bytes
from caffe_recipes.errors import InputError, PrototxtError, RecipeError
from caffe_recipes.review.diff import git
from caffe_recipes.review.diff.arguments import SUFFIX, Spec, file_now, read_words
from caffe_recipes.review.naming import Named

if TYPE_CHECKING:
    from caffe_recipes.recipe.model import Recipe

Read = Callable[[str], bytes | None]

_WORKING_TREE = "the working tree"


@dataclass(frozen=True)
class TextFile:
    """A prototxt's bytes; `read` gives another file by its path, or None where there is none."""

    label: str
    path: str
    data: bytes
    read: Read


@dataclass(frozen=True)
class Tree:
    """Prototxts by path; `read` gives any of them, `files` only those that may differ.

    `prefix` is what stands before a path where people name the file, as in `HEAD:net.prototxt`.
    """

    label: str
    prefix: str
    files: Mapping[str, bytes | PrototxtError]
    read: Read


@dataclass(frozen=True)
class RecipeSide:
    """A recipe."""

    label: str
    recipe: Recipe


Sides = tuple[TextFile, TextFile] | tuple[Tree, Tree] | tuple[RecipeSide, RecipeSide]


def open_sides(words: Sequence[str], limits: Sequence[str] = (), *, max_bytes: int = MOST_BYTES) -> Sides:
    """Find and read what two arguments name; `limits` are paths that alone are compared.

    One revision is compared with the working tree, as git does; `A..B` and `A...B` are two. Further words are
    limits too. Raises InputError for what is nothing, and for two that cannot be compared.
    """
    specs, more = read_words(words)
    limits = [*more, *limits]
    old = specs[0]
    if len(specs) == 1 and old.kind == "revision":
        return _open_working_tree(old, limits, max_bytes)
    new = specs[1] if len(specs) == 2 else file_now(old)
    if old.kind != new.kind:
        what = f"'{old.text}' is a {old.kind}, '{new.text}' a {new.kind}"
        raise InputError("", what, "compare two of one kind")
    if old.kind == "revision":
        return _open_revisions(old, new, limits, max_bytes)
    if old.kind == "folder":
        return _open_folder(old, limits, max_bytes), _open_folder(new, limits, max_bytes)
    if limits:
        raise InputError("", f"'{limits[0]}' is one too many", "paths limit folders and revisions only")
    if old.kind == "recipe":
        return _open_recipe(old), _open_recipe(new)
    return _open_file(old, max_bytes), _open_file(new, max_bytes)


def _open_file(spec: Spec, max_bytes: int) -> TextFile:
    if spec.net is not None:
        return TextFile(spec.text, spec.text, _render_net(spec.net), lambda _: None)
    if spec.oid:
        rev = spec.text.partition(":")[0]
        data = git.read_blobs([spec.oid])[spec.oid]
        return TextFile(
            spec.text, spec.text, data, lambda name: _read_at(rev, name.partition(":")[2] or name)
        )
    return TextFile(
        spec.text, spec.text, _read_disk(spec.text, max_bytes), lambda path: _read_if_there(path, max_bytes)
    )


def _render_net(named: Named) -> bytes:
    from caffe_recipes.generate.nets import render_net
    from caffe_recipes.recipe.source import load_recipe

    recipe = load_recipe(named.path)
    return render_net(recipe, named.net or next(iter(recipe.nets))).encode()


def _read_at(rev: str, path: str) -> bytes | None:
    found = git.find_object(f"{rev}:{path}")
    return git.read_blobs([found[0]])[found[0]] if found and found[1] == "blob" else None


def _reader(rev: str) -> Read:
    return lambda path: _read_at(rev, path)


def _read_disk(path: str | Path, max_bytes: int) -> bytes:
    try:
        return read_bytes(path, max_bytes + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PrototxtError(path, f"cannot be read ({reason})", "check the path") from error


def _read_if_there(path: str | Path, max_bytes: int) -> bytes | None:
    """Read a file, of one that is too large so much that it shows; None where there is none."""
    try:
        return read_bytes(path, max_bytes + 1)
    except (OSError, ValueError):
        return None


def _open_folder(spec: Spec, limits: Sequence[str], max_bytes: int) -> Tree:
    wanted = [posixpath.normpath(limit) for limit in limits]
    if spec.oid:
        blobs = {path: blob for path, blob in git.list_files(spec.oid).items() if _is_wanted(path, wanted)}
        return Tree(
            spec.text, f"{spec.text}/", _read_all(blobs, max_bytes), lambda path: _read_in(spec.oid, path)
        )
    root = Path(spec.text)
    paths = [
        (Path(folder) / name).relative_to(root).as_posix()
        for folder, folders, names in os.walk(root)
        for name in names
        if ".git" not in Path(folder).relative_to(root).parts
    ]
    files = {
        path: _read_or_error(root / path, max_bytes) for path in sorted(paths) if _is_wanted(path, wanted)
    }
    return Tree(spec.text, f"{root}/", files, lambda path: _read_if_there(root / path, max_bytes))


def _read_or_error(path: Path, max_bytes: int) -> bytes | PrototxtError:
    try:
        return _read_disk(path, max_bytes)
    except PrototxtError as error:
        return error


def _is_wanted(path: str, limits: Sequence[str]) -> bool:
    """Whether a file is compared: a prototxt at or below a limit, or a file that a limit names."""
    if not limits:
        return path.endswith(SUFFIX)
    below = any(limit == "." or path.startswith(f"{limit}/") for limit in limits)
    return path in limits or (below and path.endswith(SUFFIX))


def _read_all(blobs: Mapping[str, git.Blob], max_bytes: int) -> dict[str, bytes | PrototxtError]:
    small = [blob.oid for blob in blobs.values() if blob.size_bytes <= max_bytes]
    data = git.read_blobs(small)
    too_large = f"is over {max_bytes:,} bytes"
    return {
        path: data[blob.oid] if blob.oid in data else PrototxtError(path, too_large, "is it a prototxt?")
        for path, blob in blobs.items()
    }


def _read_in(tree: str, path: str) -> bytes | None:
    blob = git.list_files(tree).get(path)
    return git.read_blobs([blob.oid])[blob.oid] if blob else None


def _open_revisions(old: Spec, new: Spec, limits: Sequence[str], max_bytes: int) -> tuple[Tree, Tree]:
    wanted = _from_top(limits)
    before, after = (
        {path: blob for path, blob in git.list_files(spec.oid).items() if _is_wanted(path, wanted)}
        for spec in (old, new)
    )
    same = {path for path, blob in before.items() if after.get(path) == blob}
    _check_limits(wanted, [*before, *after])
    trees = []
    for spec, blobs in ((old, before), (new, after)):
        changed = {path: blob for path, blob in blobs.items() if path not in same}
        trees.append(Tree(spec.text, f"{spec.text}:", _read_all(changed, max_bytes), _reader(spec.oid)))
    return trees[0], trees[1]


def _open_working_tree(old: Spec, limits: Sequence[str], max_bytes: int) -> tuple[Tree, Tree]:
    """Compare a revision with the files that git tracks; as with git, new ones count once they are added."""
    top, wanted = git.top_folder(), _from_top(limits)
    blobs = {path: blob for path, blob in git.list_files(old.oid).items() if _is_wanted(path, wanted)}
    paths = [path for path in sorted({*git.list_tracked(top), *blobs}) if _is_wanted(path, wanted)]
    _check_limits(wanted, paths)
    files = {
        path: _read_or_error(top / path, max_bytes)
        for path in paths
        if (top / path).is_file() and not (top / path).is_symlink()
    }
    before = Tree(old.text, f"{old.text}:", _read_all(blobs, max_bytes), _reader(old.oid))
    return before, Tree(_WORKING_TREE, "", files, lambda path: _read_if_there(top / path, max_bytes))


def _from_top(limits: Sequence[str]) -> list[str]:
    """Turn paths from the current folder into paths from the top of the working tree."""
    if not limits:
        return []
    inner = git.inner_folder()
    here = [os.path.relpath(limit) if Path(limit).is_absolute() else limit for limit in limits]
    return [posixpath.normpath(posixpath.join(inner, limit)) for limit in here]


def _check_limits(limits: Sequence[str], paths: Sequence[str]) -> None:
    for limit in limits:
        if not any(_is_wanted(path, [limit]) for path in paths):
            raise InputError(limit, "neither side has a prototxt there", "check the path")


def _open_recipe(spec: Spec) -> RecipeSide:
    from caffe_recipes.recipe.source import load_recipe, parse_recipe

    if not spec.oid:
        return RecipeSide(spec.text, load_recipe(spec.text))
    try:
        text = git.read_blobs([spec.oid])[spec.oid].decode()
    except UnicodeDecodeError as error:
        raise RecipeError(spec.text, "not UTF-8 text", "a recipe is a YAML file") from error
    recipe = parse_recipe(text, spec.text, Path())
    if recipe.net.builder is None:
        hint = "check that revision out, and compare the folders"
        raise RecipeError(spec.text, "its net is the user's own, which is read from the disk only", hint)
    return RecipeSide(spec.text, recipe)
