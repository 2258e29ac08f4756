"""Real nets with a few random mistakes: in fields, values, names, types and the order of layers."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from google.protobuf.message import Message

from caffe_recipes.caffe.dialects.schema import load_lenient
from caffe_recipes.caffe.layer_types import LAYER_TYPES
from caffe_recipes.caffe.prototxt import render_prototxt
from tests.engine.random_values import random_value

ROOT = Path(__file__).resolve().parent.parent.parent
NETS = [
    *sorted((ROOT / "tests/review/lint/zoo").glob("*.prototxt")),
    ROOT / "prototxt/digits-local/train_val.prototxt",
]
_MOST_OUTPUTS = 12  # a mutant is set up in milliseconds
_INTEGERS = (-(2**31), -7, -1, 0, 1, 1, 2, 3, 4, 5, 13, 2**31, 2**32 - 1)
_REALS = (-1.0, 0.0, 1e-30, 0.5, 1.0, 3.0, 1e30, float("inf"), float("nan"))
_TEXTS = ("", "data", "label", "x", "msra", "bilinear", "gabor", "MKLDNN", "é\n")
_TYPES = sorted(LAYER_TYPES)


def mutant(seed: int) -> str:
    """Return the text of the mutant of a seed."""
    random = Random(seed)
    net: Any = load_lenient(random.choice(NETS)).message
    _shrink(net)
    for _ in range(random.choice((1, 1, 2, 3))):
        random.choice(_MUTATIONS)(random, net)
    return render_prototxt(net)


def _shrink(message: Any) -> None:  # noqa: ANN401
    for field, value in message.ListFields():
        if isinstance(value, Message):
            _shrink(value)
        elif field.is_repeated and field.message_type:
            for each in value:
                _shrink(each)
        elif field.name == "num_output":
            message.num_output = min(value, _MOST_OUTPUTS)


def _layers(net: Any) -> Any:  # noqa: ANN401
    return net.layers if len(net.layers) else net.layer


def _change_value(random: Random, net: Any) -> None:  # noqa: ANN401
    """Set a field that stands in a layer, or one beside it, to another value of its type."""
    message: Any = random.choice(_layers(net)) if len(_layers(net)) else net
    while True:
        parts = [value for field, value in message.ListFields() if isinstance(value, Message)]
        parts += [
            each
            for field, value in message.ListFields()
            if field.is_repeated and field.message_type
            for each in value
        ]
        if not parts or random.random() < 0.3:
            break
        message = random.choice(parts)
    fields = [field for field, _ in message.ListFields()]
    fields = fields if fields and random.random() < 0.7 else list(message.DESCRIPTOR.fields)
    _set(random, message, random.choice(fields))


def _set(random: Random, message: Any, field: Any) -> None:  # noqa: ANN401
    if field.message_type is not None:
        part = getattr(message, field.name)
        made = part.add() if field.is_repeated else part
        if not field.is_repeated:
            made.SetInParent()
        for inner in random.sample(list(made.DESCRIPTOR.fields), min(2, len(made.DESCRIPTOR.fields))):
            if inner.message_type is None:
                _set(random, made, inner)
        return
    values = [
        random_value(random, field, _TEXTS, _REALS, _INTEGERS) for _ in range(random.choice((0, 1, 1, 2, 3)))
    ]
    if field.is_repeated:
        message.ClearField(field.name)
        getattr(message, field.name).extend(values)
    elif values:
        setattr(message, field.name, values[0])
    else:
        message.ClearField(field.name)


def _change_type(random: Random, net: Any) -> None:  # noqa: ANN401
    if len(net.layer):
        random.choice(net.layer).type = random.choice(_TYPES)


def _change_blob(random: Random, net: Any) -> None:  # noqa: ANN401
    """Give a layer another bottom or top, one more, or one less."""
    names = sorted({name for layer in _layers(net) for name in (*layer.bottom, *layer.top)})
    if not names:
        return
    layer = random.choice(_layers(net))
    blobs = random.choice((layer.bottom, layer.top))
    way = random.randrange(3)
    if way == 0:
        blobs.append(random.choice(names))
    elif blobs and way == 1:
        blobs.pop(random.randrange(len(blobs)))
    elif blobs:
        blobs[random.randrange(len(blobs))] = random.choice(names)


def _move_layer(random: Random, net: Any) -> None:  # noqa: ANN401
    """Remove a layer, repeat it, or put it elsewhere."""
    layers = _layers(net)
    if not len(layers):
        return
    rest = [type(layer).FromString(layer.SerializeToString()) for layer in layers]
    chosen = rest[random.randrange(len(rest))]
    if random.random() < 0.7:
        rest.remove(chosen)
    if random.random() < 0.7:
        rest.insert(random.randrange(len(rest) + 1), chosen)
    del layers[:]
    layers.extend(rest)


def _borrow_block(random: Random, net: Any) -> None:  # noqa: ANN401
    """Copy a block of one layer, or of another net, into another layer."""
    other: Any = load_lenient(random.choice(NETS)).message
    if len(net.layer) and len(other.layer):
        source, target = random.choice(other.layer), random.choice(net.layer)
        blocks = [field.name for field, value in source.ListFields() if isinstance(value, Message)]
        if blocks:
            name = random.choice(blocks)
            getattr(target, name).MergeFrom(getattr(source, name))


def _change_net(random: Random, net: Any) -> None:  # noqa: ANN401
    fields = [field for field in net.DESCRIPTOR.fields if field.name not in ("layer", "layers")]
    _set(random, net, random.choice(fields))


_MUTATIONS = (
    *[_change_value] * 5,
    *[_change_type] * 2,
    *[_change_blob] * 2,
    _move_layer,
    _borrow_block,
    _change_net,
)
