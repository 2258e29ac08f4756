"""Fetch snapshots: copied to a temporary name, compared with the original, checked, and only then renamed.

Also: place and delete checkpoints, the snapshots inside a phase from which it is resumed.
"""

from __future__ import annotations

import hashlib
import math
import os
import posixpath
import re
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
    hint_for,
)
from caffe_recipes.run.trainer import Checkpoint, TrainingPlan


class BadSnapshot(RunFailed):
    """Raised if a snapshot itself is wrong, so that fetching it again cannot help."""


class HostAway(RunFailed):
    """Raised if a host cannot be reached at the moment to fetch a snapshot."""


def fetch_snapshot(
    host: Host, root: Path, path: str, stamp: str | None, to: Path, check: Callable[[Path], None]
) -> str:
    """Copy a snapshot from a host to `to`, after `check` has accepted it; return its SHA-256.

    `stamp` is that of the file at `path` before the training; a file that still has it is an old one. The
    owner of `root` is trusted like ourselves. Raises BadSnapshot if the snapshot is missing, old, a link,
    another user's, arrives changed, or is rejected by `check`; HostAway if the host cannot be reached now;
    DiskFailed if the local disk cannot store it.
    """
    with keep_parts(to) as (part,):
        try:
            digest = fetch_trained_file(host, root, path, part, stamp)
            check(part)
        except (InputError, ClusterError) as error:
            raise as_failure(error, host, path, "the snapshot") from None
    return digest


def fetch_trained_file(host: Host, root: Path, path: str, part: Path, stamp: str | None = None) -> str:
    """Copy a file that a training has written from a host to `part`; return its SHA-256.

    Raises WeightsError if the file is missing, still has the old `stamp`, is not ours, or arrives changed,
    and ClusterError if it cannot be copied.
    """
    try:
        now = own_file_stamp(host, path, root)
    except NodeRefusal as refusal:
        raise WeightsError(path, refusal.what, refusal.hint) from None
    if now is None:
        raise WeightsError(path, "is missing", "see the log")
    if now == stamp:
        raise WeightsError(path, "is an old file, from before this training", "see the log")
    with start_digest(host, path) as digesting:  # computed on the host while the file is copied
        host.fetch(path, part)
        digest = finish_digest(host, path, digesting)
    if digest != digest_weights(part):
        raise WeightsError(path, "differs from its copy", "run again")
    return digest


def as_failure(error: InputError | ClusterError, host: Host, path: str, what: str) -> RunFailed:
    """Return an error about a file on a host, called `what` in messages, as a RunFailed."""
    if isinstance(error, WeightsError):
        return BadSnapshot(f"{host.name}:{path}", f"{what} {error.what}", error.hint)
    kind = HostAway if isinstance(error, HostFailed) else RunFailed
    return kind(error.where, error.what, error.hint)


@contextmanager
def keep_parts(*files: Path) -> Iterator[tuple[Path, ...]]:
    """Yield temporary paths for `files`; on success all are renamed to `files`, on failure none is.

    Until then they are readable only by this user, afterwards by all who can read their folder. Temporary
    files of a killed run are deleted. Raises DiskFailed.
    """
    parts = tuple(file.with_name(f"{file.name}.part") for file in files)
    try:
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            _delete_parts(file.parent.glob("*"), file.name)
        yield parts
        for part, file in zip(parts, files, strict=True):
            _sync(part, 0o600 | file.parent.stat().st_mode & 0o444)
        for part, file in zip(parts, files, strict=True):
            part.replace(file)
        for folder in {file.parent for file in files}:
            _sync(folder)
    except OSError as error:
        raise DiskFailed(files[0], error) from None
    finally:
        for file in files:
            _delete_parts(file.parent.glob("*"), file.name)


def check_places(host: Host, paths: Iterable[str], root: Path) -> None:
    """Check, before a training, that the snapshots which it will write at `paths` can be fetched.

    Raises ClusterError if there is a link, another user's file, or a folder of another user at such a path.
    """
    for path in paths:
        own_file_stamp(host, path, root)


def verify_kept(path: Path, sha256: str, phase: str, trained: str) -> None:
    """Raise WeightsError unless a kept snapshot has the digest that its phase finished with.

    `trained` is where rank 0 wrote it, and where it may still be.
    """
    hint = f"restore it, for example from {trained} on the host of rank 0, or start over with --new"
    verify_digest(path, sha256, f"the snapshot that phase {phase} finished with", hint)


def is_whole(path: Path, sha256: str) -> bool:
    """Return whether a file can be read and has this digest."""
    try:
        return digest_weights(path) == sha256
    except OSError:
        return False


def verify_digest(path: Path, sha256: str, what: str, hint: str) -> None:
    """Raise WeightsError unless a file, called `what` in messages, has this digest."""
    try:
        digest = digest_weights(path)
    except OSError as error:
        raise WeightsError(path, f"{what} cannot be read: {error.strerror}", hint_for(error, hint)) from None
    if digest != sha256:
        raise WeightsError(path, f"is no longer {what}", hint)


def digest_weights(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# What a copy is written to before it has its name: by keep_parts, and beside that by a host's `fetch`.
_PART = re.compile(r"\.?(.+?)\.part(?:\.[0-9a-f]{8}(?:\.part)?)?")


def delete_parts(folder: Path) -> None:
    """Delete the temporary files that a killed process has left in the folder of a run and its branches."""
    for pattern in ("snapshots/*", "checkpoints/*", "branches/*/checkpoints/*"):
        _delete_parts(folder.glob(pattern))


def _delete_parts(files: Iterable[Path], of: str | None = None) -> None:
    for left in files:
        if (part := _PART.fullmatch(left.name)) is not None and of in (None, part[1]):
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
    """Copy a checkpoint to every host that lacks it, to the paths from which its ranks read it.

    Raises ClusterError, which names the host, if there is a link or another user's file or folder, or no
    space.
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
    spared: Collection[str],
) -> None:
    """Delete old checkpoints, here and on hosts, unless their files have changed; ignore errors.

    The files of `keep` are not deleted, nor are those at `spared`, which phases end with or start from.
    """
    kept = {keep.state, keep.model} if keep else set()
    stay = {posixpath.join(root, path) for path in spared}
    stay |= {keep.state_path, keep.model_path} if keep else set()
    on_hosts = []
    for each in old:
        for path in (each.state, each.model):
            if path not in kept:
                with suppress(OSError):
                    (root / path).unlink()
        pairs = ((each.state_path, each.state_sha256), (each.model_path, each.model_sha256))
        on_hosts += [(path, sha256) for path, sha256 in pairs if path not in stay]
    if on_hosts:
        drop_files(hosts, root, on_hosts)


def choose_interval(every: int, needed: Iterable[int]) -> int:
    """Return the largest interval of at most `every` iterations that divides all `needed` iterations.

    >>> choose_interval(500, [7638]), choose_interval(500, [])
    (402, 500)
    """
    common = math.gcd(*needed)
    return next(n for n in range(every, 0, -1) if common % n == 0)


def check_interval(plan: TrainingPlan, every: int | None) -> None:
    """Raise InputError if a phase's required snapshots force checkpoints to be much closer than asked for."""
    for step in plan.trainings if every else ():
        found = choose_interval(every or 1, step.snapshots_at)
        if 2 * found < (every or 1):
            wanted = ", ".join(f"{iteration:,}" for iteration in step.snapshots_at)
            what = (
                f"phase {step.phase} must snapshot at {wanted}, which allows an interval of at most {found}"
            )
            raise InputError("--checkpoint-every", what, "give a divisor of that, or leave the option out")
