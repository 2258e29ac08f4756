"""A recipe's nets: its own data layers, its builder or the user's net, and comments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.errors import RecipeError
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.render.prototxts import build_net, render_net

MakeRecipe = Callable[..., Recipe]


def test_text_and_message_of_every_net_agree(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    for name in recipe.nets:
        assert parse_prototxt(render_net(recipe, name), pb.NetParameter) == build_net(recipe, name)


def test_the_header_lists_the_phases_that_train_the_net(make_recipe: MakeRecipe) -> None:
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


def test_unset_side_and_shuffle_omit_their_fields(make_recipe: MakeRecipe) -> None:
    def change(raw: dict[str, Any]) -> None:
        del raw["data"]["test"]["shorter_side_px"], raw["data"]["train"]["prefetch"], raw["data"]["scale"]
        raw["data"]["train"]["shuffle"] = False

    train, test = build_net(make_recipe(change), "train_val").layer[:2]
    assert not test.transform_param.HasField("random_resize_param")
    assert not train.data_param.HasField("shuffle")
    assert not train.data_param.HasField("prefetch")
    assert not train.transform_param.HasField("scale")


def transforms(recipe: Recipe) -> list[pb.TransformationParameter]:
    return [layer.transform_param for layer in build_net(recipe, "train_val").layer[:2]]


def test_a_mean_file_and_the_colours_are_those_of_both_parts(make_recipe: MakeRecipe) -> None:
    def change(raw: dict[str, Any]) -> None:
        del raw["data"]["mean_value"]
        raw["data"] |= {"mean_file": "mean.binaryproto", "force_color": True, "force_gray": False}

    for param in transforms(make_recipe(change)):
        assert (param.mean_file, param.force_color, param.HasField("force_gray")) == (
            "mean.binaryproto",
            True,
            True,
        )


def test_a_part_s_own_keys_replace_those_of_data(make_recipe: MakeRecipe) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["data"]["test"] |= {"mean_value": [1], "scale": 0.5}
        raw["data"]["train"] |= {"mirror": True}

    train, test = transforms(make_recipe(change))
    assert (list(test.mean_value), test.scale, test.mirror) == ([1], 0.5, False)
    assert (list(train.mean_value), train.scale, train.mirror) == ([104, 117, 123], 0.0078125, True)


def test_a_mirror_of_null_leaves_the_field_out(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(lambda raw: raw["data"].update(mirror=None))
    assert not any(param.HasField("mirror") for param in transforms(recipe))


def test_only_the_training_data_are_mirrored_by_data(make_recipe: MakeRecipe) -> None:
    train, test = transforms(make_recipe(lambda raw: raw["data"].update(mirror=True)))
    assert (train.mirror, test.mirror, test.HasField("mirror")) == (True, False, True)


def test_the_zero_fillers_of_a_net_are_explained(make_recipe: MakeRecipe) -> None:
    text = render_net(make_recipe(), "train_val")
    assert text.count("filler { value: 0 } # the block starts as its shortcut") == 2


def test_an_unknown_net_is_refused_with_the_nearest(make_recipe: MakeRecipe) -> None:
    with pytest.raises(RecipeError, match="no net 'train_vall' under `nets`; did you mean 'train_val'"):
        build_net(make_recipe(), "train_vall")
