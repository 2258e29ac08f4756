"""Files of ours on hosts where others may write beside them: looked at, placed whole, taken away.

In a shared /tmp anybody can make a link or a file under the name that we are about to use. Nothing is written
through a link, read from another's file, or put over one: those are errors that name host and path.
"""

from __future__ import annotations

import hashlib
import posixpath
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.cluster.commands import COMMAND_S, Host
from caffe_recipes.cluster.hosts import ask_all, first_error
from caffe_recipes.cluster.staging.plan import ask_node, seconds_for
from caffe_recipes.errors import ClusterError

_ALL_S = 86400.0
_BLOCK_BYTES = 4096  # in which a disk gives its room


@dataclass(frozen=True)
class PlacedFile:
    """A file that hosts are to have at `to`, whole: here it is `kept`."""

    kept: Path
    to: str
    sha256: str


def look_at(host: Host, path: str, root: Path) -> str | None:
    """Return the stamp of a file of ours on a host (as `file_stamp`'s), or None if nothing is there.

    Raises ClusterError for a link, another user's file or folder, or a folder where anybody may change what
    is in it. `root` is the folder of what we run, whose owner is believed.
    """
    words = _ask(host, "look", path, root)
    return " ".join(words[1:]) if words[0] == "present" else None


def place_files(hosts: Sequence[Host], root: Path, files: Sequence[PlacedFile]) -> None:
    """See to it that every host has the files; what is there and right is not sent again.

    Raises ClusterError, which names the host; what it says failed has changed nothing under the file's name.
    """
    sizes = [_size(file.kept) for file in files]
    several = {host.name: host for host in hosts}.values()
    groups = [list(several)]
    if any(Path(file.to).is_relative_to(root) for file in files):
        # All hosts may see one folder there: what the first has written, the others find.
        groups = [groups[0][:1], groups[0][1:]]
    for group in groups:
        error = first_error(ask_all(group, lambda host: _place(host, root, files, sizes), _ALL_S))
        if error is not None:
            raise error


def drop_files(hosts: Sequence[Host], root: Path, files: Sequence[tuple[str, str]]) -> None:
    """Delete from hosts what is ours, and still has its digest, of (path, SHA-256) pairs; best effort."""

    def drop(host: Host) -> None:
        for path, sha256 in files:
            _ask(host, "drop", path, root, sha256, limit_s=600)

    ask_all(list({host.name: host for host in hosts}.values()), drop, _ALL_S)


def _place(host: Host, root: Path, files: Sequence[PlacedFile], sizes: Sequence[int]) -> None:
    answers = [
        _ask(host, "probe", file.to, root, file.sha256, str(size), str(file.kept), limit_s=seconds_for(size))
        for file, size in zip(files, sizes, strict=True)
    ]
    missing = [
        (file, size, answer[2] == "1")
        for file, size, answer in zip(files, sizes, answers, strict=True)
        if answer[0] == "absent"
    ]
    needed = sum(-(-size // _BLOCK_BYTES) * _BLOCK_BYTES for _, size, _ in missing)
    rooms = [int(answer[1]) for answer in answers if answer[0] == "absent"]
    if missing and min(rooms) < needed:
        what = f"no room: {min(rooms):,} bytes are free, {needed:,} are needed"
        raise ClusterError(f"{host.name}:{posixpath.dirname(missing[0][0].to)}", what, "make room there")
    for file, size, sees in missing:
        _send(host, root, file, size, sees)


def _send(host: Host, root: Path, file: PlacedFile, size: int, sees: bool) -> None:
    """Have the host copy the file itself; where it cannot, or sees another, put it there."""
    stem = f".caffe-recipes-{host.name}-{hashlib.sha256(file.to.encode()).hexdigest()[:12]}-"
    part = f"{stem}{secrets.token_hex(4)}"
    limit_s = 2 * seconds_for(size)
    if sees:
        words = _ask(host, "fill", file.to, root, file.sha256, part, str(file.kept), stem, limit_s=limit_s)
        if words[0] == "placed":
            return
    _ask(host, "ready", file.to, root, stem)
    try:
        host.put(file.kept, posixpath.join(posixpath.dirname(file.to), part))
        words = _ask(host, "commit", file.to, root, file.sha256, part, limit_s=limit_s)
    except ClusterError as error:
        with suppress(ClusterError):
            _ask(host, "abandon", file.to, root, stem)
        if part not in error.where:
            raise
        raise ClusterError(f"{host.name}:{file.to}", error.what, error.hint) from None
    if words[0] != "placed":
        where = f"{host.name}:{file.to}"
        raise ClusterError(where, f"what arrived is not {file.kept}: its digest differs", "run again")


def _ask(host: Host, verb: str, path: str, root: Path, *words: str, limit_s: float = COMMAND_S) -> list[str]:
    hint = "remove it, or snapshot to another folder"
    return ask_node(host, f"file-{verb}", path, str(root), *words, timeout_s=limit_s, hint=hint)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise ClusterError(path, f"cannot be read: {error.strerror}", "restore it") from None
