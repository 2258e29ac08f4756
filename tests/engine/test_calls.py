"""The calls of a pass: layers that are computed into a bottom change no output and no gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
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


def build(param: pb.NetParameter, keeps_blobs: bool) -> RunnableNet:
    param.state.phase = pb.TRAIN
    net = RunnableNet(param, "net", DataContext(0, 1, 0, 0, Log(enabled=False)), Generator().manual_seed(1))
    net.keeps_blobs = keeps_blobs
    flatten_params(net, pb.SolverParameter())
    return net


def train_once(param: pb.NetParameter, keeps_blobs: bool) -> list[Tensor]:
    net = build(param, keeps_blobs)
    torch.manual_seed(1)  # of dropout
    loss = net.forward()
    if loss.requires_grad:
        loss.backward()
    return [net.value(output.index) for output in net.outputs] + [
        param.tensor.grad for param in net.params if param.tensor.grad is not None
    ]


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
