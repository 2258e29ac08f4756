"""`caffe-torch test`: a net's outputs, averaged over batches of its TEST data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.rates import float32
from caffe_recipes.caffe.weights import load_weights
from caffe_recipes.engine.data import Feed
from caffe_recipes.engine.glog import Log, number
from caffe_recipes.engine.net import Net
from caffe_recipes.engine.settings import load_net
from caffe_recipes.engine.snapshot import check_complete, copy_weights
from caffe_recipes.engine.solver import describe


def load_tested(
    model: str,
    weights: Sequence[str],
    level: int,
    stages: Sequence[str],
    log: Log,
    change: Callable[[pb.NetParameter], None] | None = None,
) -> Net:
    """Set up a net, once it is changed, in phase TEST with its weights; InputError where they do not fit."""
    param = load_net(model)
    if change is not None:
        change(param)
    param.state.phase = pb.TEST
    param.state.level = level
    param.state.stage.extend(stages)
    net = Net(param, model, Feed(0, 1, 0, 0, log), torch.Generator().manual_seed(0), log)
    held = {path: copy_weights(net, load_weights(path), path, log) for path in weights}
    check_complete(net, held, "give the weights of this net")
    return net


@torch.no_grad()
def test(net: Net, iterations: int, log: Log) -> None:
    """Print each batch's outputs, and their means."""
    log.info("caffe.cpp:472", f"Running for {iterations} iterations.")
    sums: list[float] = []
    loss = 0.0
    for batch in range(iterations):
        loss = float32(loss + float(net.forward()))
        scores = net.scores()
        sums = sums or [0.0] * len(scores)
        for place, (output, value) in enumerate(scores):
            sums[place] = float32(sums[place] + value)
            log.info("caffe.cpp:500", f"Batch {batch}, {output.name} = {number(value)}")
    log.info("caffe.cpp:505", f"Loss: {number(float32(loss / iterations))}")
    for (output, _), total in zip(net.scores(), sums, strict=True):
        log.info("caffe.cpp:517", describe(output, float32(total / iterations)))
