"""Snapshots: fetched beside, compared, renamed, and looked into before they are believed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.weights import check_weights, load_weights
from caffe_recipes.cluster.hosts import Host, finish_digest, start_digest
from caffe_recipes.cluster.placing import look_at
from caffe_recipes.errors import ClusterError, InputError, RunFailed, WeightsError


class BadSnapshot(RunFailed):
    """A snapshot that is not what a training should have left, wherever it is fetched to, and when."""


def fetch_snapshot(
    host: Host, path: str, stamp: str | None, to: Path, net: pb.NetParameter, root: Path | None = None
) -> str:
    """Bring a snapshot here, verify it and give it its name; return its SHA-256.

    `stamp` is what lay at `path` before the training: an old file is not what the training wrote. The owner
    of `root` is believed as we are. Raises BadSnapshot if the snapshot is missing, old, a link, another
    user's, arrives otherwise than it was, or does not fit the net; RunFailed if it cannot be had now.
    """
    with keep_parts(to) as (part,):
        try:
            digest = bring(host, root or to.parent, path, part, stamp)
            verify_weights(part, net)
        except InputError as error:
            raise as_failure(error, host, path, "the snapshot") from None
    return digest


def bring(host: Host, root: Path, path: str, part: Path, stamp: str | None = None) -> str:
    """Copy a file that a training has written on a host; return its SHA-256.

    Raises WeightsError for one that is missing, as it was at `stamp`, not ours, or arrives otherwise, and
    ClusterError where it cannot be had.
    """
    try:
        now = look_at(host, path, root)
    except ClusterError as error:
        if error.where != f"{host.name}:{path}":
            raise
        raise WeightsError(path, error.what, error.hint) from None
    if now is None:
        raise WeightsError(path, "is missing", "look into the log")
    if now == stamp:
        raise WeightsError(path, "is an old one, from before this training", "look into the log")
    with start_digest(host, path) as summing:  # while it travels
        host.fetch(path, part)
        digest = finish_digest(host, path, summing)
    if digest != _digest_of(part):
        raise WeightsError(path, "differs from its copy", "run again")
    return digest


def as_failure(error: InputError, host: Host, path: str, what: str) -> RunFailed:
    """Return what went wrong with a file of a host's, called `what`, as the failure of the run.

    An error that is not of the file itself, as of our disk or the host, stays of its place.
    """
    if isinstance(error, WeightsError):
        return BadSnapshot(f"{host.name}:{path}", f"{what} {error.what}", error.hint)
    return RunFailed(error.where, error.what, error.hint)


@contextmanager
def keep_parts(*files: Path) -> Iterator[tuple[Path, ...]]:
    """Yield where to write files first; all get their names at the end, and none if anything fails.

    Until then they are for this user only; then who may read their folder may read them. What is there under
    a part's name, or was left by a run that was killed, goes. Raises RunFailed if the disk does not let us.
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
        raise RunFailed(files[0], f"cannot be written: {error.strerror}", "check the disk") from None
    finally:
        for file in files:
            _sweep(file)


def check_places(host: Host, paths: Iterable[str], root: Path) -> None:
    """Make sure, before a training, that what it will write is not fetched in vain.

    Raises ClusterError where a link, another user's file, or a folder of one, lies at a snapshot's place.
    """
    for path in paths:
        look_at(host, path, root)


def verify_kept(path: Path, sha256: str, phase: str, trained: str) -> None:
    """Compare a kept snapshot with the digest that its phase finished with; raises WeightsError.

    `trained` is where rank 0 had written it, and it may lie still.
    """
    hint = f"restore it, as from {trained} on the host of rank 0, or start over with --new"
    verify_digest(path, sha256, f"the snapshot that phase {phase} finished with", hint)


def verify_digest(path: Path, sha256: str, what: str, hint: str) -> None:
    """Compare a kept file, called `what`, with its digest; raises WeightsError."""
    try:
        digest = _digest_of(path)
    except OSError as error:
        raise WeightsError(path, f"{what} cannot be read: {error.strerror}", hint) from None
    if digest != sha256:
        raise WeightsError(path, f"is no longer {what}", hint)


def verify_weights(path: Path, net: pb.NetParameter) -> None:
    """Load a caffemodel and compare it with its net; raises WeightsError with the first misfit."""
    misfits = check_weights(load_weights(path), net)
    if misfits:
        more = f", and {len(misfits) - 1} more" if len(misfits) > 1 else ""
        raise WeightsError(path, f"does not fit net {net.name}: {misfits[0]}{more}", "give another snapshot")


def learned_ignored(ignored: Iterable[str], weights: Path) -> list[str]:
    """Return which of the layers that Caffe's log says it ignored have learned values in `weights`.

    Caffe names those without any too, as the data layers, and goes on from the fillers of the rest. Raises
    WeightsError for what is no caffemodel, where any is named.
    """
    names = list(ignored)
    if not names:
        return []
    learned = {layer.name for layer in load_weights(weights).layer if layer.blobs}
    return [name for name in names if name in learned]


def _digest_of(path: Path) -> str:
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
