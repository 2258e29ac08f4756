"""Nets of random layers with random parameters; most cannot run, but none may end in a traceback."""

from __future__ import annotations

from random import Random

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.engine.fillers import FILLERS
from caffe_recipes.engine.operators import OPERATORS
from tests.engine.random_values import random_value

_BLOCKS = {
    "ArgMax": "argmax_param",
    "BatchNorm": "batch_norm_param",
    "Deconvolution": "convolution_param",
    "EuclideanLoss": "loss_param",
    "MultinomialLogisticLoss": "loss_param",
    "SoftmaxWithLoss": "loss_param",
    "SigmoidCrossEntropyLoss": "loss_param",
    "HingeLoss": "hinge_loss_param",
    "InnerProduct": "inner_product_param",
}
_NUMBERS = (-3, -2, -1, 0, 1, 1, 1, 2, 2, 3, 3, 4, 5, 7)
_REALS = (-1.0, 0.0, 0.25, 0.5, 0.5, 0.9, 1.0, 1.0, 2.0, float("nan"), float("inf"))
_TEXTS = ("text",)
_SHAPES = ((4,), (4, 3), (4, 3, 5), (4, 3, 5, 5), (4, 6, 5, 7), (2, 3, 4, 4, 3), (4, 1, 1, 1), (6, 4, 2, 2))


def random_net(seed: int) -> pb.NetParameter:
    """Make the net of a seed: two inputs and labels, one to four layers, and often a loss."""
    random = Random(seed)
    net = pb.NetParameter(name=f"random{seed}")
    shape = random.choice(_SHAPES)
    other = shape if random.random() < 0.7 else random.choice(_SHAPES)
    for name, dims in (("x", shape), ("y", other), ("label", shape[:1])):
        layer = net.layer.add(name=name, type="DummyData", top=[name])
        layer.dummy_data_param.shape.add(dim=dims)
        if name != "label":
            layer.dummy_data_param.data_filler.add(type="gaussian")
    if random.random() < 0.1:
        net.bn_stats_batch_size = random.choice((0, 1, 2, 3))
    blobs = ["x", "y"]
    for index in range(random.choice((1, 1, 2, 3))):
        _add_layer(random, net, index, blobs)
    if random.random() < 0.8:
        net.layer.add(name="ip", type="InnerProduct", bottom=[blobs[-1]], top=["ip"])
        net.layer[-1].inner_product_param.num_output = 3
        net.layer[-1].inner_product_param.weight_filler.type = "xavier"
        net.layer.add(name="loss", type="SoftmaxWithLoss", bottom=["ip", "label"], top=["loss"])
    return net


def _add_layer(random: Random, net: pb.NetParameter, index: int, blobs: list[str]) -> None:
    type_ = random.choice(sorted(OPERATORS))
    layer = net.layer.add(name=f"l{index}", type=type_)
    several = type_ in ("Concat", "Eltwise", "Crop") or "Loss" in type_ or type_ == "Accuracy"
    count = 2 if several and random.random() < 0.9 else random.choice((1, 1, 1, 1, 2, 3))
    layer.bottom.extend(random.choice([*blobs, *blobs[-1:] * 3]) for _ in range(count))
    if ("Loss" in type_ or type_ == "Accuracy") and len(layer.bottom) > 1 and random.random() < 0.8:
        layer.bottom[1] = "label"
    if random.random() < 0.15:
        layer.top.append(layer.bottom[0])
    else:
        tops = random.choice((0, 1, 1, 1, 1, 1, 1, 2, 3))
        layer.top.extend(f"t{index}{'abc'[k]}" for k in range(tops))
    blobs.extend(top for top in layer.top if top not in blobs)
    block = _BLOCKS.get(type_, f"{type_.lower()}_param")
    if block in layer.DESCRIPTOR.fields_by_name and random.random() < 0.9:
        _fill(random, getattr(layer, block), random.choice((0.0, 0.15, 0.4)))
        if type_ in ("Convolution", "Deconvolution", "Pooling") and random.random() < 0.7:
            getattr(layer, block).kernel_size[:] = [random.choice((1, 1, 2, 3))]
        if hasattr(getattr(layer, block), "num_output") and random.random() < 0.8:
            getattr(layer, block).num_output = random.choice((1, 2, 3, 4))
    if random.random() < 0.1:
        layer.loss_weight.extend(random.choice((0.0, 1.0, 2.0)) for _ in range(len(layer.top) or 1))
    if random.random() < 0.05:
        layer.propagate_down.extend(random.random() < 0.5 for _ in layer.bottom)
    if random.random() < 0.1:
        layer.param.add(name=random.choice(("", "w")), lr_mult=random.choice((0.0, 1.0)))
        layer.param[0].share_mode = random.choice((pb.ParamSpec.STRICT, pb.ParamSpec.PERMISSIVE))
    if random.random() < 0.1:
        layer.phase = random.choice((pb.TRAIN, pb.TEST))


def _fill(random: Random, message: Message, share: float) -> None:
    """Set a share of a message's fields to values that its types allow."""
    for field in message.DESCRIPTOR.fields:
        if field.name == "engine" or random.random() > share:
            continue
        if field.is_repeated:
            values = [
                random_value(random, field, _TEXTS, _REALS, _NUMBERS)
                for _ in range(random.choice((1, 1, 1, 2, 3)))
            ]
            if field.message_type is None:
                getattr(message, field.name).extend(values)
        elif field.message_type is pb.FillerParameter.DESCRIPTOR:
            filler = getattr(message, field.name)
            _fill(random, filler, 0.15)
            filler.type = random.choice(sorted(FILLERS))
        elif field.message_type is not None:
            _fill(random, getattr(message, field.name), 0.9)
        else:
            setattr(message, field.name, random_value(random, field, _TEXTS, _REALS, _NUMBERS))
