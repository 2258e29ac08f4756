"""The states in which a solver sets up its nets: phases, levels and stages."""

from __future__ import annotations

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.net_states import NetState, has_data, restrict_net, train_state
from caffe_recipes.caffe.net_states import test_states as states_of_tests
from caffe_recipes.caffe.prototxt import parse_document
from caffe_recipes.caffe.shapes import select_layers


def parse_solver(text: str) -> pb.SolverParameter:
    return parse_document(text, "s", pb.SolverParameter).message


def parse_net(text: str) -> pb.NetParameter:
    return parse_document(text, "n", pb.NetParameter).message


def test_a_solver_adds_its_stages_to_those_of_the_net() -> None:
    solver = parse_solver("train_state { stage: 'b' level: 2 } test_state { stage: 'c' } test_state { }")
    net = parse_net("state { stage: 'a' }")
    assert train_state(solver, net) == NetState(pb.TRAIN, 2, ("a", "b"))
    assert states_of_tests(solver, net) == (NetState(pb.TEST, 0, ("a", "c")), NetState(pb.TEST, 0, ("a",)))
    assert states_of_tests(parse_solver(""), parse_net("")) == (NetState(pb.TEST),)


@pytest.mark.parametrize(
    ("rule", "stages", "level", "expected"),
    [
        ("include { phase: TEST stage: 'on' }", ("on",), 0, True),
        ("include { phase: TEST stage: 'on' }", (), 0, False),
        ("exclude { stage: 'on' }", ("on",), 0, False),
        ("include { min_level: 2 }", (), 2, True),
        ("include { min_level: 2 }", (), 1, False),
    ],
)
def test_data_of_a_stage_or_level_are_there_in_it_only(
    rule: str, stages: tuple[str, ...], level: int, *, expected: bool
) -> None:
    net = parse_net(f"layer {{ name: 'd' type: 'Data' top: 'd' {rule} }}")
    assert has_data(net, NetState(pb.TEST, level, stages)) is expected


@pytest.mark.parametrize(
    ("rule", "train"),
    [
        ("", True),
        ("include { stage: 'x' }", False),
        ("include { phase: TEST }", False),
        ("include { phase: TRAIN }", True),
        ("exclude { phase: TEST }", True),
        ("exclude { phase: TRAIN }", False),
        ("exclude { stage: 'x' }", True),
    ],
)
def test_a_net_read_in_one_phase_keeps_there_what_it_has_and_nothing_in_the_other(
    rule: str, *, train: bool
) -> None:
    net = parse_net(f"layer {{ name: 'd' {rule} }}")
    only = restrict_net(net, pb.TRAIN)
    assert bool(select_layers(only, pb.TRAIN)) is train
    for stages in ((), ("x",)):
        given, kept = (select_layers(one, pb.TRAIN, stages=stages) for one in (net, only))
        assert len(kept) == len(given)
        assert not select_layers(only, pb.TEST, stages=stages)
    assert net == parse_net(f"layer {{ name: 'd' {rule} }}")
