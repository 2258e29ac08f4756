"""Settings of one layer that stop Caffe, from the checks in its sources."""

from __future__ import annotations

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types import LAYER_TYPES
from caffe_recipes.caffe.refusals import find_filler_refusals
from tests.caffe.layer_types.conftest import rules_of


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('type: "SoftmaxWithLoss" top: "loss" top: "prob"', "loss-weight-count"),
        ('type: "SoftmaxWithLoss" top: "loss" top: "prob" loss_weight: 1', "loss-weight-count"),
        ('type: "Sigmoid" sigmoid_param { engine: CUDNN }', "engine-unknown"),
        ('type: "LRN" lrn_param { beta: nan }', "value-not-finite"),
        ('type: "Exp" exp_param { shift: inf }', "value-not-finite"),
        ('type: "Data" data_param { batch_size: 4294967295 }', "value-overflows"),
    ],
)
def test_nets_that_stop_caffe_are_refused(text: str, rule: str) -> None:
    assert rules_of(text) == [rule]


@pytest.mark.parametrize(
    "text",
    [
        'type: "SoftmaxWithLoss" top: "loss" top: "prob" loss_weight: 1 loss_weight: 0',
        'type: "SoftmaxWithLoss" loss_weight: 1',
        'type: "Data" data_param { batch_size: 2 rand_skip: 4294967295 }',
    ],
)
def test_nets_that_caffe_runs_are_accepted(text: str) -> None:
    assert rules_of(text) == []


def test_an_unknown_engine_stops_the_types_that_read_theirs_and_no_others() -> None:
    engines = {name: entry.block for name, entry in LAYER_TYPES.items() if entry.has_engine}
    assert len(engines) == 15
    for type_, block in engines.items():
        assert rules_of(f'type: "{type_}" engine: "FOO"') == ["engine-unknown"]
        assert rules_of(f'type: "{type_}"', net_engine="FOO") == ["engine-unknown"]
        assert rules_of(f'type: "{type_}" engine: "FOO" {block} {{ engine: CAFFE }}') == []
        assert rules_of(f'type: "{type_}" engine: "MKLDNN:CPU,FPGA"', net_engine="FOO") == []
    assert rules_of('type: "PReLU" engine: "FOO"') == []


@pytest.mark.parametrize(
    ("filler", "rule"),
    [
        (pb.FillerParameter(type="gaussian", std=-1), ["filler-range"]),
        (pb.FillerParameter(type="gaussian", std=0), ["filler-range"]),
        (pb.FillerParameter(type="gaussian", std=float("nan")), ["filler-range"]),
        (pb.FillerParameter(type="gaussian", sparse=-2), ["filler-sparse"]),
        (pb.FillerParameter(type="msra", scale=0), ["filler-range"]),
        (pb.FillerParameter(type="xavier", scale=0), []),
        (pb.FillerParameter(type="uniform", min=1, max=0), ["filler-range"]),
        (pb.FillerParameter(type="xavier", sparse=2), ["filler-sparse"]),
        (pb.FillerParameter(type="gaussian", sparse=2), []),
        (pb.FillerParameter(type="uniform", min=1, max=1), []),
        (pb.FillerParameter(type="constant", std=-1), []),
    ],
)
def test_fillers_that_caffe_stops_at_are_refused(filler: pb.FillerParameter, rule: list[str]) -> None:
    assert [refusal.rule for refusal in find_filler_refusals(filler)] == rule
