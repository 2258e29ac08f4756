"""What a member says of each image: computed by `caffe-torch predict`, and kept beside the snapshots.

What is kept is known by the digests of all that it depends on: the snapshot, the net, and the LMDB.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import open_datums
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


def find_predictions(
    members: Sequence[Member], tested: Tested, place: Place, say: Callable[[str], None]
) -> list[Predictions]:
    """Return the members' predictions: those that are kept, or new ones, which are kept then.

    Kept ones that contradict the LMDB or each other are made anew. Raises InputError for a model that is not
    what it was or fits another net, or data that do not fit it; RunFailed where nothing could be computed.
    """
    for member in members:
        hint = "restore it, or leave the member out"
        verify_digest(member.path, member.sha256, f"the model that {member.name} was", hint)
    with open_datums(tested.lmdb) as datums:
        images = len(datums)
    kept = [load_predictions(_kept_path(member, tested, place), images) for member in members]
    found = [
        one or _predict_anew(member, tested, place, say) for one, member in zip(kept, members, strict=True)
    ]
    if not _agree(found):  # only the images can tell which of them are right
        found = [
            _predict_anew(member, tested, place, say) if old else new
            for old, new, member in zip(kept, found, members, strict=True)
        ]
    if not _agree(found):
        raise RunFailed(
            tested.lmdb, "its labels are not the same for all members", "does it change? try again"
        )
    return found


def load_predictions(path: Path, images: int | None = None) -> Predictions | None:
    """Read what was kept; None for what is not there, damaged, of other `images`, or something else."""
    try:
        with np.load(path, allow_pickle=False) as held:
            scores, labels = held["scores"], held["labels"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    if scores.ndim != 2 or labels.shape != scores.shape[:1] or not scores.size:
        return None
    if scores.dtype != np.float32 or labels.dtype != np.int32 or images not in (None, len(labels)):
        return None
    is_sound = np.isfinite(scores).all() and labels.min() >= 0 and labels.max() < scores.shape[1]
    return Predictions(scores, labels) if is_sound else None


def _agree(found: Sequence[Predictions]) -> bool:
    """Whether all are of the same classes and labels."""
    first = found[0]
    return all(
        one.scores.shape == first.scores.shape and np.array_equal(one.labels, first.labels) for one in found
    )


def _kept_path(member: Member, tested: Tested, place: Place) -> Path:
    return place.folder / "snapshots" / f"{member.path.stem}.{_key(member, tested)}.npz"


def _predict_anew(member: Member, tested: Tested, place: Place, say: Callable[[str], None]) -> Predictions:
    """Predict, and keep it beside the snapshots; in another's run, where nothing can be, only in memory."""
    say(f"{member.name}: predicting the images of {tested.lmdb}")
    verify_weights(member.path, tested.message)
    kept = _kept_path(member, tested, place)
    log = place.folder / "logs" / f"predict-{member.path.stem}.log"
    closed = next((folder for folder in (kept.parent, log.parent) if not _is_writable(folder)), None)
    if closed is None:
        return _predict(member, tested, place, kept, log, f"log: {log}")
    say(f"warning: {closed} cannot be written to: what {member.name} says is not kept")
    with tempfile.TemporaryDirectory(prefix="caffe-recipes-") as name:
        out = Path(name) / kept.name
        return _predict(member, tested, place, out, out.with_name(log.name), "try `caffe-torch predict`")


def _is_writable(folder: Path) -> bool:
    """Whether a file can be made there, which the folder's mode alone does not tell of a network's."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _key(member: Member, tested: Tested) -> str:
    parts = (_FORMAT, member.sha256, tested.net_digest, tested.lmdb_digest)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _predict(member: Member, tested: Tested, place: Place, out: Path, log: Path, hint: str) -> Predictions:
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
        _refuse(f"{member.name} on {tested.lmdb}", log, done.returncode, hint)
    found = load_predictions(out)
    if found is None:
        raise RunFailed(out, "cannot be read again", "check the disk")
    return found


def _refuse(where: str, log: Path, code: int, hint: str) -> None:
    """Raise what caffe-torch has said last, with its own exit code; it may be the model or the LMDB."""
    with log.open("rb") as file:
        file.seek(-min(1 << 16, os.fstat(file.fileno()).st_size), os.SEEK_END)
        lines = file.read().decode(errors="replace").splitlines()
    said = next((line.removeprefix(_SAYS) for line in reversed(lines) if line.startswith(_SAYS)), None)
    if code == 2 and said is not None:
        raise InputError(where, said)
    raise RunFailed(where, said or f"caffe-torch returned {code}", hint)
