"""The layers of a net that are set up: the files that they write, and whose label is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.engine.hdf5_output import HDF5Output
from caffe_recipes.engine.operators.data import InputLayer
from caffe_recipes.engine.operators.operator import Forward, LabelError, TensorShape
from caffe_recipes.errors import DataError, InputError


@dataclass
class LayerNode:
    """A layer that is set up. `bottoms` and `tops` are indices into all blobs of the net.

    `learned` are the shapes of `blobs` in this layer; a shared blob may have a different shape in its owner.
    `detached` says which bottoms get no gradient, and `weighted` has (index, loss weight) of its losses.
    """

    param: pb.LayerParameter
    forward: Forward
    bottoms: list[int]
    tops: list[int]
    detached: list[bool]
    blobs: list[Tensor] = field(default_factory=list)
    learned: tuple[TensorShape, ...] = ()
    weighted: list[tuple[int, float]] = field(default_factory=list)
    source: InputLayer | None = None
    output: HDF5Output | None = None


def label_hint(classes: int) -> str:
    """Return what to do about a label that is not one of the classes."""
    return f"give labels from 0 to {classes - 1:,}"


def label_error(nodes: Sequence[LayerNode], node: LayerNode, error: LabelError, path: str) -> InputError:
    """Return the error for a label or index that a layer does not have, with its record if it is known."""
    where = f"layer '{node.param.name}'"
    if type_of(node.param).loss_weight is None and not type_of(node.param).is_classifier:
        what = f"index {error.label} is not one of 0 to {error.classes - 1}"
        return DataError(f"{path}: {where}", what, "check the data, or the size of the layer")
    what, hint = f"label {error.label} is not one of the {error.classes} classes", label_hint(error.classes)
    is_filtered = any(type_of(other.param).is_sized_by_values for other in nodes)
    for other in () if is_filtered else nodes:  # a position is not that of a record then
        if other.source is not None and error.position < len(other.source.keys):
            key = other.source.keys[error.position]
            what = f"record '{key}' has label {error.label}, but {where} of {path} has {error.classes}"
            return DataError(other.source.where, what, hint)
    return InputError(f"{path}: {where}", what, hint)


def start_outputs(nodes: Sequence[LayerNode]) -> None:
    """Collect the batches of all HDF5Output layers from here on."""
    for node in nodes:
        if node.output is not None:
            node.output.start()


def write_outputs(nodes: Sequence[LayerNode]) -> None:
    """Write the files of all HDF5Output layers, with the batches since `start_outputs`."""
    for node in nodes:
        if node.output is not None:
            node.output.write()
