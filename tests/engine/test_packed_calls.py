"""A net with packed weights gives the same outputs, for batches of any size."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.engine.packed_calls import pack_calls
from tests.engine.test_folded_calls import CONV, RELU, build

SHARED = """layer { name: "d" type: "Convolution" bottom: "data" top: "d"
  param { name: "w" } param { name: "b" } convolution_param { num_output: 6 kernel_size: 3 } }
"""


def give(images: torch.Tensor, *_: object) -> list[torch.Tensor]:
    return [images]


def run(net: RunnableNet) -> torch.Tensor:
    torch.manual_seed(1)  # of the data
    net.forward()
    return torch.cat([net.value(output.index).flatten() for output in net.outputs])


@pytest.mark.parametrize(
    "text",
    [
        CONV % "" + RELU % "c",
        CONV % "bias_term: false pad: 1",
        CONV % "group: 2 stride: 2 pad: 2",
        CONV % "dilation: 2 stride_h: 1 stride_w: 3",
        CONV.replace("kernel_size: 3", "kernel_h: 1 kernel_w: 5 pad_h: 0 pad_w: 2") % "",
        CONV.replace('top: "c"', 'top: "c" param { name: "w" } param { name: "b" }') % "" + SHARED,
    ],
    ids=["usual", "without bias", "groups", "dilated", "oblong", "shared weights"],
)
@torch.no_grad()
def test_packing_leaves_the_outputs_as_they_are(text: str) -> None:
    net, packed = build(text), build(text)
    packed.calls = pack_calls(packed.calls, packed.shape)
    convolutions = [call for call in packed.calls if call.node.param.type == "Convolution"]
    assert all(call.blobs[0].is_mkldnn for call in convolutions)
    torch.testing.assert_close(run(packed), run(net), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_packed_net_takes_batches_of_another_size() -> None:
    net, packed = build(CONV % "pad: 1"), build(CONV % "pad: 1")
    packed.calls = pack_calls(packed.calls, packed.shape)
    for shape in ((1, 4, 5, 5), (7, 4, 9, 3)):
        images = torch.randn(shape)
        for each in (net, packed):
            each.nodes[0].forward = partial(give, images)
        torch.testing.assert_close(run(packed), run(net), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_what_is_not_a_number_stays_so() -> None:
    net = build(CONV % "" + RELU % "c")
    net.params[0].tensor[2] = math.nan
    net.calls = pack_calls(net.calls, net.shape)
    assert run(net).view(3, 6, -1).isnan().all(2).tolist() == [[channel == 2 for channel in range(6)]] * 3


@torch.no_grad()
def test_a_convolution_over_volumes_stays_as_it_is() -> None:
    reshape = """layer { name: "v" type: "Reshape" bottom: "data" top: "v"
      reshape_param { shape { dim: 3 dim: 2 dim: 2 dim: 5 dim: 5 } } }
    """
    volumes = CONV.replace("kernel_size: 3", "kernel_size: 2").replace('bottom: "data"', 'bottom: "v"')
    net = build(reshape + volumes % "")
    assert pack_calls(net.calls, net.shape) == net.calls
