"""Resolve an argument of a command: a recipe, one of its nets, a file or a folder.

The name of a shipped recipe takes precedence over a file or folder of that name; `./NAME` names the file.
That way a recipe's name also works inside `prototxt/`, which has a folder for each recipe.

Find the net of a solver: at its path from the folder that Caffe is started in, or beside the solver.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, NoReturn, get_args

from caffe_recipes.errors import InputError, hint_for
from caffe_recipes.files.bounded_reads import read_bytes
from caffe_recipes.recipe.shipped import RECIPE_SUFFIXES, is_family, shipped_recipes

GivenKind = Literal["recipe", "net", "file", "folder"]
KINDS: tuple[GivenKind, ...] = get_args(GivenKind)

_MAX_CHARACTERS = 1_000_000
_START_BYTES = 512
_PYTORCH = (b"PK", b"\x80")  # a zip archive, or a pickle

# An argument that ends in one of these is a path: `solver_a.pt`, but not `v1.2` or `stampede2-64n-72ep`.
_FILE = re.compile(r"\.[A-Za-z]\w*\Z")


@dataclass(frozen=True)
class Named:
    """A resolved argument. `path` is what to read: a file, a folder, a recipe's name or its YAML.

    `net` is the net in `RECIPE:net`; empty for `RECIPE:`, which is its first net. The recipe may be a row of
    a family, `FILE.yaml:row`.
    """

    kind: GivenKind
    path: str
    net: str = ""


def is_prototxt(name: str, start: bytes) -> bool:
    """Return whether a file is a prototxt, by its name and its first bytes.

    The names of many older nets and solvers end in `.pt`, as do those of PyTorch weights, which are binary.

    >>> is_prototxt("solver.pt", b'net: "a"'), is_prototxt("resnet.pt", b"PK\\x03\\x04")
    (True, False)
    """
    is_binary = b"\0" in start[:_START_BYTES] or start.startswith(_PYTORCH)
    return name.endswith(".prototxt") or (name.endswith(".pt") and not is_binary)


def is_prototxt_file(path: str | Path) -> bool:
    """Return whether a file on disk is a prototxt, by `is_prototxt`; True if it cannot be read.

    A pipe or device is not one: whoever searches a folder did not ask to wait for what it may send.
    """
    name = os.fspath(path)
    if not name.endswith(".pt"):
        return name.endswith(".prototxt") and not is_pipe_or_device(path)
    if not Path(path).is_file():
        return False
    try:
        return is_prototxt(name, read_bytes(path, _START_BYTES))
    except OSError:
        return True


def walk_prototxts(folder: str | Path) -> Iterator[tuple[str, list[str]]]:
    """Yield a folder and each of its subfolders with the paths of its prototxts, sorted by name.

    Skips folders whose names start with a dot, and does not follow links to folders. Raises InputError if a
    folder cannot be listed.
    """
    for place, folders, names in os.walk(folder, onerror=refuse_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = [os.path.join(place, name) for name in sorted(names)]  # noqa: PTH118
        yield place, [file for file in files if is_prototxt_file(file)]


def find_named(text: str) -> Named | None:
    """Resolve an argument; None if nothing has that name.

    >>> find_named("digits-local").kind, find_named("digits-local:train_val").net, find_named("digits")
    ('recipe', 'train_val', None)
    """
    if text in shipped_names():
        return Named("recipe", text)
    if os.path.exists(text):  # noqa: PTH110 - Path.exists raises where a name is too long
        if Path(text).is_dir():
            return Named("folder", text)
        return Named("recipe" if text.endswith(RECIPE_SUFFIXES) else "file", text)
    recipe, colon, net = text.rpartition(":")
    if not colon:
        return None
    if _is_family_file(recipe):
        return Named("recipe", text)
    if recipe in shipped_names() or _is_yaml_file(recipe) or _is_family_file(recipe.rpartition(":")[0]):
        return Named("net", recipe, net)
    return None


_OR_RUN = (
    "recipe, file, folder or run",
    "`caffe-recipes recipes` lists the recipes, and `caffe-recipes runs` the runs; name another folder that "
    "contains `runs` with --caffe-root",
)
_NUMBERED = re.compile(r".*-\d+", re.DOTALL)  # as the names of runs are


def require_named(text: str, kinds: Collection[GivenKind], wanted: str, *, takes_runs: bool = False) -> Named:
    """Resolve an argument that must be of one of these kinds; `wanted` is what to give otherwise.

    If the command `takes_runs`, an error for an unknown name mentions them.

    Raises InputError if nothing has that name, or if it is of another kind.

    >>> require_named("digits-local", ["file", "folder"], "a solver's file")
    Traceback (most recent call last):
    caffe_recipes.errors.InputError: digits-local: is a recipe; give a solver's file
    """
    named = find_named(text)
    if named is None:
        raise nothing_named(text, *(_OR_RUN if takes_runs else ()))
    if named.kind not in kinds:
        what = "a recipe's net" if named.kind == "net" else f"a {named.kind}"
        raise InputError(text, f"is {what}", f"give {wanted}")
    return named


def recipe_named(text: str) -> str:
    """Return the name or path for `load_recipe`. Raises InputError for a folder, a net or a missing file."""
    named = find_named(text)
    if named is None and (text.endswith(RECIPE_SUFFIXES) or not _is_path(text)):
        return text  # `load_recipe` reports why it cannot be read, or which names exist
    if named is not None and named.kind == "net" and _is_yaml_file(named.path):
        return text  # a row of a family: `load_recipe` reports that it does not exist
    return require_named(text, ["recipe", "file"], "a recipe's name, or the path of its YAML").path


def nothing_named(text: str, kinds: str = "recipe, file or folder", hint: str = "") -> InputError:
    """Return the error for an argument that cannot be resolved, with the nearest name.

    >>> str(nothing_named("digits-lokal"))
    "'digits-lokal' is not a recipe, file or folder; did you mean 'digits-local'?"
    >>> str(nothing_named("solver_a.pt"))
    'solver_a.pt: no such file; check the path'
    """
    if os.path.islink(text):  # noqa: PTH114 - Path.is_symlink raises where a name is too long
        return InputError(text, _broken_link(text), "fix the link")
    if _is_path(text):
        near = difflib.get_close_matches(Path(text).name, _names_beside(text), n=1, cutoff=0.8)
        return InputError(text, "no such file", f"did you mean '{near[0]}'?" if near else "check the path")
    is_maybe_run = hint and _NUMBERED.fullmatch(text)
    near = [] if is_maybe_run else difflib.get_close_matches(text[:200], shipped_names(), n=1)
    advice = f"did you mean '{near[0]}'?" if near else hint or "`caffe-recipes recipes` lists the recipes"
    return InputError("", f"'{text}' is not a {kinds}", advice)


def shipped_names() -> list[str]:
    """List the shipped recipes, without parsing their YAML.

    >>> "digits-local" in shipped_names()
    True
    """
    return sorted(shipped_recipes())


def _is_yaml_file(path: str) -> bool:
    return path.endswith(RECIPE_SUFFIXES) and os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises


def _is_family_file(path: str) -> bool:
    """Return whether a file is a family of recipes, so that `:NAME` after it is a row and not a net."""
    if not _is_yaml_file(path):
        return False
    try:
        return is_family(read_bytes(path, _MAX_CHARACTERS).decode(errors="replace"))
    except OSError:
        return False


def _is_path(text: str) -> bool:
    return ":" not in text and _FILE.search(text) is not None


def _broken_link(text: str) -> str:
    try:
        os.stat(text)  # noqa: PTH116 - beside os.path
    except OSError as error:
        return f"cannot be read: {error.strerror}, a link to {os.readlink(text)}"  # noqa: PTH115
    return "is a symbolic link that cannot be read"


def _names_beside(text: str) -> list[str]:
    try:
        return sorted(entry.name for entry in Path(text).parent.iterdir())
    except (OSError, ValueError):
        return []


def find_at_path(solver: str | Path, given: str, caffe_root: Path | None) -> Path | None:
    """Find a solver's net by its path; None if it does not exist.

    The path is relative to `caffe_root`. Without one, it may be relative to the current folder, the solver's
    folder, or a folder above it: its parent, any in the same git repository, and those from which the path to
    the solver starts with the same folder as the net's path. Folders further up are not searched.
    """
    roots = _roots(Path(solver).absolute().parent, given) if caffe_root is None else [caffe_root]
    return next((root / given for root in roots if is_file(root / given)), None)


def find_beside(solver: str | Path, given: str) -> Path | None:
    """Find a file with the net's file name beside the solver; None if it does not exist."""
    beside = Path(solver).parent / PurePosixPath(given).name
    return beside if is_file(beside) else None


def find_shared(solver: str | Path, given: str) -> Path | None:
    """Find a net in a sibling of the solver's folder, where `generate` writes shared nets."""
    net = PurePosixPath(given)
    if net.parent.name in ("", ".."):
        return None
    shared = Path(solver).absolute().parent.parent / net.parent.name / net.name
    return shared if is_file(shared) else None


def is_file(path: Path) -> bool:
    """Return whether a path is a file; False for invalid paths."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a path with a NUL, or too long
        return False


def is_pipe_or_device(path: str | Path) -> bool:
    """Return whether a path leads to a pipe, socket or device; False for one that leads to nothing."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - of a text, too
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def refuse_unreadable(error: OSError) -> NoReturn:
    """Raise InputError for a folder that os.walk cannot list, and would skip silently."""
    hint = hint_for(error, "check its permissions")
    raise InputError(error.filename, f"cannot be read: {error.strerror}", hint) from None


def _roots(home: Path, given: str) -> Iterator[Path]:
    folders = PurePosixPath(given).parts[:-1]
    if not folders:  # Caffe is started beside the solver
        yield home
        yield Path()
        return
    yield Path()
    yield home
    above = (home, *home.parents)
    repository = next((index for index, folder in enumerate(above) if (folder / ".git").exists()), 0)
    for index, folder in enumerate(above[1:], 1):
        if index <= max(repository, 1) or above[index - 1].name == folders[0]:
            yield folder
