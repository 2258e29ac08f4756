"""The state in which a solver sets up each of its nets: phase, level and stages, which choose layers."""

from __future__ import annotations

from dataclasses import dataclass

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shapes import select_layers

_NEVER = pb.NetStateRule(min_level=2**31 - 1)


@dataclass(frozen=True)
class State:
    """What a net's rules on layers are held against."""

    phase: int
    level: int = 0
    stages: tuple[str, ...] = ()


def train_state(solver: pb.SolverParameter, net: pb.NetParameter) -> State:
    """Give the state of the training net: TRAIN, then the net's own, then the solver's.

    >>> train_state(pb.SolverParameter(train_state={"stage": ["a"]}), pb.NetParameter())
    State(phase=0, level=0, stages=('a',))
    """
    return _merge(pb.TRAIN, net.state, solver.train_state)


def test_states(solver: pb.SolverParameter, net: pb.NetParameter) -> tuple[State, ...]:
    """Give the states of the test nets, one for each `test_state`; one if there is none."""
    states = solver.test_state or (pb.NetState(),)
    return tuple(_merge(pb.TEST, net.state, state) for state in states)


def select_sources(net: pb.NetParameter, state: State) -> list[pb.LayerParameter]:
    """Give the layers of a state that make blobs out of nothing: those that read data."""
    layers = select_layers(net, state.phase, state.level, state.stages)
    return [layer for layer in layers if layer.top and not layer.bottom]


def has_source(net: pb.NetParameter, state: State) -> bool:
    """Whether anything makes data in a state."""
    return bool(net.input or select_sources(net, state))


def restrict_net(net: pb.NetParameter, phase: int) -> pb.NetParameter:
    """Copy a net that is read in one phase only, with that said in the rules of each layer.

    >>> net = pb.NetParameter(layer=[{"name": "data"}])
    >>> [len(select_layers(restrict_net(net, pb.TEST), phase)) for phase in (pb.TRAIN, pb.TEST)]
    [0, 1]
    """
    copy = pb.NetParameter()
    copy.CopyFrom(net)
    layers: list[pb.LayerParameter | pb.V1LayerParameter] = [*copy.layer, *copy.layers]
    for layer in layers:
        for rule in layer.include:
            if rule.HasField("phase") and rule.phase != phase:
                rule.CopyFrom(_NEVER)  # each layer keeps its index in the file
            else:
                rule.MergeFrom(pb.NetStateRule(phase=pb.Phase.Name(phase)))
        if layer.exclude:
            layer.exclude.add(phase=pb.Phase.Name(pb.TRAIN if phase == pb.TEST else pb.TEST))
        elif not layer.include:
            layer.include.add(phase=pb.Phase.Name(phase))
    return copy


def _merge(phase: int, *states: pb.NetState) -> State:
    merged = pb.NetState()
    for state in (pb.NetState(phase=pb.Phase.Name(phase)), *states):
        merged.MergeFrom(state)
    return State(merged.phase, merged.level, tuple(merged.stage))
