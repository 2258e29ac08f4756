"""Nets of other Caffes and of old formats run as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.engine.operators.data import DataContext
from caffe_recipes.engine.settings import load_net
from caffe_recipes.errors import InputError

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
    second = 'layer { name: "b" type: "ReLU" bottom: "x" top: "b" new_param { x: 1 } }'
    with pytest.raises(InputError) as caught:
        load(tmp_path, INPUT + first + second)
    wanted = "fields of another Caffe that the engine does not run: LayerParameter.ctc_loss_param, "
    assert wanted + "LayerParameter.new_param" in str(caught.value)
    assert "\n" not in str(caught.value)
