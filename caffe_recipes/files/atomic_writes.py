"""Write files atomically, where no other user can redirect what is written.

Folders may be shared with other users, like /tmp. A new file is written under a random name in a folder that
is kept open, and renamed there; a symbolic link is followed only if no other user could have created it.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from caffe_recipes.errors import InputError, hint_for
from caffe_recipes.trust import (
    Place,
    UntrustedPathError,
    find_other_writer,
    is_changed_by_group,
    is_open,
    naming,
    open_place,
)


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


_BLOCK_BYTES = 4096


def check_replaceable(path: Path) -> None:
    """Raise OSError, which names the path, if write_whole would; call it before long work.

    A hidden file of one block is written beside the path, and removed: that fails on a full disk, and in
    folders such as /sys, where not even root can create files.
    """
    with naming(path), open_place(path, writes=True) as place:
        part = name_beside(Path(place.name)).name
        if not os.access(f"/proc/self/fd/{place.folder.number}", os.W_OK | os.X_OK):
            raise _refusal(place.folder.number)
        try:
            _write(place, part, bytes(_BLOCK_BYTES), 0o600, is_synced=False)
        finally:
            with suppress(OSError):
                os.unlink(part, dir_fd=place.folder.number)


def check_not_input(out: Path, inputs: Iterable[str | Path], option: str) -> None:
    """Raise InputError if the file of an option is one of a command's inputs, by this or another path."""
    try:
        there = out.stat()
    except (OSError, ValueError):  # nothing can be there
        return
    for path in inputs:
        with suppress(OSError, ValueError):
            if os.path.samestat(there, os.stat(path)):  # noqa: PTH116 - also for text
                break
    else:
        return
    raise InputError(out, "is an input of this command", f"give another file with {option}")


def check_output(out: Path, inputs: Iterable[str | Path], option: str) -> None:
    """Raise InputError if the file of an option cannot be written, or is one of a command's inputs.

    Any other file there will be replaced, whatever it holds. Called before anything is computed.
    """
    try:
        if out.is_dir():
            raise InputError(out, "is a folder", f"name a file in it with {option}")
        if not out.parent.is_dir():
            raise InputError(out, f"the folder {out.parent} does not exist", "create it")
        check_replaceable(out)
    except OSError as error:
        raise output_error(out, error, f"give another file with {option}") from None
    check_not_input(out, inputs, option)


def output_error(out: Path, error: OSError, hint: str = "check its folder") -> InputError:
    """Return the InputError for a file that cannot be written; `hint` if the error has none of its own."""
    if isinstance(error, FileNotFoundError) and not out.parent.exists():
        return InputError(out, f"the folder {out.parent} does not exist", "create it")
    return InputError(out, f"cannot be written: {error.strerror}", hint_for(error, hint))


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
        raise OSError(errno.EINVAL, "it is a device, pipe or socket, not a file")
    if not os.access(place.name, os.W_OK, dir_fd=folder):  # a rename would ignore the file's mode
        raise _refusal(folder)
    return status


def _refusal(folder: int) -> OSError:
    """Return the error for a folder or a file in it to which this user cannot write."""
    is_read_only = os.fstatvfs(folder).f_flag & os.ST_RDONLY
    number = errno.EROFS if is_read_only else errno.EACCES
    return OSError(number, os.strerror(number))


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
