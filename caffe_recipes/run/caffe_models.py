"""The caffemodels and solverstates of a run: their paths, and whether they fit their nets."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import first_shape
from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.caffe.image_headers import ImageShape
from caffe_recipes.caffe.prototxt import is_kind
from caffe_recipes.caffe.weights import (
    check_solverstate,
    check_weights,
    load_solverstate,
    load_weights,
    weights_bytes,
)
from caffe_recipes.cluster.commands import Host
from caffe_recipes.errors import ClusterError, InputError, RunFailed, WeightsError
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.run.caffe_data import CaffeData
from caffe_recipes.run.caffe_handover import describe_model
from caffe_recipes.run.snapshots import as_failure, fetch_trained_file, keep_parts, verify_digest
from caffe_recipes.run.trainer import Checkpoint, HandedOn, ModelFiles, Training

_MODEL, _STATE = ".caffemodel", ".solverstate"
STATE_NAME = re.compile(r".*_iter_([0-9]{1,10})\.solverstate", re.DOTALL)
_HINT = "resume from another checkpoint, or start the phase over"


@dataclass(frozen=True)
class CaffeModels(ModelFiles):
    """The files that a phase writes, a caffemodel with each solverstate."""

    recipe: Recipe
    model_suffix: ClassVar[str] = _MODEL

    def prefix(self, training: Training) -> str:
        """Return the common prefix of the paths that a phase writes."""
        return training.snapshot.rpartition("_iter_")[0]

    def written_at(self, training: Training, iteration: int) -> tuple[str, ...]:
        """Return the paths that a phase writes at an iteration."""
        path = f"{self.prefix(training)}_iter_{iteration}"
        return (f"{path}{_MODEL}", f"{path}{_STATE}")

    def _net(self, files: Mapping[str, str], name: str) -> pb.NetParameter:
        """Return a net as the trainer reads it: its source may have been edited since the run began.

        It has the fields of the Caffe that it is written for, which decide what a model of it holds.
        """
        path = self.recipe.net_path(name)
        net = parse_lenient(files[path], path).message
        assert is_kind(net, pb.NetParameter)
        return net

    def model_bytes(self, files: Mapping[str, str], net: str, root: Path, source: Path | None) -> int | None:
        """Return the size of a model in bytes; None if it depends on images that are not on this machine.

        A training LMDB that is not staged here yet is read at its `source`, or at the recipe's.
        """

        data = CaffeData(self.recipe)

        def find_shape(lmdb: str) -> ImageShape | None:
            staged_from = source or data.source if lmdb == data.folder else None
            return first_shape(root / lmdb) or (first_shape(root / staged_from) if staged_from else None)

        return weights_bytes(self._net(files, net), images=find_shape)

    def check_model(self, files: Mapping[str, str], net: str, path: Path) -> None:
        """Compare a caffemodel with its net; raises WeightsError with the first mismatch."""
        verify_weights(path, self._net(files, net))

    def hand_on(self, files: Mapping[str, str], net: str, root: Path, handed: HandedOn) -> dict[str, bytes]:
        """Return the deploy net of the net that is tested, its description, and a readme."""
        tested = [name for name, variant in self.recipe.nets.items() if variant.test]
        if self.recipe.evaluation is not None:
            tested.insert(0, self.recipe.evaluation.net)
        paths = [self.recipe.net_path(name) for name in (*tested, net)]
        path = next(path for path in paths if path in files)
        return describe_model(files[path], path, root, handed)

    def checkpoint_iter(self, state: str) -> int | None:
        """Return the iteration in the name of a solverstate; None for any other name."""
        found = STATE_NAME.fullmatch(state)
        return int(found[1]) if found else None

    def model_beside(self, state: str) -> str:
        """Return the path of the caffemodel that is written with a solverstate."""
        return f"{state.removesuffix(_STATE)}{_MODEL}"

    def fetch_checkpoint(
        self, host: Host, root: Path, files: Mapping[str, str], training: Training, state: str, folder: str
    ) -> Checkpoint:
        """Fetch the two files of a snapshot into `folder` and verify them; both or neither.

        `state` is the path of the solverstate from Caffe's log. Raises RunFailed if a file is missing,
        belongs to another user, arrives changed, or does not fit the net, the other file, or its own name.
        """
        net, at = self._net(files, training.net), posixpath.join(root, state)
        iteration, beside = self.checkpoint_iter(at), self.model_beside(at)
        if iteration is None:
            raise RunFailed(f"{host.name}:{at}", "does not have the name of a Caffe solverstate", _HINT)
        kept, model = (f"{folder}/{posixpath.basename(path)}" for path in (at, beside))
        with keep_parts(root / kept, root / model) as (state_part, model_part):
            path = at
            try:
                state_sha256 = fetch_trained_file(host, root, at, state_part)
                message = _load_state(state_part, net, training.last_iter)
                _check_names(root, message, iteration, beside)
                path = beside
                model_sha256 = fetch_trained_file(host, root, beside, model_part)
                verify_weights(model_part, net)
            except (InputError, ClusterError) as error:
                raise as_failure(error, host, path, "the checkpoint") from None
        return Checkpoint(training.phase, message.iter, kept, state_sha256, model, model_sha256, at, beside)

    def verify_checkpoint(
        self, root: Path, files: Mapping[str, str], net: str, checkpoint: Checkpoint
    ) -> None:
        """Raise WeightsError if a kept file of a checkpoint is missing, damaged, or does not fit the net."""
        what = f"the checkpoint of phase {checkpoint.phase} at iteration {checkpoint.iteration:,}"
        for path, sha256 in (
            (checkpoint.model, checkpoint.model_sha256),
            (checkpoint.state, checkpoint.state_sha256),
        ):
            verify_digest(root / path, sha256, what, _HINT)
        message = self._net(files, net)
        _load_state(root / checkpoint.state, message, checkpoint.iteration)
        verify_weights(root / checkpoint.model, message)


def verify_weights(path: Path, net: pb.NetParameter) -> None:
    """Load a caffemodel and compare it with its net; raises WeightsError with the first mismatch."""
    _check_mismatches(check_weights(load_weights(path), net), path, net, "give another snapshot")


def _check_mismatches(mismatches: Sequence[str], path: Path, net: pb.NetParameter, hint: str) -> None:
    """Raise WeightsError with the first mismatch, if there are any."""
    if mismatches:
        more = f", and {len(mismatches) - 1} more" if len(mismatches) > 1 else ""
        raise WeightsError(path, f"does not fit net {net.name}: {mismatches[0]}{more}", hint)


def _load_state(path: Path, net: pb.NetParameter, last_iter: int) -> pb.SolverState:
    state = load_solverstate(path)
    _check_mismatches(check_solverstate(state, net, at_most_iter=last_iter), path, net, _HINT)
    return state


def _check_names(root: Path, state: pb.SolverState, iteration: int, beside: str) -> None:
    if state.iter != iteration:
        raise WeightsError("", f"is from iteration {state.iter:,}, but its name says {iteration:,}", _HINT)
    if posixpath.normpath(posixpath.join(root, state.learned_net)) != posixpath.normpath(beside):
        raise WeightsError("", f"names another caffemodel, {state.learned_net}", _HINT)
