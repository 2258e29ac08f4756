"""Generated files and the folder they live in: what differs, and writing what does."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.errors import InputError
from caffe_recipes.files import render_unified, write_whole
from caffe_recipes.generate.header import is_generated, is_shared


@dataclass(frozen=True)
class Difference:
    """One file on disk that is not what its recipe generates."""

    path: str
    what: str
    diff: str = ""


def find_differences(files: Mapping[str, str], out: Path) -> list[Difference]:
    """Compare generated files with the disk: missing, changed, not executable, or stale.

    Stale is a file that carries our header, lies in a recipe's folder, and is generated no more.
    Raises InputError where a path cannot be read.
    """
    found = [difference for path, text in files.items() for difference in _compare(path, text, out)]
    return found + [
        Difference(path, "stale", render_unified(path, _read(out / path), None))
        for path in find_stale(files, out)
    ]


def find_stale(files: Mapping[str, str], out: Path) -> list[str]:
    """Return the paths of files that `generate` once wrote beside `files`, and that no recipe makes now.

    Of nets that recipes share none is: another recipe may make it.
    """
    folders = sorted({path.rpartition("/")[0] for path in files})
    paths = (f"{folder}/{name}" for folder in folders for name in _names_in(out / folder))
    others = ((path, _head(out / path)) for path in paths if path not in files)
    return [path for path, head in others if is_generated(head) and not is_shared(head)]


def find_foreign(files: Mapping[str, str], out: Path) -> list[str]:
    """Return the paths of `files` where a file lies that differs and lacks our header: one written by hand.

    Raises InputError where a path cannot be read.
    """
    on_disk = ((path, text, _read(out / path)) for path, text in files.items())
    return [path for path, text, seen in on_disk if seen not in (None, text) and not is_generated(seen or "")]


def write_files(files: Mapping[str, str], out: Path) -> list[str]:
    """Write what differs, each file in one step, and return the paths written.

    A full disk or a folder without permission leaves all as it was. Raises InputError, naming the path.
    """
    changed = {out / path: path for path, text in files.items() if list(_compare(path, text, out))}
    folders: list[Path] = []
    try:
        for file in changed:
            folders += [folder for folder in reversed(file.parents) if not folder.exists()]
            file.parent.mkdir(parents=True, exist_ok=True)
        scripts = {file for file, path in changed.items() if _is_script(path)}
        write_whole({file: files[path].encode() for file, path in changed.items()}, executable=scripts)
    except OSError as error:
        raise _unusable(error, "written", out) from error
    finally:
        for folder in reversed(folders):
            with suppress(OSError):  # what was written into stays
                folder.rmdir()
    return list(changed.values())


def write_file(path: Path, data: bytes) -> None:
    """Write one file in one step: whole, or not at all. Raises InputError, naming the path."""
    try:
        write_whole({path: data})
    except OSError as error:
        raise _unusable(error, "written", path) from error


def _compare(path: str, text: str, out: Path) -> Iterator[Difference]:
    on_disk = _read(out / path)
    if on_disk is None:
        yield Difference(path, "missing", render_unified(path, None, text))
    elif on_disk != text:
        yield Difference(path, "changed", render_unified(path, on_disk, text))
    elif _is_script(path) and not (out / path).stat().st_mode & stat.S_IXUSR:
        yield Difference(path, "not executable")


def _is_script(path: str) -> bool:
    return path.endswith(".sh")


def _read(path: Path) -> str | None:
    """Read a file as text whose bytes can be told apart; None if there is none."""
    try:
        return path.read_bytes().decode(errors="surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(error, "read", path) from error


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unusable(error, "read", folder) from error


def _head(path: Path) -> str:
    """Read the first lines of any file, however large, or nothing of one that may not be read."""
    try:
        with path.open("rb") as file:
            return file.read(1024).decode(errors="replace")
    except OSError:
        return ""


def _unusable(error: OSError, verb: str, path: Path) -> InputError:
    hint = "check the path, its permissions and the disk"
    return InputError(error.filename or path, f"cannot be {verb}: {error.strerror}", hint)
