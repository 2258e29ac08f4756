"""Files that change in one step, whole or not at all, and the diff of what they hold and are to hold."""

from __future__ import annotations

import difflib
import errno
import io
import os
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


def name_beside(path: Path) -> Path:
    """Name what takes a path's place once it is whole: hidden, in the same folder, this process's own."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def write_whole(
    files: Mapping[Path, bytes], *, executable: Container[Path] = (), is_synced: bool = False
) -> None:
    """Write files in a folder that is there; each changes in one step, and none unless all could be written.

    Through symbolic links; what is there keeps its mode. `is_synced` waits for the disk. Raises OSError,
    which names the file; no device or pipe is replaced.
    """
    waiting: dict[Path, Path] = {}
    try:
        for path, data in files.items():
            with _naming(path):
                target = Path(os.path.realpath(path))
                waiting[target] = name_beside(target)
                _write(waiting[target], target, data, path in executable, is_synced)
        for path in files:
            with _naming(path):
                target = Path(os.path.realpath(path))
                waiting[target].replace(target)
                del waiting[target]
    finally:
        for temporary in waiting.values():
            with suppress(OSError):
                temporary.unlink()


def check_replaceable(path: Path) -> None:
    """Raise OSError, which names the path, where write_whole would: before what takes long is begun."""
    with _naming(path):
        target = Path(os.path.realpath(path))
        _check_target(target)
        if not target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def render_unified(path: str, before: str | None, after: str | None) -> str:
    """Write what changes in a file as a unified diff; None is a file that is not there, or is to go.

    >>> print(render_unified("n", "a\\n", None), end="")
    --- a/n
    +++ /dev/null
    @@ -1 +0,0 @@
    -a
    """
    lines = difflib.unified_diff(
        list(io.StringIO(before or "")),  # not splitlines, which splits at more than line feeds
        list(io.StringIO(after or "")),
        "/dev/null" if before is None else f"a/{path}",
        "/dev/null" if after is None else f"b/{path}",
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let an OSError name the file that is meant, not the one beside it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _check_target(target: Path) -> None:
    """See that what is there is a file, and may be written: a rename would not ask."""
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "Is a device, a pipe or a socket, and no file")
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _write(temporary: Path, target: Path, data: bytes, is_executable: bool, is_synced: bool) -> None:
    _check_target(target)
    is_new = not target.exists()
    mode = 0o777 if is_executable else 0o666
    with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)
        if is_synced:
            file.flush()
            os.fsync(file.fileno())
    if not is_new:
        kept = target.stat().st_mode & 0o7777
        # Whoever may read a script may run it.
        temporary.chmod(kept | (kept & 0o444) >> 2 if is_executable else kept)
