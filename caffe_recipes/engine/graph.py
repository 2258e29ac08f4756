"""Which layers of a net there are in a phase, and the Split layers where a blob is used more than once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from caffe_recipes.caffe import pb
from caffe_recipes.engine.losses import LOSSES

_Producer = tuple[int, int]


def filter_net(net: pb.NetParameter, note: Callable[[str], None]) -> pb.NetParameter:
    """Keep the layers whose include and exclude rules meet `net.state`; `note` gets a line for each other."""
    kept = pb.NetParameter()
    kept.CopyFrom(net)
    del kept.layer[:]
    for layer in net.layer:
        if layer.include:
            stays = any(_meets(net.state, rule, layer.name, note) for rule in layer.include)
        else:
            stays = not any(_meets(net.state, rule, layer.name, note) for rule in layer.exclude)
        if stays:
            kept.layer.add().CopyFrom(layer)
    return kept


def _meets(state: pb.NetState, rule: pb.NetStateRule, name: str, note: Callable[[str], None]) -> bool:
    if rule.HasField("phase") and rule.phase != state.phase:
        note(
            f"The NetState phase ({state.phase}) differed from the phase ({rule.phase}) "
            f"specified by a rule in layer {name}"
        )
        return False
    if rule.HasField("min_level") and state.level < rule.min_level:
        note(f"The NetState level ({state.level}) is below the min_level specified by a rule in layer {name}")
        return False
    if rule.HasField("max_level") and state.level > rule.max_level:
        note(f"The NetState level ({state.level}) is above the max_level specified by a rule in layer {name}")
        return False
    if not set(rule.stage) <= set(state.stage):
        note(f"The NetState did not contain a stage specified by a rule in layer {name}")
        return False
    if set(rule.not_stage) & set(state.stage):
        note(f"The NetState contained a not_stage specified by a rule in layer {name}")
        return False
    return True


def insert_splits(net: pb.NetParameter) -> pb.NetParameter:
    """Give each user of a blob its own copy, from a Split layer named as Caffe names it."""
    producers, uses = _trace(net)
    split = pb.NetParameter()
    split.CopyFrom(net)
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
                taken[i, t] += _add_split(split, own, t, _split_name(net, (i, t), blob), uses[i, t])
    return split


def _trace(net: pb.NetParameter) -> tuple[dict[tuple[int, int], _Producer], Counter[_Producer]]:
    """Find the (layer, top) that makes each (layer, bottom), and how often each is used."""
    latest: dict[str, _Producer] = {}
    producers: dict[tuple[int, int], _Producer] = {}
    uses: Counter[_Producer] = Counter()
    for i, layer in enumerate(net.layer):
        for b, blob in enumerate(layer.bottom):
            producers[i, b] = latest[blob]
            uses[latest[blob]] += 1
        for t, blob in enumerate(layer.top):
            latest[blob] = (i, t)
        for t in range(len(layer.top)):
            if loss_weight(layer, t) and uses[i, t] == 0:
                uses[i, t] += 1
    return producers, uses


def loss_weight(layer: pb.LayerParameter, top: int) -> float:
    """Give the weight of a top in the loss: as written, or 1 for the first top of a loss layer."""
    if top < len(layer.loss_weight):
        return layer.loss_weight[top]
    return float(not layer.loss_weight and layer.type in LOSSES and top == 0)


def _split_name(net: pb.NetParameter, producer: _Producer, blob: str) -> str:
    return f"{blob}_{net.layer[producer[0]].name}_{producer[1]}_split"


def _add_split(net: pb.NetParameter, layer: pb.LayerParameter, top: int, name: str, count: int) -> int:
    """Add the Split of a top; its loss weight moves to the first copy, which then has no other user."""
    split = net.layer.add(name=name, type="Split", bottom=[layer.top[top]])
    split.top.extend(f"{name}_{i}" for i in range(count))
    weight = loss_weight(layer, top)
    if not weight:
        return 0
    weights = [loss_weight(layer, t) for t in range(len(layer.top))]
    weights[top] = 0
    layer.loss_weight[:] = weights
    split.loss_weight.extend([weight] + [0.0] * (count - 1))
    return 1
