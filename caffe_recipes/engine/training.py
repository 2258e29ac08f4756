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
from caffe_recipes.engine.snapshot import check_folder, copy_history, copy_weights
from caffe_recipes.engine.solver import Solver
from caffe_recipes.engine.updates import flatten


@dataclass(frozen=True)
class Start:
    """What a training starts from: weights, a solverstate, or (both empty) the fillers."""

    weights: tuple[str, ...] = ()
    snapshot: str = ""


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
        _load(solver, state.learned_net, log)
        log.info("sgd_solver.cpp:808", f"{solver.param.type}Solver: restoring history")
        copy_history(solver.net, solver.groups, state, start.snapshot)
        solver.iteration = state.iter
        solver.schedule.resume(state)
    for path in start.weights:
        log.info("caffe.cpp:218", f"Finetuning from {path}")
        _load(solver, path, log)


def _load(solver: Solver, path: str, log: Log) -> None:
    weights = load_weights(path)
    copy_weights(solver.net, weights, path, log)
    trained = solver.net.blobs()
    for net in solver.test_nets:
        if net.blobs().keys() - trained:  # layers of their own, which the TRAIN net does not share
            copy_weights(net, weights, path, Log(enabled=False))


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
