"""Build layers and nets with one function call per layer.

>>> from caffe_recipes.caffe import layers as L
>>> lenet = L.net(
...     "LeNet",
...     L.data(source="mnist_lmdb", batch_size=64, phase="TRAIN"),
...     L.conv("conv1", "data", num_output=20, kernel_size=5),
...     L.pooling("pool1", "conv1", pool="MAX", kernel_size=2, stride=2),
...     L.inner_product("ip1", "pool1", num_output=10),
...     L.softmax_with_loss("loss", "ip1", "label"),
... )
>>> [(layer.name, layer.type) for layer in lenet.layer][1:3]
[('conv1', 'Convolution'), ('pool1', 'Pooling')]
>>> L.conv("c1", "data", num_output=20, kernel_size=5, strid=2)
Traceback (most recent call last):
caffe_recipes.errors.InputError: layer 'c1': Convolution has no field 'strid'; did you mean 'stride'?

Every layer needs a name. Other fields are keyword arguments: those of the type's own message
(`convolution_param` and so on) and those of LayerParameter (`param`, `include`, `loss_weight`, ...).
"""

from __future__ import annotations

import functools
import marshal
from collections import Counter
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from itertools import chain
from typing import Literal

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.layer_types.entry import own_block
from caffe_recipes.caffe.messages import FieldValue, build_message, nearest, set_fields
from caffe_recipes.caffe.text.writer import fields_of
from caffe_recipes.errors import InputError

FillerFields = Mapping[str, FieldValue] | pb.FillerParameter
Blobs = str | Sequence[str]

ZERO: FillerFields = {"type": "constant", "value": 0}
MSRA: FillerFields = {"type": "msra"}
_STATISTICS: list[FieldValue] = [{"lr_mult": 0}] * 3

# This version of marshal does not write references, so equal values give equal bytes.
_PLAIN_MARSHAL = 2
_LAYER_FIELDS = fields_of(pb.LayerParameter.DESCRIPTOR)


def layer(
    name: str, type: str, bottom: Blobs = (), top: Blobs | None = None, **fields: FieldValue
) -> pb.LayerParameter:
    """Build a layer of any type. Without `top`, its only top has the layer's name.

    Raises InputError, which names the layer, for an unknown field or an invalid value.
    """
    message = pb.LayerParameter()
    try:
        message.CopyFrom(_cached_layer(type, marshal.dumps(fields, _PLAIN_MARSHAL)))
        message.name = name
        _add_blobs(message.bottom, bottom)
        _add_blobs(message.top, name if top is None else top)
    except (TypeError, ValueError, InputError):  # a value that marshal does not support, or an invalid one
        where = f"layer '{name}'"
        message = _build_nameless(where, type, fields)
        set_fields(message, where, {"name": name, "bottom": bottom, "top": name if top is None else top})
    return message


def _add_blobs(field: MutableSequence[str], blobs: Blobs) -> None:
    if isinstance(blobs, str):
        field.append(blobs)
    else:
        field.extend(blobs)


@functools.lru_cache(maxsize=1024)
def _cached_layer(type: str, fields: bytes) -> pb.LayerParameter:
    """Build a layer without names. The result is cached, since most layers of a net differ only in names."""
    return _build_nameless("", type, marshal.loads(fields))


def _build_nameless(where: str, type: str, fields: Mapping[str, FieldValue]) -> pb.LayerParameter:
    own_name = own_block(str(type))
    own_fields = fields_of(_LAYER_FIELDS[own_name].message_type) if own_name else {}
    given: dict[str, FieldValue] = {"type": type}
    own: dict[str, FieldValue] = {}
    for key, value in fields.items():
        if key in own_fields:
            if value is not None:
                own[key] = value
        elif key in _LAYER_FIELDS:
            given[key] = value
        else:
            hint = nearest(key, [*_LAYER_FIELDS, *own_fields])
            raise InputError(where, f"{type} has no field '{key}'", hint)
    if own and own_name in given:
        raise InputError(where, f"{own_name} is given as well as {', '.join(own)}", "keep one of the two")
    if own:
        given[own_name] = own
    return build_message(pb.LayerParameter, where, given)


def net(name: str, *layers: pb.LayerParameter | Iterable[pb.LayerParameter]) -> pb.NetParameter:
    """Build a net from layers and groups of layers.

    Raises InputError if two layers of one phase have the same name, since Caffe matches weights by name.
    """
    parts = ((part,) if isinstance(part, pb.LayerParameter) else part for part in layers)
    message = pb.NetParameter(name=name, layer=chain.from_iterable(parts))
    twice = [name for name, count in Counter([one.name for one in message.layer]).items() if count > 1]
    seen: set[tuple[str, ...]] = set()
    for one in (one for one in message.layer if one.name in twice) if twice else ():
        key = (one.name, *(rule.SerializeToString().hex() for rule in one.include))
        if key in seen:
            raise InputError(f"net '{name}'", f"two layers are named '{one.name}'", "rename one of them")
        seen.add(key)
    return message


def data(
    name: str = "data",
    top: Blobs = ("data", "label"),
    *,
    source: str,
    batch_size: int,
    phase: Literal["TRAIN", "TEST"],
    backend: Literal["LMDB", "LEVELDB"] = "LMDB",
    **fields: FieldValue,
) -> pb.LayerParameter:
    """Read images and labels from a database, in one phase. `transform_param` sets the transformation."""
    return layer(
        name,
        "Data",
        (),
        top,
        source=source,
        batch_size=batch_size,
        backend=backend,
        include={"phase": phase},
        **fields,
    )


def conv(
    name: str,
    bottom: str,
    top: str | None = None,
    *,
    num_output: int,
    kernel_size: int | Sequence[int],
    weight_filler: FillerFields = MSRA,
    **fields: FieldValue,
) -> pb.LayerParameter:
    """Convolve. Other fields of `convolution_param` are pad, stride, group, bias_term, bias_filler, ..."""
    return layer(
        name,
        "Convolution",
        bottom,
        top,
        num_output=num_output,
        kernel_size=kernel_size,
        weight_filler=weight_filler,
        **fields,
    )


def batch_norm(name: str, bottom: str, top: str | None = None, **fields: FieldValue) -> pb.LayerParameter:
    """Normalize over the batch, in place unless `top` is given. A `scale` usually follows.

    Its three blobs are statistics that the solver must not update, so their `lr_mult` is 0.
    """
    return layer(name, "BatchNorm", bottom, top or bottom, **{"param": _STATISTICS, **fields})


def scale(
    name: str, bottom: str, top: str | None = None, *, bias_term: bool = True, **fields: FieldValue
) -> pb.LayerParameter:
    """Multiply each channel by a learned factor and add a learned bias, in place unless `top` is given."""
    return layer(name, "Scale", bottom, top or bottom, bias_term=bias_term, **fields)


def relu(name: str, bottom: str, top: str | None = None, **fields: FieldValue) -> pb.LayerParameter:
    """Compute max(x, 0), in place unless `top` is given."""
    return layer(name, "ReLU", bottom, top or bottom, **fields)


def pooling(
    name: str, bottom: str, top: str | None = None, *, pool: Literal["MAX", "AVE"], **fields: FieldValue
) -> pb.LayerParameter:
    """Pool windows of `kernel_size`, or whole channels with `global_pooling=True`. Output sizes round up."""
    return layer(name, "Pooling", bottom, top, pool=pool, **fields)


def inner_product(
    name: str,
    bottom: str,
    top: str | None = None,
    *,
    num_output: int,
    weight_filler: FillerFields = MSRA,
    **fields: FieldValue,
) -> pb.LayerParameter:
    """Connect all inputs to `num_output` outputs."""
    return layer(
        name, "InnerProduct", bottom, top, num_output=num_output, weight_filler=weight_filler, **fields
    )


def eltwise_sum(
    name: str, bottoms: Sequence[str], top: str | None = None, **fields: FieldValue
) -> pb.LayerParameter:
    """Add blobs of the same shape. SUM is the default operation in Caffe."""
    return layer(name, "Eltwise", bottoms, top, **fields)


def softmax_with_loss(
    name: str, scores: str, label: str, top: str | None = None, **fields: FieldValue
) -> pb.LayerParameter:
    """Compute the loss to minimize: the cross entropy of the softmax of the scores."""
    return layer(name, "SoftmaxWithLoss", (scores, label), top, **fields)


def accuracy(
    name: str,
    scores: str,
    label: str,
    top: str | None = None,
    *,
    top_k: int | None = None,
    **fields: FieldValue,
) -> pb.LayerParameter:
    """Compute the share of images whose label is among the `top_k` best scores (default: 1)."""
    return layer(name, "Accuracy", (scores, label), top, top_k=top_k, **fields)


def batch_size(layer: pb.LayerParameter) -> int:
    """Return the number of images per batch of a data layer; 0 if it has no batch_size.

    >>> batch_size(pb.LayerParameter(type="Data", data_param=pb.DataParameter(batch_size=32)))
    32
    """
    block = type_of(layer).batch_block
    return int(getattr(layer, block).batch_size) if block else 0


def source_batch(layer: pb.LayerParameter) -> int:
    """Return the number of images per batch of a data layer or a DummyData layer; 0 if it gives none.

    >>> made_up = pb.DummyDataParameter(shape=[pb.BlobShape(dim=[8, 3, 2, 2])])
    >>> source_batch(pb.LayerParameter(type="DummyData", dummy_data_param=made_up))
    8
    """
    if layer.type != "DummyData":
        return batch_size(layer)
    param = layer.dummy_data_param
    first = [*(shape.dim[0] for shape in param.shape[:1] if shape.dim), *param.num[:1]]
    return int(first[0]) if first else 0
