"""What a word on the command line names: a recipe, one of its nets, a file, a folder; or nothing.

The one place that decides it. The name of a recipe that ships goes before a file or folder of that name,
which `./NAME` means: inside `prototxt/`, where a folder for each recipe stands, names are recipes still.

Where the net of a solver lies: at its path from the folder that Caffe is started in, or beside it.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, NoReturn

from caffe_recipes.errors import InputError
from caffe_recipes.files import read_bytes
from caffe_recipes.recipe.shipped import is_family, shipped_recipes

Kind = Literal["recipe", "net", "file", "folder"]

RECIPE_SUFFIXES = (".yaml", ".yml")
_MOST_CHARACTERS = 1_000_000
_START_BYTES = 512
_PYTORCH = (b"PK", b"\x80")  # a zip archive, or a pickle

# A word with such an end is a file's path: `solver_a.pt`, but not `v1.2` or `stampede2-64n-72ep`.
_FILE = re.compile(r"\.[A-Za-z]\w*\Z")


@dataclass(frozen=True)
class Named:
    """What a word names. `path` is what is read: a file, a folder, a recipe's name or its YAML.

    `net` is that of `RECIPE:net`, or empty for `RECIPE:`, the recipe's first. The recipe may be a row of a
    user's family, `FILE.yaml:row`.
    """

    text: str
    kind: Kind
    path: str
    net: str = ""


def is_prototxt(name: str, start: bytes) -> bool:
    """Whether a file of a folder is a prototxt, by its name and its first bytes.

    Many older nets and solvers end in `.pt`, as do PyTorch's weights, which are not text.

    >>> is_prototxt("solver.pt", b'net: "a"'), is_prototxt("resnet.pt", b"PK\\x03\\x04")
    (True, False)
    """
    is_binary = b"\0" in start[:_START_BYTES] or start.startswith(_PYTORCH)
    return name.endswith(".prototxt") or (name.endswith(".pt") and not is_binary)


def is_prototxt_file(path: str | Path) -> bool:
    """Whether a file on the disk is a prototxt, as `is_prototxt` says; one that cannot be read may be."""
    name = os.fspath(path)
    if not name.endswith(".pt"):
        return name.endswith(".prototxt")
    if not Path(path).is_file():
        return False
    try:
        return is_prototxt(name, read_bytes(path, _START_BYTES))
    except OSError:
        return True


def walk_prototxts(folder: str | Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the folders within one, each with its prototxts by path, in the order of their names.

    Folders whose names start with a dot are left out, and links to folders are not followed. Raises
    InputError for a folder that cannot be listed.
    """
    for place, folders, names in os.walk(folder, onerror=refuse_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = [os.path.join(place, name) for name in sorted(names)]  # noqa: PTH118
        yield place, [file for file in files if is_prototxt_file(file)]


def find_named(text: str) -> Named | None:
    """Tell what a word names, or None.

    >>> find_named("digits-local").kind, find_named("digits-local:train_val").net, find_named("digits")
    ('recipe', 'train_val', None)
    """
    if text in shipped_names():
        return Named(text, "recipe", text)
    if os.path.exists(text):  # noqa: PTH110 - Path.exists raises where a name is too long
        if Path(text).is_dir():
            return Named(text, "folder", text)
        return Named(text, "recipe" if text.endswith(RECIPE_SUFFIXES) else "file", text)
    recipe, colon, net = text.rpartition(":")
    if not colon:
        return None
    if _is_family_file(recipe):
        return Named(text, "recipe", text)
    if recipe in shipped_names() or _is_yaml_file(recipe) or _is_family_file(recipe.rpartition(":")[0]):
        return Named(text, "net", recipe, net)
    return None


def need_named(text: str, kinds: Collection[Kind], wanted: str) -> Named:
    """Tell what a word names, if it is of these kinds; `wanted` says what to give instead.

    Raises InputError for what is nothing, and for what is of another kind.

    >>> need_named("digits-local", ["file", "folder"], "a solver's file")
    Traceback (most recent call last):
    caffe_recipes.errors.InputError: digits-local: is a recipe; give a solver's file
    """
    named = find_named(text)
    if named is None:
        raise nothing_named(text)
    if named.kind not in kinds:
        what = "a recipe's net" if named.kind == "net" else f"a {named.kind}"
        raise InputError(text, f"is {what}", f"give {wanted}")
    return named


def recipe_named(text: str) -> str:
    """Give what `load_recipe` reads; InputError for a folder, a net, and a file that is not there."""
    named = find_named(text)
    if named is None and (text.endswith(RECIPE_SUFFIXES) or not _is_path(text)):
        return text  # `load_recipe` says why it cannot be read, or which names there are
    if named is not None and named.kind == "net" and _is_yaml_file(named.path):
        return text  # a row is meant: `load_recipe` says that there is none
    return need_named(text, ["recipe", "file"], "a recipe's name, or its YAML").path


def nothing_named(text: str, kinds: str = "recipe, file or folder", hint: str = "") -> InputError:
    """Say of a word that names nothing what it may have been meant to be.

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
    near = difflib.get_close_matches(text[:200], shipped_names(), n=1)
    advice = f"did you mean '{near[0]}'?" if near else hint or "`caffe-recipes recipes` lists the recipes"
    return InputError("", f"'{text}' is not a {kinds}", advice)


def shipped_names() -> list[str]:
    """List the recipes that ship, without taking their YAML apart.

    >>> "digits-local" in shipped_names()
    True
    """
    return sorted(shipped_recipes())


def _is_yaml_file(path: str) -> bool:
    return path.endswith(RECIPE_SUFFIXES) and os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises


def _is_family_file(path: str) -> bool:
    """Whether a file holds a family of recipes, so that a word behind its name is a row, and not a net."""
    if not _is_yaml_file(path):
        return False
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return is_family(file.read(_MOST_CHARACTERS))
    except OSError:
        return False


def _is_path(text: str) -> bool:
    return ":" not in text and _FILE.search(text) is not None


def _broken_link(text: str) -> str:
    try:
        os.stat(text)  # noqa: PTH116 - beside os.path
    except OSError as error:
        return f"cannot be read ({error.strerror}): it is a link to {os.readlink(text)}"  # noqa: PTH115
    return "is a link, and cannot be read"


def _names_beside(text: str) -> list[str]:
    try:
        return sorted(entry.name for entry in Path(text).parent.iterdir())
    except (OSError, ValueError):
        return []


def find_at_path(solver: str | Path, given: str, caffe_root: Path | None) -> Path | None:
    """Find the net that a solver's file gives by its path; None if it is not there.

    The path counts from `caffe_root`. Without one it may count from the current folder or from one above the
    solver: within its git repository, the folder next above, and those whose own path to the solver begins
    as the net's. Files in folders further up are somebody else's.
    """
    roots = _roots(Path(solver).absolute().parent, given) if caffe_root is None else [caffe_root]
    return next((root / given for root in roots if is_file(root / given)), None)


def find_beside(solver: str | Path, given: str) -> Path | None:
    """Find a file of the net's name beside the solver; None if there is none."""
    beside = Path(solver).parent / PurePosixPath(given).name
    return beside if is_file(beside) else None


def find_shared(solver: str | Path, given: str) -> Path | None:
    """Find a net in a folder beside the solver's, where `generate` writes those that recipes share."""
    net = PurePosixPath(given)
    if net.parent.name in ("", ".."):
        return None
    shared = Path(solver).absolute().parent.parent / net.parent.name / net.name
    return shared if is_file(shared) else None


def is_file(path: Path) -> bool:
    """Whether there is such a file; no path is too odd to ask for."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a path with a NUL, or too long
        return False


def refuse_unreadable(error: OSError) -> NoReturn:
    """Raise InputError for a folder that os.walk cannot list, and would else pass over."""
    raise InputError(error.filename, f"cannot be read: {error.strerror}", "check its permissions") from None


def real_path(path: str | Path) -> Path:
    """Follow the links of a path, as far as they lead: `Path.resolve` raises RuntimeError where they loop."""
    return Path(os.path.realpath(path))


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
