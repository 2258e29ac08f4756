"""The program that trains: ours, a Caffe under the Caffe root, or what a container's image holds."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from caffe_recipes.cluster.profiles import Container
from caffe_recipes.errors import ClusterError

OUR_TRAINER = "caffe-torch"


def find_trainer(trainer: str, root: Path, path: str, container: Container | None) -> str:
    """Return the trainer as it is called from the Caffe root; raises ClusterError if it is not there.

    In a container's image it is called as the recipe has it: nothing of the image is seen from here.
    """
    if container is not None:
        return trainer
    return find_our_trainer(path) if trainer == OUR_TRAINER else find_caffe(trainer, root)


def find_our_trainer(path: str) -> str:
    """Return where caffe-torch is; raises ClusterError if it is not installed."""
    found = shutil.which(OUR_TRAINER, path=path)
    if found is None:
        raise ClusterError(
            OUR_TRAINER, "not found", "install this project's extra 'engine', as its README says"
        )
    return found


def find_caffe(trainer: str, root: Path) -> str:
    """Return the Caffe binary as it is called from the Caffe root; ClusterError if none is there.

    A run never falls back on caffe-torch: a recipe that is to be trained by it says so.
    """
    if Path(trainer).name == OUR_TRAINER:
        raise ClusterError(trainer, "is no Caffe", f"write `trainer: {OUR_TRAINER}` in the recipe to use it")
    path = root / trainer
    hint = f"build Caffe in {root}, or give its path with --caffe"
    if not path.exists():
        raise ClusterError(path, "no such Caffe binary", hint)
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ClusterError(path, "is no program that may be run", hint)
    return trainer if "/" in trainer else f"./{trainer}"  # a name alone would be looked for on PATH
