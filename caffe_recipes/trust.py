"""Decide whether a path can be trusted: may I read and believe what is there, may I write there?

`cluster/sh/node.sh` holds the same rule for hosts, and `tests/trust_cases.py` has the cases that both are
tested with. This module needs only the standard library, since it is also put beside the TensorFlow programs.

Root, this user and the owners that the user names are trusted everywhere. A path is walked as the kernel
walks it, and each folder, link and file on it is judged by where it is:

- Where nobody but the owners of the folders can create anything, these owners are trusted, and so are their
  groups: the user chose the path.
- In a folder where everybody can create files, such as /tmp, and below it, everything must belong to a
  trusted user, and no group and no access control list may let others change it. This ends below a folder of
  root's in which nobody else can write. It does not end below one of the user's own, which others may have
  filled while it was open to them.
- What everybody can change is never believed, except the names in a sticky folder.

Writing differs in that no content is believed, and that a link could lead to other files of the user:

- The owner of a folder where everybody can create files must be trusted, too: the sticky bit does not bind
  the owner.
- A link must belong to a trusted user. On the way to the file, it may belong to the owner of its folder.
- What lies below a folder of a trusted user was put there with their consent, or will not be believed.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

# The numbers of the named owners, for the programs that a run starts.
VARIABLE = "CAFFE_RECIPES_TRUST"
# The number of symbolic links that Linux follows in one path.
_MOST_LINKS = 40
# Traversing a folder does not need permission to list it.
_PASS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_COPY = "use a copy in a folder of your own"

_named = frozenset(map(int, re.findall("[0-9]+", os.environ.get(VARIABLE, ""))))


class UntrustedPathError(PermissionError):
    """Raised for a path where another user could have put a file or could exchange ours."""

    hint = ""  # its text ends with what to do

    def __init__(self, why: str, hint: str = "choose another folder") -> None:
        """Create the error; `why` is the reason, without what to do next."""
        super().__init__(errno.EPERM, f"{why}; {hint}")
        self.why = why


@contextmanager
def trusting(owners: Collection[int]) -> Iterator[None]:
    """Within the context, trust these users, by their numbers, in addition to those already named."""
    global _named
    before, _named = _named, _named | frozenset(owners)
    try:
        yield
    finally:
        _named = before


def named_owners() -> list[int]:
    """Return the numbers of the users that are trusted because they were named."""
    return sorted(_named)


def is_own(user: int) -> bool:
    """Return whether a user is root or this one."""
    return user in (0, os.geteuid())


def is_own_file(path: str | Path) -> bool:
    """Return whether a file belongs to root or this user; raises OSError if it does not exist.

    On a mount with squashed root, what root creates belongs to nobody, as does the folder. That is only so
    for root of the machine, not of a container with users of its own.
    """
    user = Path(path).stat().st_uid
    if is_own(user):
        return True
    if os.geteuid() or user != _unknown_user() or _uid_map() != [(0, 0, 4294967295)]:
        return False
    folder = Path(path).resolve().parent.stat()
    return folder.st_uid == user and not is_open(folder)


def is_trusted(user: int) -> bool:
    """Return whether a user is trusted everywhere."""
    return is_own(user) or user in _named


def is_open(status: os.stat_result) -> bool:
    """Return whether everybody can write to a file, or create files in a folder."""
    return bool(status.st_mode & stat.S_IWOTH)


def is_sticky(status: os.stat_result) -> bool:
    """Return whether in this folder, users can only replace files of their own."""
    return stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_ISVTX)


def find_other_writer(status: os.stat_result) -> str:
    """Return who else can change a file or folder, as `it belongs to user 1`; groups are not considered."""
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}"
    return "other users can write to it" if is_open(status) else ""


def is_changed_by_group(path: str | Path) -> bool:
    """Return whether a group with other members can change a file or folder; private groups do not count.

    With an access control list, the mode's bit of the group stands for all whom the list names.
    """
    status = os.stat(path)  # noqa: PTH116 - of a descriptor, too
    if not status.st_mode & stat.S_IWGRP:
        return False
    with suppress(OSError):  # none, or a file system without them
        return bool(os.getxattr(path, "system.posix_acl_access"))
    with suppress(KeyError):
        own = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(own.pw_gid)
        is_private = group.gr_name == own.pw_name and set(group.gr_mem) <= {own.pw_name}
        return status.st_gid != own.pw_gid or not is_private
    return True


def is_as_safe_as_its_folder(path: Path) -> bool:
    """Return whether only those who can change its folder can change a file that is not a link."""
    try:
        file, folder = path.lstat(), path.parent.stat()
    except OSError:
        return False
    is_plain = stat.S_ISREG(file.st_mode) and not is_open(file)
    by_group = bool(file.st_mode & stat.S_IWGRP)
    is_as_folder = bool(folder.st_mode & stat.S_IWGRP) and file.st_gid == folder.st_gid
    return (
        is_plain and (not by_group or is_as_folder) and (is_own(file.st_uid) or file.st_uid == folder.st_uid)
    )


def check_read(path: Path, opened: int | None = None) -> None:
    """Raise UntrustedPathError, which names the path, if another user could have put the file there.

    With `opened`, the descriptor of the file that was opened by this path, also if that is another file: it
    then does not matter who renames what in the meantime. Raises OSError if the file does not exist.
    """
    with naming(path), open_place(path, writes=False) as place:
        file = os.open(place.name, _LOOK, dir_fd=place.folder.number)
        try:
            if opened is not None and not os.path.sameopenfile(file, opened):
                raise UntrustedPathError("it was exchanged while it was opened", _COPY)
            _check_step(file, place.folder, writes=False)
        finally:
            os.close(file)


def check_write(path: Path) -> None:
    """Raise UntrustedPathError, which names the path, if another user could redirect what we write there."""
    with naming(path), open_place(path, writes=True):
        pass


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make an OSError name the intended file, not the temporary one next to it."""
    try:
        yield
    except UntrustedPathError as error:
        error.filename = str(path)
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


@dataclass(frozen=True)
class OpenFolder:
    """An open folder; `is_shared` if it is one where everybody can create files, or is below one."""

    number: int
    status: os.stat_result
    is_shared: bool

    @property
    def path(self) -> str:
        """The folder's path, without links."""
        return path_of(self.number)


@dataclass(frozen=True)
class Place:
    """A resolved path: an open folder, and a name in it that is not a symbolic link."""

    folder: OpenFolder
    name: str


@contextmanager
def open_place(path: Path, *, writes: bool, is_folder: bool = False) -> Iterator[Place]:
    """Resolve a path step by step, as the kernel would; raises OSError for a step that is not trusted.

    The last step is not judged, unless it is a link. With `is_folder`, a link there is not followed.
    """
    steps = _split(os.path.join(Path.cwd(), path))  # noqa: PTH118 - Path would drop the step before ".."
    top = os.open("/", _PASS)
    status = os.fstat(top)
    trail, links = [OpenFolder(top, status, is_open(status))], 0
    try:
        while True:
            step = steps.pop()
            if step == "..":
                _leave(trail, max(1, len(trail) - 1))
                steps = steps or ["."]
                continue
            if step == "." and steps:  # the target of a link to /
                continue
            to = _read_link(trail[-1], step, writes, bool(steps)) if steps or not is_folder else None
            if to is not None:
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                steps += _split(to)
                if to.startswith("/"):
                    _leave(trail, 1)
            elif steps:
                trail.append(_enter(trail[-1], step, writes))
            else:
                break
        yield Place(trail[-1], step)
    finally:
        _leave(trail, 0)


def _split(path: str) -> list[str]:
    """Return a path's steps in reverse order."""
    return [step for step in reversed(path.split("/")) if step not in ("", ".")] or ["."]


def _leave(trail: list[OpenFolder], kept: int) -> None:
    """Close the folders of the trail beyond the first `kept`."""
    while len(trail) > kept:
        os.close(trail.pop().number)


def _enter(around: OpenFolder, name: str, writes: bool) -> OpenFolder:
    number = os.open(name, _PASS, dir_fd=around.number)
    try:
        return OpenFolder(number, os.fstat(number), _check_step(number, around, writes))
    except OSError:
        os.close(number)
        raise


def _check_step(step: int, around: OpenFolder, writes: bool) -> bool:
    """Return whether what is in an open folder could be anybody's; raises UntrustedPathError.

    `step` is the descriptor of the folder, or of a file, and `around` the folder that it is in.
    """
    status = os.fstat(step)
    user, everybody = status.st_uid, is_open(status)
    is_owner_bound = around.is_shared or (writes and everybody and not _is_unmapped(user))
    if is_owner_bound and not is_trusted(user):
        raise _refusal(step, status, f"belongs to user {user}, who can", writes)
    if everybody and not is_sticky(status) and (around.is_shared or not writes):
        raise _refusal(step, status, "anybody", writes)
    if not everybody and around.is_shared and is_changed_by_group(f"/proc/self/fd/{step}"):
        raise _refusal(step, status, "a group", writes)
    is_ended = writes or (user == 0 and os.geteuid() != 0)
    return everybody or (around.is_shared and not is_ended)


def _refusal(step: int, status: os.stat_result, who: str, writes: bool) -> UntrustedPathError:
    where, is_owner = path_of(step), who.startswith("belongs")
    if writes:
        why = (
            f"{where} {who} replace files in it"
            if is_owner
            else f"{who} can replace files in its folder {where}"
        )
        return UntrustedPathError(why)
    it = f"its folder {where}" if stat.S_ISDIR(status.st_mode) else "it"
    return UntrustedPathError(
        f"{it} {who} change its contents" if is_owner else f"{it} can be changed by {who}", _COPY
    )


def _read_link(around: OpenFolder, name: str, writes: bool, is_on_the_way: bool) -> str | None:
    """Return the target of a symbolic link, None if `name` is not one; raises OSError if untrusted."""
    try:
        link = os.open(name, _LOOK, dir_fd=around.number)
    except FileNotFoundError:
        return None
    try:
        user = os.fstat(link).st_uid
        if not stat.S_ISLNK(os.fstat(link).st_mode):
            return None
        if not writes:
            is_safe = is_trusted(user) or not around.is_shared
        elif is_open(around.status):
            is_safe = is_trusted(user) and is_sticky(around.status)
        else:
            is_safe = is_trusted(user) or (is_on_the_way and user == around.status.st_uid)
        if not is_safe:
            what = f"{around.path}/{name} is a symbolic link of user {user}, and other users can replace it"
            remove = "remove it" if is_own(user) else "ask its owner to remove it,"
            raise UntrustedPathError(what, f"{remove} or choose another folder")
        return os.readlink("", dir_fd=link)
    finally:
        os.close(link)


def _is_unmapped(user: int) -> bool:
    """Return whether a user may be root outside of our user namespace, as the owner of /tmp in a container.

    Users who are not mapped into the namespace appear as one, which some maps also contain. If root alone, of
    this namespace or of the one around it, is mapped to one user, that user made the namespace, and all its
    numbers belong to them: `podman` maps root, and `podman --userns=keep-id` maps the user to root of a
    namespace that it made before.
    """
    ranges, me = _uid_map(), os.geteuid()
    if user != _unknown_user() or not ranges:
        return False
    is_mapped = any(first <= user < first + count for first, _, count in ranges)
    is_of_one_user = any(
        count == 1 and (first == 0 or (first, outside) == (me, 0)) for first, outside, count in ranges
    )
    return is_of_one_user or not is_mapped


def _unknown_user() -> int | None:
    """Return the number that stands for users who have none here."""
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return None


def _uid_map() -> list[tuple[int, int, int]]:
    """Return the ranges of users in our user namespace: the first, that outside, and their count."""
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
        return [(int(first), int(outside), int(count)) for first, outside, count in map(str.split, lines)]
    except (OSError, ValueError):
        return []


def path_of(number: int) -> str:
    """Return the path of an open file or folder, without links."""
    return str(Path(f"/proc/self/fd/{number}").readlink()).rstrip("/")
