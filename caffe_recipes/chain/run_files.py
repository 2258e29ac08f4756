"""The files of a run as its watcher reads them: what is new, here or on another host. Nothing is locked."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Protocol

from caffe_recipes.cluster.hosts import Host
from caffe_recipes.errors import ClusterError, InputError

_RECIPES = """\
for each in "$1"/*"$2"; do
    if [ -f "$each" ]; then each=${each%"$2"} && printf '%s\\n' "${each##*/}"; fi
done
"""
_LIST = """\
for each in "$1"/*/journal.jsonl; do
    if [ -f "$each" ]; then each=${each%/journal.jsonl} && printf '%s\\n' "${each##*/}"; fi
done
"""


@dataclass(frozen=True)
class Wanted:
    """A file from a byte on; if more than `most` has come, the end of it. All, if `most` is 0."""

    path: str
    start: int = 0
    most: int = 0


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
class Look:
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

    def look(self, wanted: Sequence[Wanted], process: Process = NOBODY) -> Look:
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

    def look(self, wanted: Sequence[Wanted], process: Process = NOBODY) -> Look:
        """Read files."""
        node = socket.gethostname()
        lives = _lives(process) if process.node == node else None
        return Look(node, lives, tuple(_read(each) for each in wanted))

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

    def look(self, wanted: Sequence[Wanted], process: Process = NOBODY) -> Look:
        """Read files."""
        words = [word for each in wanted for word in (each.path, str(each.start), str(each.most))]
        asked = (str(process.pid), process.node, process.held, *words)
        node, lives, *answers, end = self._ask(_program(), *asked, lines=len(wanted) + 3)
        if end != "end":
            raise self._unreadable(end)
        pieces = tuple(self._piece(each.path, said) for each, said in zip(wanted, answers, strict=True))
        return Look(node, {"yes": True, "no": False}.get(lives), pieces)

    def names(self, runs: str) -> list[str]:
        """List a folder; none of one that is not there."""
        return sorted(self._ask(_LIST, runs))

    def recipes(self, runs: str, suffix: str) -> list[str]:
        """List a folder; none of one that is not there."""
        return sorted(self._ask(_RECIPES, runs, suffix))

    def close(self) -> None:
        """Close the connection."""
        self.there.close()

    def _ask(self, program: str, *words: str, lines: int | None = None) -> list[str]:
        done = self.there.run(["sh", "-c", program, "caffe-recipes", *words])
        said = done.stdout.split("\n")[:-1]
        if done.returncode != 0 or (lines is not None and len(said) != lines):
            raise self._unreadable(done.stderr or done.stdout or f"exit {done.returncode}")
        return said

    def _piece(self, path: str, said: str) -> Piece | None:
        if said == "none":
            return None
        if said == "refused":
            raise InputError(f"{self.host}:{path}", "cannot be read", "check whose it is")
        word, _, rest = said.partition(" ")
        start, _, data = rest.partition(" ")
        try:
            if word == "piece":
                return Piece(int(start), base64.b64decode(data, validate=True))
        except ValueError:
            pass
        raise self._unreadable(said)

    def _unreadable(self, said: str) -> ClusterError:
        what = f"gives no answer that can be read: {' '.join(said.split())[:200]}"
        return ClusterError(self.host, what, "check that the host has sh and GNU coreutils")


@cache
def _program() -> str:
    return resources.files(__package__).joinpath("watch.sh").read_text("utf-8")


def _read(wanted: Wanted) -> Piece | None:
    try:
        with open(wanted.path, "rb") as file:  # noqa: PTH123 - a path as it was given
            size = os.fstat(file.fileno()).st_size
            skips = wanted.most and size - wanted.start > wanted.most
            start = size - wanted.most if skips else wanted.start
            file.seek(start)
            return Piece(start, file.read(max(0, size - start)))
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
