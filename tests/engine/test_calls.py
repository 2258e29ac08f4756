"""The calls of a pass: layers that are computed into a bottom change no output and no gradient."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.engine.calls import divide_calls
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.engine.operators.data import DataContext
from caffe_recipes.engine.updates import flatten_params

CONVOLUTION = """layer {{ name: "{0}" type: "Convolution" bottom: "{1}" top: "{0}"
  convolution_param {{ num_output: 4 kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }} }} }}
"""
NORM = """layer {{ name: "bn_{0}" type: "BatchNorm" bottom: "{0}" top: "{0}" }}
layer {{ name: "sc_{0}" type: "Scale" bottom: "{0}" top: "{0}" scale_param {{ bias_term: true }} }}
"""
INPUT = """layer { name: "data" type: "DummyData" top: "data"
  dummy_data_param { shape { dim: 2 dim: 4 dim: 5 dim: 5 } data_filler { type: "gaussian" } } }
"""
RELU = 'layer {{ name: "relu_{0}" type: "ReLU" bottom: "{0}" top: "{0}" {1} }}\n'
SUM = 'layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" eltwise_param { %s } }\n'
TWICE = "coeff: 2 coeff: 1"
LOSS = """layer { name: "loss" type: "Reduction" bottom: "sum" top: "loss" loss_weight: 1
  reduction_param { operation: SUMSQ } }
"""


def conv(name: str, bottom: str) -> str:
    return CONVOLUTION.format(name, bottom) + NORM.format(name)


BLOCK = INPUT + conv("a", "data") + conv("b", "a")  # "a" is read by both "b" and the sum


CONTEXT = DataContext(0, 1, 0, 0, Log(enabled=False))


def build(param: pb.NetParameter, keeps_blobs: bool, context: DataContext = CONTEXT) -> RunnableNet:
    param.state.phase = pb.TRAIN
    net = RunnableNet(param, "net", context, Generator().manual_seed(1))
    net.keeps_blobs = keeps_blobs
    flatten_params(net, pb.SolverParameter())
    return net


def train_once(
    param: pb.NetParameter, keeps_blobs: bool = False, context: DataContext = CONTEXT
) -> list[Tensor]:
    net = build(param, keeps_blobs, context)
    torch.manual_seed(1)  # of dropout
    loss = net.forward()
    if loss.requires_grad:
        loss.backward()
    statistics = [param.tensor for param in net.params if not param.has_gradient]
    gradients = [param.tensor.grad for param in net.params if param.tensor.grad is not None]
    return [net.value(output.index) for output in net.outputs] + gradients + statistics


@pytest.mark.parametrize(
    ("text", "overwriting"),
    [
        (BLOCK + RELU.format("b", "") + SUM % "" + RELU.format("sum", "") + LOSS, ["relu_b", "relu_sum"]),
        (BLOCK + SUM % "" + RELU.format("sum", "") + LOSS, ["sum", "relu_sum"]),
        (BLOCK + SUM % "coeff: 1 coeff: -1" + LOSS, []),
        (BLOCK + SUM % "operation: MAX" + LOSS, []),
        (
            BLOCK + RELU.format("b", "relu_param { negative_slope: 0.1 }") + SUM % "coeff: 2 coeff: 1" + LOSS,
            [],
        ),
        (
            BLOCK
            + 'layer { name: "sigmoid" type: "Sigmoid" bottom: "b" top: "b" }'
            + RELU.format("b", "")  # the gradient of the sigmoid needs its output
            + SUM % "operation: PROD"
            + LOSS,
            [],
        ),
    ],
)
def test_a_layer_overwrites_only_a_bottom_that_nothing_needs(text: str, overwriting: list[str]) -> None:
    param = parse_prototxt(text, pb.NetParameter)
    net = build(param, keeps_blobs=False)
    assert [call.node.param.name for call in net.calls if call.overwriting] == overwriting
    for mine, kept in zip(train_once(param, False), train_once(param, True), strict=True):
        assert torch.equal(mine, kept)


def test_the_statistics_of_a_bn_are_overwritten_without_changing_its_gradient() -> None:
    norm = 'layer { name: "bn" type: "BN" bottom: "a" top: "n" top: "m" top: "v" bn_param { %s } }'
    text = INPUT + CONVOLUTION.format("a", "data") + norm % "scale_filler { value: 1 }"
    text += RELU.format("m", "") + 'layer { name: "silence" type: "Silence" bottom: "m" bottom: "v" }'
    param: Any = parse_lenient(text + LOSS.replace('"sum"', '"n"')).message
    assert [call.node.param.name for call in build(param, False).calls if call.overwriting] == ["relu_m"]
    for mine, kept in zip(train_once(param, False), train_once(param, True), strict=True):
        assert torch.equal(mine, kept)


def deep(blocks: int, between: str = "") -> pb.NetParameter:
    """Return a net of residual blocks with statistics, one after another."""
    text, below = INPUT, "data"
    for n in range(blocks):
        one, two, top = f"a{n}", f"b{n}", f"s{n}"
        text += conv(one, below) + RELU.format(one, "") + conv(two, one)
        joined = (SUM % "").replace('"a"', f'"{below}"').replace('"b"', f'"{two}"')
        text += joined.replace('"sum"', f'"{top}"')
        text += RELU.format(top, "") + between.replace("TOP", top)
        below = top
    return parse_prototxt(text + LOSS.replace('"sum"', f'"{below}"'), pb.NetParameter)


@pytest.mark.parametrize(
    "between",
    ["", 'layer { name: "drop_TOP" type: "Dropout" bottom: "TOP" top: "TOP" }'],
)
def test_recomputed_blobs_give_the_same_gradients_and_move_the_statistics_once(between: str) -> None:
    recomputing = replace(CONTEXT, recomputes=True)
    net = build(deep(8, between), False, recomputing)
    assert sum(segment.is_recomputed for segment in divide_calls(net.calls)) > 3
    kept, again = (train_once(deep(8, between), context=one) for one in (CONTEXT, recomputing))
    for mine, its in zip(again, kept, strict=True):
        assert torch.equal(mine, its)


AVERAGED = """layer {{ name: "bn_{0}" type: "BN" bottom: "{0}" top: "n_{0}"
  bn_param {{ slope_filler {{ type: "constant" value: 1 }} momentum: 0.8 }} }}
"""
# Two sequences of five steps, which continue what was before them.
RECURRENT = """layer { name: "steps" type: "DummyData" top: "steps" top: "begun" dummy_data_param {
  shape { dim: 5 dim: 2 dim: 3 } shape { dim: 5 dim: 2 }
  data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
layer { name: "lstm" type: "LSTM" bottom: "steps" bottom: "begun" top: "h0"
  recurrent_param { num_output: 3 weight_filler { type: "xavier" } } }
"""


def with_averages() -> str:
    """Return a net of convolutions, each with a BN that keeps moving averages."""
    text, below = INPUT, "data"
    for n in range(8):
        text += CONVOLUTION.format(f"a{n}", below) + AVERAGED.format(f"a{n}")
        below = f"n_a{n}"
    return text + LOSS.replace('"sum"', f'"{below}"')


def with_state() -> str:
    """Return a net of a layer that keeps a state, and functions of single values."""
    text = RECURRENT
    for n in range(1, 8):
        text += f'layer {{ name: "t{n}" type: "TanH" bottom: "h{n - 1}" top: "h{n}" }}\n'
    return text + LOSS.replace('"sum"', '"h7"')


@pytest.mark.parametrize("text", [with_averages(), with_state()])
def test_a_pass_that_is_recomputed_moves_averages_and_states_once(text: str) -> None:
    made = []
    for recomputes in (False, True):
        param: Any = parse_lenient(text).message
        net = build(param, False, replace(CONTEXT, recomputes=recomputes))
        for _ in range(3):  # the state of one pass counts in the next one
            loss = net.forward()
            loss.backward()
        made.append([loss.detach(), *(param.tensor.detach() for param in net.params)])
        made[-1] += [param.tensor.grad for param in net.params if param.tensor.grad is not None]
    assert any(segment.is_recomputed for segment in divide_calls(net.calls))
    for kept, again in zip(*made, strict=True):
        assert torch.equal(kept, again)


def note(sizes: list[int], tensor: Tensor) -> Tensor:
    sizes.append(tensor.numel())
    return tensor


def test_fewer_blobs_are_kept_for_the_backward_pass() -> None:
    kept = []
    for recomputes in (False, True):
        net = build(deep(12), False, replace(CONTEXT, recomputes=recomputes))
        saved: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(partial(note, saved), lambda x: x):
            net.forward()
        kept.append(sum(saved))
    assert kept[1] < kept[0] / 2


COUNTED = """layer {{ name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {{
  shape {{ dim: {images} dim: 400 dim: 1 dim: 1 }} shape {{ dim: {images} dim: 1 dim: 1 dim: 1 }}
  data_filler {{ value: 1 }} data_filler {{ value: 399 }} }} }}
layer {{ name: "a" type: "Convolution" bottom: "data" top: "a"
  convolution_param {{ num_output: 400 kernel_size: 1 weight_filler {{ value: 1 }} }} }}
layer {{ name: "out" type: "{type}" bottom: "a" {more} top: "out" }}
layer {{ name: "silence" type: "Silence" bottom: "label" }}
"""


@pytest.mark.parametrize(
    ("type_", "images", "expected"),
    [("Accuracy", 1001, 1.0), ("SegAccuracy", 1001, 1.0), ("ArgMax", 1, 399.0)],
)
def test_bf16_counts_and_class_numbers_are_exact(type_: str, images: int, expected: float) -> None:
    more = "" if type_ == "ArgMax" else 'bottom: "label"'
    param: Any = parse_lenient(COUNTED.format(images=images, type=type_, more=more)).message
    net = build(param, False, replace(CONTEXT, uses_bf16=True))
    with torch.no_grad():
        net.forward()
    value = net.value(net.outputs[0].index)
    assert value.dtype == torch.float32 and float(value.flatten()[0]) == expected


@pytest.mark.parametrize("images", [0, 1])
def test_bf16_computes_about_the_same_gradients_of_float32_weights(images: int) -> None:
    param = deep(2)
    param.bn_stats_batch_size = images  # with 1, the batch is normalised in two parts
    exact, rounded = (train_once(param, context=replace(CONTEXT, uses_bf16=one)) for one in (False, True))
    assert {tensor.dtype for tensor in rounded} == {torch.float32}
    mine, its = (torch.cat([tensor.flatten() for tensor in made]) for made in (rounded, exact))
    assert 0 < float((mine - its).norm()) < 0.1 * float(its.norm())
