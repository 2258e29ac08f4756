"""Write files atomically, lock them, and read paths that may be pipes, devices or endless files.

Folders may be shared with other users, like /tmp. A new file is written under a random name in a folder that
is kept open, and renamed there; a symbolic link is followed only if no other user could have created it.
"""

from __future__ import annotations

import ctypes
import difflib
import errno
import fcntl
import io
import os
import secrets
import select
import stat
import termios
import time
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from caffe_recipes.errors import CaffeRecipesError, hint_for
from caffe_recipes.limits import LIMITS_VARIABLE, hint_at_limit, limit
from caffe_recipes.trust import (
    Place,
    UntrustedPathError,
    check_read,
    find_other_writer,
    is_changed_by_group,
    is_open,
    is_own,
    naming,
    open_place,
    path_of,
)
from caffe_recipes.wording import did_you_mean, printable

_MOST_ENTRIES = 10_000  # of a folder that are searched for a similar name


def name_beside(path: Path) -> Path:
    """Return a hidden, random name in a path's folder, for a file that will replace it when complete."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def write_whole(
    files: Mapping[Path, bytes],
    *,
    executable: Container[Path] = (),
    mode: int = 0o666,
    is_synced: bool = False,
) -> None:
    """Write files into existing folders; each is replaced atomically, and none unless all could be written.

    A symbolic link of this user or of root is followed. An existing file keeps its mode; a new one gets
    `mode`, or 0o777 if it is in `executable`, minus the umask. `is_synced` waits until the data are on disk.
    Raises OSError, which names the file, for a link that another user could have created, for a folder within
    a world-writable one where others can replace files, and for a device or pipe, which is never replaced.
    """
    waiting: dict[Path, str] = {}
    try:
        for path, data in files.items():
            with naming(path), open_place(path, writes=True) as place:
                waiting[path] = name_beside(Path(place.name)).name
                new_mode = 0o777 if path in executable else mode
                _write(place, waiting[path], data, new_mode, is_synced)
        for path in files:
            with naming(path), open_place(path, writes=True) as place:
                os.replace(
                    waiting[path], place.name, src_dir_fd=place.folder.number, dst_dir_fd=place.folder.number
                )
                del waiting[path]
    finally:
        for path, part in waiting.items():
            with suppress(OSError), open_place(path, writes=True) as place:
                os.unlink(part, dir_fd=place.folder.number)


# The errors of a full file system; not every file system can reserve space.
FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_KEEP_SIZE = 1
_libc = ctypes.CDLL(None, use_errno=True)


def reserve(path: Path, ahead_bytes: int) -> bool:
    """Reserve `ahead_bytes` after the end of a file; return whether the disk is full.

    The file can then grow even if others fill up the disk; its size does not change yet. Free space is read
    before the reservation, which therefore does not count.
    """
    try:
        with path.open("rb+") as file:
            is_full = os.fstatvfs(file.fileno()).f_bavail == 0
            end = ctypes.c_int64(os.fstat(file.fileno()).st_size)
            for part in (1, 8, 64):  # with less free space, reserve less
                ahead = ctypes.c_int64(ahead_bytes // part)
                if _libc.fallocate(file.fileno(), _KEEP_SIZE, end, ahead) == 0:
                    return is_full
            return is_full or ctypes.get_errno() in FULL
    except OSError:
        return False


def release(path: Path) -> None:
    """Free the space that was reserved after the end of a file."""
    with suppress(OSError):
        os.truncate(path, path.stat().st_size)


def check_replaceable(path: Path) -> None:
    """Raise OSError, which names the path, if write_whole would; call it before long work."""
    with naming(path), open_place(path, writes=True) as place:
        _look(place)
        if not os.access(f"/proc/self/fd/{place.folder.number}", os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def make_parents(path: Path) -> None:
    """Create the folders above a path that do not exist; raises OSError, which names the last of them.

    None is created through a link or in a folder that is not trusted, as the path itself would not be.
    """
    with naming(path.parent):
        for parent in reversed(path.parents):
            if parent.is_dir():
                continue
            with open_place(parent, writes=True) as place:
                try:
                    os.mkdir(
                        place.name, 0o755 if place.folder.is_shared else 0o777, dir_fd=place.folder.number
                    )
                except FileExistsError:
                    if not parent.is_dir():  # another process may have just created it
                        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None


def make_own_folder(path: Path) -> None:
    """Create a folder and its parents unless it exists; raises OSError, which names it.

    If other users can write to the parent, a symbolic link is refused, and so is an existing folder that
    belongs to another user or that others can write to.
    """
    make_parents(path)
    with naming(path), open_place(path, writes=True, is_folder=True) as place:
        with suppress(FileExistsError):
            os.mkdir(place.name, 0o755 if place.folder.is_shared else 0o777, dir_fd=place.folder.number)
        status = os.stat(place.name, dir_fd=place.folder.number, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if is_open(place.folder.status):
            why, made = find_other_writer(status), f"/proc/self/fd/{place.folder.number}/{place.name}"
            if why or is_changed_by_group(made):
                raise UntrustedPathError(
                    why or "other users can write to it", "remove it or choose another folder"
                )


def open_lock(path: Path) -> int:
    """Open a lock file, created if missing, with mode 0600; return its descriptor. Raises OSError.

    Mode 0600, since whoever can read a lock file can hold the lock. A file of another user is refused, unless
    this user is root. O_NONBLOCK, since opening a pipe of that name would wait for a reader forever.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    try:
        if os.geteuid() not in (0, os.fstat(file).st_uid):
            raise PermissionError(
                errno.EPERM, "it belongs to another user, who could hold the lock", str(path)
            )
    except OSError:
        os.close(file)
        raise
    return file


def try_lock(file: int, how: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file without waiting; return False if another process holds the lock.

    Raises OSError if the file system has no locks.
    """
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def lock(path: Path, busy: Exception) -> Iterator[None]:
    """Hold the exclusive lock of a file, created if missing; raises `busy` if another process holds it.

    Raises OSError as open_lock and try_lock do.
    """
    file = open_lock(path)
    try:
        if not try_lock(file):
            raise busy
        yield
    finally:
        os.close(file)


def wait_until_read(descriptor: int, at_most_s: float = 60.0) -> None:
    """Wait until the reader of a pipe or socket has read everything, `at_most_s` seconds at most.

    Without this, the last lines are lost if the reader reacts to the end of this process before it reads
    them. Returns at once for anything but a pipe or socket.
    """
    until = time.monotonic() + at_most_s
    with suppress(OSError):
        mode = os.fstat(descriptor).st_mode
        ask = termios.FIONREAD if stat.S_ISFIFO(mode) else termios.TIOCOUTQ if stat.S_ISSOCK(mode) else 0
        readers = select.poll()
        readers.register(descriptor, 0)  # reports only that no reader is left
        while ask and any(fcntl.ioctl(descriptor, ask, bytes(4))) and time.monotonic() < until:
            if readers.poll(1):
                break


def cache_folder() -> Path:
    """Return the path of our folder in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home.startswith("/") else Path.home() / ".cache") / "caffe-recipes"


def private_cache(cache: Path) -> Path:
    """Return the cache folder, created if needed.

    Raises OSError if other users can write there, and so could plant what is read from it.
    """
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = cache.stat()
    if find_other_writer(status) or is_changed_by_group(cache):
        raise PermissionError(errno.EPERM, "other users can write there", str(cache))
    return cache


def write_cache_file(path: Path, text: str) -> None:
    """Write a file of the cache atomically, readable only by the user. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole({path: text.encode()}, mode=0o600)


def render_unified(path: str, before: str | None, after: str | None) -> str:
    """Return the change of a file as a unified diff; None means that the file does not exist.

    >>> print(render_unified("n", "a\\n", None), end="")
    --- a/n
    +++ /dev/null
    @@ -1 +0,0 @@
    -a
    """
    lines = difflib.unified_diff(
        list(io.StringIO(before or "")),  # splitlines would split at more than line feeds
        list(io.StringIO(after or "")),
        "/dev/null" if before is None else f"a/{printable(path)}",
        "/dev/null" if after is None else f"b/{printable(path)}",
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _look(place: Place) -> os.stat_result | None:
    """Return the status of the file that a rename would replace; raises OSError if it must stay."""
    folder = place.folder.number
    try:
        status = os.stat(place.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "Is a device, pipe or socket, not a file")
    if not os.access(place.name, os.W_OK, dir_fd=folder):  # a rename would ignore the file's mode
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return status


def _write(place: Place, part: str, data: bytes, mode: int, is_synced: bool) -> None:
    before = _look(place)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(part, flags, mode, dir_fd=place.folder.number)
    with os.fdopen(file, "wb") as stream:
        stream.write(data)
        if before is not None:
            kept = stat.S_IMODE(before.st_mode)
            # A planted file must not open ours to its owner: keep no bit that the umask denies.
            if before.st_uid != os.geteuid():
                kept &= stat.S_IMODE(os.fstat(file).st_mode) & ~stat.S_IWOTH
            # Make a script executable for all who may read it.
            os.fchmod(file, kept | (kept & 0o444) >> 2 if mode & stat.S_IXUSR else kept)
        if is_synced:
            stream.flush()
            os.fsync(file)


_PATIENCE_S = 2.0  # for the other end of a pipe
_SILENCE_S = 60.0  # of the writer of a named pipe, who may be anybody
_SILENCES = 10  # that all of a named pipe may take
_PIECE_BYTES = 1 << 20


def read_bytes(path: str | Path, most_bytes: int, *, silence_s: float = _SILENCE_S) -> bytes:
    """Read at most `most_bytes` of a file, a pipe or a terminal; raises OSError for anything else.

    A pipe with a writer is read to its end; one without a writer for 2 s raises TimeoutError. So does a named
    pipe whose writer sends nothing for `silence_s`, or does not end within ten times as long. The pipe of a
    process substitution, `<(...)`, has no name: only the user can write to it, and it may take any time.
    """
    with _open_at_once(path) as file:
        return _read_open(file, most_bytes, silence_s)


def _read_open(file: BinaryIO, most_bytes: int, silence_s: float) -> bytes:
    descriptor = file.fileno()
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or file.isatty()):
        raise OSError(errno.EINVAL, "it is a device, not a file")
    if stat.S_ISFIFO(mode):
        return _read_pipe(descriptor, most_bytes, silence_s)
    os.set_blocking(descriptor, True)
    return read_pieces(file, most_bytes)


def read_trusted(path: Path, most_bytes: int) -> bytes:
    """Read as read_bytes does, but only what no other user could have put there; raises UntrustedPathError.

    A pipe or here-document is the user's own.
    """
    with _open_at_once(path) as file:
        if not _is_inherited(file.fileno()):
            check_read(path, file.fileno())
        return _read_open(file, most_bytes, _SILENCE_S)


def _is_inherited(descriptor: int) -> bool:
    """Return whether a file is one without a name that this process was given, as `<(...)` and `<<EOF` do."""
    status = os.fstat(descriptor)
    is_removed = stat.S_ISREG(status.st_mode) and status.st_nlink == 0 and status.st_uid == os.geteuid()
    if not is_removed and not path_of(descriptor).startswith("pipe:"):
        return False
    for other in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - names
        with suppress(OSError):  # the descriptor of the listing itself
            if other != descriptor and os.path.sameopenfile(other, descriptor):
                return True
    return False


class NotAFileError(OSError):
    """Raised for a pipe or a device where a file was expected."""


def open_file(path: str | Path) -> BinaryIO:
    """Open a file for reading; raises NotAFileError for a pipe, which is not waited for, or anything else."""
    file = _open_at_once(path)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotAFileError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
    return file


def read_code(path: Path, most_bytes: int) -> bytes:
    """Read at most `most_bytes` of a file that nobody but this user, root and its folder's owner can change.

    A group that can write to the folder is trusted as its owner is, except within a world-writable folder.
    Raises UntrustedPathError if others could have put the file there, changed it or led the path to it, and
    OSError for a pipe or a device.
    """
    with naming(path), open_place(path, writes=True) as place:
        flags = os.O_NOFOLLOW | os.O_NONBLOCK
        folder, around = place.folder.number, place.folder.status
        with open(
            place.name, "rb", opener=lambda name, mode: os.open(name, mode | flags, dir_fd=folder)
        ) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise NotAFileError(errno.EINVAL, "it is a pipe or a device, not a file")
            if is_open(around):
                raise UntrustedPathError(f"anybody can put files into its folder {place.folder.path}")
            if is_open(status):
                raise UntrustedPathError("anybody can change it")
            by_group = is_changed_by_group(f"/proc/self/fd/{folder}")
            if not (is_own(status.st_uid) or status.st_uid == around.st_uid or by_group):
                raise UntrustedPathError(f"it belongs to user {status.st_uid}, who can change it")
            return read_pieces(file, most_bytes)


def _open_at_once(path: str | Path) -> BinaryIO:
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


@contextmanager
def reading(path: str | Path, fault: type[CaffeRecipesError], hint: str) -> Iterator[None]:
    """Turn an OSError into a `fault` with the text `PATH: cannot be read: REASON; hint`."""
    try:
        yield
    except OSError as error:
        raise fault(path, f"cannot be read: {error.strerror or error}", hint_for(error, hint)) from None


def load_within(path: str | Path, name: str, fault: type[CaffeRecipesError], hint: str) -> bytes:
    """Read a file within the limit `name`, as read_within does; raises `fault`, as `reading` does."""
    with reading(path, fault, hint):
        return read_within(path, name)


_refuses_others = False


@contextmanager
def refusing_others() -> Iterator[None]:
    """Within the context, load_yaml_text reads as read_trusted does: for commands that run what they read."""
    global _refuses_others
    before, _refuses_others = _refuses_others, True
    try:
        yield
    finally:
        _refuses_others = before


def load_yaml_text(path: Path, kind: str, fault: type[CaffeRecipesError]) -> str:
    """Read the text of a YAML file that should hold a `kind`; raises `fault`, also above `yaml-bytes`.

    Within `refusing_others` it raises `fault`, too, for a file that others could have put there or changed.
    """
    most = limit("yaml-bytes")
    try:
        data = (read_trusted if _refuses_others else read_bytes)(path, most + 1)
    except UntrustedPathError as error:
        raise fault(path, f"is not used: {error.why}", "use a copy in a folder of your own") from None
    except OSError as error:
        hint = hint_for(error, f"give the path to a {kind}'s YAML")
        if isinstance(error, FileNotFoundError):
            hint = did_you_mean(path.name, _yaml_names(path.parent), hint)
        raise fault(path, f"cannot be read: {error.strerror or error}", hint) from None
    if len(data) > most:
        raise fault(path, f"is over {most:,} bytes", f"is it a {kind}? {hint_at_limit('yaml-bytes')}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise fault(path, "not UTF-8 text", f"a {kind} is a YAML file") from None


def _yaml_names(folder: Path) -> list[str]:
    """Return the names of the YAML files in a folder; none if it cannot be read."""
    with suppress(OSError), os.scandir(folder) as entries:
        names = islice((entry.name for entry in entries), _MOST_ENTRIES)
        return [name for name in names if name.endswith((".yaml", ".yml"))]
    return []


def read_within(path: str | Path, name: str) -> bytes:
    """Read a file, as read_bytes does; raises OSError for one above the limit `name`, in bytes."""
    most = limit(name)
    data = read_bytes(path, most + 1)
    if len(data) > most:
        raise too_large(path, name)
    return data


def too_large(path: str | Path, name: str) -> OSError:
    """Return the error for a file, or a part of one, that is above a limit."""
    what = f"it is over {limit(name):,} bytes ({LIMITS_VARIABLE}={name}=N raises this limit)"
    return OSError(errno.EFBIG, what, str(path))


def read_pieces(file: BinaryIO, most_bytes: int) -> bytes:
    """Read at most `most_bytes`, allocating memory only for existing bytes."""
    pieces: list[bytes] = []
    while most_bytes > 0:
        wanted = min(_PIECE_BYTES, most_bytes)
        pieces.append(file.read(wanted))
        if len(pieces[-1]) < wanted:  # the end; reading a terminal again would need a second Ctrl-D
            break
        most_bytes -= wanted
    return b"".join(pieces)


def _read_pipe(descriptor: int, most_bytes: int, silence_s: float) -> bytes:
    """Read a pipe that was opened without blocking, as read_bytes describes; raises TimeoutError."""
    is_named = not str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("pipe:")
    begun = heard = time.monotonic()
    pieces: list[bytes] = []
    has_writer = False
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    while most_bytes > 0:
        left_s = min(heard + silence_s, begun + _SILENCES * silence_s) - time.monotonic()
        if is_named and left_s < 0:
            raise TimeoutError(errno.ETIMEDOUT, "it is a pipe whose writer does not finish")
        try:
            piece = os.read(descriptor, min(_PIECE_BYTES, most_bytes))
        except BlockingIOError:
            has_writer = True
            ready.poll(left_s * 1000 if is_named else None)
            continue
        if piece:
            pieces.append(piece)
            most_bytes -= len(piece)
            heard, has_writer = time.monotonic(), True
        elif has_writer:
            break
        elif time.monotonic() - begun > _PATIENCE_S:
            raise TimeoutError(errno.ETIMEDOUT, "it is a pipe without a writer")
        else:
            time.sleep(0.01)
    return b"".join(pieces)
