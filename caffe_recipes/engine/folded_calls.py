"""Fold the BatchNorms of a net whose weights stay as they are into the convolutions before them.

As in SURFsara's Caffe, whose TEST nets do so, this saves a pass over each blob.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from caffe_recipes.caffe.fold_norms import FloatArray, fold_blobs
from caffe_recipes.caffe.shapes import stats_images
from caffe_recipes.engine.calls import Call


def fold_calls(calls: Sequence[Call]) -> list[Call]:
    """Return the calls with each BatchNorm by running statistics folded into the convolution before it.

    The learned blobs of the net stay as they are: a convolution gets new ones for its call. The blob between
    the two is not computed.
    """
    readers = {index: call for call in calls for index in call.node.bottoms}
    made: list[Call] = []
    gone: set[int] = set()
    for call in calls:
        norm = readers.get(call.tops[0]) if is_channel_convolution(call) else None
        if id(call) in gone:
            continue
        if norm is None or not _is_foldable(norm):
            made.append(call)
            continue
        gone.add(id(norm))
        made.append(replace(call, tops=norm.tops, blobs=_fold(call, norm), weighted=norm.weighted))
    return made


def is_channel_convolution(call: Call) -> bool:
    """Return whether a call is a convolution of one blob over its channels, that is, along axis 1."""
    param = call.node.param
    is_usual = param.type == "Convolution" and param.convolution_param.axis == 1
    return is_usual and len(call.tops) == 1 and not call.weighted and not call.shapes


def _is_foldable(call: Call) -> bool:
    """Return whether a call is a BatchNorm by running statistics, perhaps with the Scale after it."""
    param = call.node.param
    return param.type == "BatchNorm" and stats_images(param, param.phase) is None and not call.shapes


def _fold(call: Call, norm: Call) -> list[Tensor]:
    """Return the weights and bias of a convolution that also normalizes, with the layout of its weights."""
    eps, like = norm.node.param.batch_norm_param.eps, call.blobs[0]
    with np.errstate(all="ignore"):  # the loss shows what is not finite
        folded = fold_blobs(_values(call.blobs), _values(norm.blobs[:3]), _values(norm.blobs[3:]), eps)
    weights, bias = (torch.from_numpy(values).to(like) for values in folded)
    return [torch.empty_like(like).copy_(weights), bias]


def _values(blobs: Sequence[Tensor]) -> list[FloatArray]:
    return [blob.detach().cpu().double().numpy() for blob in blobs]
