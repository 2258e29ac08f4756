"""The residual nets: their blocks, their names, and what the options change."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest

from caffe_recipes.caffe import layers as L  # noqa: N812 - as net definitions write it
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.nets import BUILDERS, NetOptions, resnet50, resnet_small
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.net_keys import Builder

OPTIONS = NetOptions(
    classes=1000,
    input_px=224,
    batch_norm_fraction=0.95,
    zero_init="last-block",
    conv1_filler={"type": "xavier"},
    conv_filler={"type": "msra"},
    classifier_filler={"type": "gaussian", "std": 0.01},
)


def images(px: int) -> list[pb.LayerParameter]:
    transform = {"crop_size": px, "mean_value": [104, 117, 123]}
    return [L.data(source="lmdb", batch_size=1, phase="TRAIN", transform_param=transform)]


def zeroed(net: pb.NetParameter) -> list[str]:
    norms = (layer for layer in net.layer if layer.type == "BatchNorm")
    return [layer.name for layer in norms if layer.batch_norm_param.filler.value == 0]


# He et al.'s learned values, and the bias that these nets' conv1 has; convolutions with the projections.
@pytest.mark.parametrize(
    ("builder", "values", "convolutions"),
    [
        ("resnet18", 11_689_512, 20),
        ("resnet34", 21_797_672, 36),
        ("resnet50", 25_557_032, 53),
        ("resnet101", 44_549_160, 104),
        ("resnet152", 60_192_808, 155),
    ],
)
def test_each_depth_has_the_published_learned_values(builder: str, values: int, convolutions: int) -> None:
    net = BUILDERS[builder]("n", images(224), OPTIONS)
    shapes = infer_shapes(net, pb.TRAIN, images=lambda source: (3, 256, 256))
    learned = sum(
        math.prod(dim or 0 for dim in shape)
        for found in shapes.layers
        if found.layer.type != "BatchNorm"
        for shape in found.learned or ()
    )
    assert learned == values + 64
    assert sum(found.layer.type == "Convolution" for found in shapes.layers) == convolutions
    assert shapes.blobs["pool5"] is not None
    assert shapes.blobs["pool5"][-1] == 1


def test_deeper_nets_number_the_blocks_of_their_middle_stages_as_published() -> None:
    names = {
        builder: [layer.name for layer in BUILDERS[builder]("n", images(224), OPTIONS).layer]
        for builder in ("resnet101", "resnet152")
    }
    for builder, last in (("resnet101", ("res3b3", "res4b22")), ("resnet152", ("res3b7", "res4b35"))):
        assert {"res2c", "res3a", *last, "res5c"} <= {*names[builder]}
        assert len({*names[builder]}) == len(names[builder])


def test_a_shallow_net_projects_only_where_its_blobs_change_shape() -> None:
    layers = {layer.name: layer for layer in BUILDERS["resnet18"]("n", images(224), OPTIONS).layer}
    assert [name for name in layers if name.endswith("_branch1") and name.startswith("res")] == [
        "res3a_branch1", "res4a_branch1", "res5a_branch1",
    ]  # fmt: skip
    assert list(layers["res2a"].bottom) == ["pool1", "res2a_branch2b"]
    strides = [layers[f"res3a_branch2{which}"].convolution_param.stride for which in "ab"]
    assert [list(stride) for stride in strides] == [[2], [1]]


def test_every_builder_of_a_recipe_is_one_of_these() -> None:
    assert set(get_args(Builder)) == set(BUILDERS)


def test_each_stage_halves_the_image_and_the_last_pooling_takes_all_of_it() -> None:
    blobs = infer_shapes(resnet50("n", images(224), OPTIONS), pb.TRAIN).blobs
    sides = {
        name: shape[-1]
        for name in ("pool1", "res2c", "res3d", "res4f", "res5c", "pool5")
        if (shape := blobs[name])
    }
    assert sides == {"pool1": 56, "res2c": 56, "res3d": 28, "res4f": 14, "res5c": 7, "pool5": 1}


@pytest.mark.parametrize(
    ("build", "px"), [(resnet50, 192), (resnet50, 288), (resnet_small, 28), (resnet_small, 33)]
)
def test_another_image_size_is_pooled_to_one_value_too(
    build: Callable[..., pb.NetParameter], px: int
) -> None:
    net = build("n", images(px), replace(OPTIONS, input_px=px))
    assert infer_shapes(net, pb.TRAIN).blobs["pool5"] in [(1, 2048, 1, 1), (1, 64, 1, 1)]


def test_zero_init_starts_the_named_blocks_as_their_shortcut() -> None:
    assert zeroed(resnet50("n", images(224), replace(OPTIONS, zero_init="none"))) == []
    assert zeroed(resnet50("n", images(224), OPTIONS)) == [
        f"bn{block}_branch2c" for block in ("2c", "3d", "4f", "5c")
    ]
    assert len(zeroed(resnet50("n", images(224), replace(OPTIONS, zero_init="every-block")))) == 16


def test_fillers_and_fraction_go_where_they_belong() -> None:
    net = resnet_small("n", images(28), replace(OPTIONS, input_px=28, batch_norm_fraction=0.5))
    by_name = {layer.name: layer for layer in net.layer}
    assert by_name["conv1"].convolution_param.weight_filler.type == "xavier"
    assert by_name["res2a_branch1"].convolution_param.weight_filler.type == "msra"
    assert by_name["fc1000"].inner_product_param.weight_filler.type == "gaussian"
    norms = [layer for layer in net.layer if layer.type == "BatchNorm"]
    assert {layer.batch_norm_param.moving_average_fraction for layer in norms} == {0.5}


@pytest.mark.parametrize("classes", [4, 5])
def test_top_5_is_omitted_for_few_classes(classes: int) -> None:
    names = [
        layer.name
        for layer in resnet_small("n", images(28), replace(OPTIONS, classes=classes, input_px=28)).layer
    ]
    assert names[-1] == "loss3/top-1"
    assert f"fc{classes}" in names


def test_images_too_small_for_the_net_are_refused() -> None:
    with pytest.raises(InputError, match=r"net 'n': layer 'pool1' .* the input is 1 px; use larger images"):
        resnet_small("n", images(1), replace(OPTIONS, input_px=1))
