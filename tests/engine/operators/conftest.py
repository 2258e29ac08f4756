"""An operator by itself, over bottoms of given shapes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.engine.operators import OPERATORS
from caffe_recipes.engine.operators.normalization import BATCH_NORMS
from caffe_recipes.engine.operators.operator import BatchStatistics, Forward, require_known_shapes

Array = NDArray[np.float32]


def set_up(
    text: str,
    *bottoms: tuple[int, ...],
    tops: int = 1,
    phase: pb.Phase = pb.TRAIN,
    batches: BatchStatistics | None = None,
) -> tuple[Forward, list[tuple[int, ...]]]:
    """Set a layer up over bottoms of these shapes; give its forward function and its blobs' shapes."""
    net: Any = parse_lenient(f'layer {{ name: "l" {text} }}').message
    layer = deepcopy(net.layer[0])
    layer.phase = phase
    net.ClearField("layer")
    for i, shape in enumerate(bottoms):
        source = net.layer.add(name=f"in{i}", type="Input", top=[f"b{i}"])
        source.input_param.shape.add(dim=shape)
        layer.bottom.append(f"b{i}")
    layer.top.extend(f"t{i}" for i in range(tops))
    net.layer.add().CopyFrom(layer)
    shapes = require_known_shapes(infer_shapes(net, phase).layers[-1])
    if batches is not None:
        return BATCH_NORMS[layer.type](layer, shapes, batches), list(shapes.learned)
    return OPERATORS[layer.type](layer, shapes), list(shapes.learned)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


def apply(text: str, *bottoms: Tensor, blobs: Sequence[Tensor] = (), phase: pb.Phase = pb.TRAIN) -> Array:
    forward, _ = set_up(text, *(tuple(b.shape) for b in bottoms), phase=phase)
    return np.asarray(forward(list(bottoms), list(blobs))[0].detach().numpy())
