"""A net with folded BatchNorms gives the same outputs, for batches of any size."""

from __future__ import annotations

import pytest
import torch
from torch import Generator

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.engine.folded_calls import fold_calls
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.engine.operators.data import DataContext

DATA = """layer { name: "data" type: "DummyData" top: "data"
  dummy_data_param { shape { dim: 3 dim: 4 dim: 5 dim: 5 } data_filler { type: "gaussian" } } }
"""
CONV = """layer { name: "c" type: "Convolution" bottom: "data" top: "c"
  convolution_param { num_output: 6 kernel_size: 3 weight_filler { type: "xavier" } %s } }
"""
NORM = 'layer { name: "b" type: "BatchNorm" bottom: "c" top: "b" %s }'
SCALE = 'layer { name: "s" type: "Scale" bottom: "b" top: "s" scale_param { %s } }'
WITH_BIAS = SCALE % "bias_term: true"
RELU = 'layer { name: "r" type: "ReLU" bottom: "%s" top: "r" }'
BY_BATCH = "batch_norm_param { use_global_stats: false }"
TWICE = """layer { name: "c2" type: "Convolution" bottom: "data" top: "c2" param { name: "w" }
  convolution_param { num_output: 6 kernel_size: 3 bias_term: false } }
layer { name: "b2" type: "BatchNorm" bottom: "c2" top: "b2" }
layer { name: "sum" type: "Eltwise" bottom: "s" bottom: "b2" top: "sum" }
"""


def build(text: str) -> RunnableNet:
    param = parse_prototxt(DATA + text, pb.NetParameter)
    param.state.phase = pb.TEST
    net = RunnableNet(param, "net", DataContext(0, 1, 0, 0, Log(enabled=False)), Generator().manual_seed(1))
    generator = Generator().manual_seed(2)
    for owned in net.params:
        owned.tensor.uniform_(0.5, 2, generator=generator)
    return net


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (CONV % "bias_term: false" + NORM % "" + WITH_BIAS + RELU % "s", ["data", "c", "r"]),
        (CONV % "group: 2" + NORM % "" + WITH_BIAS, ["data", "c"]),
        (CONV % "" + NORM % "" + RELU % "b", ["data", "c", "r"]),
        (CONV % "" + NORM % "" + SCALE % "bias_term: false", ["data", "c", "s"]),
        (CONV % "" + NORM % BY_BATCH + WITH_BIAS, ["data", "c", "b"]),
        (CONV % "axis: 2" + NORM % "" + RELU % "b", ["data", "c", "b", "r"]),
        (CONV % "" + NORM % "" + RELU % "c", ["data", "c", "c_c_0_split", "b", "r"]),
        (
            CONV.replace('top: "c"', 'top: "c" param { name: "w" }') % "" + NORM % "" + WITH_BIAS + TWICE,
            ["data", "data_data_0_split", "c", "c2", "sum"],
        ),
    ],
    ids=[
        "as in ResNet-50",
        "with groups",
        "without a Scale",
        "with a Scale without bias",
        "by the batch's own statistics",
        "over another axis",
        "of a blob that another layer reads",
        "with shared weights",
    ],
)
@torch.no_grad()
def test_folding_leaves_the_outputs_as_they_are(text: str, left: list[str]) -> None:
    net, folded = build(text), build(text)
    folded.calls = fold_calls(folded.calls)
    assert [call.node.param.name for call in folded.calls] == left
    for each in (net, folded):
        torch.manual_seed(1)  # of the data
        each.forward()
    before = [net.value(output.index) for output in net.outputs]
    after = [folded.value(output.index) for output in folded.outputs]
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)
    for mine, other in zip(folded.params, net.params, strict=True):
        assert torch.equal(mine.tensor, other.tensor)


@torch.no_grad()
def test_a_folded_net_takes_batches_of_another_size() -> None:
    net = build(CONV % "bias_term: false" + NORM % "" + WITH_BIAS)
    net.calls = fold_calls(net.calls)
    images = torch.randn(3, 4, 5, 5)
    net.nodes[0].forward = lambda xs, blobs: [images]
    net.forward()
    whole = net.value(net.outputs[0].index)
    net.nodes[0].forward = lambda xs, blobs: [images[:2]]
    net.forward()
    torch.testing.assert_close(net.value(net.outputs[0].index), whole[:2])
