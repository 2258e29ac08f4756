"""`caffe-torch train`: from a solver file to a trained net."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from google.protobuf import text_format

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.weights import load_solverstate, load_weights
from caffe_recipes.engine.data import Feed
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.net import Net
from caffe_recipes.engine.ranks import Ranks
from caffe_recipes.engine.requests import Requests
from caffe_recipes.engine.settings import test_nets, train_net
from caffe_recipes.engine.snapshot import check_complete, check_folder, copy_history, copy_weights
from caffe_recipes.engine.solver import Solver
from caffe_recipes.engine.updates import flatten
from caffe_recipes.errors import InputError


@dataclass(frozen=True)
class Start:
    """What a training starts from: weights, a solverstate, or (both empty) the fillers.

    `new_layers` start from their fillers whatever the weights hold.
    """

    weights: tuple[str, ...] = ()
    snapshot: str = ""
    new_layers: tuple[str, ...] = ()


def prepare(
    param: pb.SolverParameter, path: str, start: Start, ranks: Ranks, requests: Requests, log: Log
) -> Solver:
    """Set up nets and solver; raises InputError for whatever would not train, before anything is written."""
    log.info("solver.cpp:107", "Initializing solver from parameters: \n" + _text(param))
    if param.snapshot or param.snapshot_after_train:
        check_folder(param.snapshot_prefix)
    seed = param.random_seed if param.random_seed >= 0 else ranks.entropy
    generator = torch.Generator().manual_seed(seed)
    own = (seed * ranks.ranks + ranks.rank) % 2**62
    torch.manual_seed(own)
    message, source = train_net(param, path)
    log.info("solver.cpp:153", f"Creating training net from net file: {source}")
    net = Net(message, source, Feed(ranks.rank, ranks.ranks, seed, own, log), generator, log)
    groups = flatten(net, param)
    tests = []
    for index, (message, source) in enumerate(test_nets(param, path)):
        log.info("solver.cpp:249", f"Creating test net (#{index}) specified by net file: {source}")
        feed = Feed(ranks.rank, ranks.ranks, seed + index + 1, own + index + 1, log)
        tests.append(Net(message, source, feed, generator, log, net))
    log.info("solver.cpp:121", "Solver scaffolding done.")
    solver = Solver(param, net, groups, tests, ranks, requests, log)
    _begin(solver, start, log)
    return solver


def _begin(solver: Solver, start: Start, log: Log) -> None:
    """Load what the training starts from."""
    if start.snapshot:
        log.info("caffe.cpp:316", f"Resuming from {start.snapshot}")
        state = load_solverstate(start.snapshot)
        snapshot = {state.learned_net: _load(solver, state.learned_net, (), log)}
        check_complete(solver.net, snapshot, "resume with the net it was written by")
        log.info("sgd_solver.cpp:808", f"{solver.param.type}Solver: restoring history")
        copy_history(solver.net, solver.groups, state, start.snapshot)
        solver.iteration = state.iter
        solver.schedule.resume(state)
    trained, held, new = solver.net.blobs(), dict[str, list[str]](), start.new_layers
    for name in new:
        if name not in trained:
            what = f"'{name}' is no learned layer of {solver.net.path}"
            raise InputError("-new_layers", what, f"they are {', '.join(trained)}")
    for path in start.weights:
        log.info("caffe.cpp:218", f"Finetuning from {path}")
        held[path] = _load(solver, path, new, log)
    if held:
        hint = "rename it, or give -new_layers {layers} to train from fillers"
        check_complete(solver.net, held, hint, new)


def _load(solver: Solver, path: str, new: tuple[str, ...], log: Log) -> list[str]:
    """Copy a file's weights into all nets; give the names of the layers it holds."""
    weights = load_weights(path)
    held = copy_weights(solver.net, weights, path, log, new)
    trained = solver.net.blobs()
    for net in solver.test_nets:
        if net.blobs().keys() - trained:  # layers of their own, which the TRAIN net does not share
            copy_weights(net, weights, path, Log(enabled=False), new)
    return held


def _text(message: pb.SolverParameter) -> str:
    return text_format.MessageToString(message).rstrip("\n")


def run(solver: Solver, ranks: Ranks, log: Log) -> None:
    """Train; all ranks start from rank 0's blobs."""
    ranks.connect()
    for param in solver.net.params:
        ranks.broadcast(param.tensor.detach())
    log.info("caffe.cpp:342", "Starting Optimization")
    solver.solve()
    log.info("caffe.cpp:345", "Optimization Done.")
