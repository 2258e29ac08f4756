"""Weights and solverstates in HDF5, as Caffe writes them with `snapshot_format: HDF5`.

Weights: the group `data` has a group per layer, with the datasets `0`, `1`, ... A solverstate: the datasets
`iter`, `current_step` and `learned_net`, and the group `history` with `0`, `1`, ... Source: BVLC Caffe,
Net::ToHDF5, SGDSolver::SnapshotSolverStateToHDF5 and src/caffe/util/hdf5.cpp.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.dimensions import MAX_AXES
from caffe_recipes.caffe.packed_blobs import fill_blob, packed_data
from caffe_recipes.errors import InputError

MAGIC = b"\x89HDF\r\n\x1a\n"
_MOST_VALUES = 2**29 - 1  # as many as a binary caffemodel of 2 GiB holds
_MOST_DEPTH = 8  # of groups for the parts of a layer's name


class HDF5FileError(Exception):
    """HDF5 data that are damaged, or not what Caffe writes: why, and what to do."""

    def __init__(self, what: str, hint: str = "copy it again and compare sizes") -> None:
        super().__init__(what, hint)
        self.what, self.hint = what, hint


def import_h5py() -> Any:  # noqa: ANN401 - h5py has no types
    """Return the module h5py. Raises InputError if it is not installed."""
    try:
        import h5py
    except ImportError:
        hint = "pip install h5py, or the extra 'hdf5'"
        raise InputError("", "h5py is not installed", hint) from None
    return h5py


def parse_weights(data: bytes) -> pb.NetParameter:
    """Return the layers of a `.caffemodel.h5` by name, without their types. Raises HDF5FileError."""
    h5py, net, left = import_h5py(), pb.NetParameter(), _MOST_VALUES
    with _opened(h5py, data) as file:
        group = _member(h5py, file, "data", h5py.Group)
        if group is None:
            if "history" in file:
                raise HDF5FileError("is a solverstate, not a caffemodel", "give its caffemodel")
            raise HDF5FileError("has no group 'data' of layers")
        for name, datasets in _walk_layers(h5py, group, "", _MOST_DEPTH):
            layer = net.layer.add(name=name)
            for dataset in datasets:
                left = _add_blob(layer.blobs.add(), dataset, left)
    return net


def parse_state(data: bytes) -> pb.SolverState:
    """Return a `.solverstate.h5`. Raises HDF5FileError."""
    h5py, state, left = import_h5py(), pb.SolverState(), _MOST_VALUES
    with _opened(h5py, data) as file:
        for field in ("iter", "current_step"):
            dataset = _member(h5py, file, field, h5py.Dataset)
            if dataset is not None:
                setattr(state, field, int(dataset[()].reshape(-1)[0]))
        learned = _member(h5py, file, "learned_net", h5py.Dataset)
        if learned is not None:
            text = learned[()]
            state.learned_net = text.decode() if isinstance(text, bytes) else str(text)
        history = _member(h5py, file, "history", h5py.Group)
        if history is None or not state.HasField("iter"):
            if "data" in file:
                hint = "give the solverstate, or use it with -weights"
                raise HDF5FileError("is a caffemodel, not a solverstate", hint)
            raise HDF5FileError("has no 'iter' or no group 'history'")
        for dataset in _numbered(h5py, history):
            left = _add_blob(state.history.add(), dataset, left)
    return state


def render_weights(layers: Iterable[tuple[str, Sequence[pb.BlobProto]]]) -> bytes:
    """Return the bytes of a `.caffemodel.h5` with the blobs of these layers."""
    h5py, buffer = import_h5py(), io.BytesIO()
    with h5py.File(buffer, "w") as file:
        group = file.create_group("data")
        for name, blobs in layers:
            _write_blobs(group.create_group(name), blobs)
    return buffer.getvalue()


def render_state(state: pb.SolverState) -> bytes:
    """Return the bytes of a `.solverstate.h5`."""
    h5py, buffer = import_h5py(), io.BytesIO()
    import numpy as np

    with h5py.File(buffer, "w") as file:
        for field in ("iter", "current_step"):
            file.create_dataset(field, data=np.array([getattr(state, field)], np.int32))
        file.create_dataset("learned_net", data=np.bytes_(state.learned_net.encode() + b"\0"))
        _write_blobs(file.create_group("history"), state.history)
    return buffer.getvalue()


def _write_blobs(group: Any, blobs: Sequence[pb.BlobProto]) -> None:  # noqa: ANN401
    import numpy as np

    for index, blob in enumerate(blobs):
        values = np.frombuffer(packed_data(blob), "<f4").reshape(tuple(blob.shape.dim))
        group.create_dataset(str(index), data=values)


@contextmanager
def _opened(h5py: Any, data: bytes) -> Iterator[Any]:  # noqa: ANN401
    """Open HDF5 data in memory, and turn the library's errors into HDF5FileError."""
    try:
        with h5py.File(io.BytesIO(data), "r") as file:
            yield file
    except (OSError, RuntimeError, KeyError, TypeError, ValueError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        raise HDF5FileError(f"cannot be read: {reason}") from None


def _member(h5py: Any, group: Any, name: str, kind: Any) -> Any:  # noqa: ANN401
    """Return a member of a group if it is of a kind, and in this file: no other one is opened."""
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        return None
    member = group[name]
    if not isinstance(member, kind) or (kind is h5py.Dataset and (member.external or member.is_virtual)):
        return None
    return member


def _walk_layers(h5py: Any, group: Any, prefix: str, depth: int) -> Iterator[tuple[str, list[Any]]]:  # noqa: ANN401
    """Yield the name and the datasets of each layer; a `/` in a name makes groups in groups."""
    for name in group if depth else ():
        layer = _member(h5py, group, name, h5py.Group)
        if layer is not None:
            yield f"{prefix}{name}", _numbered(h5py, layer)
            yield from _walk_layers(h5py, layer, f"{prefix}{name}/", depth - 1)


def _numbered(h5py: Any, group: Any) -> list[Any]:  # noqa: ANN401
    """Return the datasets 0, 1, ... of a group."""
    found: list[Any] = []
    while (dataset := _member(h5py, group, str(len(found)), h5py.Dataset)) is not None:
        found.append(dataset)
    return found


def _add_blob(blob: pb.BlobProto, dataset: Any, left: int) -> int:  # noqa: ANN401
    """Fill a blob from a dataset; return how many values more may be read."""
    shape = tuple(map(int, dataset.shape))
    left -= math.prod(shape)
    if left < 0 or len(shape) > MAX_AXES or dataset.dtype.kind not in "fiu":
        raise HDF5FileError(f"dataset '{dataset.name}' does not hold the values of a blob")
    fill_blob(blob, shape, dataset[()].astype("<f4").tobytes())
    return left
