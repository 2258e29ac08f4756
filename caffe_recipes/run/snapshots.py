"""Snapshots: fetched beside, compared, renamed, and looked into before they are believed.

Checkpoints: snapshots inside a phase, from which it is resumed; fetched, verified, kept, put on hosts.
"""

from __future__ import annotations

import hashlib
import math
import os
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_document
from caffe_recipes.caffe.text.tokens import TOKEN
from caffe_recipes.caffe.weights import check_solverstate, check_weights, load_solverstate, load_weights
from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import finish_digest, start_digest
from caffe_recipes.cluster.remote import NodeRefusal, PlacedFile, drop_files, look_at, place_files
from caffe_recipes.errors import (
    ClusterError,
    DiskFailed,
    HostFailed,
    InputError,
    PrototxtError,
    RunFailed,
    WeightsError,
)


class BadSnapshot(RunFailed):
    """A snapshot that is not what a training should have left, wherever it is fetched to, and when."""


class HostAway(RunFailed):
    """A host from which a snapshot cannot be fetched now."""


def fetch_snapshot(
    host: Host, path: str, stamp: str | None, to: Path, net: pb.NetParameter, root: Path | None = None
) -> str:
    """Bring a snapshot here, verify it and give it its name; return its SHA-256.

    `stamp` is what lay at `path` before the training: an old file is not what the training wrote. The owner
    of `root` is believed as we are. Raises BadSnapshot if the snapshot is missing, old, a link, another
    user's, arrives otherwise than it was, or does not fit the net; HostAway if it cannot be had now, and
    DiskFailed where our own disk does not take it.
    """
    with keep_parts(to) as (part,):
        try:
            digest = bring(host, root or to.parent, path, part, stamp)
            verify_weights(part, net)
        except (InputError, ClusterError) as error:
            raise as_failure(error, host, path, "the snapshot") from None
    return digest


def bring(host: Host, root: Path, path: str, part: Path, stamp: str | None = None) -> str:
    """Copy a file that a training has written on a host; return its SHA-256.

    Raises WeightsError for one that is missing, as it was at `stamp`, not ours, or arrives otherwise, and
    ClusterError where it cannot be had.
    """
    try:
        now = look_at(host, path, root)
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
        look_at(host, path, root)


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


def verify_weights(path: Path, net: pb.NetParameter) -> None:
    """Load a caffemodel and compare it with its net; raises WeightsError with the first misfit."""
    _refuse_misfits(check_weights(load_weights(path), net), path, net, "give another snapshot")


def _refuse_misfits(misfits: Sequence[str], path: Path, net: pb.NetParameter, hint: str) -> None:
    if misfits:
        more = f", and {len(misfits) - 1} more" if len(misfits) > 1 else ""
        raise WeightsError(path, f"does not fit net {net.name}: {misfits[0]}{more}", hint)


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


STATE_NAME = re.compile(r".*_iter_([0-9]{1,10})\.solverstate", re.DOTALL)
_HINT = "resume from another checkpoint, or start the phase over"


@dataclass(frozen=True)
class Checkpoint:
    """A solverstate with its caffemodel, kept at `state` and `model` from the Caffe root.

    `state_path` and `model_path` are where every rank reads them, and where Caffe wrote them.
    """

    phase: str
    iteration: int
    state: str
    state_sha256: str
    model: str
    model_sha256: str
    state_path: str
    model_path: str


def fetch_checkpoint(
    host: Host,
    root: Path,
    phase: str,
    state_path: str,
    folder: str,
    net: pb.NetParameter,
    solver_last_iter: int,
) -> Checkpoint:
    """Bring a snapshot's two files into `folder`, from the Caffe root, verified; both or neither.

    `state_path` is what Caffe's log says that it has written. Raises RunFailed if a file is missing, is not
    ours, arrives otherwise than it was, or does not fit the net, the other, or its own name.
    """
    at = posixpath.join(root, state_path)
    named = STATE_NAME.fullmatch(at)
    if named is None:
        raise RunFailed(f"{host.name}:{at}", "is not named as Caffe names a solverstate", _HINT)
    beside = f"{at.removesuffix('.solverstate')}.caffemodel"
    state, model = (f"{folder}/{posixpath.basename(path)}" for path in (at, beside))
    with keep_parts(root / state, root / model) as (state_part, model_part):
        path = at
        try:
            state_sha256 = bring(host, root, at, state_part)
            message = _load_state(state_part, net, solver_last_iter)
            _check_names(root, message, int(named[1]), beside)
            path = beside
            model_sha256 = bring(host, root, beside, model_part)
            verify_weights(model_part, net)
        except (InputError, ClusterError) as error:
            raise as_failure(error, host, path, "the checkpoint") from None
    return Checkpoint(phase, message.iter, state, state_sha256, model, model_sha256, at, beside)


def verify_checkpoint(root: Path, checkpoint: Checkpoint, net: pb.NetParameter) -> None:
    """Make sure that a checkpoint's kept files are there, whole and the net's; raises WeightsError."""
    what = f"the checkpoint of phase {checkpoint.phase} at iteration {checkpoint.iteration:,}"
    for path, sha256 in (
        (checkpoint.model, checkpoint.model_sha256),
        (checkpoint.state, checkpoint.state_sha256),
    ):
        verify_digest(root / path, sha256, what, _HINT)
    _load_state(root / checkpoint.state, net, checkpoint.iteration)
    verify_weights(root / checkpoint.model, net)


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


def render_checkpoint_solver(text: str, every: int) -> str:
    """Return a solver's prototxt with `snapshot: every`, all else as it is; raises PrototxtError.

    >>> render_checkpoint_solver("max_iter: 9 # all\\nsnapshot: 9 # one", 3)
    'max_iter: 9 # all\\nsnapshot: 3 # one'
    """
    document = parse_document(text, "the solver", pb.SolverParameter)
    text = document.text
    if "snapshot" in document.offsets:
        start, end = _value_of(text, document.offsets["snapshot"])
        changed = f"{text[:start]}{every}{text[end:]}"
    else:
        changed = f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}snapshot: {every}\n"
    wanted = pb.SolverParameter()
    wanted.CopyFrom(document.message)
    wanted.snapshot = every
    if parse_document(changed, "the solver", pb.SolverParameter).message != wanted:
        raise PrototxtError("the solver", "cannot be given another `snapshot`", "report this file")
    return changed


def _value_of(text: str, name: int) -> tuple[int, int]:
    """Return where the number stands that follows a field's name."""
    number = next(match for match in TOKEN.finditer(text, name) if match.lastgroup == "number")
    return number.span("number")


def _load_state(path: Path, net: pb.NetParameter, last_iter: int) -> pb.SolverState:
    state = load_solverstate(path)
    _refuse_misfits(check_solverstate(state, net, at_most_iter=last_iter), path, net, _HINT)
    return state


def _check_names(root: Path, state: pb.SolverState, iteration: int, beside: str) -> None:
    if state.iter != iteration:
        raise WeightsError("", f"is of iteration {state.iter:,}, not of {iteration:,} as it is called", _HINT)
    if posixpath.normpath(posixpath.join(root, state.learned_net)) != posixpath.normpath(beside):
        raise WeightsError("", f"names another caffemodel, {state.learned_net}", _HINT)
