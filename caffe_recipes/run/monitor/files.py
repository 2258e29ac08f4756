"""Which run a word names, and the recipe that it was started with; both where the run is.

The files of a run as its watcher reads them: what is new, here or on another host. Nothing is locked.
"""

from __future__ import annotations

import base64
import difflib
import json
import os
import posixpath
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.remote import call_to_end, unreadable
from caffe_recipes.errors import InputError
from caffe_recipes.files import open_file, too_large
from caffe_recipes.limits import limit
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.folders import RECIPE_JSON, RUNS, sort_runs, thaw_recipe


@dataclass(frozen=True)
class Wanted:
    """A file from a byte on; if more than `most` has come, the end of it, or with `first` the beginning.

    All, if `most` is 0.
    """

    path: str
    start: int = 0
    most: int = 0
    first: bool = False


@dataclass(frozen=True)
class Piece:
    """What a file holds from the byte `start` on."""

    start: int
    data: bytes


@dataclass(frozen=True)
class Process:
    """A process on a host that has the file `held` open as long as it lives."""

    pid: int
    node: str
    held: str


NOBODY = Process(0, "", "")


@dataclass(frozen=True)
class RunSnapshot:
    """Whether the process lived just before the files were read, None if that is not known; and the files.

    A piece is None where there is no such file.
    """

    node: str
    lives: bool | None
    pieces: tuple[Piece | None, ...]


class RunFiles(Protocol):
    """A place where runs are."""

    @property
    def host(self) -> str:
        """The host's name as the user gave it; empty for this machine."""

    def look(self, wanted: Sequence[Wanted], process: Process = NOBODY) -> RunSnapshot:
        """Read files; raises InputError for one that may not be read, ClusterError for a host."""

    def names(self, runs: str) -> list[str]:
        """Return the names of the folders in `runs` that hold a journal."""

    def recipes(self, runs: str, suffix: str) -> list[str]:
        """Return what the names of the files in `runs` that end so begin with."""

    def close(self) -> None:
        """Let go of the connection."""


class LocalFiles:
    """Files that this machine sees."""

    host = ""

    def look(self, wanted: Sequence[Wanted], process: Process = NOBODY) -> RunSnapshot:
        """Read files."""
        node = socket.gethostname()
        lives = _lives(process) if process.node == node else None
        return RunSnapshot(node, lives, tuple(_read(each) for each in wanted))

    def names(self, runs: str) -> list[str]:
        """List a folder; none of one that is not there."""
        return sorted(path.parent.name for path in Path(runs).glob("*/journal.jsonl"))

    def recipes(self, runs: str, suffix: str) -> list[str]:
        """List a folder; none of one that is not there."""
        return sorted(path.name.removesuffix(suffix) for path in Path(runs).glob(f"*{suffix}"))

    def close(self) -> None:
        """Hold nothing."""


@dataclass(frozen=True)
class HostFiles:
    """Files that a host sees, read there by sh and coreutils: one command for all that is wanted."""

    there: Host

    @property
    def host(self) -> str:
        """The host's name."""
        return self.there.name

    def look(self, wanted: Sequence[Wanted], process: Process = NOBODY) -> RunSnapshot:
        """Read files."""
        words = [
            word
            for each in wanted
            for word in (each.path, str(each.start), str(each.most), "first" if each.first else "last")
        ]
        process_words = (str(process.pid), process.node, process.held)
        records = call_to_end(self.there, "watch", "look", *process_words, *words)
        if len(records) != len(wanted) + 2:
            raise unreadable(self.host, "look", " ".join(records))
        node, lives = (record.partition(" ")[2] for record in records[:2])
        pieces = tuple(
            self._piece(each.path, record) for each, record in zip(wanted, records[2:], strict=True)
        )
        return RunSnapshot(node, {"yes": True, "no": False}.get(lives), pieces)

    def names(self, runs: str) -> list[str]:
        """List a folder; none of one that is not there."""
        return self._names(runs, "/journal.jsonl")

    def recipes(self, runs: str, suffix: str) -> list[str]:
        """List a folder; none of one that is not there."""
        return self._names(runs, suffix)

    def close(self) -> None:
        """Close the connection."""
        self.there.close()

    def _names(self, folder: str, suffix: str) -> list[str]:
        records = call_to_end(self.there, "watch", "names", folder, suffix)
        try:
            coded = [base64.b64decode(record.removeprefix("name "), validate=True) for record in records]
        except ValueError:
            raise unreadable(self.host, "names", " ".join(records)) from None
        return sorted(os.fsdecode(name) for name in coded)

    def _piece(self, path: str, record: str) -> Piece | None:
        if record == "none":
            return None
        if record == "refused":
            raise InputError(f"{self.host}:{path}", "cannot be read", "check whose it is")
        word, _, rest = record.partition(" ")
        start, _, data = rest.partition(" ")
        try:
            if word == "piece":
                return Piece(int(start), base64.b64decode(data, validate=True))
        except ValueError:
            pass
        raise unreadable(self.host, "look", record)


def _read(wanted: Wanted) -> Piece | None:
    try:
        with open_file(wanted.path) as file:
            size = os.fstat(file.fileno()).st_size
            start, count = wanted.start, max(0, size - wanted.start)
            if not wanted.most and count > limit("journal-bytes"):
                raise too_large(wanted.path, "journal-bytes")
            if wanted.most and count > wanted.most:
                start, count = start if wanted.first else size - wanted.most, wanted.most
            file.seek(start)
            return Piece(start, file.read(count))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(wanted.path, f"cannot be read: {error.strerror}", "check whose it is") from None


def _lives(process: Process) -> bool | None:
    """Tell whether a process of this machine lives, as `watch.sh` does of another's."""
    folder = Path(f"/proc/{process.pid}")
    try:
        held = Path(process.held).stat()
        is_ours = os.geteuid() in (0, held.st_uid)
    except OSError:
        held, is_ours = None, False
    if not folder.is_dir():
        return False if is_ours else None
    try:
        if (folder / "stat").read_text(errors="replace").rpartition(") ")[2][:1] in "ZX":
            return False
        files = list((folder / "fd").iterdir())
    except PermissionError:
        return True
    except OSError:
        return False
    return held is None or any(_is_same(file, held) for file in files)


def _is_same(file: Path, held: os.stat_result) -> bool:
    try:
        return os.path.samestat(file.stat(), held)
    except OSError:
        return False


_YAML = (".yaml", ".yml")


def find_run(files: RunFiles, root: str, given: str) -> str:
    """Return the folder of a run that is given as a folder, a run's name, a recipe's name or its YAML.

    A recipe stands for its latest run. Raises InputError if none exists.
    """
    runs = posixpath.normpath(posixpath.join(root, RUNS))
    if given.endswith(_YAML):
        return posixpath.join(runs, _latest(files, runs, name_recipe(given), given))
    plain = given.rstrip("/") or given
    folders = dict.fromkeys(
        [*([plain] if "/" in plain else []), posixpath.join(root, plain), posixpath.join(runs, plain)]
    )
    looked = files.look([Wanted(f"{folder}/journal.jsonl", most=1) for folder in folders])
    found = [folder for folder, piece in zip(folders, looked.pieces, strict=True) if piece is not None]
    return found[0] if found else posixpath.join(runs, _latest(files, runs, given))


def load_frozen(files: RunFiles, folder: str) -> AnyRecipe:
    """Read the recipe that a run was started with; raises InputError."""
    path = f"{folder}/{RECIPE_JSON}"
    piece = files.look([Wanted(path)]).pieces[0]
    try:
        if piece is None:
            raise ValueError("no such file")
        return thaw_recipe(json.loads(piece.data))
    except (ValidationError, ValueError, RecursionError) as error:
        what = "no such file" if piece is None else f"is no run's recipe: {_first(error)}"
        raise InputError(path, what, "watch the run with the version that started it") from None


def name_recipe(given: str) -> str:
    """Return the name of the recipe that a word would name; raises RecipeError for a spoilt YAML."""
    return load_recipe(given).name if given.endswith(_YAML) else given


def _latest(files: RunFiles, runs: str, recipe: str, recipe_file: str = "") -> str:
    """Return the name of a recipe's latest run; `recipe_file` is the YAML that it was given by."""
    names = files.names(runs)
    own = sort_runs(names, recipe)
    if own:
        return own[-1]
    where = f"{files.host}:{runs}" if files.host else runs
    if recipe_file or recipe in shipped_recipes():
        first = f"`caffe-recipes run {recipe_file or recipe}` first"
        hint = f"{first}, or give the folder that holds `runs` with --caffe-root"
        raise InputError(where, f"no run of {recipe} is here", hint)
    near = difflib.get_close_matches(recipe, names, n=1)
    hint = f"did you mean '{near[0]}'?" if near else "give the folder that holds `runs` with --caffe-root"
    raise InputError(where, f"no run, and no recipe's, is called {recipe[:80]!r}", hint)


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return "not JSON" if isinstance(error, ValueError) else "too deep"
