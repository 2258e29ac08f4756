"""The files of a run, read for monitoring on this machine or on another host; nothing is locked.

Also finds the run that the user named, and reads the recipe that it was started with.
"""

from __future__ import annotations

import base64
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
from caffe_recipes.errors import InputError, hint_for
from caffe_recipes.file_format import take_format
from caffe_recipes.files.bounded_reads import open_file, too_large
from caffe_recipes.limits import limit
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.recipe.shipped import RECIPE_SUFFIXES, shipped_recipes, split_row
from caffe_recipes.recipe.source import load_any_recipe
from caffe_recipes.run.folders import RECIPE_JSON, thaw_recipe
from caffe_recipes.run.journal import JOURNAL
from caffe_recipes.run_names import RUNS, parse_run_name, sort_runs
from caffe_recipes.trust import is_own_file
from caffe_recipes.wording import describe_count, did_you_mean, join_names, plural


@dataclass(frozen=True)
class ReadRequest:
    """A request to read a file from the byte `start` on.

    At most `max_bytes` are read: the last of them, or with `from_start` the first. 0 means no limit.
    """

    path: str
    start: int = 0
    max_bytes: int = 0
    from_start: bool = False


@dataclass(frozen=True)
class FilePiece:
    """The content of a file from the byte `start` on."""

    start: int
    data: bytes


@dataclass(frozen=True)
class Process:
    """A process on a host; it keeps the file `held` open until it ends."""

    pid: int
    node: str
    held: str


NO_PROCESS = Process(0, "", "")
# The suffix that turns the path of a run's folder into that of its journal.
HAS_JOURNAL = f"/{JOURNAL}"


@dataclass(frozen=True)
class RunReading:
    """The files that were read, and whether the process was alive just before; None if that is not known.

    A piece is None if the file does not exist.
    """

    node: str
    lives: bool | None
    pieces: tuple[FilePiece | None, ...]


class RunFiles(Protocol):
    """Access to the files of runs, here or on another host."""

    @property
    def host(self) -> str:
        """The name of the host as the user gave it; empty for this machine."""

    def read(self, requests: Sequence[ReadRequest], process: Process = NO_PROCESS) -> RunReading:
        """Read files; raises InputError if one must not be read, and ClusterError if the host fails."""

    def names(self, folder: str, suffix: str = HAS_JOURNAL) -> list[str]:
        """Return the paths in a folder with a suffix, without the suffix; by default the names of runs."""

    def is_own(self, path: str) -> bool:
        """Return whether a file belongs to this user or to root; raises ClusterError if the host fails."""

    def resolve(self, path: str) -> str:
        """Return a path without symbolic links; raises ClusterError if the host fails."""

    def close(self) -> None:
        """Close the connection."""


class LocalFiles:
    """Files on this machine."""

    host = ""

    def read(self, requests: Sequence[ReadRequest], process: Process = NO_PROCESS) -> RunReading:
        """Read files."""
        node = socket.gethostname()
        lives = _lives(process) if process.node == node else None
        return RunReading(node, lives, tuple(_read(each) for each in requests))

    def names(self, folder: str, suffix: str = HAS_JOURNAL) -> list[str]:
        """Return the paths without their suffix; empty if the folder does not exist.

        Of links to one file, only the first is returned: there may be thousands.
        """
        found = dict[str, str]()
        for path in sorted(
            Path(folder).glob(f"*{suffix}"), key=lambda each: (each.parent.is_symlink(), each)
        ):
            found.setdefault(os.path.realpath(path), str(path.relative_to(folder)).removesuffix(suffix))
        return sorted(found.values())

    def is_own(self, path: str) -> bool:
        """Return whether a file belongs to this user or to root."""
        try:
            return is_own_file(path)
        except OSError:
            return False

    def resolve(self, path: str) -> str:
        """Return a path without symbolic links."""
        return os.path.realpath(path)

    def close(self) -> None:
        """Do nothing: there is no connection."""


_IS_OWN = 'case $(stat -L -c %u -- "$1") in 0 | "$(id -u)") ;; *) exit 1 ;; esac'


@dataclass(frozen=True)
class HostFiles:
    """Files on another host, read there by sh and coreutils, with one command for all requests."""

    remote: Host

    @property
    def host(self) -> str:
        """The name of the host."""
        return self.remote.name

    def read(self, requests: Sequence[ReadRequest], process: Process = NO_PROCESS) -> RunReading:
        """Read files."""
        words = [
            word
            for each in requests
            for word in (
                each.path,
                str(each.start),
                str(each.max_bytes or limit("journal-bytes") + 1),
                "first" if each.from_start or not each.max_bytes else "last",
            )
        ]
        process_words = (str(process.pid), process.node, process.held)
        records = call_to_end(self.remote, "watch", "look", *process_words, *words)
        if len(records) != len(requests) + 2:
            raise unreadable(self.host, "look", " ".join(records))
        node, lives = (record.partition(" ")[2] for record in records[:2])
        pieces = tuple(self._piece(each, record) for each, record in zip(requests, records[2:], strict=True))
        return RunReading(node, {"yes": True, "no": False}.get(lives), pieces)

    def names(self, folder: str, suffix: str = HAS_JOURNAL) -> list[str]:
        """Return the paths without their suffix; empty if the folder does not exist."""
        records = call_to_end(self.remote, "watch", "names", folder, suffix)
        try:
            names = [base64.b64decode(record.removeprefix("name "), validate=True) for record in records]
        except ValueError:
            raise unreadable(self.host, "names", " ".join(records)) from None
        return sorted(os.fsdecode(name) for name in names)

    def is_own(self, path: str) -> bool:
        """Return whether a file belongs to root or to the user that we are on the host."""
        return self.remote.run(["sh", "-c", _IS_OWN, "sh", path]).returncode == 0

    def resolve(self, path: str) -> str:
        """Return a path without symbolic links."""
        return self.remote.run(["readlink", "-m", "-n", "--", path]).stdout

    def close(self) -> None:
        """Close the connection."""
        self.remote.close()

    def _piece(self, request: ReadRequest, record: str) -> FilePiece | None:
        place = f"{self.host}:{request.path}"
        if record == "none":
            return None
        if record == "refused":
            raise InputError(place, "cannot be read", _HINT)
        word, _, rest = record.partition(" ")
        start, _, data = rest.partition(" ")
        try:
            piece = FilePiece(int(start), base64.b64decode(data, validate=True)) if word == "piece" else None
        except ValueError:
            piece = None
        if piece is None:
            raise unreadable(self.host, "look", record)
        if not request.max_bytes and len(piece.data) > limit("journal-bytes"):
            raise InputError(place, f"cannot be read: {too_large(place, 'journal-bytes').strerror}", _HINT)
        return piece


_HINT = "check its owner and permissions"


def _read(request: ReadRequest) -> FilePiece | None:
    try:
        with open_file(request.path) as file:
            size = os.fstat(file.fileno()).st_size
            start, count = request.start, max(0, size - request.start)
            if not request.max_bytes and count > limit("journal-bytes"):
                raise too_large(request.path, "journal-bytes")
            if request.max_bytes and count > request.max_bytes:
                start, count = start if request.from_start else size - request.max_bytes, request.max_bytes
            file.seek(start)
            return FilePiece(start, file.read(count))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise InputError(request.path, what, hint_for(error, _HINT)) from None


def _lives(process: Process) -> bool | None:
    """Return whether a process of this machine is alive, as `watch.sh` does on another host."""
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


_FEW_RUNS = 5  # to name in a hint


def find_run(files: RunFiles, root: str, given: str) -> str:
    """Return the folder of a run, given as a folder, the name of a run, or the name or YAML file of a recipe.

    For a recipe, also a row of a family as FILE:ROW, return its latest run. Raises InputError if there is no
    such run.
    """
    runs = posixpath.normpath(posixpath.join(root, RUNS))
    if _is_recipe_file(given):
        return posixpath.join(runs, _latest(files, runs, name_recipe(given), given))
    name = given.rstrip("/") or given
    folders = dict.fromkeys(
        [*([name] if "/" in name else []), posixpath.join(root, name), posixpath.join(runs, name)]
    )
    journals = files.read([ReadRequest(f"{folder}/{JOURNAL}", max_bytes=1) for folder in folders]).pieces
    found = [folder for folder, piece in zip(folders, journals, strict=True) if piece is not None]
    return found[0] if found else posixpath.join(runs, _latest(files, runs, given))


def load_frozen(files: RunFiles, folder: str) -> AnyRecipe:
    """Return the recipe that a run was started with; raises InputError if it cannot be read."""
    path, most = f"{folder}/{RECIPE_JSON}", limit("json-bytes")
    piece = files.read([ReadRequest(path, max_bytes=most + 1, from_start=True)]).pieces[0]
    if piece is not None and len(piece.data) > most:
        raise InputError(path, f"cannot be read: {too_large(path, 'json-bytes').strerror}", _HINT)
    try:
        if piece is None:
            raise ValueError("no such file")
        values = json.loads(piece.data)
        if isinstance(values, dict):
            take_format(values, path, "start over with --new")
        return thaw_recipe(values)
    except (ValidationError, ValueError, RecursionError) as error:
        what = "no such file" if piece is None else f"is not the recipe of a run: {_first_error(error)}"
        raise InputError(path, what, "restore it, or start over with --new") from None


def find_row_runs(files: RunFiles, root: str, rows: Sequence[str]) -> dict[str, str]:
    """Return the latest run of each row of a family, "" where there is none."""
    names = files.names(posixpath.normpath(posixpath.join(root, RUNS)))
    return {row: (sort_runs(names, row) or [""])[-1] for row in rows}


def name_recipe(given: str) -> str:
    """Return the name of a recipe that is given by name or as a YAML file; raises RecipeError if invalid."""
    return load_any_recipe(given).name if _is_recipe_file(given) else given


def _is_recipe_file(given: str) -> bool:
    return split_row(given)[0].endswith(RECIPE_SUFFIXES)


def _latest(files: RunFiles, runs: str, recipe: str, recipe_file: str = "") -> str:
    """Return the name of a recipe's latest run; `recipe_file` is its YAML file, if the user gave that."""
    names = files.names(runs)
    own = sort_runs(names, recipe)
    if own:
        return own[-1]
    where = f"{files.host}:{runs}" if files.host else runs
    if recipe_file or recipe in shipped_recipes():
        command = f"`caffe-recipes run {recipe_file or recipe}`"
        hint = f"start one with {command}, or give the folder that contains `runs` with --caffe-root"
        raise InputError(where, f"no run of {recipe} found", hint)
    hint = did_you_mean(recipe, names) or _describe_runs(names)
    raise InputError(where, f"no run or recipe is named {recipe[:80]!r}", hint)


def _describe_runs(names: Sequence[str]) -> str:
    """Return a hint with all runs if they are few, else with their number and the latest of a few recipes."""
    hint = "give the folder that contains `runs` with --caffe-root"
    runs = sorted(run for name in names if (run := parse_run_name(name)))
    if not runs:
        return hint
    if len(runs) <= _FEW_RUNS:
        every = join_names([f"{recipe}-{number}" for recipe, number in runs])
        return f"the {plural(len(runs), 'only run is', 'runs are')} {every}; or {hint}"
    latest = [f"{recipe}-{number}" for recipe, number in dict(runs).items()]
    more = ", ..." if len(latest) > _FEW_RUNS else ""
    shown = f"{', '.join(latest[:_FEW_RUNS])}{more}"
    return f"there are {describe_count(len(runs), 'run')}, the latest of each recipe: {shown}; or {hint}"


def _first_error(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return "not JSON" if isinstance(error, ValueError) else "too deep"
