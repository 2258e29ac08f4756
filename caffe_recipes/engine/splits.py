"""Filter the layers of a net by its state, and insert Split layers where a blob is used more than once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.shapes import select_layers

_Producer = tuple[int, int]


def filter_net(net: pb.NetParameter, note: Callable[[str], None]) -> pb.NetParameter:
    """Return the net with the layers whose rules match `net.state`; `note` gets a line per failed rule."""
    kept, state = deepcopy(net), net.state
    del kept.layer[:]
    kept.layer.extend(select_layers(net, state.phase, state.level, state.stage, note))
    return kept


def insert_splits(net: pb.NetParameter) -> pb.NetParameter:
    """Return the net with Split layers, named as in Caffe, so that each blob is used only once.

    An explicit loss_weight of such a blob moves to the first copy. Caffe then clears the layer's whole field,
    so its other tops lose their weights, and a loss layer gets its default weight again (insert_splits.cpp,
    loss_layer.cpp).
    """
    producers, uses = _trace(net)
    split = deepcopy(net)
    del split.layer[:]
    taken: Counter[_Producer] = Counter()
    for i, layer in enumerate(net.layer):
        own = split.layer.add()
        own.CopyFrom(layer)
        for b, blob in enumerate(layer.bottom):
            producer = producers[i, b]
            if uses[producer] > 1:
                own.bottom[b] = f"{_split_name(net, producer, blob)}_{taken[producer]}"
                taken[producer] += 1
        for t, blob in enumerate(layer.top):
            if uses[i, t] > 1:
                name = _split_name(net, (i, t), blob)
                copies = split.layer.add(name=name, type="Split", bottom=[blob])
                copies.top.extend(f"{name}_{k}" for k in range(uses[i, t]))
                weight = layer.loss_weight[t] if t < len(layer.loss_weight) else 0.0
                if weight:  # goes to the first copy, which nothing else uses
                    copies.loss_weight.extend([weight] + [0.0] * (uses[i, t] - 1))
                    own.ClearField("loss_weight")
                    taken[i, t] += 1
    return split


def _trace(net: pb.NetParameter) -> tuple[dict[tuple[int, int], _Producer], Counter[_Producer]]:
    """Return the (layer, top) that produces each (layer, bottom), and how often each top is used."""
    latest: dict[str, _Producer] = {}
    producers: dict[tuple[int, int], _Producer] = {}
    uses: Counter[_Producer] = Counter()
    for i, layer in enumerate(net.layer):
        for b, blob in enumerate(layer.bottom):
            producers[i, b] = latest[blob]
            uses[latest[blob]] += 1
        for t, blob in enumerate(layer.top):
            latest[blob] = (i, t)
        for t, weight in enumerate(layer.loss_weight[: len(layer.top)]):
            if weight:  # an explicit loss weight counts as a use
                uses[i, t] += 1
    return producers, uses


def loss_weight(layer: pb.LayerParameter, top: int) -> float:
    """Return the loss weight of a top: the explicit one, else 1 for the first top of a loss layer."""
    if top < len(layer.loss_weight):
        return layer.loss_weight[top]
    return float(not layer.loss_weight and type_of(layer).loss_weight == 1 and top == 0)


def _split_name(net: pb.NetParameter, producer: _Producer, blob: str) -> str:
    return f"{blob}_{net.layer[producer[0]].name}_{producer[1]}_split"
