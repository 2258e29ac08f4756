"""The file of an HDF5Output layer: its bottoms of all batches of a test, as datasets `data` and `label`.

Caffe writes one batch, and stops at the next. As it does, the layer writes over the file that it wrote
before; it refuses to write over any other. Source: Intel Caffe, src/caffe/layers/hdf5_output_layer.cpp.
"""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.hdf5_weights import import_h5py
from caffe_recipes.engine.operators.operator import TensorShapes, layer_error
from caffe_recipes.errors import DiskFailed
from caffe_recipes.files.atomic_writes import check_replaceable, output_error, write_whole

_NAMES = ("data", "label")
_FIELD = "hdf5_output_param.file_name"
_ADVICE = f"give another {_FIELD}"
_AXES = 4  # of each dataset; a missing axis has size 1


class HDF5Output:
    """Collects the rows of one layer between `start` and `write`; in other passes, nothing is kept."""

    def __init__(self, layer: pb.LayerParameter, shapes: TensorShapes) -> None:
        """Check that the file can be written. Raises InputError."""
        self.layer, self.path = layer, Path(layer.hdf5_output_param.file_name)
        self._batches: list[list[np.ndarray]] | None = None
        if layer.phase == pb.TRAIN:
            what = "is in phase TRAIN, where Caffe stops at the second iteration"
            raise layer_error(layer, what, "write include { phase: TEST }")
        if any(len(shape) > _AXES for shape in shapes.bottoms):
            raise layer_error(layer, "has a bottom of more than 4 axes", "reshape it")
        if len({shape[:1] for shape in shapes.bottoms}) > 1:
            raise layer_error(layer, "needs bottoms with the same first dimension")
        import_h5py()
        try:
            check_replaceable(self.path)
        except OSError as error:
            raise output_error(self.path, error, f"correct {_FIELD}") from None
        if self.path.exists() and self.path.stat().st_size and not _is_own(self.path):
            raise layer_error(layer, f"would write over {self.path}, which no HDF5Output wrote", _ADVICE)

    def forward(self, xs: Sequence[Tensor], _: Sequence[Tensor]) -> list[Tensor]:
        """Keep a batch, if they are collected."""
        if self._batches is not None:
            batches = [x.detach().cpu().numpy() for x in xs]
            self._batches.append([x.reshape(*x.shape, *[1] * (_AXES - x.ndim)).copy() for x in batches])
        return []

    def start(self) -> None:
        """Collect the batches from here on."""
        self._batches = []

    def write(self) -> None:
        """Write the batches since `start` to the file. Raises DiskFailed."""
        buffer, rows = io.BytesIO(), zip(*(self._batches or ()), strict=True)
        self._batches = None
        with import_h5py().File(buffer, "w") as file:
            for name, batches in zip(_NAMES, rows, strict=True):
                file[name] = np.concatenate(batches)
        try:
            write_whole({self.path: buffer.getvalue()})
        except OSError as error:
            raise DiskFailed(self.path, error) from None


def check_outputs(
    outputs: Iterable[tuple[str, HDF5Output]], read: Collection[str], snapshot_prefix: str = ""
) -> None:
    """Raise InputError if a layer would write over another's file, one of `read`, or a snapshot of this run.

    Each layer comes with the path of its net. Snapshots have the `snapshot_prefix`, if that is given.
    """
    inputs = {os.path.realpath(path) for path in read}
    taken: dict[str, str] = {}
    for net, output in outputs:
        path, what = os.path.realpath(output.path), ""
        if path in inputs:
            what = f"would write over {output.path}, which this run reads"
        elif path in taken:
            what = f"writes to {output.path}, as {taken[path]} does"
        elif snapshot_prefix and path.startswith(os.path.realpath(f"{snapshot_prefix}_iter_")):
            what = f"writes to {output.path}, which has the name of a snapshot of this run"
        error = layer_error(output.layer, what, _ADVICE)
        if what:
            raise error.reworded(where=f"{net}: {error.where}")
        taken[path] = error.where


def _is_own(path: Path) -> bool:
    """Return whether a file has what the layer writes: two datasets of four axes with as many rows.

    A file for HDF5Data may have the same names, but a label for each row, and snapshots have groups.
    """
    h5py = import_h5py()
    try:
        with h5py.File(path, "r") as file:
            if set(file) != set(_NAMES) or any(
                file.get(n, getclass=True) is not h5py.Dataset for n in _NAMES
            ):
                return False
            shapes = [file[name].shape or () for name in _NAMES]
    except (OSError, RuntimeError, KeyError):
        return False
    return all(len(shape) == _AXES for shape in shapes) and len({shape[:1] for shape in shapes}) == 1
