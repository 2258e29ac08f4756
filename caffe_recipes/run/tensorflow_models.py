"""The checkpoints of TensorFlow: their files, and whether these have changed."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import remote_sha256
from caffe_recipes.errors import ClusterError, WeightsError
from caffe_recipes.recipe.model import TensorFlowRecipe
from caffe_recipes.run.snapshots import as_failure, verify_digest
from caffe_recipes.run.trainer import Checkpoint, ModelFiles, Training

MODEL, STATE = ".data-00000-of-00001", ".index"
_STATE_NAME = re.compile(r".*/model\.ckpt-([0-9]{1,10})\.index", re.DOTALL)
_HINT = "resume from another checkpoint, or start over with --new"


@dataclass(frozen=True)
class TensorFlowModels(ModelFiles):
    """The two files of each checkpoint that are checked: its index, and its data."""

    recipe: TensorFlowRecipe
    model_suffix: ClassVar[str] = STATE

    def prefix(self, training: Training) -> str:
        """Return the common prefix of the paths of all checkpoints."""
        return training.snapshot.rpartition("-")[0]

    def written_at(self, training: Training, iteration: int) -> tuple[str, ...]:
        """Return the paths of the checkpoint that is written at an iteration."""
        path = f"{self.prefix(training)}-{iteration}"
        return (f"{path}{STATE}", f"{path}{MODEL}")

    def model_bytes(self, files: Mapping[str, str], net: str, root: Path, source: Path | None) -> int | None:
        """Return the size of a ResNet-50 checkpoint in bytes, with momentum; None for other depths."""
        if self.recipe.tensorflow.resnet_depth not in (None, 50):
            return None
        learned, moving = 23_508_032 + 2049 * self.recipe.classes, 53_120
        return 4 * (2 * learned + moving)

    def check_model(self, files: Mapping[str, str], net: str, path: Path) -> None:
        """Raise WeightsError if a file is empty; `Trainer.read_back` verifies its content."""
        if not path.stat().st_size:
            raise WeightsError(path, "is empty", "give another snapshot")

    def checkpoint_iter(self, state: str) -> int | None:
        """Return the global step in the path of a checkpoint's index file; None for any other path."""
        found = _STATE_NAME.fullmatch(state)
        return int(found[1]) if found else None

    def model_beside(self, state: str) -> str:
        """Return the data file that belongs to an index file."""
        return f"{state.removesuffix(STATE)}{MODEL}"

    def fetch_checkpoint(
        self, host: Host, root: Path, files: Mapping[str, str], training: Training, state: str, folder: str
    ) -> Checkpoint:
        """Return a checkpoint with its digests; it stays in place, in a folder that all hosts share.

        Raises RunFailed if it cannot be read.
        """
        model = self.model_beside(state)
        paths = [posixpath.join(root, path) for path in (state, model)]
        try:
            digests = [remote_sha256(host, path) for path in paths]
        except ClusterError as error:
            raise as_failure(error, host, paths[0], "the checkpoint") from None
        iteration = self.checkpoint_iter(state) or 0
        return Checkpoint(training.phase, iteration, state, digests[0], model, digests[1], paths[0], paths[1])

    def verify_checkpoint(
        self, root: Path, files: Mapping[str, str], net: str, checkpoint: Checkpoint
    ) -> None:
        """Raise WeightsError if a file of a checkpoint is missing or has changed."""
        what = f"the checkpoint at step {checkpoint.iteration:,}"
        verify_digest(root / checkpoint.state, checkpoint.state_sha256, what, _HINT)
        verify_digest(root / checkpoint.model, checkpoint.model_sha256, what, _HINT)
