"""Rows of HDF5 files for HDF5Data layers: a text file names the files, and each top is one of their datasets.

Source: Intel Caffe, src/caffe/layers/hdf5_data_layer.cpp.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.hdf5_weights import MAGIC, import_h5py
from caffe_recipes.errors import DataError, hint_for
from caffe_recipes.files.bounded_reads import load_within
from caffe_recipes.limits import host_memory_bytes

_Values = NDArray[np.float32]
_ADVICE = "write the file again"


class HDF5Rows:
    """The rows that a rank reads: rank, rank + ranks, ... of all files in turn, shuffled on request.

    The next file is loaded whole when the rows of the last one are used up, as in Caffe.
    """

    def __init__(self, layer: pb.LayerParameter, rank: int, ranks: int, seed: int) -> None:
        """Load the first file. Raises InputError if h5py is missing, and DataError for bad files."""
        param = layer.hdf5_data_param
        self._tops, self._size, self._ranks = list(layer.top), param.batch_size, ranks
        self._random = Random(seed) if param.shuffle else None
        path = Path(param.source)
        data = load_within(path, "list-bytes", DataError, "correct hdf5_data_param.source")
        if data.startswith(MAGIC) or b"\0" in data:
            raise DataError(path, "is not a text file of paths", "write a text file with a path per line")
        self._list, self._files = path, data.decode(errors="surrogateescape").split()
        if not self._files:
            raise DataError(path, "names no HDF5 file", "write one path per line")
        if self._random:
            self._random.shuffle(self._files)
        self._current, self._row = 0, rank
        self._open(self._files[0])
        self._tails = [values.shape[1:] for values in self._values]

    @property
    def files(self) -> Sequence[str]:
        """The files that the list names."""
        return self._files

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shape of each top."""
        return [(self._size, *tail) for tail in self._tails]

    def next(self) -> tuple[list[_Values], list[str]]:
        """Return the next batch of each top, and the file and row of each of its items."""
        rows: list[list[_Values]] = [[] for _ in self._tops]
        keys = []
        for _ in range(self._size):
            while self._row >= len(self._order):
                self._row -= len(self._order)
                self._advance()
            row = self._order[self._row]
            for values, made in zip(self._values, rows, strict=True):
                made.append(values[row])
            keys.append(f"{self._path}[{row}]")
            self._row += self._ranks
        return [np.stack(made) for made in rows], keys

    def _advance(self) -> None:
        """Go to the next file, or to the first row of the only one."""
        if len(self._files) > 1:
            self._current = (self._current + 1) % len(self._files)
            if self._current == 0 and self._random:
                self._random.shuffle(self._files)
            self._open(self._files[self._current])
            for top, values, tail in zip(self._tops, self._values, self._tails, strict=True):
                if values.shape[1:] != tail:
                    mine, others = _show(values.shape[1:]), _show(tail)
                    what = f"dataset '{top}' has rows of {mine}, but others of {others}"
                    raise DataError(self._path, what, _ADVICE)
        elif self._random:
            self._random.shuffle(self._order)

    def _open(self, path: str) -> None:
        self._path, self._values = path, [_load(path, top, self._list) for top in self._tops]
        counts = {top: len(values) for top, values in zip(self._tops, self._values, strict=True)}
        if len({*counts.values()}) > 1:
            what = "has datasets of different lengths: "
            listed = ", ".join(f"'{top}' has {count:,} rows" for top, count in counts.items())
            raise DataError(path, what + listed, _ADVICE)
        self._order = list(range(counts[self._tops[0]]))
        if self._random:
            self._random.shuffle(self._order)


def _show(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one number"


def _check_memory(path: str, place: str, dataset: Any) -> None:  # noqa: ANN401
    """Raise DataError for a dataset that this host cannot hold as float32: a small file may declare it."""
    needed, there = 4 * math.prod(dataset.shape or ()), host_memory_bytes()
    if needed > there:
        what = f"{place}needs {needed / 2**30:,.0f} GiB, and this host has {there / 2**30:,.0f}"
        raise DataError(path, what, "divide it into several files")


def _load(path: str, name: str, listed: Path) -> _Values:
    """Return a dataset as float32. Raises DataError for a file or dataset that is missing or damaged.

    The file is one of the list `listed`.
    """
    h5py, place = import_h5py(), ""
    try:
        with h5py.File(path, "r") as file:
            if name not in file and file.get(name, getlink=True) is None:
                known = ", ".join(f"'{each}'" for each in file)
                what = f"has no dataset '{name}'; it has {known or 'none'}"
                raise DataError(path, what, "name the tops of the layer like the datasets")
            place = f"dataset '{name}' "
            dataset = file[name]
            if not isinstance(dataset, h5py.Dataset):
                raise DataError(path, f"'{name}' is a group, not a dataset", _ADVICE)
            place = f"dataset '{name}' ({_show(dataset.shape or ())}, {dataset.dtype}) "
            _check_memory(path, place, dataset)
            values: _Values = np.asarray(dataset, np.float32)
    except (OSError, RuntimeError, TypeError, ValueError, KeyError) as error:
        number = getattr(error, "errno", None)
        if number and not place:  # of the file, in words that name none of the library's functions
            what = f"cannot be read: {os.strerror(number)}"
            raise DataError(path, what, hint_for(error, f"correct its path in {listed}")) from None
        reason = str(error).partition("\n")[0].strip("'\"")
        what = f"{place}cannot be read{'' if place else ' as HDF5'}: {reason}"
        raise DataError(path, what, _ADVICE) from None
    if not values.ndim or not len(values):
        raise DataError(path, f"dataset '{name}' has no rows", _ADVICE)
    return values
