"""A model is opened only if its files fit each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.model_folder import ModelDescription
from caffe_recipes.caffe.models import Model
from caffe_recipes.engine.opened_model import open_module
from caffe_recipes.errors import InputError
from tests.engine.test_predictor import NET, write_model


def model_of(folder: Path, net: str, crop: int = 4) -> Model:
    described = ModelDescription(name="n", classes=tuple("abcdef"), shape=(), transform={})
    transform = pb.TransformationParameter(crop_size=crop)
    return Model(*write_model(folder, net), described, transform, is_resized=False)


def test_names_are_those_of_the_scores_of_a_softmax_alone(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has 5 classes, but 6 names are given"):
        open_module(model_of(tmp_path, NET))
    other = NET.replace('type: "Softmax"', 'type: "Sigmoid"')  # e.g. an embedding of images of six classes
    assert open_module(model_of(tmp_path, other)).output_names == ("prob",)


def test_a_transform_for_images_of_another_size_is_refused(tmp_path: Path) -> None:
    other = NET.replace('type: "Softmax"', 'type: "Sigmoid"')
    with pytest.raises(InputError, match="takes images of 4 x 4, but the transform crops them to 3 x 3"):
        open_module(model_of(tmp_path, other, crop=3))
