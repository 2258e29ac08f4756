"""The file of an HDF5Output layer: its bottoms of all batches of a test, as datasets `data` and `label`.

Caffe writes one batch, and stops at the next. Source: Intel Caffe, src/caffe/layers/hdf5_output_layer.cpp.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.hdf5_weights import import_h5py
from caffe_recipes.engine.operators.operator import TensorShapes, layer_error
from caffe_recipes.errors import DiskFailed, InputError, hint_for
from caffe_recipes.files.atomic_writes import check_replaceable, write_whole

_NAMES = ("data", "label")
_AXES = 4  # of each dataset; a missing axis has size 1


class HDF5Output:
    """Collects the rows of one layer between `start` and `write`; in other passes, nothing is kept."""

    def __init__(self, layer: pb.LayerParameter, shapes: TensorShapes) -> None:
        """Check that the file can be written. Raises InputError."""
        self._path = Path(layer.hdf5_output_param.file_name)
        self._batches: list[list[np.ndarray]] | None = None
        if layer.phase == pb.TRAIN:
            what = "is in phase TRAIN, where Caffe stops at the second iteration"
            raise layer_error(layer, what, "include { phase: TEST }")
        if any(len(shape) > _AXES for shape in shapes.bottoms):
            raise layer_error(layer, "has a bottom of more than 4 axes", "reshape it")
        if len({shape[:1] for shape in shapes.bottoms}) > 1:
            raise layer_error(layer, "needs bottoms with the same first dimension")
        import_h5py()
        try:
            check_replaceable(self._path)
        except OSError as error:
            what = f"cannot be written: {error.strerror}"
            raise InputError(
                self._path, what, hint_for(error, "correct hdf5_output_param.file_name")
            ) from None

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
            write_whole({self._path: buffer.getvalue()})
        except OSError as error:
            raise DiskFailed(self._path, error) from None
