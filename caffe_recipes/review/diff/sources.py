"""Open the two sides of a comparison: files, folders, recipes, their nets, or git revisions."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import OURS
from caffe_recipes.caffe.dialects.convert import convert_nets
from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.caffe.prototxt import MOST_BYTES, Document, decode_prototxt
from caffe_recipes.errors import InputError, PrototxtError, RecipeError
from caffe_recipes.files.bounded_reads import read_bytes
from caffe_recipes.limits import MOST_COMPARED_FILES
from caffe_recipes.limits import limit as bound
from caffe_recipes.quoting import refuse_foreign_link
from caffe_recipes.recipe.shipped import RECIPE_SUFFIXES
from caffe_recipes.review.diff.git import (
    SUFFIXES,
    GitBlob,
    blob_too_large,
    explain_no_repository,
    find_merge_base,
    find_object,
    inner_folder,
    is_wanted,
    list_files,
    list_tracked,
    list_untracked,
    read_blob,
    read_blobs,
    top_folder,
    try_git,
)
from caffe_recipes.review.naming import (
    find_named,
    is_pipe_or_device,
    is_prototxt,
    is_prototxt_file,
    nothing_named,
    refuse_unreadable,
)

if TYPE_CHECKING:
    from caffe_recipes.recipe.model import Recipe
    from caffe_recipes.review.naming import Named


SourceKind = Literal["file", "folder", "recipe", "revision"]

_RECIPE = re.compile(rb"^(?:phases|tensorflow|family)[ \t]*:", re.MULTILINE)
_MOST_TOGETHER = 16  # the bytes of all files of one side, as a multiple of the bound on one


@dataclass(frozen=True)
class Spec:
    """One argument: its kind, with the git object or the recipe net if it is not a path on disk."""

    text: str
    kind: SourceKind
    oid: str = ""
    net: Named | None = None


def resolve_arguments(arguments: Sequence[str]) -> tuple[list[Spec], list[str]]:
    """Return the resolved sides of the comparison, and the other arguments: paths to limit it to.

    Names that `naming` resolves take precedence over revisions. Raises InputError for an unknown name.
    """
    first, arguments = arguments[0], list(arguments[1:])
    if ".." in first and not os.path.exists(first):  # noqa: PTH110
        both = _read_range(first)
        if both:
            return both, arguments
    old = _classify(first)
    if not arguments:
        return [old], []
    if old.kind == "revision" and os.path.lexists(arguments[0]):
        return [old], arguments
    return [old, _classify(arguments[0])], arguments[1:]


def _read_range(text: str) -> list[Spec] | None:
    dots = "..." if "..." in text else ".."
    ends = [end or "HEAD" for end in text.split(dots, 1)]
    found = [find_object(end) for end in ends]
    if not found[0] or not found[1]:
        return None
    (old, _), (new, _) = found[0], found[1]
    if dots == "...":
        base = find_merge_base(old, new)
        if base is None:
            raise InputError(
                "", f"'{text}': the two have no common ancestor", "give two revisions as separate arguments"
            )
        return [Spec(base[:12], "revision", base), Spec(ends[1], "revision", new)]
    return [Spec(ends[0], "revision", old), Spec(ends[1], "revision", new)]


def _classify(text: str) -> Spec:
    named = find_named(text)
    if named is not None:
        return Spec(text, "file", net=named) if named.kind == "net" else Spec(text, named.kind)
    found = find_object(text)
    if found is None:
        _refuse_absent(text)
        why = explain_no_repository()
        if not why and find_object("HEAD") is None:
            why = "the current branch has no commits yet"
        hint = f"revisions: {why}" if why else ""
        raise nothing_named(text, "file, folder, recipe, run or revision", hint)
    oid, kind_of_object = found
    if kind_of_object == "blob":
        return Spec(text, "recipe" if text.endswith(RECIPE_SUFFIXES) else "file", oid)
    return Spec(text, "folder" if kind_of_object == "tree" and ":" in text else "revision", oid)


def _refuse_absent(text: str) -> None:
    """Raise InputError for `REV:path` of a revision that exists but lacks the path."""
    revision, _, path = text.partition(":")
    if not path or not revision or find_object(revision) is None:
        return
    hint = f"`git ls-tree -r --name-only {revision}` lists its files"
    if find_object(f"{revision}:./{path}"):
        hint = f"did you mean '{revision}:./{path}'?"
    raise InputError("", f"revision '{revision}' has no file or folder '{path}'", hint)


def working_tree_file(old: Spec) -> Spec:
    """Return the file in the working tree that `REV:path` is compared with by default."""
    path = old.text.partition(":")[2]
    if not old.oid or not path:
        path = old.text if Path(old.text).is_absolute() else f"./{os.path.relpath(old.text)}"
        hint = f"give two, or first its revision, as in HEAD:{path}"
        raise InputError("", f"nothing to compare '{old.text}' with", hint)
    file = Path(path) if path.startswith(("./", "../")) else top_folder() / path
    return _classify(os.path.relpath(file))


Read = Callable[[str], bytes | None]

_WORKING_TREE = "the working tree"


@dataclass(frozen=True)
class TextFile:
    """The bytes of a prototxt; `read` returns another file by its path, or None if it does not exist."""

    label: str
    path: str
    data: bytes
    read: Read


@dataclass(frozen=True)
class Tree:
    """The prototxts and recipes of one side by path; `files` has only those that may differ.

    `read` returns any file of that side, by its path.

    `prefix` precedes the path when a file is named in messages, as in `HEAD:net.prototxt`. `untracked` are
    new files of the working tree, relative to the current folder, which are not compared.
    """

    label: str
    prefix: str
    files: Mapping[str, bytes | PrototxtError]
    read: Read
    untracked: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecipeSide:
    """One side of a comparison of recipes.

    `own` is the net of a recipe in a revision, if it is a prototxt there; `unbuilt` says why the nets of a
    recipe cannot be built.
    """

    label: str
    recipe: Recipe
    own: Document[pb.NetParameter] | None = None
    unbuilt: str = ""


Sides = tuple[TextFile, TextFile] | tuple[Tree, Tree] | tuple[RecipeSide, RecipeSide]


def open_sides(arguments: Sequence[str], limits: Sequence[str] = (), *, max_bytes: int = MOST_BYTES) -> Sides:
    """Return both sides of the comparison that the arguments name; `limits` are the only paths to compare.

    A single revision is compared with the working tree, as in git; `A..B` and `A...B` name two revisions.
    Further arguments are limits too. Raises InputError for unknown names, and if the sides cannot be
    compared.
    """
    specs, more = resolve_arguments(arguments)
    limits = [*more, *limits]
    old = specs[0]
    if len(specs) == 1 and old.kind == "revision":
        return _open_working_tree(old, limits, max_bytes)
    new = specs[1] if len(specs) == 2 else working_tree_file(old)
    if old.kind != new.kind:
        what = f"'{old.text}' is a {old.kind}, '{new.text}' a {new.kind}"
        example = f", as in `diff {old.text} -- PATH`" if old.kind == "revision" else ""
        raise InputError("", what, f"compare two of the same kind{example}")
    if old.kind == "revision":
        return _open_revisions(old, new, limits, max_bytes)
    if old.kind == "folder":
        trees = _open_folder(old, limits, max_bytes), _open_folder(new, limits, max_bytes)
        _check_any(f"'{old.text}' nor '{new.text}'", *(tree.files for tree in trees))
        return trees
    if limits:
        raise InputError(
            "", f"unexpected argument '{limits[0]}'", "only folders and revisions can be limited to paths"
        )
    if old.kind == "recipe":
        return _open_recipe(old), _open_recipe(new)
    return _open_file(old, max_bytes), _open_file(new, max_bytes)


def _open_file(spec: Spec, max_bytes: int) -> TextFile:
    if spec.net is not None:
        return TextFile(spec.text, spec.text, _render_net(spec.net), lambda _: None)
    if spec.oid:
        rev = spec.text.partition(":")[0]
        data = read_blob(spec.oid, spec.text, max_bytes)
        return TextFile(
            spec.text, spec.text, data, lambda name: _read_at(rev, name.partition(":")[2] or name, max_bytes)
        )
    return TextFile(
        spec.text, spec.text, _read_disk(spec.text, max_bytes), lambda path: read_if_exists(path, max_bytes)
    )


def _render_net(named: Named) -> bytes:
    from caffe_recipes.recipe.source import load_recipe
    from caffe_recipes.render.prototxts import render_net

    recipe = load_recipe(named.path)
    return render_net(recipe, named.net or next(iter(recipe.nets))).encode()


def _read_at(rev: str, path: str, max_bytes: int) -> bytes | None:
    found = find_object(f"{rev}:{path}")
    return read_blob(found[0], path, max_bytes) if found and found[1] == "blob" else None


def _read_disk(path: str | Path, max_bytes: int) -> bytes:
    try:
        return read_bytes(path, max_bytes + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PrototxtError(path, f"cannot be read: {reason}", "check the path") from error


def read_if_exists(path: str | Path, max_bytes: int, folder: Path | None = None) -> bytes | None:
    """Return a file's bytes, at most one more than `max_bytes`; None if it cannot be read.

    Raises PrototxtError for a link out of `folder`, by default its own, to a file that is not the user's.
    """
    refuse_foreign_link(path, folder or Path(path).parent)
    data = _read_or_error(Path(path), max_bytes)
    return None if isinstance(data, PrototxtError) else data


def _open_folder(spec: Spec, limits: Sequence[str], max_bytes: int) -> Tree:
    wanted = [posixpath.normpath(limit) for limit in limits]
    if spec.oid:
        return _git_tree(spec, "/", list_files(spec.oid, wanted), wanted, max_bytes)
    root = Path(spec.text)
    paths = [
        (Path(folder) / name).relative_to(root).as_posix()
        for folder, folders, names in os.walk(root, onerror=refuse_unreadable)
        for name in names
        if ".git" not in Path(folder).relative_to(root).parts
    ]
    kept = [path for path in sorted(paths) if is_wanted(path, wanted)]
    return _disk_tree(spec.text, f"{root}/", root, kept, wanted, max_bytes)


def _disk_tree(
    label: str, prefix: str, root: Path, paths: Sequence[str], limits: Sequence[str], max_bytes: int
) -> Tree:
    files, total = dict[str, bytes | PrototxtError](), 0
    for path in paths:
        data = _read_or_error(root / path, max_bytes, root)
        if _is_compared(path, data, limits):
            files[path] = data
            total += 0 if isinstance(data, PrototxtError) else len(data)
            _check_total(len(files), total, max_bytes)
    return Tree(label, prefix, files, lambda path: read_if_exists(root / path, max_bytes, root))


def _is_compared(path: str, data: bytes | PrototxtError, limits: Sequence[str]) -> bool:
    """Return False for PyTorch weights, which also end in `.pt`, and for YAML that is not a recipe."""
    if isinstance(data, PrototxtError) or path in limits:
        return True
    if path.endswith(RECIPE_SUFFIXES):
        return _RECIPE.search(data) is not None
    return not path.endswith(".pt") or is_prototxt(path, data)


def _check_total(number: int, total: int, max_bytes: int) -> None:
    if number > MOST_COMPARED_FILES:
        raise InputError(
            "", f"over {MOST_COMPARED_FILES:,} files to compare", "compare fewer paths at a time"
        )
    if total > _MOST_TOGETHER * max_bytes:
        what = f"the files to compare exceed {_MOST_TOGETHER * max_bytes:,} bytes in total"
        raise InputError("", what, "compare fewer paths at a time, or raise --max-bytes")


def _read_or_error(path: Path, max_bytes: int, folder: Path | None = None) -> bytes | PrototxtError:
    """Return a found file's bytes, or why it cannot be read: with `folder`, also that it is a link out of it.

    Only a pipe that the user named is waited for.
    """
    try:
        if folder is not None:
            refuse_foreign_link(path, folder)
        if is_pipe_or_device(path):
            raise PrototxtError(path, "is a pipe or a device, not a file", "move it away")
        return _read_disk(path, max_bytes)
    except PrototxtError as error:
        return error


def _git_tree(
    spec: Spec, separator: str, blobs: Mapping[str, GitBlob], limits: Sequence[str], max_bytes: int
) -> Tree:
    """Return the files of a revision or of a folder in one; files that are too large become errors."""
    small = {blob.oid: blob.size_bytes for blob in blobs.values() if blob.size_bytes <= max_bytes}
    _check_total(0, sum(small.values()), max_bytes)
    data = read_blobs(small)
    found = (
        (path, data[blob.oid] if blob.oid in data else blob_too_large(path, max_bytes))
        for path, blob in blobs.items()
        if blob.oid in data or path.endswith(".prototxt")
    )
    files = {path: each for path, each in found if _is_compared(path, each, limits)}
    # Many files may be one object.
    total = sum(len(each) for each in files.values() if isinstance(each, bytes))
    _check_total(len(files), total, max_bytes)
    return Tree(spec.text, f"{spec.text}{separator}", files, lambda path: _read_at(spec.oid, path, max_bytes))


def _open_revisions(old: Spec, new: Spec, limits: Sequence[str], max_bytes: int) -> tuple[Tree, Tree]:
    wanted = _from_top(limits)
    before, after = (list_files(spec.oid, wanted) for spec in (old, new))
    same = {path for path, blob in before.items() if after.get(path) == blob}
    _check_limits(wanted, [*before, *after])
    _check_any(f"'{old.text}' nor '{new.text}'", before, after)
    before, after = (
        {path: blob for path, blob in blobs.items() if path not in same} for blobs in (before, after)
    )
    return _git_tree(old, ":", before, wanted, max_bytes), _git_tree(new, ":", after, wanted, max_bytes)


def _open_working_tree(old: Spec, limits: Sequence[str], max_bytes: int) -> tuple[Tree, Tree]:
    """Return a revision and the files that git tracks; as in git, new files count once they are added."""
    top, wanted = top_folder(), _from_top(limits)
    blobs = list_files(old.oid, wanted)
    paths = [path for path in sorted({*list_tracked(), *blobs}) if is_wanted(path, wanted)]
    new = [
        path
        for path in list_untracked(wanted)
        if is_wanted(path, wanted)
        and not (top / path).is_symlink()  # which is not compared, even if git tracks it
        and (is_prototxt_file(top / path) or _is_new_recipe(path, top, wanted, max_bytes))
    ]
    for limit in wanted:
        if any(is_wanted(path, [limit]) for path in paths):
            continue
        here, hint = os.path.relpath(top / limit), "add it with `git add` to see it as an added file"
        if (top / limit).is_symlink():
            raise InputError(here, "is a symbolic link, which is not compared", "give what it leads to")
        if (top / limit).is_file():
            what = f"revision '{old.text}' has no such file, and git does not track yours"
            raise InputError(here, what, hint)
        if any(is_wanted(path, [limit]) for path in new):
            what = f"revision '{old.text}' has no prototxt or recipe in it, and git does not track yours"
            raise InputError(here, what, hint.replace("an added file", "added files"))
    _check_limits(wanted, paths)
    _check_any(f"'{old.text}' nor the working tree", paths, new)
    files = [path for path in paths if (top / path).is_file() and not (top / path).is_symlink()]
    before = _git_tree(old, ":", blobs, wanted, max_bytes)
    after = _disk_tree(_WORKING_TREE, "", top, files, wanted, max_bytes)
    return before, replace(after, untracked=tuple(os.path.relpath(top / path) for path in new))


def _is_new_recipe(path: str, top: Path, limits: Sequence[str], max_bytes: int) -> bool:
    if not path.endswith(RECIPE_SUFFIXES):
        return False
    return _is_compared(path, _read_or_error(top / path, max_bytes, top), limits)


def _from_top(limits: Sequence[str]) -> list[str]:
    """Return paths relative to the current folder as paths from the top of the working tree."""
    if not limits:
        return []
    inner = inner_folder()
    here = [os.path.relpath(limit) if Path(limit).is_absolute() else limit for limit in limits]
    return [posixpath.normpath(posixpath.join(inner, limit)) for limit in here]


def _check_limits(limits: Sequence[str], paths: Sequence[str]) -> None:
    for limit in limits:
        if not any(is_wanted(path, [limit]) for path in paths):
            raise InputError(limit, "neither side has a prototxt or recipe at this path", "check the path")


def _check_any(sides: str, *found: Collection[str]) -> None:
    """Raise InputError if nothing to compare was found on either side: their equality would mean nothing."""
    if not any(found):
        wanted = f"({', '.join(f'*{suffix}' for suffix in (*SUFFIXES, *RECIPE_SUFFIXES))})"
        raise InputError("", f"neither {sides} contains a prototxt or recipe {wanted}", "check the paths")


def _open_recipe(spec: Spec) -> RecipeSide:
    from caffe_recipes.recipe.source import load_recipe, parse_recipe

    if not spec.oid:
        return RecipeSide(spec.text, load_recipe(spec.text))
    data = read_blob(spec.oid, spec.text, bound("yaml-bytes"))
    recipe = parse_recipe(decode_recipe(data, spec.text), spec.text, Path())
    revision = spec.text.partition(":")[0]
    if recipe.net.function is not None:
        code = f"{recipe.net.function} of {revision} is code, which is not run"
        return RecipeSide(
            spec.text, recipe, unbuilt=f"{code}; check out that revision and compare the folders"
        )
    nets = [_read_net(spec, file) for file in recipe.net.files]
    own = convert_nets(nets, recipe.net.dialect or OURS) if nets else None
    return RecipeSide(spec.text, recipe, own)


def _read_net(spec: Spec, file: str) -> Document[Any]:
    """Read a net that a recipe in a revision names."""
    place = _place_beside(spec.text, file)
    found = find_object(place)
    if found is None or found[1] != "blob":
        what = f"its net {place} is not in this revision"
        raise RecipeError(spec.text, what, "check out that revision and compare the folders")
    net = read_blob(found[0], place, MOST_BYTES)
    return parse_lenient(decode_prototxt(net, place, MOST_BYTES), place)


def _place_beside(spec: str, file: str) -> str:
    """Return `REV:path`, from the top of the repository, of a file that a recipe in a revision names.

    Raises RecipeError for a file outside the repository, and for a symbolic link, which is not followed.
    """
    revision, _, path = spec.partition(":")
    folder = posixpath.dirname(path)
    if path.startswith(("./", "../")):
        folder = posixpath.join(inner_folder(), folder)
    beside = posixpath.normpath(posixpath.join(folder, file))
    hint = "check out that revision and compare the folders"
    if beside.startswith(("/", "../")):
        raise RecipeError(spec, f"its net {file} is outside the repository", hint)
    listed = try_git("ls-tree", "--full-tree", revision, "--", beside) or ""
    if listed.startswith("120000"):
        raise RecipeError(
            spec, f"its net {revision}:{beside} is a symbolic link, which is not followed", hint
        )
    return f"{revision}:{beside}"


def decode_recipe(data: bytes, label: str) -> str:
    """Return the text of a recipe. Raises RecipeError."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RecipeError(label, "not UTF-8 text", "a recipe is a YAML file") from error
