"""Nets as graphs: phases, splits, losses, shared parameters, fillers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.engine.fillers import fill
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.engine.operators.data import DataContext
from caffe_recipes.engine.splits import filter_net, insert_splits
from caffe_recipes.engine.updates import flatten_params
from caffe_recipes.errors import CaffeRecipesError, InputError
from tests.engine.conftest import needs_gpu
from tests.engine.random_nets import random_net

QUIET = Log(enabled=False)
FEED = DataContext(0, 1, 0, 0, QUIET)


def make(text: str, phase: pb.Phase = pb.TRAIN, shared: RunnableNet | None = None) -> RunnableNet:
    param = parse_prototxt(text, pb.NetParameter)
    param.state.phase = phase
    return RunnableNet(param, "net.prototxt", FEED, torch.Generator().manual_seed(0), shared)


def dummy(top: str, *dims: int, filler: str = 'type: "gaussian"') -> str:
    shape = " ".join(f"dim: {dim}" for dim in dims)
    return (
        f'layer {{ name: "{top}" type: "DummyData" top: "{top}" '
        f"dummy_data_param {{ shape {{ {shape} }} data_filler {{ {filler} }} }} }}\n"
    )


def outputs(net: RunnableNet) -> dict[str, list[float]]:
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
    flatten_params(net, pb.SolverParameter())
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
        flatten_params(net, pb.SolverParameter())
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
def test_an_impossible_net_is_reported_with_file_and_layer(text: str, part: str) -> None:
    with pytest.raises(InputError, match=part) as caught:
        make(text)
    assert str(caught.value).startswith("net.prototxt: ")


def filled(shape: tuple[int, ...], text: str) -> np.ndarray:
    blob = torch.empty(shape)
    fill(blob, parse_prototxt(text, pb.FillerParameter), torch.Generator().manual_seed(0))
    return blob.numpy()


SHAPE = (64, 32, 5, 5)


FIVE_SCORES = (
    'layer { name: "ip" type: "InnerProduct" bottom: "a" top: "s" inner_product_param { num_output: 5 } }\n'
)
LABEL_LOSS = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "s" bottom: "label" top: "l" '


@pytest.mark.parametrize(
    "layers",
    [
        FIVE_SCORES + LABEL_LOSS + "propagate_down: true propagate_down: true }",
        FIVE_SCORES + 'layer { name: "m" type: "ArgMax" bottom: "s" top: "m" loss_weight: 1 }',
    ],
)
def test_a_gradient_that_would_go_back_where_caffe_has_no_backward_pass_is_refused(layers: str) -> None:
    text = dummy("a", 4, 5) + dummy("label", 4, filler='type: "constant"') + layers
    with pytest.raises(
        InputError, match=r"has no backward pass to bottom\[\d\], but the loss needs its gradient"
    ):
        make(text)
    make(text, pb.TEST)


def test_a_label_of_data_needs_no_gradient() -> None:
    make(dummy("a", 4, 5) + dummy("label", 4, filler='type: "constant"') + FIVE_SCORES + LABEL_LOSS + "}")


NAMED_X = (
    'layer { name: "x" type: "InnerProduct" bottom: "a" top: "a2" inner_product_param { num_output: 2 } }\n'
)
RELU_X = 'layer { name: "x" type: "ReLU" bottom: "a" top: "a3" }\n'


@pytest.mark.parametrize(
    "layers", [NAMED_X + RELU_X, RELU_X + NAMED_X, NAMED_X + NAMED_X.replace("a2", "a4")]
)
def test_a_net_whose_snapshots_could_not_be_loaded_is_refused(layers: str) -> None:
    with pytest.raises(InputError, match=r"layer 'x' .* has the same name as another layer"):
        make(dummy("a", 4, 5) + layers)


def test_two_layers_of_one_name_that_learn_nothing_run() -> None:
    make(dummy("a", 4, 5) + RELU_X + RELU_X.replace("a3", "a4"))


def test_blobs_that_the_hosts_memory_cannot_hold_are_refused_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("caffe_recipes.limits.os.sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 79}.get)
    text = dummy("data", 4, 5)
    with pytest.raises(InputError, match=r"layer 'data' \(DummyData\): needs 0 GiB for its blobs"):
        make(text)
    monkeypatch.setattr("caffe_recipes.limits.os.sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 80}.get)
    make(text)


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


def test_the_scale_of_a_filler_widens_msra_and_no_other() -> None:
    wide = filled(SHAPE, 'type: "msra" scale: 3')
    assert wide == pytest.approx(3 * filled(SHAPE, 'type: "msra"'), rel=1e-5)
    assert (filled(SHAPE, 'type: "xavier" scale: 3') == filled(SHAPE, 'type: "xavier"')).all()


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


LABELS = dummy("label", 4, filler='type: "constant"')
SCORES = dummy("data", 4, 5)
IP = """layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
"""


def loss(more: str, bottoms: str = 'bottom: "ip" bottom: "label"') -> str:
    return f'layer {{ name: "loss" type: "SoftmaxWithLoss" {bottoms} {more} }}\n'


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (SCORES + LABELS + dummy("w", 3) + IP + loss('bottom: "w" top: "l"'), "one weight for each label"),
        (
            dummy("a", 2, 3, 4, 4)
            + dummy("b", 2, 3, 4, 4)
            + 'layer { name: "c" type: "Convolution" bottom: "a" bottom: "b" top: "c" '
            "convolution_param { num_output: 2 kernel_size: 1 } }",
            "produces 2 tops, not 1",
        ),
        (SCORES + IP.replace('type: "xavier"', 'type: "gaussian" std: -1'), "gaussian filler of std -1"),
        (SCORES + LABELS + IP + loss('top: "l" top: "p"'), "no loss_weight and 2 tops"),
        (
            dummy("data", 4, 5, 2, 2)
            + dummy("label", 16)
            + loss('top: "l"', 'bottom: "data" bottom: "label"'),
            "the same first dimension",
        ),
        (dummy("x", 2, 3) + 'layer { name: "r" type: "ReLU" bottom: "x" }', "'r' .ReLU.: has no top"),
        (dummy("x", 3) + 'layer { name: "f" type: "Flatten" bottom: "x" top: "x" }', "over its bottom 'x'"),
        (dummy("x", 3) + 'layer { name: "n" type: "BatchNorm" bottom: "x" top: "y" }', "axis 1"),
        (
            SCORES
            + LABELS
            + IP
            + loss('top: "l" top: "p" loss_weight: 1 loss_weight: 0')
            + 'layer { name: "more" type: "Power" bottom: "l" top: "m" }',
            "clears its loss_weight and stops; leave out the layers that read it, or",
        ),
        (SCORES + 'engine: "FOO" ' + IP, "engine 'FOO' of the net"),
    ],
)
def test_errors_of_caffe_or_torch_are_found_at_set_up(text: str, part: str) -> None:
    with pytest.raises(InputError, match=part) as caught:
        make(text)
    assert str(caught.value).startswith("net.prototxt: ")


def test_all_unsupported_layers_are_named() -> None:
    text = dummy("x", 2) + "".join(
        f'layer {{ name: "{name}" type: "{type_}" bottom: "x" top: "{name}" }}\n'
        for name, type_ in (("a", "PriorBox"), ("b", "Python"), ("c", "Python"))
    )
    with pytest.raises(InputError) as caught:
        make(text)
    assert caught.value.where == "net.prototxt: layer 'a' (PriorBox), layer 'b' (Python), layer 'c' (Python)"
    assert caught.value.what == "types 'PriorBox', 'Python' are not supported"


def test_an_index_without_a_row_is_named_as_one() -> None:
    filler = 'data_filler { type: "constant" value: 7 }'
    text = (
        f'layer {{ name: "i" type: "DummyData" top: "i" dummy_data_param {{ shape {{ dim: 2 }} {filler} }} }}'
    )
    embed = (
        'layer { name: "e" type: "Embed" bottom: "i" top: "e" embed_param { num_output: 2 input_dim: 5 } }'
    )
    with pytest.raises(InputError, match="layer 'e': index 7 is not one of 0 to 4"):
        make(text + embed).forward()


def test_a_loss_without_a_top_gets_one_that_counts_and_is_not_an_output() -> None:
    named = make(SCORES + LABELS + IP + loss('top: "l"'))
    bare = make(SCORES + LABELS + IP + loss(""))
    assert float(bare.forward()) == float(named.forward()) > 0
    assert [output.name for output in named.outputs] == ["l"]
    assert bare.outputs == []


def test_the_phase_of_a_layer_overrides_that_of_the_net() -> None:
    ones = dummy("x", 100, filler="value: 1")
    drop = 'layer {{ name: "d" type: "Dropout" bottom: "x" top: "y" {} }}'
    assert set(outputs(make(ones + drop.format("phase: TEST")))["y"]) == {1.0}
    assert set(outputs(make(ones + drop.format("")))["y"]) == {0.0, 2.0}
    assert set(outputs(make(ones + drop.format("phase: TRAIN"), pb.TEST))["y"]) == {0.0, 2.0}
    norm = 'layer { name: "n" type: "BatchNorm" bottom: "x" top: "y" phase: TEST }'
    net = make(dummy("x", 4, 3, 2, 2) + norm)
    net.forward()
    assert float(net.blobs()["n"][2]) == 0  # no statistics are taken


@pytest.mark.parametrize(("own", "want"), [("", 2), ("batch_norm_param { stats_batch_size: 4 }", 2)])
def test_bn_stats_batch_size_of_the_net_overrides_that_of_its_layers(own: str, want: int) -> None:
    norm = f'layer {{ name: "n" type: "BatchNorm" bottom: "x" top: "y" {own} }}'
    net = make(f"bn_stats_batch_size: {want} " + dummy("x", 4, 3, 2, 2) + norm)
    net.forward()
    parts = 4 // want
    assert float(net.blobs()["n"][2]) == pytest.approx(sum(0.999**i for i in range(parts)))
    off = make("bn_stats_batch_size: 0 " + dummy("x", 4, 3, 2, 2) + norm)
    off.forward()
    assert float(off.blobs()["n"][2]) == 1


READER = 'layer { name: "more" type: "Power" bottom: "l" top: "m" power_param { scale: 3 } loss_weight: 1 }\n'


def gradients(net: RunnableNet, passes: int) -> list[tuple[float, float]]:
    """Run passes; give each loss as it is printed, and the sum of the gradient's magnitudes."""
    groups = flatten_params(net, pb.SolverParameter(lr_policy="fixed", type="SGD"))
    found = []
    for _ in range(passes):
        for group in groups:
            group.grads.zero_()
        value = net.forward()
        value.backward()
        found.append((value.item(), sum(float(group.grads.abs().sum()) for group in groups)))
    return found


def test_a_read_loss_counts_in_print_and_gradient_as_it_does_in_caffe() -> None:
    one = "dummy_data_param { shape { dim: 4 dim: 5 } data_filler { value: 1 } }"
    fixed = f'layer {{ name: "data" type: "DummyData" top: "data" {one} }}\n' + LABELS + IP
    [(single, pull)] = gradients(make(fixed + loss('top: "l"')), 1)
    # Written, and read by none who sends a gradient: the first copy has the weight, and the loss itself gets
    # one again, where the gradient of the copies lands from then on.
    silent = 'layer { name: "s" type: "Silence" bottom: "l" }\n'
    first, second = gradients(make(fixed + loss('top: "l" loss_weight: 2') + silent), 2)
    assert first == pytest.approx((3 * single, 2 * pull), rel=1e-5)
    assert second == pytest.approx((4 * single, 2 * pull), rel=1e-5)
    # Not written: no copies; what reads it sends its own gradient instead of the weight.
    first, second = gradients(make(fixed + loss('top: "l"') + READER), 2)
    assert first == pytest.approx((4 * single, 3 * pull), rel=1e-5)
    assert second == pytest.approx((6 * single, 3 * pull), rel=1e-5)


def test_an_implicit_loss_that_one_layer_reads_gets_no_split() -> None:
    text = """layer { name: "loss" type: "EuclideanLoss" bottom: "a" bottom: "b" top: "l" loss_weight: %s }
    layer { name: "s" type: "Silence" bottom: "l" }"""
    inputs = 'layer { name: "in" type: "Input" top: "a" top: "b" }'
    bare = insert_splits(parse_prototxt(inputs + text.replace("loss_weight: %s", ""), pb.NetParameter))
    assert [layer.type for layer in bare.layer] == ["Input", "EuclideanLoss", "Silence"]
    written = insert_splits(parse_prototxt(inputs + text % 3, pb.NetParameter))
    assert [layer.type for layer in written.layer] == ["Input", "EuclideanLoss", "Split", "Silence"]
    assert list(written.layer[1].loss_weight) == []
    assert list(written.layer[2].loss_weight) == [3, 0]
    assert list(written.layer[3].bottom) == ["l_loss_0_split_1"]


def shared(first: str, second: str, outputs: int = 3, trained: RunnableNet | None = None) -> RunnableNet:
    ip = 'layer {{ name: "{0}" type: "InnerProduct" bottom: "{1}" top: "{0}" param {{ name: "w" {2} }} '
    more = (
        "inner_product_param {{ num_output: {3} bias_term: false weight_filler {{ type: 'xavier' }} }} }}\n"
    )
    text = (
        dummy("x", 4, 6)
        + dummy("z", 4, 6 * 3 // outputs)
        + (ip + more).format("a", "x", first, 3)
        + (ip + more).format("b", "z", second, outputs)
    )
    return make(text, shared=trained)


def test_a_rate_written_where_a_param_is_shared_only_is_taken() -> None:
    [param] = shared("", "lr_mult: 3 decay_mult: 2").params
    assert (param.lr_mult, param.decay_mult) == (3, 2)
    with pytest.raises(InputError, match="with a different lr_mult"):
        shared("lr_mult: 1", "lr_mult: 3")


def test_a_permissive_share_needs_the_same_count_only() -> None:
    net = shared("", "share_mode: PERMISSIVE", outputs=9)
    flatten_params(net, pb.SolverParameter(type="SGD"))
    net.keeps_blobs = True
    net.forward()
    assert net.learned_shapes() == {"a": ((3, 6),), "b": ((9, 2),)}
    a, b = (next(node for node in net.nodes if node.param.name == name) for name in "ab")
    x, got = (net.value(place) for place in (b.bottoms[0], b.tops[0]))
    assert torch.allclose(got, x @ a.blobs[0].detach().reshape(9, 2).T, atol=1e-6)
    with pytest.raises(InputError, match="give both the same shape"):
        shared("", "", outputs=9)


def test_a_test_net_shares_a_blob_in_the_shape_that_each_layer_sees() -> None:
    net = shared("", "share_mode: PERMISSIVE", outputs=9)
    test = shared("", "share_mode: PERMISSIVE", outputs=9, trained=net)
    assert test.learned_shapes() == net.learned_shapes()
    test.forward()


NORM = """
layer { name: "ip" type: "InnerProduct" bottom: "a" top: "ip" inner_product_param { num_output: 3 } }
layer { name: "bn" type: "BatchNorm" bottom: "ip" top: "bn" }
layer { name: "sc" type: "Scale" bottom: "bn" top: "sc" propagate_down: false
  scale_param { bias_term: true } }
layer { name: "l" type: "EuclideanLoss" bottom: "sc" bottom: "b" top: "l" }
"""


def test_a_scale_after_a_batch_norm_that_sends_no_gradient_down_sends_none() -> None:
    net = make(dummy("a", 4, 5) + dummy("b", 4, 3) + NORM)
    flatten_params(net, pb.SolverParameter(type="SGD"))
    net.forward().backward()
    blobs = net.blobs()
    assert all(blob.grad is None or not blob.grad.any() for blob in blobs["ip"])
    assert any(blob.grad is not None and blob.grad.any() for blob in blobs["sc"])


def run_random(seed: int, device: str) -> list[Tensor]:
    """Return the outputs of two passes through the net of a seed, and the gradients of the second one."""
    param = random_net(seed)
    param.state.phase = pb.TRAIN
    generator = torch.Generator().manual_seed(0)
    net = RunnableNet(param, "net.prototxt", replace(FEED, device=device), generator)
    flatten_params(net, pb.SolverParameter(type="SGD"))
    for _ in range(2):
        loss = net.forward()
        if loss.requires_grad:
            loss.backward()
    values = [net.value(output.index) for output in net.outputs]
    grads = [param.tensor.grad for param in net.params if param.tensor.grad is not None]
    return [each.detach().cpu() for each in (*values, *grads)]


@needs_gpu
def test_random_nets_have_the_same_outputs_and_gradients_on_a_gpu() -> None:
    compared = 0
    for seed in range(1000):
        try:
            on_cpu = run_random(seed, "cpu")
        except CaffeRecipesError:
            continue
        if any(layer.type == "Dropout" for layer in random_net(seed).layer):
            continue  # which elements are dropped depends on the device
        for mine, its in zip(run_random(seed, "cuda:0"), on_cpu, strict=True):
            assert torch.allclose(mine, its, rtol=1e-4, atol=1e-5, equal_nan=True), seed
        compared += 1
    assert compared > 60


def test_random_nets_run_or_are_refused_in_one_line() -> None:
    ran = 0
    for seed in (*range(360), 3582, 9735):  # the last two ended in tracebacks
        param = random_net(seed)
        param.state.phase = pb.TRAIN
        try:
            net = RunnableNet(param, "net.prototxt", FEED, torch.Generator().manual_seed(0))
            flatten_params(net, pb.SolverParameter(type="SGD"))
            for _ in range(2):
                loss = net.forward()
                if loss.requires_grad:
                    loss.backward()
            ran += 1
        except CaffeRecipesError as error:
            assert "please report it" not in str(error), seed
            assert "\n" not in str(error)
    assert ran > 20


def test_only_what_is_printed_or_needed_by_the_backward_pass_outlives_a_pass() -> None:
    net = make(dummy("data", 4, 5) + LABELS + IP + loss('top: "l"'))
    scores = next(node.tops[0] for node in net.nodes if node.param.type == "InnerProduct")
    net.forward()
    assert net.value(scores).numel() == 0
    assert [output.name for output, _ in net.scores()] == ["l"]
    net.keeps_blobs = True
    net.forward()
    assert net.value(scores).numel() > 0
