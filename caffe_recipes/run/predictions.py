"""Which models an ensemble has: those that the recipe says, phases that are named, or caffemodels.

What a member says of each image: computed by `caffe-torch predict`, and kept beside the snapshots.

What is kept is known by the digests of all that it depends on: the snapshot, the net, and the LMDB.

The arithmetic of ensembles: what averages are, and how often the true class is among the first of them.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import posixpath
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import open_datums
from caffe_recipes.errors import InputError, RunFailed, WeightsError
from caffe_recipes.limits import limit
from caffe_recipes.recipe.graph import find_averaged
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.run.caffe import verify_weights
from caffe_recipes.run.events import RunState
from caffe_recipes.run.process import own_environment
from caffe_recipes.run.snapshots import digest_weights, verify_digest

_MODEL = ".caffemodel"


@dataclass(frozen=True)
class Member:
    """A model: the phase, or the file, that it is called by; and the digest that its file has to have."""

    name: str
    path: Path
    sha256: str


def find_members(
    folder: Path, recipe: Recipe, state: RunState, named: Sequence[str] | None
) -> tuple[Member, ...]:
    """Return the members that are named; without names, those of the recipe that are finished.

    Raises InputError for fewer than two, one model named twice, a name that nothing has, an unfinished phase.
    """
    if named is None:
        names = [name for name in find_averaged(recipe) if name in state.finished]
    else:
        names = list(named)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError("--members", f"'{twice}' is named twice", "name each member once")
    members = tuple(_find_member(folder, recipe, state, name) for name in names)
    if named is not None:
        _check_different(members)
    if len(members) < 2:
        finished = ", ".join(state.finished) or "none yet"
        what = f"one member, {names[0]}" if names else "no finished member"
        hint = f"an ensemble has two or more: name them with --members; finished are {finished}"
        raise InputError(folder, what, hint)
    return members


def unfinished_members(recipe: Recipe, state: RunState) -> tuple[str, ...]:
    """Return the names of the recipe's members that are still to be trained."""
    return tuple(name for name in find_averaged(recipe) if name not in state.finished)


def _find_member(folder: Path, recipe: Recipe, state: RunState, name: str) -> Member:
    finish = state.finished.get(name)
    if finish is not None:  # wherever the run's folder lies now
        return Member(name, folder / "snapshots" / posixpath.basename(finish.snapshot), finish.sha256)
    if name.endswith(_MODEL):
        return Member(name, Path(name).absolute(), _digest_of(Path(name)))
    names = [phase.name for phase in recipe.phases]
    if name in names:
        what = f"phase {name} of {folder.name} is not finished"
        raise InputError("--members", what, "let it finish, or leave it out")
    near = difflib.get_close_matches(name, names, n=1)
    meant = f"did you mean '{near[0]}'? " if near else ""
    what = f"no phase '{name[:80]}' in {recipe.name}"
    raise InputError("--members", what, f"{meant}there are {', '.join(names)}; or give a {_MODEL}")


def _check_different(members: Sequence[Member]) -> None:
    """Refuse a model that is named twice, by its phase and as a file."""
    seen: dict[str, str] = {}
    for member in members:
        other = seen.setdefault(member.sha256, member.name)
        if other != member.name:
            what = f"'{other}' and '{member.name}' are the same model"
            raise InputError("--members", what, "leave one of them out")


def _digest_of(path: Path) -> str:
    try:
        return digest_weights(path)
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise WeightsError(path, f"cannot be read: {reason}", "give a trained caffemodel") from None


Floats = NDArray[np.float64]
Scores = NDArray[np.float32]
Labels = NDArray[np.int32]

# Images at a time: in float64 those of 1,000 classes and six members take 200 MB.
_IMAGES = 4096
_TOP = 5


@dataclass(frozen=True)
class Accuracy:
    """The shares of images whose class comes first, and among the first five."""

    top1: float
    top5: float


@dataclass(frozen=True)
class Measured:
    """The accuracy of each member on its own, of the first so many, and of all but it."""

    single: tuple[Accuracy, ...]
    so_far: tuple[Accuracy, ...]
    without: tuple[Accuracy, ...]

    @property
    def ensemble(self) -> Accuracy:
        """The accuracy of all members together."""
        return self.so_far[-1]


def measure_members(members: Sequence[Scores], labels: Labels, average: str) -> Measured:
    """Measure two members or more, whose scores are (images x classes), by an average of AVERAGES.

    A member on its own is ranked by its scores, whatever the average, as `caffe test` does.
    """
    everyone = range(len(members))
    so_far = [tuple(range(index + 1)) for index in everyone if index]
    without = [tuple(other for other in everyone if other != index) for index in everyone]
    groups = [group for group in dict.fromkeys((*so_far, *without)) if len(group) > 1]
    hits = {group: np.zeros(2, np.int64) for group in (*groups, *((index,) for index in everyone))}
    for start in range(0, len(labels), _IMAGES):
        here = slice(start, start + _IMAGES)
        values = [AVERAGES[average](scores[here].astype(np.float64), len(members)) for scores in members]
        for index, scores in enumerate(members):
            hits[(index,)] += _count_hits(scores[here], labels[here])
        for group in groups:
            total = np.sum([values[index] for index in group], axis=0)
            hits[group] += _count_hits(total, labels[here])
    found = {group: Accuracy(*(float(count) / len(labels) for count in each)) for group, each in hits.items()}
    return Measured(
        single=tuple(found[(index,)] for index in everyone),
        so_far=(found[(0,)], *(found[group] for group in so_far)),
        without=tuple(found[group] for group in without),
    )


def softmax(scores: Floats) -> Floats:
    """Return the probabilities of each row's classes.

    >>> softmax(np.log([[1.0, 3.0]])).round(6).tolist()
    [[0.25, 0.75]]
    """
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def log_softmax(scores: Floats) -> Floats:
    """Return the logarithms of the probabilities, also of those too small to differ from 0.

    >>> log_softmax(np.array([[0.0, 1000.0]])).tolist()
    [[-1000.0, 0.0]]
    """
    less = scores - scores.max(1, keepdims=True)
    return np.asarray(less - np.log(np.exp(less).sum(1, keepdims=True)))


def ranks_of(values: NDArray[np.floating], labels: Labels) -> NDArray[np.int64]:
    """Return how many classes come before each row's label; of equal ones the later comes first, as in Caffe.

    A label whose value is no number comes last: it is never right.

    >>> ranks_of(np.array([[0.2, 0.5, 0.3], [0.4, 0.4, 0.2]]), np.array([2, 0], np.int32)).tolist()
    [1, 1]
    """
    own = np.take_along_axis(values, labels[:, None].astype(np.int64), 1)
    later = np.arange(values.shape[1]) > labels[:, None]
    behind = (values < own) | ((values == own) & ~later)
    return np.asarray((~behind).sum(1))


def _count_hits(values: NDArray[np.floating], labels: Labels) -> NDArray[np.int64]:
    ranks = ranks_of(values, labels)
    return np.array([(ranks < 1).sum(), (ranks < _TOP).sum()], np.int64)


def _votes(scores: Floats, members: int) -> Floats:
    """One vote for the first class; the probabilities, together less than a vote, decide between equals."""
    values = softmax(scores) / (members + 1)
    first = scores.shape[1] - 1 - scores[:, ::-1].argmax(1)  # the later of equal ones
    values[np.arange(len(values)), first] += 1
    return values


# Of a member's scores and the number of members, what is added up over the members.
AVERAGES: Mapping[str, Callable[[Floats, int], Floats]] = {
    "probabilities": lambda scores, members: softmax(scores),
    "geometric": lambda scores, members: log_softmax(scores),
    "votes": _votes,
}


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
        with zipfile.ZipFile(path) as packed:  # numpy believes what a file says of its size
            if sum(part.file_size for part in packed.infolist()) > limit("predictions-bytes"):
                return None
        with np.load(path, allow_pickle=False) as held:
            scores, labels = held["scores"], held["labels"]
    except (OSError, ValueError, KeyError, EOFError, MemoryError, OverflowError, zipfile.BadZipFile):
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
    """Raise what caffe-torch complained of last, with its own exit code; it may be the model or the LMDB."""
    with log.open("rb") as file:
        file.seek(-min(1 << 16, os.fstat(file.fileno()).st_size), os.SEEK_END)
        lines = file.read().decode(errors="replace").splitlines()
    complaint = next((line.removeprefix(_SAYS) for line in reversed(lines) if line.startswith(_SAYS)), None)
    if code == 2 and complaint is not None:
        raise InputError(where, complaint)
    raise RunFailed(where, complaint or f"caffe-torch returned {code}", hint)
