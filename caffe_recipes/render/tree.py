"""Compare the files of a recipe with those on disk, and write those that differ."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.caffe.prototxt import MOST_BYTES
from caffe_recipes.errors import InputError, hint_for
from caffe_recipes.files.atomic_writes import make_parents, output_error, write_whole
from caffe_recipes.files.bounded_reads import read_bytes
from caffe_recipes.files.unified_diff import render_unified
from caffe_recipes.quoting import is_quotable
from caffe_recipes.recipe.model import AnyRecipe, Recipe
from caffe_recipes.render.headers import is_generated, is_shared
from caffe_recipes.trust import check_write

_CHECK = "check the path and the disk"


@dataclass(frozen=True)
class StaleFile:
    """A file on disk that differs from what its recipe generates."""

    path: str
    what: str
    diff: str = ""


def find_differences(files: Mapping[str, str], out: Path) -> list[StaleFile]:
    """Return the files on disk that are missing, changed, not executable, or stale.

    A stale file has our header and is in a recipe's folder, but is no longer generated. Raises InputError if
    a path cannot be read.
    """
    found = [difference for path, text in files.items() for difference in _compare(path, text, out)]
    return found + [
        _differing(path, "stale", _read(out / path), None, out) for path in find_stale(files, out)
    ]


def find_stale(files: Mapping[str, str], out: Path) -> list[str]:
    """Return the paths of files next to `files` that `generate` wrote, but that are no longer generated.

    Shared nets never count, since another recipe may generate them.
    """
    folders = sorted({path.rpartition("/")[0] for path in files})
    paths = (f"{folder}/{name}" for folder in folders for name in _names_in(out / folder))
    others = ((path, _head(out / path)) for path in paths if path not in files)
    return [path for path, head in others if is_generated(head) and not is_shared(head)]


def find_foreign(files: Mapping[str, str], out: Path) -> list[str]:
    """Return the paths of `files` at which a different file without our header exists: one written by hand.

    Raises InputError if a path cannot be read.
    """
    on_disk = ((path, text, _read(out / path)) for path, text in files.items())
    return [path for path, text, seen in on_disk if seen not in (None, text) and not is_generated(seen or "")]


def check_own_net(recipe: AnyRecipe, files: Mapping[str, str], out: Path) -> None:
    """Raise InputError if one of `files` would replace the hand-written net that the recipe reads."""
    files_of_net = recipe.net.files if isinstance(recipe, Recipe) else ()
    own = [file for name in files_of_net if (file := recipe.folder / name).exists()]
    for path in find_foreign(files, out) if own else ():
        if any(map((out / path).samefile, own)):
            what = "the recipe reads its net from this file, which would be replaced by the generated one"
            raise InputError(
                out / path, what, f"write another prototxt_dir in the recipe, such as prototxt/{recipe.name}"
            )


def write_files(files: Mapping[str, str], out: Path) -> list[str]:
    """Write the files that differ, atomically, and return their paths.

    If the disk is full or a folder is not writable, nothing changes. Raises InputError, which names the path.
    """
    changed = {out / path: path for path, text in files.items() if list(_compare(path, text, out))}
    folders: list[Path] = []
    try:
        for path in sorted(files.keys() - changed.values()):
            check_write(out / path)
        for file in changed:
            folders += [folder for folder in reversed(file.parents) if not folder.exists()]
            make_parents(file)
        scripts = {file for file, path in changed.items() if _is_script(path)}
        write_whole({file: files[path].encode() for file, path in changed.items()}, executable=scripts)
    except OSError as error:
        raise _unusable(error, "written", out) from error
    finally:
        for folder in reversed(folders):
            with suppress(OSError):  # a folder that has files now stays
                folder.rmdir()
    return list(changed.values())


def write_file(path: Path, data: bytes) -> None:
    """Write one file atomically; raises InputError, which names the path."""
    try:
        write_whole({path: data})
    except OSError as error:
        raise output_error(path, error, _CHECK) from error


def write_all(files: Mapping[Path, bytes]) -> None:
    """Write all files or none, and create their folders; raises InputError, which names the path."""
    path = Path()
    try:
        for path in files:
            make_parents(path)
        write_whole(files)
    except OSError as error:
        raise _unusable(error, "written", path) from error


def _compare(path: str, text: str, out: Path) -> Iterator[StaleFile]:
    on_disk = _read(out / path)
    if on_disk is None:
        yield StaleFile(path, "missing", render_unified(path, None, text))
    elif on_disk != text:
        yield _differing(path, "changed", on_disk, text, out)
    elif _is_script(path) and not (out / path).stat().st_mode & stat.S_IXUSR:
        yield StaleFile(path, "not executable")


def _differing(path: str, what: str, before: str | None, after: str | None, out: Path) -> StaleFile:
    """Return a file with its difference, but not with the text of another one that a link leads to."""
    if is_quotable(out / path, out):
        return StaleFile(path, what, render_unified(path, before, after))
    return StaleFile(path, f"{what}: it is a link to a file outside {out}")


def _is_script(path: str) -> bool:
    return path.endswith(".sh")


def _read(path: Path) -> str | None:
    """Return a file as text in which every byte is distinct; None if the file does not exist."""
    try:
        data = read_bytes(path, MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(error, "read", path) from error
    if len(data) > MOST_BYTES:
        raise InputError(path, f"is over {MOST_BYTES:,} bytes, as no generated file is", "move it away")
    return data.decode(errors="surrogateescape")


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unusable(error, "read", folder) from error


def _head(path: Path) -> str:
    """Return the first lines of a file of any size, or "" if it cannot be read."""
    try:
        return read_bytes(path, 1024).decode(errors="replace")
    except OSError:
        return ""


def _unusable(error: OSError, verb: str, path: Path) -> InputError:
    hint = hint_for(error, _CHECK)
    return InputError(error.filename or path, f"cannot be {verb}: {error.strerror}", hint)
