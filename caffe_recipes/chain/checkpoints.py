"""Checkpoints: snapshots inside a phase, from which it is resumed; fetched, verified, kept, put on hosts."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.documents import parse_document
from caffe_recipes.caffe.text.tokens import TOKEN
from caffe_recipes.caffe.weights import check_solverstate, load_solverstate
from caffe_recipes.chain.snapshots import as_failure, bring, keep_parts, verify_digest, verify_weights
from caffe_recipes.cluster.hosts import Host
from caffe_recipes.cluster.placing import Placed, drop_files, place_files
from caffe_recipes.errors import InputError, PrototxtError, RunFailed, WeightsError

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
        except InputError as error:
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
        Placed(root / checkpoint.model, checkpoint.model_path, checkpoint.model_sha256),
        Placed(root / checkpoint.state, checkpoint.state_path, checkpoint.state_sha256),
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
    misfits = check_solverstate(state, net, at_most_iter=last_iter)
    if misfits:
        more = f", and {len(misfits) - 1} more" if len(misfits) > 1 else ""
        raise WeightsError(path, f"does not fit net {net.name}: {misfits[0]}{more}", _HINT)
    return state


def _check_names(root: Path, state: pb.SolverState, iteration: int, beside: str) -> None:
    if state.iter != iteration:
        raise WeightsError("", f"is of iteration {state.iter:,}, not of {iteration:,} as it is called", _HINT)
    if posixpath.normpath(posixpath.join(root, state.learned_net)) != posixpath.normpath(beside):
        raise WeightsError("", f"names another caffemodel, {state.learned_net}", _HINT)
