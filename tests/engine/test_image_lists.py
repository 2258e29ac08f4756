"""ImageData: images and labels from a list of files."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.image_lists import decode_listed, load_image_list
from caffe_recipes.engine.operators.data import SOURCES, DataContext, file_shapes
from caffe_recipes.engine.operators.operator import TensorShapes
from caffe_recipes.errors import DataError


@pytest.fixture
def layer(tmp_path: Path) -> pb.LayerParameter:
    for index in range(3):
        cv2.imwrite(str(tmp_path / f"image {index}.png"), np.full((4, 6, 3), 10 * index, np.uint8))
    (tmp_path / "list.txt").write_text("image 0.png 7\nimage 1.png 8\n\nimage 2.png 9\n")
    made = pb.LayerParameter(name="data", type="ImageData", top=["data", "label"])
    made.image_data_param.source = str(tmp_path / "list.txt")
    made.image_data_param.root_folder = f"{tmp_path}/"
    made.image_data_param.batch_size = 2
    return made


def test_a_layer_reads_the_images_of_a_list_with_their_labels(layer: pb.LayerParameter) -> None:
    tops = file_shapes(layer)
    assert tops == [(2, 3, 4, 6), (2,)]
    source = SOURCES["ImageData"](
        layer, TensorShapes((), (*tops,), ()), DataContext(0, 1, 0, 0, Log(enabled=False))
    )
    batches = [source.forward([], []) for _ in range(2)]
    source.close()
    assert [labels.tolist() for _, labels in batches] == [[7, 8], [9, 7]]
    assert [float(images[0, 0, 0, 0]) for images, _ in batches] == [0, 20]
    assert len(source.keys) == 2 and source.keys[0].endswith(".png")


def test_images_are_resized_and_grey_on_request(layer: pb.LayerParameter) -> None:
    layer.image_data_param.new_height, layer.image_data_param.new_width = 5, 2
    layer.image_data_param.is_color = False
    assert decode_listed(layer, load_image_list(layer)[0]).shape == (5, 2, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a.png\n", "line 1 is not a path, a space and a label"),
        ("a.png x\n", "line 1 is not a path, a space and a label"),
        ("a.png 0.5\n", "line 1 is not a path, a space and a label"),
        ("image 0.png 0\na.png 1\nb.png 1\n", "2 images of 3 not found, such as"),
        ("image 0.png 0\n" + "a" * 5000 + " 1\n", "1 image of 2 not found, such as"),
    ],
)
def test_a_bad_list_is_refused_in_one_line(layer: pb.LayerParameter, text: str, message: str) -> None:
    Path(layer.image_data_param.source).write_text(text)
    with pytest.raises(DataError, match=message):
        load_image_list(layer)


def test_a_file_that_is_not_an_image_is_named(layer: pb.LayerParameter, tmp_path: Path) -> None:
    (tmp_path / "image 0.png").write_text("no image")
    with pytest.raises(DataError, match=r"record 'image 0\.png' is not an image"):
        file_shapes(layer)
