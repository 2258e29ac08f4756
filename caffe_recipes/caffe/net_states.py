"""The state (phase, level and stages) in which a solver sets up each of its nets."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shapes import select_layers

_NEVER_INCLUDED = pb.NetStateRule(min_level=2**31 - 1)


@dataclass(frozen=True)
class NetState:
    """The phase, level and stages that select the layers of a net (Caffe's NetState)."""

    phase: int
    level: int = 0
    stages: tuple[str, ...] = ()


def train_state(solver: pb.SolverParameter, net: pb.NetParameter) -> NetState:
    """Return the state of the training net: TRAIN, with the level and stages of the net and the solver.

    >>> train_state(pb.SolverParameter(train_state={"stage": ["a"]}), pb.NetParameter())
    NetState(phase=0, level=0, stages=('a',))
    """
    return _merge_states(pb.TRAIN, net.state, solver.train_state)


def test_states(solver: pb.SolverParameter, net: pb.NetParameter) -> tuple[NetState, ...]:
    """Return the states of the test nets: one for each `test_state`, or one if there is none."""
    states = solver.test_state or (pb.NetState(),)
    return tuple(_merge_states(pb.TEST, net.state, state) for state in states)


def select_data_layers(net: pb.NetParameter, state: NetState) -> list[pb.LayerParameter]:
    """Return the layers of a state that have tops but no bottoms: those that produce data."""
    layers = select_layers(net, state.phase, state.level, state.stages)
    return [layer for layer in layers if layer.top and not layer.bottom]


def has_data(net: pb.NetParameter, state: NetState) -> bool:
    """Return whether the net has data in a state: an `input`, or a data layer."""
    return bool(net.input or select_data_layers(net, state))


def restrict_net(net: pb.NetParameter, phase: int) -> pb.NetParameter:
    """Return a copy of a net whose layers are all in one phase only.

    >>> net = pb.NetParameter(layer=[{"name": "data"}])
    >>> [len(select_layers(restrict_net(net, pb.TEST), phase)) for phase in (pb.TRAIN, pb.TEST)]
    [0, 1]
    """
    copy = deepcopy(net)
    layers: list[pb.LayerParameter | pb.V1LayerParameter] = [*copy.layer, *copy.layers]
    for layer in layers:
        for rule in layer.include:
            if rule.HasField("phase") and rule.phase != phase:
                rule.CopyFrom(_NEVER_INCLUDED)  # so that each layer keeps its index in the file
            else:
                rule.MergeFrom(pb.NetStateRule(phase=pb.Phase.Name(phase)))
        if layer.exclude:
            layer.exclude.add(phase=pb.Phase.Name(pb.TRAIN if phase == pb.TEST else pb.TEST))
        elif not layer.include:
            layer.include.add(phase=pb.Phase.Name(phase))
    return copy


def _merge_states(phase: int, *states: pb.NetState) -> NetState:
    merged = pb.NetState()
    for state in (pb.NetState(phase=pb.Phase.Name(phase)), *states):
        merged.MergeFrom(state)
    return NetState(merged.phase, merged.level, tuple(merged.stage))


def misses_test_nets(solver: pb.SolverParameter) -> bool:
    """Return whether Caffe refuses the number of test_iter fields: only `net` may be tested unnamed.

    Source: Solver::InitTestNets, which checks this before test_state and test_interval.
    """
    tests, named = len(solver.test_iter), len(solver.test_net) + len(solver.test_net_param)
    is_train_only = solver.HasField("train_net") or solver.HasField("train_net_param")
    is_shared = solver.HasField("net") or solver.HasField("net_param")
    return tests < named or (tests > named and not is_shared and (is_train_only or named > 0))
