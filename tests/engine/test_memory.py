"""The memory that a pass needs, against what PyTorch keeps for the gradient."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.memory import estimate_need
from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.engine.operators.data import DataContext

NET = """
layer { name: "data" type: "DummyData" top: "data"
  dummy_data_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } } }
layer { name: "a" type: "Convolution" bottom: "data" top: "a"
  convolution_param { num_output: 6 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "a" top: "a" }
layer { name: "b" type: "Convolution" bottom: "a" top: "b"
  convolution_param { num_output: 6 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }
layer { name: "l" type: "Reduction" bottom: "sum" top: "l" loss_weight: 1
  reduction_param { operation: SUMSQ } }
"""


def test_the_need_of_a_pass_is_that_of_the_blobs_that_are_kept() -> None:
    param = parse_prototxt(NET, pb.NetParameter)
    param.state.phase = pb.TRAIN
    net = RunnableNet(param, "net", DataContext(0, 1, 0, 0, Log(enabled=False)), Generator())
    for one in net.params:
        one.tensor.requires_grad_()
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        net.forward()
    weights = sum(one.tensor.numel() for one in net.params)
    need = estimate_need(net.calls, [net.shape(index) for index in range(len(net.nodes) + 1)], weights)
    assert need.images == 4
    assert need.fixed_bytes == 12 * weights
    largest = 4 * 6 * 64 * 4  # its gradient is there, too
    assert 0 <= need.images * need.image_bytes - largest - sum(kept.values()) + 4 * weights < 100
