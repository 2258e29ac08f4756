"""Find settings at which Caffe aborts when it sets up a layer, from the layer alone.

The checks of one type are in its entry in `layer_types/`. `shapes.py` finds shapes that do not fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.layer_types.entry import Refusal
from caffe_recipes.wording import describe_count

ENGINES = ("CAFFE", "CUDNN", "MKL2017", "MKLDNN")
_DEFAULT, _CUDNN = 0, 2  # in the Engine enum of each block that has these values


def find_refusals(layer: pb.LayerParameter, net_engine: str = "") -> Iterator[Refusal]:
    """Yield the settings of a layer at which Caffe aborts. `net_engine` is the `engine` of its net."""
    for check in (*type_of(layer).refuses, _check_loss_weight, _check_propagate_down):
        yield from check(layer)
    yield from _check_numbers(layer, "")
    yield from _check_engine(layer, net_engine)


_SIGMA = "Caffe aborts: Check failed: sigma > 0"


def find_filler_refusals(filler: pb.FillerParameter) -> Iterator[Refusal]:
    """Yield the settings at which Caffe aborts in a filler of a known type; `field` is one of its fields."""
    if filler.type == "gaussian" and not filler.std > 0:
        what = f"has a gaussian filler of std {filler.std:g}"
        yield Refusal("filler-range", "std", what, _SIGMA, "write std: 0.01")
    if filler.type == "msra" and not filler.scale > 0:
        what = f"has an msra filler of scale {filler.scale:g}"
        yield Refusal("filler-range", "scale", what, _SIGMA, "write scale: 1")
    if filler.type == "uniform" and not filler.min <= filler.max:
        what = f"has a uniform filler from {filler.min:g} to {filler.max:g}"
        yield Refusal("filler-range", "min", what, "Caffe aborts: Check failed: a <= b", "give min below max")
    if filler.type != "gaussian" and filler.sparse != -1:
        what = f"has a {filler.type} filler with sparse"
        effect = "Caffe aborts: Sparsity not supported by this Filler"
        yield Refusal("filler-sparse", "sparse", what, effect, 'remove it, or write type: "gaussian"')
    if filler.type == "gaussian" and filler.sparse < -1:
        what = f"has a gaussian filler of sparse {filler.sparse}"
        yield Refusal(
            "filler-sparse", "sparse", what, "Caffe aborts: Check failed: sparse >= -1", "write sparse: 10"
        )


_INT_MAX = 2**31 - 1
# Fields that Caffe does not convert to int.
_UNSIGNED = frozenset(("rand_skip",))


def _check_numbers(message: Message, path: str) -> Iterator[Refusal]:
    """Find numbers that are not finite, and integers that do not fit in Caffe's int."""
    for field, values in message.ListFields():
        for index, value in enumerate(values if field.is_repeated else (values,)):
            at = f"{path}{field.name}" + (f"[{index}]" if field.is_repeated else "")
            if isinstance(value, Message):
                yield from _check_numbers(value, f"{at}.")
            elif isinstance(value, float) and not math.isfinite(value):
                effect = "everything that is computed with it becomes NaN or infinite"
                yield Refusal("value-not-finite", at, f"has {field.name} {value}", effect, "give a number")
            elif type(value) is int and value > _INT_MAX and field.name not in _UNSIGNED:
                effect = "Caffe stores it as a signed 32-bit integer, so it stops, or uses another number"
                write = f"give at most {_INT_MAX}"
                yield Refusal("value-overflows", at, f"has {field.name} {value}", effect, write)


def _check_loss_weight(layer: pb.LayerParameter) -> Iterator[Refusal]:
    # Caffe adds a top to a loss that has none.
    tops = len(layer.top) or int("Loss" in layer.type)
    given = len(layer.loss_weight) or (type_of(layer).loss_weight == 1 and tops > 1)
    if given and given != tops:
        yield Refusal(
            "loss-weight-count",
            "loss_weight[0]" if layer.loss_weight else "top[1]",
            f"has {len(layer.loss_weight) or 'no'} loss_weight and {describe_count(tops, 'top')}",
            "Caffe aborts: loss_weight must be unspecified or specified once per top blob"
            + ("" if layer.loss_weight else ", and a loss without any gets one by default"),
            f"give {tops}"
            if layer.loss_weight or tops != 2
            else "leave out the second top, or write loss_weight: 1 loss_weight: 0 if nothing reads the loss",
        )


def _check_propagate_down(layer: pb.LayerParameter) -> Iterator[Refusal]:
    count = len(layer.propagate_down)
    if count and count != len(layer.bottom):
        yield Refusal(
            "propagate-down-count",
            "propagate_down[0]",
            f"has {count} propagate_down and {describe_count(len(layer.bottom), 'bottom')}",
            "Caffe aborts: propagate_down param must be specified either 0 or bottom_size times",
            "give one for each bottom",
        )


def _check_engine(layer: pb.LayerParameter, net_engine: str) -> Iterator[Refusal]:
    """Check the engine, which is that of the block, or else of the layer, or else of the net."""
    if not type_of(layer).has_engine:
        return
    block = type_of(layer).block
    own = getattr(layer, block).engine
    if own == _CUDNN:
        yield Refusal(
            "engine-unknown",
            f"{block}.engine",
            "has engine: CUDNN",
            f"Caffe aborts on CPUs: Layer {layer.name} has unknown engine",
            "write engine: CAFFE, or remove it",
        )
    named = layer.engine or net_engine
    if own == _DEFAULT and named and named.partition(":")[0].strip().upper() not in ENGINES:
        yield Refusal(
            "engine-unknown",
            "engine" if layer.engine else "type",
            f"has engine '{named}'" + ("" if layer.engine else " of the net"),
            "Caffe aborts: the engine is unknown",
            f'write engine: "CAFFE"; the engines are {", ".join(ENGINES)}',
        )
