"""Write files atomically, lock them, and read paths that may be pipes, devices or endless files.

Folders may be shared with other users, like /tmp. A new file is written under a random name in a folder that
is kept open, and renamed there; a symbolic link is followed only if no other user could have created it.
"""

from __future__ import annotations

import ctypes
import difflib
import errno
import fcntl
import grp
import io
import os
import pwd
import secrets
import select
import stat
import termios
import time
from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from caffe_recipes.errors import CaffeRecipesError, hint_for
from caffe_recipes.limits import LIMITS_VARIABLE, hint_at_limit, limit
from caffe_recipes.wording import did_you_mean, printable

# The number of symbolic links that Linux follows in one path.
_MOST_LINKS = 40
_MOST_ENTRIES = 10_000  # of a folder that are searched for a similar name
_REMOVE = "remove it or choose another folder"
_HAVE_COPIED = "use a copy in a folder of your own"
_HAVE_REMOVED = "ask its owner to remove it, or choose another folder"
# Traversing a folder does not need permission to list it.
_PASS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UntrustedPathError(PermissionError):
    """Raised for a path where another user could have put a file or could exchange ours."""

    why = ""  # the reason, without what to do next
    hint = ""  # its text ends with what to do


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
            with _naming(path), _open_place(path) as place:
                waiting[path] = name_beside(Path(place.name)).name
                new_mode = 0o777 if path in executable else mode
                _write(place, waiting[path], data, new_mode, is_synced)
        for path in files:
            with _naming(path), _open_place(path) as place:
                os.replace(waiting[path], place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
                del waiting[path]
    finally:
        for path, part in waiting.items():
            with suppress(OSError), _open_place(path) as place:
                os.unlink(part, dir_fd=place.folder)


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


def check_trusted(path: Path) -> None:
    """Raise UntrustedPathError, which names the path, if another user could exchange a file in its folder."""
    with _naming(path), _open_place(path):
        pass


def check_replaceable(path: Path) -> None:
    """Raise OSError, which names the path, if write_whole would; call it before long work."""
    with _naming(path), _open_place(path) as place:
        place.look()
        if not os.access(f"/proc/self/fd/{place.folder}", os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def make_parents(path: Path) -> None:
    """Create the folders above a path that do not exist; raises OSError, which names the last of them.

    None is created through a link or in a folder that is not trusted, as the path itself would not be.
    """
    with _naming(path.parent):
        for parent in reversed(path.parents):
            if parent.is_dir():
                continue
            with _open_place(parent) as place:
                try:
                    os.mkdir(place.name, dir_fd=place.folder)
                except FileExistsError:
                    if not parent.is_dir():  # another process may have just created it
                        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None


def make_own_folder(path: Path) -> None:
    """Create a folder and its parents unless it exists; raises OSError, which names it.

    If other users can write to the parent, a symbolic link is refused, and so is an existing folder that
    belongs to another user or that others can write to.
    """
    make_parents(path)
    with _naming(path), _open_place(path, is_folder=True) as place:
        with suppress(FileExistsError):
            is_shared = _is_open(os.fstat(place.folder))
            os.mkdir(place.name, 0o755 if is_shared else 0o777, dir_fd=place.folder)
        status = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if _is_open(os.fstat(place.folder)):
            if status.st_uid != os.geteuid():
                raise _untrusted(f"it belongs to user {status.st_uid}", _HAVE_REMOVED)
            if _is_open(status) or is_changed_by_group(f"/proc/self/fd/{place.folder}/{place.name}"):
                raise _untrusted("other users can write to it", _REMOVE)


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


def is_changed_by_group(folder: str | Path) -> bool:
    """Return whether a group with other members can write to a folder; private groups do not count.

    With an access control list, the mode's bit of the group stands for all whom the list names.
    """
    status = os.stat(folder)  # noqa: PTH116 - of a descriptor, too
    if not status.st_mode & stat.S_IWGRP:
        return False
    with suppress(OSError):  # none, or a file system without them
        return bool(os.getxattr(folder, "system.posix_acl_access"))
    with suppress(KeyError):
        own = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(own.pw_gid)
        is_private = group.gr_name == own.pw_name and set(group.gr_mem) <= {own.pw_name}
        return status.st_gid != own.pw_gid or not is_private
    return True


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
    if status.st_uid != os.geteuid() or _is_open(status) or is_changed_by_group(cache):
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


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Make an OSError name the intended file, not the temporary one next to it."""
    try:
        yield
    except UntrustedPathError as error:
        error.filename = str(path)
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


@dataclass(frozen=True)
class _Place:
    """A resolved path: a descriptor of the folder, and a name in it that is not a symbolic link."""

    folder: int
    name: str
    is_shared: bool

    def look(self) -> os.stat_result | None:
        """Return the status of the file that a rename would replace; raises OSError if it must stay."""
        try:
            status = os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "Is a device, pipe or socket, not a file")
        if not os.access(self.name, os.W_OK, dir_fd=self.folder):  # a rename would ignore the file's mode
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return status


@contextmanager
def _open_place(
    path: Path, *, is_folder: bool = False, owners: Collection[int] | None = None
) -> Iterator[_Place]:
    """Resolve a path step by step, as the kernel would; raises OSError for a step that is not trusted.

    With `is_folder` the last step names a folder, and a link there is not followed. `is_shared` is true in a
    folder where anybody can create files; below a folder there that nobody else can change, it is false
    again. With `owners` the file is only read, and the rules are those of node.sh: `_check_read` has them.
    """
    steps = _split(os.path.join(Path.cwd(), path))  # noqa: PTH118 - Path would drop the step before ".."
    folder = os.open("/", _PASS)
    try:
        is_shared, links = _is_open(os.fstat(folder)), 0
        while True:
            step = steps.pop()
            trusted = None if owners is None else (owners, is_shared)
            to = _read_link(folder, step, bool(steps), trusted) if not is_folder or steps else None
            if to:
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                steps += _split(to)
                if to.startswith("/"):
                    folder = _step(folder, "/")
                    is_shared = _is_open(os.fstat(folder))
                continue
            if not steps:
                break
            folder = _step(folder, step)
            if owners is None:
                is_shared = _check_replace(folder, is_shared)
            else:
                is_shared = _check_read(folder, is_shared, owners)
        yield _Place(folder, step, is_shared)
    finally:
        os.close(folder)


def _check_replace(folder: int, is_shared: bool) -> bool:
    """Return whether a folder is shared; raises OSError if others could exchange our files in it."""
    status = os.fstat(folder)
    _check_owner(folder, status, is_shared)
    if is_shared and not (_is_open(status) and status.st_mode & stat.S_ISVTX):
        by_group = is_changed_by_group(f"/proc/self/fd/{folder}")
        for who, can in (("anybody", _is_open(status)), ("a group", by_group)):
            if can:
                raise _untrusted(f"{who} can replace files in its folder {_name_of(folder)}")
    return _is_open(status)


def _check_read(step: int, is_shared: bool, owners: Collection[int]) -> bool:
    """Return whether a folder, or a file, is shared; raises OSError if others could have put files there.

    As check_step in node.sh for what is only read or run: outside of shared folders every owner is trusted.
    Below one, root, this user and `owners` are, and so is everyone below a folder of root's. A folder of ours
    does not end that, because others may have filled it while it was open.
    """
    status, me = os.fstat(step), os.geteuid()
    it = f"its folder {_name_of(step)}" if stat.S_ISDIR(status.st_mode) else "it"
    if is_shared and status.st_uid not in (0, me, *owners):
        raise _untrusted(f"{it} belongs to user {status.st_uid}, who can change its contents", _HAVE_COPIED)
    if _is_open(status):
        if not (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
            raise _untrusted(f"{it} can be changed by anybody", _HAVE_COPIED)
        return True
    if is_shared and is_changed_by_group(f"/proc/self/fd/{step}"):
        raise _untrusted(f"{it} can be changed by a group", _HAVE_COPIED)
    is_top = os.path.samestat(status, os.stat("/"))  # noqa: PTH116 - reached by ".."
    return is_shared and not is_top and (status.st_uid != 0 or me == 0)


def _check_owner(folder: int, status: os.stat_result, is_shared: bool) -> None:
    """Raise OSError for a folder whose owner could exchange our files in it.

    This is the owner of a folder that others can write to, since the sticky bit does not bind the owner, and
    of any folder in such a one, who can open it to others later. Elsewhere the user chose to trust the owner.
    """
    if status.st_uid in (0, os.geteuid()) or not (is_shared or _is_open(status)):
        return
    if not is_shared and _is_unknown(status.st_uid):
        return  # /tmp itself, as a container shows it
    raise _untrusted(f"{_name_of(folder)} belongs to user {status.st_uid}, who can replace files in it")


def _is_unknown(user: int) -> bool:
    """Return whether a user is not mapped into our user namespace, as root is not in most containers."""
    try:
        unknown = int(Path("/proc/sys/kernel/overflowuid").read_text())
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except (OSError, ValueError):
        return False
    ranges = [tuple(map(int, line.split())) for line in lines]
    return user == unknown and not any(first <= user < first + count for first, _, count in ranges)


def _split(path: str) -> list[str]:
    """Return a path's steps in reverse order."""
    return [step for step in reversed(path.split("/")) if step not in ("", ".")] or ["."]


def _step(folder: int, name: str) -> int:
    """Open a folder within another one, and close the outer one."""
    inner = os.open(name, _PASS, dir_fd=folder)
    os.close(folder)
    return inner


def _read_link(
    folder: int, name: str, is_on_the_way: bool, reading: tuple[Collection[int], bool] | None = None
) -> str | None:
    """Return the target of a symbolic link, None if `name` is not one; raises OSError for an untrusted link.

    A link is untrusted if another user could have created it. The owner of a folder that nobody else can
    write to is trusted on the path to a file, since the user chose that path, but not for the file itself.
    `reading` is the `owners` and `is_shared` of `_check_read`, whose rules then apply.
    """
    try:
        link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        status, around = os.fstat(link), os.fstat(folder)
        if not stat.S_ISLNK(status.st_mode):
            return None
        own = (0, os.geteuid())
        if reading is not None:
            owners, is_shared = reading
            is_trusted = not is_shared or status.st_uid in (*own, *owners)
        elif _is_open(around):
            is_trusted = status.st_uid in own and around.st_uid in own and bool(around.st_mode & stat.S_ISVTX)
        else:
            is_trusted = status.st_uid in own or (is_on_the_way and status.st_uid == around.st_uid)
        if not is_trusted:
            where = f"{_name_of(folder)}/{name}"
            what = f"{where} is a symbolic link of user {status.st_uid}, and other users can replace it"
            raise _untrusted(what, _REMOVE if status.st_uid in own else _HAVE_REMOVED)
        return os.readlink("", dir_fd=link)
    finally:
        os.close(link)


def _is_open(folder: os.stat_result) -> bool:
    return bool(folder.st_mode & stat.S_IWOTH)


def _untrusted(why: str, hint: str = "choose another folder") -> OSError:
    error = UntrustedPathError(errno.EPERM, f"{why}; {hint}")
    error.why = why
    return error


def _name_of(folder: int) -> str:
    return str(Path(f"/proc/self/fd/{folder}").readlink()).rstrip("/")


def _write(place: _Place, part: str, data: bytes, mode: int, is_synced: bool) -> None:
    before = place.look()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(part, flags, mode, dir_fd=place.folder)
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


def read_from(path: Path, most_bytes: int, owners: Collection[int]) -> bytes:
    """Read as read_bytes does, but only what root, this user or `owners` could have put there.

    Outside of folders where anybody can put files, every owner is trusted; a pipe or here-document is the
    user's own. Raises UntrustedPathError. The open file is compared with the one that the checked path leads
    to, so it does not matter who renames what in the meantime.
    """
    with _open_at_once(path) as file:
        if not _is_inherited(file.fileno()):
            with _naming(path), _open_place(path, owners=owners) as place:
                found = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
                if not os.path.samestat(found, os.fstat(file.fileno())):
                    raise _untrusted("it was exchanged while it was opened", _HAVE_COPIED)
                _check_read(file.fileno(), place.is_shared, owners)
        return _read_open(file, most_bytes, _SILENCE_S)


def _is_inherited(descriptor: int) -> bool:
    """Return whether a file is one without a name that this process was given, as `<(...)` and `<<EOF` do."""
    status = os.fstat(descriptor)
    is_removed = stat.S_ISREG(status.st_mode) and status.st_nlink == 0 and status.st_uid == os.geteuid()
    if not is_removed and not _name_of(descriptor).startswith("pipe:"):
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


def read_trusted(path: Path, most_bytes: int) -> bytes:
    """Read at most `most_bytes` of a file that nobody but this user, root and its folder's owner can change.

    A group that can write to the folder is trusted as its owner is, except within a world-writable folder.
    Raises UntrustedPathError if others could have put the file there, changed it or led the path to it, and
    OSError for a pipe or a device.
    """
    with _naming(path), _open_place(path) as place:
        flags = os.O_NOFOLLOW | os.O_NONBLOCK
        with open(
            place.name, "rb", opener=lambda name, mode: os.open(name, mode | flags, dir_fd=place.folder)
        ) as file:
            status, around = os.fstat(file.fileno()), os.fstat(place.folder)
            if not stat.S_ISREG(status.st_mode):
                raise NotAFileError(errno.EINVAL, "it is a pipe or a device, not a file")
            if _is_open(around):
                raise _untrusted(f"anybody can put files into its folder {_name_of(place.folder)}")
            if _is_open(status):
                raise _untrusted("anybody can change it")
            by_group = is_changed_by_group(f"/proc/self/fd/{place.folder}")
            if status.st_uid not in (0, os.geteuid(), around.st_uid) and not by_group:
                raise _untrusted(f"it belongs to user {status.st_uid}, who can change it")
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


_owners: Collection[int] | None = None


@contextmanager
def refusing_others(owners: Collection[int]) -> Iterator[None]:
    """Within the context, load_yaml_text reads as read_from does: for commands that run what they read."""
    global _owners
    before, _owners = _owners, owners
    try:
        yield
    finally:
        _owners = before


def load_yaml_text(path: Path, kind: str, fault: type[CaffeRecipesError]) -> str:
    """Read the text of a YAML file that should hold a `kind`; raises `fault`, also above `yaml-bytes`.

    Within `refusing_others` it raises `fault`, too, for a file that others could have put there or changed.
    """
    most = limit("yaml-bytes")
    try:
        data = read_bytes(path, most + 1) if _owners is None else read_from(path, most + 1, _owners)
    except UntrustedPathError as error:
        raise fault(path, f"is not used: {error.why}", _HAVE_COPIED) from None
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
