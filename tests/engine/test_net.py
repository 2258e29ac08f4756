"""Nets as graphs: phases, splits, losses, shared parameters, fillers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.engine.data import Feed
from caffe_recipes.engine.fillers import fill
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.graph import filter_net, insert_splits
from caffe_recipes.engine.net import Net
from caffe_recipes.engine.updates import flatten
from caffe_recipes.errors import InputError

QUIET = Log(enabled=False)
FEED = Feed(0, 1, 0, 0, QUIET)


def make(text: str, phase: pb.Phase = pb.TRAIN) -> Net:
    param = parse_prototxt(text, pb.NetParameter)
    param.state.phase = phase
    return Net(param, "net.prototxt", FEED, torch.Generator().manual_seed(0), QUIET)


def dummy(top: str, *dims: int, filler: str = 'type: "gaussian"') -> str:
    shape = " ".join(f"dim: {dim}" for dim in dims)
    return (
        f'layer {{ name: "{top}" type: "DummyData" top: "{top}" '
        f"dummy_data_param {{ shape {{ {shape} }} data_filler {{ {filler} }} }} }}\n"
    )


def outputs(net: Net) -> dict[str, list[float]]:
    net.forward()
    values: dict[str, list[float]] = {}
    for output, value in net.scores():
        values.setdefault(output.name, []).append(value)
    return values


@pytest.mark.parametrize(
    ("rule", "state", "stays"),
    [
        ("include { phase: TRAIN }", "phase: TRAIN", True),
        ("include { phase: TEST }", "phase: TRAIN", False),
        ("exclude { phase: TEST }", "phase: TEST", False),
        ("exclude { phase: TEST }", "phase: TRAIN", True),
        ("include { phase: TEST } include { phase: TRAIN }", "phase: TRAIN", True),
        ("include { min_level: 2 }", "phase: TRAIN level: 1", False),
        ("include { min_level: 2 }", "phase: TRAIN level: 2", True),
        ("include { max_level: 2 }", "phase: TRAIN level: 3", False),
        ('include { stage: "a" stage: "b" }', 'phase: TRAIN stage: "a"', False),
        ('include { stage: "a" stage: "b" }', 'phase: TRAIN stage: "b" stage: "a"', True),
        ('include { not_stage: "a" }', 'phase: TRAIN stage: "a"', False),
        ('exclude { stage: "a" }', 'phase: TRAIN stage: "a"', False),
    ],
)
def test_rules_choose_the_layers_of_a_state(rule: str, state: str, stays: bool) -> None:
    net = parse_prototxt(f'state {{ {state} }} layer {{ name: "x" {rule} }}', pb.NetParameter)
    notes: list[str] = []
    assert bool(filter_net(net, notes.append).layer) == stays
    assert stays or not rule.startswith("include") or notes


def test_splits_bear_caffes_names() -> None:
    net = insert_splits(
        parse_prototxt(
            """
            layer { name: "in" type: "Input" top: "x" }
            layer { name: "act" type: "ReLU" bottom: "x" top: "x" }
            layer { name: "a" type: "TanH" bottom: "x" top: "a" }
            layer { name: "b" type: "TanH" bottom: "x" top: "b" }
            """,
            pb.NetParameter,
        )
    )
    assert [layer.name for layer in net.layer] == ["in", "act", "x_act_0_split", "a", "b"]
    assert list(net.layer[2].top) == ["x_act_0_split_0", "x_act_0_split_1"]
    assert (list(net.layer[3].bottom), list(net.layer[4].bottom)) == (
        ["x_act_0_split_0"],
        ["x_act_0_split_1"],
    )


def test_a_loss_that_is_used_too_moves_its_weight_to_its_first_copy() -> None:
    text = (
        dummy("p", 2, 3) + dummy("t", 2, 3)
        + 'layer { name: "loss" type: "EuclideanLoss" bottom: "p" bottom: "t" top: "loss" loss_weight: 3 }'
        + 'layer { name: "twice" type: "Power" bottom: "loss" top: "twice" power_param { scale: 2 } }'
    )  # fmt: skip
    net = make(text)
    loss = float(net.forward())
    values = {output.name: (value, output.loss_weight) for output, value in net.scores()}
    assert values["loss_loss_0_split_0"][1] == 3
    assert loss == pytest.approx(3 * values["loss_loss_0_split_0"][0])
    assert values["twice"][0] == pytest.approx(2 * values["loss_loss_0_split_0"][0])


def test_layers_of_a_stage_may_feed_others() -> None:
    staged = 'include { stage: "deep" }'
    text = (
        'state { stage: "deep" level: 3 } ' + dummy("x", 2)
        + f'layer {{ name: "y" type: "TanH" bottom: "x" top: "y" {staged} }}'
        + 'layer { name: "z" type: "TanH" bottom: "y" top: "z" include { min_level: 3 } }'
    )  # fmt: skip
    assert list(outputs(make(text))) == ["z"]


def test_outputs_are_listed_by_name() -> None:
    text = dummy("z", 1) + dummy("B", 1) + dummy("a", 1)
    assert list(outputs(make(text))) == ["B", "a", "z"]


def test_a_weight_makes_any_top_a_loss_over_its_elements() -> None:
    ones = dummy("x", 2, 3, filler="value: 1")
    text = ones + 'layer { name: "y" type: "Power" bottom: "x" top: "y" loss_weight: 0.5 }'
    assert float(make(text).forward()) == 3


def test_parameters_of_one_name_are_one_and_gather_both_gradients() -> None:
    text = (
        dummy("x", 2, 3)
        + 'layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" param { name: "w" lr_mult: 2 } '
        'inner_product_param { num_output: 3 bias_term: false weight_filler { type: "xavier" } } }'
        + 'layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" param { name: "w" } loss_weight: 1 '
        "inner_product_param { num_output: 3 bias_term: false } }"
    )
    net = make(text)
    flatten(net, pb.SolverParameter())
    assert len(net.params) == 1
    assert net.params[0].lr_mult == 2
    assert net.blobs()["a"][0] is net.blobs()["b"][0]
    net.forward().backward()
    assert net.params[0].tensor.grad is not None
    assert float(net.params[0].tensor.grad.abs().sum()) > 0


def test_parameters_of_one_name_and_two_shapes_are_refused() -> None:
    text = (
        dummy("x", 2, 3) + 'layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" param { name: "w" } '
        "inner_product_param { num_output: 4 } }"
        + 'layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" param { name: "w" } '
        "inner_product_param { num_output: 4 } }"
    )
    with pytest.raises(InputError, match=r"layer 'b' \(InnerProduct\): shares param 'w' of layer 'a'"):
        make(text)


def test_propagate_down_cuts_the_gradient() -> None:
    def gradient(cut: str) -> bool:
        net = make(
            dummy("x", 2, 3) + 'layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" '
            'inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }'
            + f'layer {{ name: "b" type: "Power" bottom: "a" top: "b" loss_weight: 1 {cut} }}'
        )
        flatten(net, pb.SolverParameter())
        return net.forward().requires_grad

    assert gradient("")
    assert not gradient("propagate_down: false")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (dummy("x", 2) + 'layer { name: "y" type: "ReLU" bottom: "z" top: "y" }', "'z'"),
        (dummy("x", 2) + dummy("x", 2), "'x'"),
        (dummy("x", 2) + 'layer { name: "y" type: "Recurrent" bottom: "x" top: "y" }', "not supported"),
        (dummy("x", 2) + 'layer { name: "y" type: "ReLU" bottom: "x" top: "y" param { } }', "1 params for 0"),
    ],
)
def test_a_net_that_cannot_be_names_its_file_and_layer(text: str, part: str) -> None:
    with pytest.raises(InputError, match=part) as caught:
        make(text)
    assert str(caught.value).startswith("net.prototxt: ")


def filled(shape: tuple[int, ...], text: str) -> np.ndarray:
    blob = torch.empty(shape)
    fill(blob, parse_prototxt(text, pb.FillerParameter), torch.Generator().manual_seed(0))
    return blob.numpy()


SHAPE = (64, 32, 5, 5)


def test_xavier_is_uniform_within_the_root_of_3_over_the_fan() -> None:
    for norm, fan in (("FAN_IN", 800), ("FAN_OUT", 1600), ("AVERAGE", 1200)):
        values = filled(SHAPE, f'type: "xavier" variance_norm: {norm}')
        assert np.abs(values).max() == pytest.approx((3 / fan) ** 0.5, rel=1e-3)
        assert values.std() == pytest.approx((1 / fan) ** 0.5, rel=0.02)


def test_msra_is_gaussian_with_the_variance_of_2_over_the_fan() -> None:
    for norm, fan in (("FAN_IN", 800), ("FAN_OUT", 1600), ("AVERAGE", 1200)):
        values = filled(SHAPE, f'type: "msra" variance_norm: {norm}')
        assert values.std() == pytest.approx((2 / fan) ** 0.5, rel=0.02)
        assert np.abs(values).max() > 3 * values.std()


def test_the_simple_fillers() -> None:
    assert (filled((3, 2), "value: 7") == 7).all()
    values = filled((100, 100), 'type: "uniform" min: -2 max: 4')
    assert (values.min(), values.max()) == (pytest.approx(-2, abs=0.01), pytest.approx(4, abs=0.01))
    values = filled((100, 100), 'type: "gaussian" mean: 3 std: 0.5')
    assert (values.mean(), values.std()) == (pytest.approx(3, abs=0.02), pytest.approx(0.5, abs=0.02))
    assert filled((9, 4, 2), 'type: "positive_unitball"').reshape(9, 8).sum(1) == pytest.approx(1, abs=1e-6)


def test_a_sparse_gaussian_keeps_few_values_for_each_output() -> None:
    values = filled((100, 500), 'type: "gaussian" sparse: 10')
    assert (values != 0).mean() == pytest.approx(0.1, abs=0.01)


def test_bilinear_interpolates() -> None:
    values = filled((1, 1, 4, 4), 'type: "bilinear"')
    line = np.array([0.25, 0.75, 0.75, 0.25])
    assert values[0, 0] == pytest.approx(np.outer(line, line))
    with pytest.raises(InputError, match="square kernels"):
        filled((3, 2), 'type: "bilinear"')
