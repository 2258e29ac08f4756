"""`caffe-torch predict`: a net's scores of every image of an LMDB, each image once.

What is kept are the scores that go into the last softmax, as float32: `test` ranks these, and two that
differ may have one probability in float32.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import open_datums
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.net import Net
from caffe_recipes.engine.nodes import Node
from caffe_recipes.engine.testing import load_tested
from caffe_recipes.errors import DataError, InputError, RunFailed

_SOFTMAX = ("SoftmaxWithLoss", "Softmax")


def load_predicting(
    model: str, weights: Sequence[str], source: str, level: int, stages: Sequence[str], log: Log
) -> Net:
    """Set up a net in phase TEST with its weights, to read `source`, or its own LMDB, in order."""

    def read_in_order(param: pb.NetParameter) -> None:
        for layer in param.layer:
            if layer.type == "Data":
                layer.data_param.shuffle = False
                layer.data_param.source = source or layer.data_param.source

    return load_tested(model, weights, level, stages, log, read_in_order)


def check_out(out: str) -> None:
    """Raise InputError, before anything is computed, where nothing could be written."""
    folder = Path(out).parent
    if Path(out).is_dir():
        raise InputError(out, "is a folder", "give a file with -out")
    if Path(out).exists() and not Path(out).is_file():  # which a file would replace
        raise InputError(out, "is a device or a pipe", "give a file with -out")
    if not folder.is_dir():
        raise InputError(out, f"there is no folder {folder}", "make it")


@torch.no_grad()
def predict(net: Net, out: str, log: Log) -> None:
    """Write `scores` (images x classes, float32) and `labels` (int32) to an .npz, whole or not at all.

    Raises DataError for a label that is no class, and RunFailed where the scores are no numbers.
    """
    data, last = _find_data(net), _find_softmax(net)
    source = data.source
    assert source is not None
    with open_datums(source.where) as datums:
        count = len(datums)
    log.info("predict", f"Predicting {count} images of {source.where}")
    scores: list[NDArray[np.float32]] = []
    labels: list[NDArray[np.int32]] = []
    done = 0
    while done < count:
        net.forward()
        # The last batch begins again at the first record.
        batch = net.value(last.bottoms[0]).flatten(1).numpy()[: count - done].copy()
        given = net.value(data.tops[1]).reshape(-1).numpy()[: count - done].astype(np.int32)
        _check_batch(net, source.where, source.keys, batch, given)
        scores.append(batch)
        labels.append(given)
        done += len(batch)
        log.info("predict", f"{done} of {count} images")
    _write(out, np.concatenate(scores), np.concatenate(labels))


def _find_data(net: Net) -> Node:
    found = [node for node in net.nodes if node.param.type == "Data"]
    if len(found) != 1 or len(found[0].tops) != 2:
        what = (
            f"phase TEST has {len(found)} Data layers" if len(found) != 1 else "its Data layer has no labels"
        )
        raise InputError(net.path, what, "give a net that reads images and labels from one LMDB")
    return found[0]


def _find_softmax(net: Net) -> Node:
    """Return the last softmax; raises InputError unless it takes one score a class for each image."""
    for node in reversed(net.nodes):
        if node.param.type in _SOFTMAX:
            shape = net.shape(node.bottoms[0])
            axis = node.param.softmax_param.axis
            if axis not in (1, 1 - len(shape)) or math.prod(shape[2:]) != 1:
                what = f"layer '{node.param.name}' takes {' x '.join(map(str, shape))} scores"
                raise InputError(net.path, what, "give a net that has one score a class for each image")
            return node
    raise InputError(net.path, "no softmax in phase TEST", f"give a net with a {' or '.join(_SOFTMAX)} layer")


def _check_batch(
    net: Net, where: str, keys: Sequence[str], scores: NDArray[np.float32], labels: NDArray[np.int32]
) -> None:
    classes = scores.shape[1]
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(outside):
        what = f"record '{keys[outside[0]]}' has label {labels[outside[0]]}"
        raise DataError(where, what, f"{net.path} has {classes} classes")
    odd = np.flatnonzero(~np.isfinite(scores).all(1))
    if len(odd):
        what = f"the scores of record '{keys[odd[0]]}' are not finite"
        raise RunFailed(net.path, what, "look at the weights, and at the data")


def _write(out: str, scores: NDArray[np.float32], labels: NDArray[np.int32]) -> None:
    held = io.BytesIO()
    np.savez(held, scores=scores, labels=labels)
    path = Path(out)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(held.getvalue())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise RunFailed(out, f"cannot be written: {error.strerror}", "check its folder and disk") from None
