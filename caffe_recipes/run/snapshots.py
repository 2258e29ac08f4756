"""Snapshots: fetched beside, compared, renamed, and looked into before they are believed.

Checkpoints: snapshots inside a phase, from which it is resumed; fetched, verified, kept, put on hosts.
"""

from __future__ import annotations

import hashlib
import math
import os
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import finish_digest, start_digest
from caffe_recipes.cluster.remote import NodeRefusal, PlacedFile, drop_files, own_file_stamp, place_files
from caffe_recipes.errors import (
    ClusterError,
    DiskFailed,
    HostFailed,
    InputError,
    RunFailed,
    WeightsError,
)
from caffe_recipes.run.steps import Checkpoint


class BadSnapshot(RunFailed):
    """A snapshot that is not what a training should have left, wherever it is fetched to, and when."""


class HostAway(RunFailed):
    """A host from which a snapshot cannot be fetched now."""


def fetch_snapshot(
    host: Host,
    path: str,
    stamp: str | None,
    to: Path,
    check: Callable[[Path], None],
    root: Path | None = None,
) -> str:
    """Bring a snapshot here, have it checked and give it its name; return its SHA-256.

    `stamp` is what lay at `path` before the training: an old file is not what the training wrote. The owner
    of `root` is believed as we are. Raises BadSnapshot if the snapshot is missing, old, a link, another
    user's, arrives otherwise than it was, or is not what `check` wants; HostAway if it cannot be had now, and
    DiskFailed where our own disk does not take it.
    """
    with keep_parts(to) as (part,):
        try:
            digest = bring(host, root or to.parent, path, part, stamp)
            check(part)
        except (InputError, ClusterError) as error:
            raise as_failure(error, host, path, "the snapshot") from None
    return digest


def bring(host: Host, root: Path, path: str, part: Path, stamp: str | None = None) -> str:
    """Copy a file that a training has written on a host; return its SHA-256.

    Raises WeightsError for one that is missing, as it was at `stamp`, not ours, or arrives otherwise, and
    ClusterError where it cannot be had.
    """
    try:
        now = own_file_stamp(host, path, root)
    except NodeRefusal as refusal:
        raise WeightsError(path, refusal.what, refusal.hint) from None
    if now is None:
        raise WeightsError(path, "is missing", "look into the log")
    if now == stamp:
        raise WeightsError(path, "is an old one, from before this training", "look into the log")
    with start_digest(host, path) as summing:  # while it travels
        host.fetch(path, part)
        digest = finish_digest(host, path, summing)
    if digest != digest_weights(part):
        raise WeightsError(path, "differs from its copy", "run again")
    return digest


def as_failure(error: InputError | ClusterError, host: Host, path: str, what: str) -> RunFailed:
    """Return what went wrong with a file of a host's, called `what`, as the failure of the run."""
    if isinstance(error, WeightsError):
        return BadSnapshot(f"{host.name}:{path}", f"{what} {error.what}", error.hint)
    kind = HostAway if isinstance(error, HostFailed) else RunFailed
    return kind(error.where, error.what, error.hint)


@contextmanager
def keep_parts(*files: Path) -> Iterator[tuple[Path, ...]]:
    """Yield where to write files first; all get their names at the end, and none if anything fails.

    Until then they are for this user only; then who may read their folder may read them. What is there under
    a part's name, or was left by a run that was killed, goes. Raises DiskFailed.
    """
    parts = tuple(file.with_name(f"{file.name}.part") for file in files)
    try:
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            _sweep(file)
        yield parts
        for part, file in zip(parts, files, strict=True):
            _sync(part, 0o600 | file.parent.stat().st_mode & 0o444)
        for part, file in zip(parts, files, strict=True):
            part.replace(file)
        for folder in {file.parent for file in files}:
            _sync(folder)
    except OSError as error:
        raise DiskFailed(files[0], f"cannot be written: {error.strerror}") from None
    finally:
        for file in files:
            _sweep(file)


def check_places(host: Host, paths: Iterable[str], root: Path) -> None:
    """Make sure, before a training, that what it will write is not fetched in vain.

    Raises ClusterError where a link, another user's file, or a folder of one, lies at a snapshot's place.
    """
    for path in paths:
        own_file_stamp(host, path, root)


def verify_kept(path: Path, sha256: str, phase: str, trained: str) -> None:
    """Compare a kept snapshot with the digest that its phase finished with; raises WeightsError.

    `trained` is where rank 0 had written it, and it may lie still.
    """
    hint = f"restore it, as from {trained} on the host of rank 0, or start over with --new"
    verify_digest(path, sha256, f"the snapshot that phase {phase} finished with", hint)


def is_whole(path: Path, sha256: str) -> bool:
    """Tell whether a file can be read and has this digest."""
    try:
        return digest_weights(path) == sha256
    except OSError:
        return False


def verify_digest(path: Path, sha256: str, what: str, hint: str) -> None:
    """Compare a kept file, called `what`, with its digest; raises WeightsError."""
    try:
        digest = digest_weights(path)
    except OSError as error:
        raise WeightsError(path, f"{what} cannot be read: {error.strerror}", hint) from None
    if digest != sha256:
        raise WeightsError(path, f"is no longer {what}", hint)


def digest_weights(path: Path) -> str:
    """Return the SHA-256 of a file; raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sweep(file: Path) -> None:
    """Take away the parts of a file: ours, and what a copy that was killed has left of them."""
    for left in file.parent.glob("*"):
        if left.name.startswith(f"{file.name}.part"):
            with suppress(OSError):
                left.unlink()


def _sync(path: Path, mode: int | None = None) -> None:
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if mode is not None:
            os.fchmod(number, mode)
        os.fsync(number)
    finally:
        os.close(number)


def place_checkpoint(hosts: Sequence[Host], root: Path, checkpoint: Checkpoint) -> None:
    """Put a checkpoint on every host where its ranks read it; what is there already is not sent again.

    Raises ClusterError, which names the host, for a link, another user's file or folder, or no room.
    """
    files = (
        PlacedFile(root / checkpoint.model, checkpoint.model_path, checkpoint.model_sha256),
        PlacedFile(root / checkpoint.state, checkpoint.state_path, checkpoint.state_sha256),
    )
    place_files(hosts, root, files)


def drop_checkpoints(
    hosts: Sequence[Host],
    root: Path,
    keep: Checkpoint | None,
    old: Sequence[Checkpoint],
    spared: Collection[str] = (),
) -> None:
    """Delete checkpoints, here and on hosts, where they still are what they were; best effort.

    Files of `keep`, and the snapshots at `spared`, which phases end with or start from, stay.
    """
    kept = {keep.state, keep.model} if keep else set()
    stay = {posixpath.join(root, path) for path in spared}
    stay |= {keep.state_path, keep.model_path} if keep else set()
    there = []
    for each in old:
        for path in (each.state, each.model):
            if path not in kept:
                with suppress(OSError):
                    (root / path).unlink()
        pairs = ((each.state_path, each.state_sha256), (each.model_path, each.model_sha256))
        there += [(path, sha256) for path, sha256 in pairs if path not in stay]
    if there:
        drop_files(hosts, root, there)


def choose_interval(every: int, needed: Iterable[int]) -> int:
    """Return at most `every` iterations between snapshots, so that the `needed` iterations get theirs.

    >>> choose_interval(500, [7638]), choose_interval(500, [])
    (402, 500)
    """
    common = math.gcd(*needed)
    return next(n for n in range(every, 0, -1) if common % n == 0)
