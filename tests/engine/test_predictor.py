"""A predictor transforms images as phase TEST does, and predicts what the net of phase TEST predicts."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.model_folder import ModelDescription
from caffe_recipes.caffe.models import Model
from caffe_recipes.caffe.weights import save_message
from caffe_recipes.engine.predictor import Predictor
from caffe_recipes.errors import DataError, InputError

NET = """layer { name: "data" type: "Input" top: "data"
  input_param { shape { dim: 1 dim: 3 dim: 4 dim: 4 } } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 5 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""
TRANSFORM = pb.TransformationParameter(crop_size=4, mirror=True, mean_value=[10, 20, 30], scale=0.02)


def predictor_of(
    files: tuple[Path, Path],
    transform: pb.TransformationParameter = TRANSFORM,
    classes: tuple[str, ...] | None = None,
    is_resized: bool = False,
) -> Predictor:
    described = ModelDescription(name="n", classes=classes, shape=(), transform={})
    return Predictor(Model(*files, described, transform, is_resized))


def write_model(folder: Path, net: str = NET) -> tuple[Path, Path]:
    random = np.random.default_rng(1)
    weights = pb.NetParameter()
    layer = weights.layer.add(name="fc", type="InnerProduct")
    for shape in ((5, 48), (5,)):
        layer.blobs.add(shape=pb.BlobShape(dim=shape), data=random.normal(size=shape).ravel().tolist())
    save_message(weights, folder / "w.caffemodel")
    (folder / "deploy.prototxt").write_text(net)
    return folder / "deploy.prototxt", folder / "w.caffemodel"


def test_the_centre_of_an_image_is_predicted_as_opencv_does(tmp_path: Path) -> None:
    paths = write_model(tmp_path)
    predictor = predictor_of(paths)
    image = np.random.default_rng(2).integers(0, 256, (6, 8, 3), np.uint8)
    cv2.imwrite(str(tmp_path / "i.png"), image)
    made = predictor.prepare(tmp_path / "i.png")
    crop = image[1:5, 2:6].astype(np.float32)
    np.testing.assert_allclose(made, ((crop - [10, 20, 30]) * 0.02).transpose(2, 0, 1), atol=1e-6)
    reader = cv2.dnn.readNetFromCaffe(*map(str, paths))
    reader.setInput(made[None])
    np.testing.assert_allclose(predictor.predict([made, made])[1], reader.forward()[0], atol=1e-6)


def test_a_grey_image_is_taken_as_colour(tmp_path: Path) -> None:
    predictor = predictor_of(write_model(tmp_path))
    cv2.imwrite(str(tmp_path / "grey.png"), np.full((4, 4), 7, np.uint8))
    np.testing.assert_allclose(predictor.prepare(tmp_path / "grey.png")[2], (7 - 30) * 0.02, atol=1e-6)


def test_files_that_are_no_images_are_refused(tmp_path: Path) -> None:
    predictor = predictor_of(write_model(tmp_path))
    (tmp_path / "x.png").write_text("not an image")
    cv2.imwrite(str(tmp_path / "small.png"), np.zeros((2, 2, 3), np.uint8))
    for name, what in (("x", "is not an image"), ("small", "smaller than crop_size 4"), ("none", "No such")):
        with pytest.raises(DataError, match=what):
            predictor.prepare(tmp_path / f"{name}.png")


def test_a_net_that_is_no_classifier_is_refused(tmp_path: Path) -> None:
    two = NET + 'layer { name: "a" type: "ReLU" bottom: "data" top: "a" }\n'
    two = two.replace('"Softmax"', '"Sigmoid"')
    with pytest.raises(
        InputError, match=r"one score for each class of an image, but prob \(1x5\), a \(1x3x4x4\); "
    ):
        predictor_of(write_model(tmp_path, two))


def test_images_of_loose_files_are_resized_and_classes_ranked(tmp_path: Path) -> None:
    plain = pb.TransformationParameter(mean_value=[1, 2, 3])
    files = write_model(tmp_path)
    predictor = predictor_of(files, plain, tuple("abcde"), is_resized=True)
    cv2.imwrite(str(tmp_path / "i.png"), np.full((9, 7, 3), 50, np.uint8))
    made = predictor.prepare(tmp_path / "i.png")
    np.testing.assert_allclose(made, np.array([49, 48, 47]).reshape(3, 1, 1) + np.zeros((3, 4, 4)), atol=1e-4)
    rows = predictor.rank(made, 5)
    scores = predictor.predict([made])[0]
    assert [row.number for row in rows] == np.argsort(-scores, kind="stable").tolist()
    assert {row.name for row in rows} == set("abcde")
    for is_resized, names in ((False, "abcdef"), (True, "abcdef"), (True, "ab")):
        with pytest.raises(InputError, match=f"has 5 classes, but {len(names)} names are given"):
            predictor_of(files, plain, tuple(names), is_resized=is_resized)
    handed_on = predictor_of(files, plain, ("ant", "bee"))  # a run names the classes that its data have
    assert {row.name for row in handed_on.rank(made, 5)} == {"ant", "bee", "class 2", "class 3", "class 4"}


def test_an_input_that_is_not_an_image_is_refused(tmp_path: Path) -> None:
    files = write_model(tmp_path, NET.replace("dim: 3 dim: 4 dim: 4", "dim: 48"))
    with pytest.raises(InputError, match=r"takes data \(1x48\), not one image; give a net that"):
        predictor_of(files)
