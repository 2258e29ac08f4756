"""Generated files and the folder they live in: what differs, and writing what does."""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.errors import InputError
from caffe_recipes.generate.header import is_generated


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
        Difference(path, "stale", _diff(path, _read(out / path), "")) for path in find_stale(files, out)
    ]


def find_stale(files: Mapping[str, str], out: Path) -> list[str]:
    """Return the paths of files that `generate` once wrote beside `files`, and that no recipe makes now."""
    folders = sorted({path.rpartition("/")[0] for path in files})
    paths = (f"{folder}/{name}" for folder in folders for name in _names_in(out / folder))
    return [path for path in paths if path not in files and is_generated(_head(out / path))]


def write_files(files: Mapping[str, str], out: Path) -> list[str]:
    """Write what differs, each file in one step, and return the paths written.

    All texts are written under temporary names before the first is renamed, so a full disk or a folder
    without permission leaves everything as it was. Raises InputError, naming the path.
    """
    changed = [path for path, text in files.items() if list(_compare(path, text, out))]
    folders: list[Path] = []
    temporary: dict[str, Path] = {}
    try:
        for path in changed:
            file = out / path
            folders += [folder for folder in reversed(file.parents) if not folder.exists()]
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary[path] = file.with_name(f".{file.name}.{os.getpid()}")
            _write(temporary[path], files[path], executable=_is_script(path))
        for path in changed:
            temporary[path].replace(out / path)
            del temporary[path]
    except OSError as error:
        raise _unusable(error, "written", out) from error
    finally:
        for file in temporary.values():
            with suppress(OSError):
                file.unlink()
        for folder in reversed(folders):
            with suppress(OSError):  # what was written into stays
                folder.rmdir()
    return changed


def write_file(path: Path, data: bytes) -> None:
    """Write one file in one step: whole, or not at all. Raises InputError, naming the path."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        hint = "check the path, its permissions and the disk"
        raise InputError(path, f"cannot be written: {error.strerror}", hint) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _compare(path: str, text: str, out: Path) -> Iterator[Difference]:
    on_disk = _read(out / path)
    if on_disk is None:
        yield Difference(path, "missing", _diff(path, None, text))
    elif on_disk != text:
        yield Difference(path, "changed", _diff(path, on_disk, text))
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


def _write(path: Path, text: str, *, executable: bool) -> None:
    mode = 0o777 if executable else 0o666
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(text.encode())


def _unusable(error: OSError, verb: str, path: Path) -> InputError:
    hint = "check the path, its permissions and the disk"
    return InputError(error.filename or path, f"cannot be {verb}: {error.strerror}", hint)


def _diff(path: str, old: str | None, new: str) -> str:
    lines = difflib.unified_diff(
        (old or "").splitlines(keepends=True),
        new.splitlines(keepends=True),
        "/dev/null" if old is None else f"a/{path}",
        f"b/{path}" if new else "/dev/null",
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
