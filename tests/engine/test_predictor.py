"""A predictor transforms images as phase TEST does, and predicts what the net of phase TEST predicts."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.weights import save_message
from caffe_recipes.engine.predictor import Predictor
from caffe_recipes.errors import DataError, InputError

NET = """layer { name: "data" type: "Input" top: "data"
  input_param { shape { dim: 1 dim: 3 dim: 4 dim: 4 } } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 5 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""
TRANSFORM = pb.TransformationParameter(crop_size=4, mirror=True, mean_value=[10, 20, 30], scale=0.02)


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
    predictor = Predictor(*paths, TRANSFORM)
    image = np.random.default_rng(2).integers(0, 256, (6, 8, 3), np.uint8)
    cv2.imwrite(str(tmp_path / "i.png"), image)
    made = predictor.prepare(tmp_path / "i.png")
    crop = image[1:5, 2:6].astype(np.float32)
    np.testing.assert_allclose(made, ((crop - [10, 20, 30]) * 0.02).transpose(2, 0, 1), atol=1e-6)
    reader = cv2.dnn.readNetFromCaffe(*map(str, paths))
    reader.setInput(made[None])
    np.testing.assert_allclose(predictor.predict([made, made])[1], reader.forward()[0], atol=1e-6)


def test_a_grey_image_is_taken_as_colour(tmp_path: Path) -> None:
    predictor = Predictor(*write_model(tmp_path), TRANSFORM)
    cv2.imwrite(str(tmp_path / "grey.png"), np.full((4, 4), 7, np.uint8))
    np.testing.assert_allclose(predictor.prepare(tmp_path / "grey.png")[2], (7 - 30) * 0.02, atol=1e-6)


def test_files_that_are_no_images_are_refused(tmp_path: Path) -> None:
    predictor = Predictor(*write_model(tmp_path), TRANSFORM)
    (tmp_path / "x.png").write_text("not an image")
    cv2.imwrite(str(tmp_path / "small.png"), np.zeros((2, 2, 3), np.uint8))
    for name, what in (("x", "is not an image"), ("small", "smaller than crop_size 4"), ("none", "No such")):
        with pytest.raises(DataError, match=what):
            predictor.prepare(tmp_path / f"{name}.png")


def test_a_net_that_is_no_classifier_is_refused(tmp_path: Path) -> None:
    two = NET + 'layer { name: "a" type: "ReLU" bottom: "data" top: "a" }\n'
    two = two.replace('"Softmax"', '"Sigmoid"')
    with pytest.raises(InputError, match="does not predict one score for each class"):
        Predictor(*write_model(tmp_path, two), TRANSFORM)
