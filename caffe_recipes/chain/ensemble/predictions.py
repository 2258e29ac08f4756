"""What a member says of each image: computed by `caffe-torch predict`, and kept beside the snapshots.

What is kept is known by the digests of all that it depends on: the snapshot, the net, and the LMDB.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from caffe_recipes.caffe import pb
from caffe_recipes.chain.ensemble.averages import Labels, Scores
from caffe_recipes.chain.ensemble.members import Member
from caffe_recipes.chain.snapshots import verify_digest, verify_weights
from caffe_recipes.chain.trainer import own_environment
from caffe_recipes.errors import InputError, RunFailed

# Of the file that `caffe-torch predict` writes: another one is another name.
_FORMAT = "scores and labels, 1"
_SAYS = "caffe-torch: "


@dataclass(frozen=True)
class Tested:
    """What all members are tried on: a net by its file, message and digest; an LMDB and its digest."""

    net: Path
    message: pb.NetParameter
    net_digest: str
    lmdb: Path
    lmdb_digest: str


@dataclass(frozen=True)
class Place:
    """Where it is done: the run's folder, the Caffe root, the program, and the search path it is given."""

    folder: Path
    root: Path
    program: str
    path: str


@dataclass(frozen=True)
class Predictions:
    """The scores of each image's classes, before the softmax, and the images' labels."""

    scores: Scores
    labels: Labels


def find_predictions(member: Member, tested: Tested, place: Place, say: Callable[[str], None]) -> Predictions:
    """Return a member's predictions: those that are kept, or new ones, which are kept then.

    Raises InputError for a model that is not what it was or fits another net, or data that do not fit it;
    RunFailed where nothing could be computed or kept.
    """
    hint = "restore it, or leave the member out"
    verify_digest(member.path, member.sha256, f"the model that {member.name} was", hint)
    kept = place.folder / "snapshots" / f"{member.path.stem}.{_key(member, tested)}.npz"
    found = load_predictions(kept)
    if found is None:
        say(f"{member.name}: predicting the images of {tested.lmdb}")
        verify_weights(member.path, tested.message)
        _predict(member, tested, place, kept)
        found = load_predictions(kept)
    if found is None:
        raise RunFailed(kept, "cannot be read again", "check the disk")
    return found


def load_predictions(path: Path) -> Predictions | None:
    """Read what was kept; None for what is not there, damaged, or something else."""
    try:
        with np.load(path, allow_pickle=False) as held:
            scores, labels = held["scores"], held["labels"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    is_whole = scores.ndim == 2 and labels.shape == scores.shape[:1] and scores.size > 0
    is_ours = scores.dtype == np.float32 and labels.dtype == np.int32
    return Predictions(scores, labels) if is_whole and is_ours else None


def _key(member: Member, tested: Tested) -> str:
    parts = (_FORMAT, member.sha256, tested.net_digest, tested.lmdb_digest)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _predict(member: Member, tested: Tested, place: Place, out: Path) -> None:
    log = place.folder / "logs" / f"predict-{member.path.stem}.log"
    argv = [
        *(place.program, "predict", f"-model={tested.net}", f"-weights={member.path}"),
        *(f"-source={tested.lmdb}", f"-out={out.absolute()}"),
    ]
    environment = {**own_environment(), "PATH": place.path}
    try:
        with log.open("wb") as output:
            done = subprocess.run(
                argv,
                cwd=place.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
    except OSError as error:
        where = error.filename or place.program
        raise RunFailed(str(where), f"predicting: {error.strerror}", "check the disk") from None
    if done.returncode:
        _refuse(f"{member.name} on {tested.lmdb}", log, done.returncode)


def _refuse(where: str, log: Path, code: int) -> None:
    """Raise what caffe-torch has said last, with its own exit code; it may be the model or the LMDB."""
    with log.open("rb") as file:
        file.seek(-min(1 << 16, os.fstat(file.fileno()).st_size), os.SEEK_END)
        lines = file.read().decode(errors="replace").splitlines()
    said = next((line.removeprefix(_SAYS) for line in reversed(lines) if line.startswith(_SAYS)), None)
    if code == 2 and said is not None:
        raise InputError(where, said)
    raise RunFailed(where, said or f"caffe-torch returned {code}", f"log: {log}")
