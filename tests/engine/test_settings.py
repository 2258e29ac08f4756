"""Nets of other Caffes and of old formats run as they are; mistakes in nets and solvers are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.engine.operators.data import DataContext
from caffe_recipes.engine.settings import load_net, load_solver
from caffe_recipes.errors import InputError, PrototxtError

INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 5 dim: 5 } } }'


def load(folder: Path, text: str) -> list[tuple[str, str]]:
    """Load a net, set it up and run it; return its layers without Split layers, by name and type."""
    import torch

    (folder / "net.prototxt").write_text(text)
    path = str(folder / "net.prototxt")
    context = DataContext(0, 1, 0, 0, Log(enabled=False))
    net = RunnableNet(load_net(path), path, context, torch.Generator().manual_seed(0))
    net.forward()
    return [(node.param.name, node.param.type) for node in net.nodes if node.param.type != "Split"]


def test_a_net_of_the_old_format_is_upgraded(tmp_path: Path) -> None:
    old = 'input: "x" input_dim: 2 input_dim: 3 input_dim: 5 input_dim: 5'
    v1 = (
        'layers { name: "ip" type: INNER_PRODUCT bottom: "x" top: "y" inner_product_param { num_output: 2 } }'
    )
    assert load(tmp_path, f"{old} {v1}") == [("input", "Input"), ("ip", "InnerProduct")]


def test_a_net_of_nvidias_becomes_one_of_ours_with_the_same_meaning(tmp_path: Path) -> None:
    norm = 'layer { name: "bn" type: "BatchNorm" bottom: "x" top: "y" batch_norm_param { scale_bias: true } }'
    assert [type_ for _, type_ in load(tmp_path, INPUT + norm)] == ["Input", "BatchNorm", "Scale"]


@pytest.mark.parametrize("norm", ["", "batch_norm_param { scale_bias: true }"])
def test_number_types_of_nvidias_leave_the_net_as_it_is(tmp_path: Path, norm: str) -> None:
    half = "default_forward_type: FLOAT16 default_backward_math: FLOAT global_grad_scale: 1000"
    layer = f'layer {{ name: "bn" type: "BatchNorm" bottom: "x" top: "y" forward_type: FLOAT {norm} }}'
    scale = ["Scale"] if norm else []
    assert [type_ for _, type_ in load(tmp_path, f"{half} {INPUT} {layer}")] == ["Input", "BatchNorm", *scale]


@pytest.mark.parametrize(
    "block", ["", 'bn_param { slope_filler { type: "constant" } x: 1 }', "bn_param { bn_mode: NEW }"]
)
def test_a_bn_that_may_be_another_caffes_is_refused(tmp_path: Path, block: str) -> None:
    with pytest.raises(InputError, match="bn_"):
        load(tmp_path, f'{INPUT} layer {{ name: "b" type: "BN" bottom: "x" top: "y" {block} }}')


def test_a_field_that_an_operator_reads_is_kept_and_rounds_down(tmp_path: Path) -> None:
    param = "pooling_param { kernel_size: 2 stride: 2 round_mode: FLOOR }"
    pooling = f'layer {{ name: "p" type: "Pooling" bottom: "x" top: "y" {param} }}'
    text = 'layer { name: "c" type: "Clip" bottom: "y" top: "z" clip_param { min: -1 max: 1 } }'
    assert load(tmp_path, INPUT + pooling + text)[1:] == [("p", "Pooling"), ("c", "Clip")]


def test_all_fields_that_the_engine_does_not_know_are_named_at_once(tmp_path: Path) -> None:
    first = 'layer { name: "a" type: "ReLU" bottom: "x" top: "a" ctc_loss_param { lambda: 1 } }'
    second = 'layer { name: "b" type: "ReLU" bottom: "x" top: "b" margin_inner_product_param { x: 1 } }'
    with pytest.raises(InputError) as caught:
        load(tmp_path, INPUT + first + second)
    wanted = "fields of another Caffe that the engine does not run: LayerParameter.ctc_loss_param, "
    assert wanted + "LayerParameter.margin_inner_product_param" in str(caught.value)
    assert "\n" not in str(caught.value)


INNER = 'inner_product_param { num_output: 2 weight_filler { type: "xavier" } }'
LAYER = f'layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "y" param {{ lr_mult: 1 }} {INNER} }}'


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (
            "num_output",
            "num_outptu",
            "InnerProductParameter has no field 'num_outptu'; did you mean 'num_output'?",
        ),
        ("bottom", "botom", "LayerParameter has no field 'botom'; did you mean 'bottom'?"),
        (
            "weight_filler",
            "weight_fillr",
            "InnerProductParameter has no field 'weight_fillr'; did you mean 'weight_filler'?",
        ),
        (' type: "Inn', ' tpye: "Inn', "LayerParameter has no field 'tpye'; did you mean 'type'?"),
        ("lr_mult", "lr_mul", "ParamSpec has no field 'lr_mul'; did you mean 'lr_mult'?"),
        (
            "inner_product_param",
            "inner_product_prm",
            "LayerParameter has no field 'inner_product_prm'; did you mean 'inner_product_param'?",
        ),
        (
            "param { lr_mult: 1 }",
            "lr_mult: 1",
            "LayerParameter has no field 'lr_mult'; it is a field of ParamSpec; "
            "check for a missing or an extra brace",
        ),
        (
            "bottom",
            "my_own: 1 bottom",
            "LayerParameter has no field 'my_own'; the fields of LayerParameter are in caffe.proto",
        ),
    ],
)
def test_a_field_of_no_caffe_is_a_mistake_with_a_place(
    tmp_path: Path, right: str, wrong: str, message: str
) -> None:
    text = LAYER.replace(right, wrong, 1)
    with pytest.raises(PrototxtError) as caught:
        load(tmp_path, f"{INPUT}\n{text}")
    column = text.index(wrong.strip()) + 1
    assert str(caught.value) == f"{tmp_path}/net.prototxt:2:{column}: {message}"


def test_mistakes_in_fields_are_named_with_the_fields_of_other_caffes(tmp_path: Path) -> None:
    text = LAYER.replace("num_output", "num_outptu").replace("bottom", "ctc_loss_param { x: 1 } botom")
    with pytest.raises(PrototxtError) as caught:
        load(tmp_path, f"{INPUT}\n{text}")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/net.prototxt:2:")
    for part in ("'botom'; did you mean 'bottom'?", "'num_output'?", "LayerParameter.ctc_loss_param"):
        assert part in message


SOLVER = 'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1 snapshot_prefix: "x"'


def load_settings(folder: Path, settings: str) -> pb.SolverParameter:
    (folder / "solver.prototxt").write_text(f"{SOLVER}\n{settings}\n")
    return load_solver(str(folder / "solver.prototxt"), 0, [])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('type: "RMSProp" rms_decay: 1.5', "rms_decay is 1.5, but RMSProp needs at least 0 and below 1"),
        ('type: "RMSProp" rms_decay: 1', "rms_decay is 1, but RMSProp needs at least 0 and below 1"),
        ('type: "RMSProp" rms_decay: -1', "rms_decay is -1, but RMSProp needs at least 0 and below 1"),
        ('type: "RMSProp" delta: -1e-8', "delta is -1e-08, but RMSProp needs at least 0"),
        ('type: "AdaDelta" momentum: 1.5', "momentum is 1.5, but AdaDelta needs at least 0 and at most 1"),
        ('type: "AdaDelta" delta: 0', "delta is 0, but AdaDelta needs above 0"),
        ('type: "Adam" momentum: 1', "momentum is 1, but Adam needs above -1 and below 1"),
        ('type: "Adam" momentum: -1', "momentum is -1, but Adam needs above -1 and below 1"),
        ('type: "Adam" momentum2: 2', "momentum2 is 2, but Adam needs at least 0 and below 1"),
        ("solver_type: ADAM momentum2: 1", "momentum2 is 1, but Adam needs at least 0 and below 1"),
        ('type: "Adam" momentum2: inf', "momentum2 is inf"),
        ("momentum: nan", "momentum is nan"),
        ("weight_decay: inf", "weight_decay is inf"),
        ("delta: nan", "delta is nan"),
        ("local_gw_ratio: nan", "local_gw_ratio is nan"),
        ("clip_gradients: nan", "clip_gradients is nan"),
    ],
)
def test_a_number_that_a_solver_cannot_train_with_is_refused_with_its_place(
    tmp_path: Path, settings: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_settings(tmp_path, settings)
    field = message.partition(" ")[0]
    column = settings.index(f"{field}:") + 1
    assert caught.value.without_hint == f"{tmp_path}/solver.prototxt:2:{column}: {message}"
    assert caught.value.hint.startswith(f"write {field}: ")


@pytest.mark.parametrize(
    "settings",
    [
        'type: "RMSProp" rms_decay: 0 momentum: 0.9 delta: 0',
        'type: "AdaDelta" momentum: 1',
        'type: "Adam" momentum: -0.5 momentum2: 0 delta: 0',
        "momentum: -0.5 rms_decay: 7 momentum2: 2",
        'type: "Nesterov" momentum: 1',
        "clip_gradients: inf weight_decay: -0.1",
        "clip_gradients: -inf",
    ],
)
def test_numbers_with_a_meaning_are_kept_as_in_caffe(tmp_path: Path, settings: str) -> None:
    load_settings(tmp_path, settings)


def test_a_solver_with_a_type_of_the_old_and_the_new_format_is_refused_as_in_caffe(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_settings(tmp_path, 'type: "Adam" solver_type: SGD')
    wanted = f'{tmp_path}/solver.prototxt:2:14: has type "Adam" and solver_type SGD; keep type'
    assert str(caught.value) == wanted
