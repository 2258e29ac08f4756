"""Failures of one rank in passes in which the ranks wait for each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.engine.communication import AgreedFailure, Ranks
from caffe_recipes.engine.operators.data import DataContext
from caffe_recipes.engine.operators.operator import BatchStatistics
from caffe_recipes.engine.signal_requests import SignalRequests
from caffe_recipes.engine.solver import Solver
from caffe_recipes.engine.updates import flatten_params
from caffe_recipes.errors import CaffeRecipesError
from tests.engine.operators.test_data import QUIET, make_net

ALONE = DataContext(0, 1, 0, 0, QUIET)
TOGETHER = replace(ALONE, statistics=BatchStatistics(2, lambda tensor: None))


def scores(label: float, best: float) -> str:
    """Return a net with a loss of two classes, whose second one has a score, and a label."""
    shape = "shape { dim: 2 dim: 1 }"
    fillers = (("a", 0.0), ("b", best), ("label", label))
    inputs = "".join(
        f'layer {{ name: "{top}" type: "DummyData" top: "{top}" '
        f"dummy_data_param {{ {shape} data_filler {{ value: {value} }} }} }}"
        for top, value in fillers
    )
    return inputs + (
        'layer { name: "all" type: "Concat" bottom: "a" bottom: "b" top: "all" }'
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "all" bottom: "label" top: "loss" }'
    )


def solve(train: str, test: str, context: DataContext, solver: str) -> None:
    common = 'base_lr: 0.1 lr_policy: "fixed" type: "SGD" snapshot_after_train: false test_iter: 1'
    param = parse_prototxt(f"{common} {solver}", pb.SolverParameter)
    net = make_net(train, context)
    tests = [make_net(test, context, pb.TEST)]
    Solver(param, net, flatten_params(net, param), tests, Ranks(), SignalRequests(), QUIET).solve()


GOOD, NO_CLASS, SATURATED = scores(0, 1), scores(7, 1), scores(0, 1000)


@pytest.mark.parametrize(
    ("train", "test", "solver", "what"),
    [
        (NO_CLASS, GOOD, "max_iter: 1", "label 7"),
        (SATURATED, GOOD, "max_iter: 20", "for 10 passes in a row"),
        (NO_CLASS, GOOD, "max_iter: 0 display: 1", "label 7"),  # the pass after the last update
        (GOOD, NO_CLASS, "max_iter: 0 test_interval: 1", "label 7"),
    ],
)
def test_a_rank_that_fails_in_a_pass_ends_at_once_where_the_others_may_wait_in_it(
    train: str, test: str, solver: str, what: str
) -> None:
    with pytest.raises(CaffeRecipesError, match=what):  # which aborts the others
        solve(train, test, TOGETHER, solver)
    with pytest.raises(AgreedFailure, match=what):
        solve(train, test, ALONE, solver)


def test_a_loss_that_is_not_finite_is_agreed_on_after_the_pass() -> None:
    infinite = (
        'layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 1 } '
        "data_filler { value: 1e30 } } }"
        'layer { name: "l" type: "Reduction" bottom: "x" top: "l" loss_weight: 1 '
        "reduction_param { operation: SUMSQ } }"
    )
    with pytest.raises(AgreedFailure, match="the loss is inf"):
        solve(infinite, GOOD, TOGETHER, "max_iter: 1")
