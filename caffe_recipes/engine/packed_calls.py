"""Lay out the weights of convolutions, if they stay as they are, as the kernels of a CPU read them.

Otherwise each call lays them out again, which takes a sixth of a pass of ResNet-50 with 8 images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from caffe_recipes.caffe.layer_types.windows import dilations, per_axis
from caffe_recipes.engine.calls import Call
from caffe_recipes.engine.folded_calls import is_channel_convolution
from caffe_recipes.engine.operators.operator import TensorShape


def pack_calls(calls: Sequence[Call], shape: Callable[[int], TensorShape]) -> list[Call]:
    """Return the calls with packed weights in each convolution of images.

    `shape` returns that of a blob, for which the layout is the best one; batches may have another. The
    learned blobs of the net stay as they are.
    """
    # Not public functions, but those that torch.compile calls for a convolution.
    has_functions = hasattr(torch.ops.mkldnn, "_reorder_convolution_weight")
    if not (has_functions and torch.backends.mkldnn.is_available()):
        return [*calls]
    return [_pack(call, shape(call.node.bottoms[0])) if _is_packable(call) else call for call in calls]


def _is_packable(call: Call) -> bool:
    return is_channel_convolution(call) and call.blobs[0].dim() == 4 and call.blobs[0].device.type == "cpu"


def _pack(call: Call, shape: TensorShape) -> Call:
    param = call.node.param.convolution_param
    weights, *biases = call.blobs
    where = per_axis(param, "pad", 2, 0), per_axis(param, "stride", 2, 1), dilations(param, 2), param.group
    packed = torch.ops.mkldnn._reorder_convolution_weight(weights.detach(), *where, shape)

    def forward(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
        x, bias = xs[0].contiguous(memory_format=torch.channels_last), blobs[1] if len(blobs) > 1 else None
        return [torch.ops.mkldnn._convolution_pointwise(x, blobs[0], bias, *where, "none", [], "")]

    return replace(call, node=replace(call.node, forward=forward), blobs=[packed, *biases])
