"""A recipe's nets: its own data layers, its builder or the user's net, and comments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.errors import RecipeError
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.render.nets import build_net, render_net

MakeRecipe = Callable[..., Recipe]


def test_text_and_message_of_every_net_agree(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    for name in recipe.nets:
        assert parse_prototxt(render_net(recipe, name), pb.NetParameter) == build_net(recipe, name)


def test_the_header_says_which_phases_train_the_net(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    assert render_net(recipe, "train_val").splitlines()[1] == (
        "# train_val: for init, cyc1, cyc2, cyc3, the evaluation."
    )


def test_augmentation_and_a_test_layer_are_the_variant_s(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    train, test = build_net(recipe, "train_val").layer[:2]
    assert train.transform_param.HasField("random_aspect_ratio_param")
    assert test.include[0].phase == pb.TEST
    assert test.transform_param.random_resize_param.max_size == 32
    only, conv1 = build_net(recipe, "train_val_noaug").layer[:2]
    assert not only.transform_param.HasField("random_aspect_ratio_param")
    assert conv1.name == "conv1"


def test_no_side_and_no_shuffle_leave_their_fields_out(make_recipe: MakeRecipe) -> None:
    def change(raw: dict[str, Any]) -> None:
        del raw["data"]["test"]["shorter_side_px"], raw["data"]["train"]["prefetch"], raw["data"]["scale"]
        raw["data"]["train"]["shuffle"] = False

    train, test = build_net(make_recipe(change), "train_val").layer[:2]
    assert not test.transform_param.HasField("random_resize_param")
    assert not train.data_param.HasField("shuffle")
    assert not train.data_param.HasField("prefetch")
    assert not train.transform_param.HasField("scale")


def test_a_zero_that_only_one_engine_knows_is_pointed_at(make_recipe: MakeRecipe) -> None:
    text = render_net(make_recipe(), "train_val")
    assert text.count("filler { value: 0 } # the block starts as its shortcut") == 2


def test_an_unknown_net_is_refused_with_the_nearest(make_recipe: MakeRecipe) -> None:
    with pytest.raises(RecipeError, match="no net 'train_vall' under `nets`; did you mean 'train_val'"):
        build_net(make_recipe(), "train_vall")


def test_a_builder_without_a_crop_is_refused(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(lambda raw: raw["data"].pop("crop_size"))
    with pytest.raises(RecipeError, match=r"net\.builder resnet_small needs data\.crop_size"):
        build_net(recipe, "train_val")
