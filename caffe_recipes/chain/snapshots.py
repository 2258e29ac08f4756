"""Snapshots: fetched beside, compared, renamed, and looked into before they are believed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.weights import check_weights, load_weights
from caffe_recipes.cluster.hosts import Host, LocalHost, file_digest, file_stamp
from caffe_recipes.errors import InputError, RunFailed, WeightsError


def fetch_snapshot(host: Host, path: str, stamp: str | None, to: Path, net: pb.NetParameter) -> str:
    """Bring a snapshot here, verify it and give it its name; return its SHA-256.

    `stamp` is what lay at `path` before the training: an old file is not what the training wrote. Raises
    RunFailed if the snapshot is missing, old, arrives otherwise than it was, or does not fit the net.
    """
    part = to.with_name(f"{to.name}.part")
    try:
        digest = _fetch(host, path, stamp, part)
        verify_weights(part, net)
        with part.open("rb") as whole:
            os.fsync(whole.fileno())
        part.replace(to)
    except InputError as error:
        raise RunFailed(f"{host.name}:{path}", f"the snapshot {error.what}", error.hint) from None
    except OSError as error:
        raise RunFailed(to, f"cannot be written: {error.strerror}", "check the disk") from None
    finally:
        part.unlink(missing_ok=True)
    return digest


def _fetch(host: Host, path: str, stamp: str | None, part: Path) -> str:
    where = f"{host.name}:{path}"
    now = file_stamp(host, path)
    if now is None:
        raise RunFailed(where, "the snapshot is missing", "look into the log")
    if now == stamp:
        raise RunFailed(where, "the snapshot is an old one, from before this training", "look into the log")
    host.fetch(path, part)
    digest = file_digest(host, path)
    if digest != file_digest(LocalHost(), str(part)):
        raise RunFailed(where, "the copy differs from the snapshot", "run again")
    return digest


def verify_kept(path: Path, sha256: str, phase: str) -> None:
    """Compare a kept snapshot with the digest that its phase finished with; raises WeightsError."""
    hint = "restore it, or start over with --new"
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        what = f"the snapshot of phase {phase} cannot be read: {error.strerror}"
        raise WeightsError(path, what, hint) from None
    if digest != sha256:
        raise WeightsError(path, f"is no longer the snapshot that phase {phase} finished with", hint)


def verify_weights(path: Path, net: pb.NetParameter) -> None:
    """Load a caffemodel and compare it with its net; raises WeightsError with the first misfit."""
    misfits = check_weights(load_weights(path), net)
    if misfits:
        more = f", and {len(misfits) - 1} more" if len(misfits) > 1 else ""
        raise WeightsError(path, f"does not fit net {net.name}: {misfits[0]}{more}", "give another snapshot")
