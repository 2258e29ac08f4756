"""The data layers of a recipe's nets: one for TRAIN, and one for TEST where the net has it."""

from __future__ import annotations

from collections.abc import Sequence

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layers import data
from caffe_recipes.caffe.messages import FieldValue
from caffe_recipes.recipe.model import NetVariant, RandomAspectRatio, Recipe


def build_data_layers(
    recipe: Recipe, variant: NetVariant, name: str = "data", tops: Sequence[str] = ("data", "label")
) -> list[pb.LayerParameter]:
    """Build the data layers of one net; crops and mirrors are random in TRAIN only."""
    train, test = recipe.data.train, recipe.data.test
    layers = [
        data(
            name,
            tops,
            phase="TRAIN",
            source=train.lmdb,
            batch_size=recipe.cluster.batch_per_rank,
            prefetch=train.prefetch,
            shuffle=train.shuffle or None,
            transform_param=_transform(recipe, mirror=recipe.data.mirror)
            | {"random_aspect_ratio_param": _aspect_ratio(variant.random_aspect_ratio)},
        )
    ]
    if variant.test:
        side, interpolation = test.shorter_side_px, {"interp_mode": test.interp_mode}
        resize = side and {"min_size": side, "max_size": side, "resize_param": interpolation}
        layers.append(
            data(
                name,
                tops,
                phase="TEST",
                source=test.lmdb,
                batch_size=test.batch_size,
                transform_param=_transform(recipe, mirror=False) | {"random_resize_param": resize},
            )
        )
    return layers


def _transform(recipe: Recipe, *, mirror: bool) -> dict[str, FieldValue]:
    fixed = recipe.data
    return {
        "mirror": mirror,
        "crop_size": fixed.crop_size,
        "scale": fixed.scale,
        "mean_value": fixed.mean_value,
    }


def _aspect_ratio(ratio: RandomAspectRatio | None) -> dict[str, FieldValue] | None:
    if ratio is None:
        return None
    return {
        "min_area_ratio": ratio.min_area_ratio,
        "max_area_ratio": ratio.max_area_ratio,
        "aspect_ratio_change": ratio.aspect_ratio_change,
        "resize_param": {"interp_mode": ratio.interp_mode},
    }
