"""What a net is made of: learned blobs, layers set up, the calls of a forward pass, and outputs."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.engine.data import Source
from caffe_recipes.engine.layer import Forward


@dataclass
class Param:
    """A learned blob that a layer owns; other layers may share it by its param name."""

    tensor: Tensor
    layer: str
    lr_mult: float
    decay_mult: float
    has_gradient: bool


@dataclass
class Node:
    """A layer of a net, with the places of its blobs among all of the net's."""

    param: pb.LayerParameter
    forward: Forward
    bottoms: list[int]
    tops: list[int]
    cut: list[bool]
    blobs: list[Tensor] = field(default_factory=list)
    weighted: list[tuple[int, float]] = field(default_factory=list)
    source: Source | None = None


@dataclass(frozen=True)
class Step:
    """One call of a forward pass: a node, or a BatchNorm together with the Scale after it."""

    node: Node
    tops: list[int]
    blobs: list[Tensor]
    weighted: list[tuple[int, float]]


@dataclass(frozen=True)
class Output:
    """A blob that no layer uses: what the log reports."""

    name: str
    place: int
    loss_weight: float
